#!/usr/bin/env python3
"""Daemons: in which order they come, how they end, where they listen."""

import os
import pathlib
import re
import signal
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # tests/
import harness
from harness import FAILURE_TIMEOUT_S, until


class Order(harness.ClusterTest):
    SERVERS = 0

    def reserve_address(self):
        self.cluster.address = f"127.0.0.1:{harness.free_port()}"

    def workers_wait(self):
        for i in range(2):
            self.cluster.start_probe(f"w{i}", 2, "--steps=10")
        until(lambda: f"waiting for the scheduler at {self.cluster.address}" in self.cluster.text("w0"), "w0 to wait")

    def server_waits(self):
        # Not `ready`: it is ready once it has joined.
        self.cluster.start("server-0", "paceline-server", f"--scheduler={self.cluster.address}", "--name=server-0")
        until(lambda: f"waiting for the scheduler at {self.cluster.address}" in self.cluster.text("server-0"),
              "the server to wait")

    def scheduler_last(self, *waiters):
        self.reserve_address()
        for wait in waiters:
            wait()
            time.sleep(FAILURE_TIMEOUT_S + 0.5)  # longer apart than the failure timeout is the point
        self.cluster.start_scheduler()
        self.ends_well("w0", "w1")

    def test_workers_first_then_servers_then_the_scheduler(self):
        self.scheduler_last(self.workers_wait, self.server_waits)

    def test_servers_first_then_workers_then_the_scheduler(self):
        self.scheduler_last(self.server_waits, self.workers_wait)

    def test_scheduler_first_workers_apart_servers_last(self):
        self.cluster.start_scheduler()
        self.cluster.start_probe("w0", 2, "--steps=10")
        until(lambda: "waiting for job 'job' to take it in (2 workers" in self.cluster.text("w0"), "w0 to say it waits")
        time.sleep(FAILURE_TIMEOUT_S + 0.5)
        self.cluster.start_probe("w1", 2, "--steps=10")
        until(lambda: "no server has joined" in self.cluster.text("scheduler"), "the scheduler to say what is missing")
        until(lambda: "no server has joined yet" in self.cluster.text("w1"), "w1 to say whom it waits for")
        time.sleep(FAILURE_TIMEOUT_S + 0.5)
        self.cluster.start_server("server-0")
        self.ends_well("w0", "w1")


class Ending(harness.ClusterTest):
    def test_each_daemon_ends_on_each_signal_and_holds_no_port(self):
        for how in (signal.SIGINT, signal.SIGTERM):
            addresses = [self.cluster.address, *(re.findall(r"serving at (\S+)", self.cluster.text(name))[-1]
                                                 for name in ("server-0", "server-1"))]
            for name in ("server-0", "server-1", "scheduler"):
                began = time.monotonic()
                self.cluster.kill(name, how)
                self.assertEqual(self.cluster.wait(name, 5), 0, self.cluster.log(name))
                self.assertLess(time.monotonic() - began, 5)
            for host, port in (address.rsplit(":", 1) for address in addresses):
                with socket.socket() as again:
                    again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    again.bind((host, int(port)))
            self.cluster.start_daemons(2)

    def test_a_worker_leaves_on_a_signal(self):
        for how in (signal.SIGINT, signal.SIGTERM):
            for i in range(2):
                self.cluster.start_probe(f"w{i}", 2, job=how.name)
            self.cluster.until_step(["w0", "w1"], 5)
            self.cluster.kill("w0", how)
            self.assertEqual(self.cluster.wait("w0", 5), 0)
            self.cluster.until_members(["w1"], 1)
            self.stop("w1")
            for i in range(2):
                (self.cluster.folder / f"w{i}.log").unlink()


    def test_a_worker_leaves_on_a_signal_while_the_scheduler_is_away(self):
        for i in range(2):
            self.cluster.start_probe(f"w{i}", 2)
        self.cluster.until_step(["w0", "w1"], 5)
        self.cluster.kill("scheduler", signal.SIGKILL)
        self.cluster.kill("w0", signal.SIGTERM)
        self.assertEqual(self.cluster.wait("w0", 5), 0)
        self.assertIn("ends without a word from the scheduler", self.cluster.text("w0"))
        # Nobody waits for it, and the next scheduler does without it.
        last = self.cluster.step("w1")
        self.cluster.until_step(["w1"], last + 5)
        self.cluster.start_scheduler()
        self.cluster.until_members(["w1"], 1)
        self.stop("w1")

    def test_everything_is_told_to_end_at_once(self):
        for i in range(2):
            self.cluster.start_probe(f"w{i}", 2)
        self.cluster.until_step(["w0", "w1"], 5)
        daemons, workers = ("scheduler", "server-0", "server-1"), ("w0", "w1")
        for name in (*daemons, *workers):
            self.cluster.kill(name, signal.SIGTERM)
        end = time.monotonic() + 5
        for name in (*daemons, *workers):
            code = self.cluster.wait(name, max(0.1, end - time.monotonic()))
            # A worker may hear in time that the job has ended with its servers, which is an error.
            self.assertIn(code, (0,) if name in daemons else (0, 1), self.cluster.log(name))


class ReadOnly(harness.ClusterTest):
    SERVERS = 0

    def test_a_state_directory_that_cannot_be_written(self):
        self.cluster.start_scheduler()
        self.cluster.kill("scheduler", signal.SIGTERM)
        self.assertEqual(self.cluster.wait("scheduler", 5), 0)
        state = self.cluster.folder / "state"
        before = {path.name: path.read_bytes() for path in state.iterdir()}
        self.assertTrue(before)
        self.cluster.place = lambda name: harness.read_only(state)
        self.cluster.start("scheduler", "paceline-scheduler", "--listen=127.0.0.1:0", "--state-dir=state")
        self.assertEqual(self.cluster.wait("scheduler", 10), 1, self.cluster.log("scheduler"))
        error = self.cluster.text("scheduler").splitlines()[-1]
        cause = "Read-only file system" if os.geteuid() == 0 else "Permission denied"
        for part in ("paceline-scheduler: ", "state_dir 'state'", cause, "--state-dir"):
            self.assertIn(part, error)
        self.assertEqual({path.name: path.read_bytes() for path in state.iterdir()}, before)


class Addresses(harness.ClusterTest):
    SERVERS = 0

    def train(self):
        for i in range(2):
            self.cluster.start_probe(f"w{i}", 2, "--steps=5")
        self.ends_well("w0", "w1")

    def test_bound_to_all_interfaces_and_advertised_by_name(self):
        self.cluster.start_scheduler()
        self.assertRegex(self.cluster.start_server("server-0", "--bind=0.0.0.0:0", "--insecure", "--advertise=localhost"),
                         r"^localhost:\d+$")
        self.train()

    def test_ipv6_loopback(self):
        self.cluster.address = f"[::1]:{harness.free_port('::1')}"
        self.cluster.start_scheduler()
        self.assertRegex(self.cluster.start_server("server-0", "--bind=[::1]:0"), r"^\[::1\]:\d+$")
        self.train()

    def test_two_interfaces(self):
        self.cluster.start_scheduler()
        self.cluster.start_server("server-0", "--bind=127.0.0.1:0")
        self.cluster.start_server("server-1", "--bind=127.0.0.2:0")
        self.train()

    def test_a_taken_port_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.cluster.start("scheduler", "paceline-scheduler", f"--listen={address}", "--state-dir=state")
            self.assertNotEqual(self.cluster.wait("scheduler", 10), 0)
            self.assertIn(address, self.cluster.text("scheduler"))
            self.cluster.start("scheduler", "paceline-scheduler", "--listen=127.0.0.1:0", "--state-dir=state2")
            self.cluster.start("server", "paceline-server", f"--bind={address}", "--scheduler=127.0.0.1:1")
            self.assertNotEqual(self.cluster.wait("server", 10), 0)
            self.assertIn(address, self.cluster.text("server"))


if __name__ == "__main__":
    harness.main()
