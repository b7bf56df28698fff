#!/usr/bin/env python3
"""Chunks move to other servers while jobs run. Every step of every probe checks each weight."""

import os
import pathlib
import re
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # tests/
import harness
from harness import until


class Moves(harness.ClusterTest):
    MODEL = ("--elements=200000", "--tensors=8", "--chunk-bytes=65536")  # 6.4 MB in 104 chunks

    LARGE = ("--elements=600000", "--tensors=4", "--chunk-bytes=1048576")  # 9.6 MB; a chunk is five pieces

    def start_training(self, workers, *flags, model=MODEL):
        names = [f"w{i}" for i in range(workers)]
        for name in names:
            self.cluster.start_probe(name, workers, *model, "--sample-count=1000000", "--epochs=100000", *flags)
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
        names = self.start_training(3, "--groups=2,1", model=self.LARGE)
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

    def test_a_server_that_dies_while_it_drains_is_waited_for_no_longer(self):
        self.start_training(2)
        self.cluster.kill("server-0", signal.SIGSTOP)  # gives nothing away, and is dead after the failure timeout
        self.cluster.start("drain", "pacelinectl", "drain", "server-0", f"--scheduler={self.cluster.address}")
        self.assertEqual(self.cluster.wait("drain", 10), 1)
        self.assertIn("server server-0 died while it was drained", self.cluster.text("drain"))

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
        self.cluster.until_members(["w0", "w1"], 2)
        # Nothing arrives at a server that is stopped; well below its own failure_timeout.
        self.cluster.kill("server-1", signal.SIGSTOP)
        self.cluster.start("drain", "pacelinectl", "drain", "server-0", f"--scheduler={self.cluster.address}")
        until(lambda: self.cluster.events("move"), "chunks to move")
        self.assertEqual(self.cluster.events("moved"), [])
        self.cluster.kill("scheduler")
        self.cluster.start_scheduler()
        self.assertEqual(self.cluster.events("moved"), [])
        self.cluster.kill("server-1", signal.SIGCONT)
        self.cluster.until_members(["w0", "w1"], 2)
        until(lambda: self.state_of("server-0") == "drained", lambda: self.cluster.log("scheduler"))
        self.cluster.start_probe("w2", 3, *self.MODEL, "--sample-count=1000000", "--epochs=100000")
        self.cluster.until_members(names, 3)
        self.exact(names)


def seconds_to_send(length):
    """Of so many bytes through a socket on loopback, here and now."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        begin = time.monotonic()
        thread = threading.Thread(target=sender.sendall, args=(bytes(length),))
        thread.start()
        while length > 0:
            length -= len(receiver.recv(1 << 20))
        thread.join()
        receiver.close()
        return time.monotonic() - begin


class Pairs(harness.ClusterTest):
    """PACELINE_MOVES and PACELINE_PAIRS choose how often; `make move-test` runs what is promised."""

    MODEL = ("--elements=200000", "--tensors=8", "--chunk-bytes=65536", "--step-ms=20")  # 6.4 MB
    EACH_S = 3

    def longest_step(self, name, moves):
        """Of a run in which server-2 joins and drains so many times, without moving the bytes; or of one as long."""
        probes = [f"{name}-{i}" for i in range(3)]
        for probe in probes:
            self.cluster.start_probe(probe, 3, *self.MODEL, job=name)
        self.cluster.until_step(probes, 10)
        began = time.monotonic()
        spent = 0
        for i in range(moves or int(os.environ.get("PACELINE_MOVES", "1"))):
            if moves:
                self.cluster.start_server("server-2")
                until(lambda: any(n["name"] == "server-2" and n["chunks"] > 20
                                  for n in self.cluster.ask("nodes")["nodes"]),
                      lambda: "server-2 to own its share\n" + self.cluster.log("scheduler") + self.cluster.log("server-2"))
                reply = self.cluster.ctl("drain", "server-2")
                self.assertEqual(reply.returncode, 0, reply.stderr)
                self.cluster.kill("server-2", signal.SIGTERM)
                self.assertEqual(self.cluster.wait("server-2", 5), 0)
            until(lambda: time.monotonic() - began >= self.EACH_S * (i + 1), "the next move")
        longest = max(self.cluster.longest_gap(probe, began) for probe in probes)
        if moves:
            batches = [int(n) for text in self.cluster.events("move", name) for n in re.findall(r"\((\d+) bytes\)", text)]
            self.assertGreaterEqual(len(batches), 2 * moves)
            spent = seconds_to_send(max(batches))
            print(f"{len(batches)} batches of at most {max(batches)} bytes; these take {spent * 1000:.1f} ms", flush=True)
        self.stop(*probes)
        return longest - spent

    def test_the_longest_step_is_that_of_undisturbed_runs(self):
        moves = int(os.environ.get("PACELINE_MOVES", "1"))
        harness.compare(self, int(os.environ.get("PACELINE_PAIRS", "1")),
                        lambda pair: self.longest_step(f"quiet-{pair}", 0),
                        lambda pair: self.longest_step(f"moved-{pair}", moves))


if __name__ == "__main__":
    harness.main()
