#!/usr/bin/env python3
"""Chunks move to other servers while jobs run. Every step of every probe checks each weight."""

import signal
import time

import harness
from harness import until


class Moves(harness.ClusterTest):
    MODEL = ("--elements=200000", "--tensors=8", "--chunk-bytes=65536")  # 6.4 MB in 104 chunks

    def start_training(self, workers, *flags):
        names = [f"w{i}" for i in range(workers)]
        for name in names:
            self.cluster.start_probe(name, workers, *self.MODEL, "--sample-count=1000000", "--epochs=100000", *flags)
        self.cluster.until_step(names, 20)
        return names

    def state_of(self, server):
        nodes = self.cluster.ask("nodes")["nodes"]
        return {n["name"]: n["state"] for n in nodes}.get(server)

    def exact(self, names):
        self.stop(*names)
        job = self.samples_are_accounted_for()
        self.assertEqual(job["samples_discarded"], 0)

    def test_a_server_drains_and_ends_while_the_job_runs(self):
        names = self.start_training(3, "--groups=2,1")
        began = time.monotonic()
        reply = self.cluster.ctl("drain", "server-0")
        self.assertEqual(reply.returncode, 0, reply.stderr)
        self.assertEqual(self.state_of("server-0"), "drained")
        step = self.cluster.step("w0")
        self.cluster.until_step(names, step + 20)
        self.cluster.kill("server-0", signal.SIGTERM)
        self.assertEqual(self.cluster.wait("server-0", 5), 0)
        step = self.cluster.step("w0")
        self.cluster.until_step(names, step + 20)
        # Nobody waited for a timeout; batches of a few megabytes take a fraction of a second.
        for name in names:
            self.assertLess(self.cluster.longest_gap(name, began), harness.FAILURE_TIMEOUT_S)
        self.exact(names)

    def test_a_server_that_joins_gets_its_share_and_the_last_one_cannot_drain(self):
        names = self.start_training(2)
        self.cluster.start_server("server-2")
        until(lambda: self.cluster.events("moved"), "chunks to arrive")
        owned = lambda: {n["name"]: n["chunks"] for n in self.cluster.ask("nodes")["nodes"] if n["chunks"]}
        # 104 chunks: a third and 10 %. Of the bytes it is 5 %, and the last chunk of each tensor is small.
        until(lambda: len(owned()) == 3 and max(owned().values()) <= 38,
              lambda: f"an even spread: {owned()}\n{self.cluster.log('scheduler')}")
        for server in ("server-0", "server-1"):
            self.assertEqual(self.cluster.ctl("drain", server).returncode, 0)
        refused = self.cluster.ctl("drain", "server-2")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("no other server could take its chunks", refused.stderr)
        self.assertEqual(self.cluster.ctl("drain", "server-0", "--undo").returncode, 0)
        until(lambda: set(owned()) == {"server-0", "server-2"}, "server-0 to own chunks again")
        self.exact(names)

    def test_a_worker_dies_and_the_scheduler_restarts_while_chunks_move(self):
        names = self.start_training(3)
        self.cluster.kill("w2")
        self.cluster.start("drain", "pacelinectl", "drain", "server-0", f"--scheduler={self.cluster.address}")
        time.sleep(0.3)
        self.cluster.kill("scheduler")
        self.cluster.start_scheduler()
        self.cluster.until_members(["w0", "w1"], 2)
        until(lambda: self.state_of("server-0") == "drained", lambda: self.cluster.log("scheduler"))
        self.cluster.start_probe("w2", 3, *self.MODEL, "--sample-count=1000000", "--epochs=100000")
        self.cluster.until_members(names, 3)
        self.exact(names)


if __name__ == "__main__":
    harness.main()
