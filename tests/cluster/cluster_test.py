#!/usr/bin/env python3
"""The real programs on 127.0.0.1: train, kill, restart, interrupt. cluster_test.py --bin FOLDER [TEST]..."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(".")
TRAINING_SAMPLES = 55_000
FAILURE_TIMEOUT_S = 1.5
PATIENCE_S = 90


def until(condition, what, seconds=PATIENCE_S):
    """Waits for the condition; returns its value and how long that took."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        value = condition()
        if value:
            return value, time.monotonic() - begin
        time.sleep(0.05)  # between two looks, not in place of one
    raise AssertionError(f"waited {seconds} s for: {what}")


class Cluster:
    """A scheduler, servers and workers, each a process with a log; all end with it."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="paceline-cluster-"))
        self.processes = {}
        self.address = None

    def start(self, name, program, *flags, ready=False):
        command = [str(BIN / program), *flags]
        descriptors, end = (), None
        if ready:
            begin, end = os.pipe()
            os.set_inheritable(end, True)
            command.append(f"--ready-fd={end}")
            descriptors = (end,)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                    cwd=self.folder, pass_fds=descriptors)
        if not ready:
            return None
        os.close(end)
        with os.fdopen(begin) as pipe:
            address = pipe.readline().strip()
        assert address, f"{name} did not start: {self.log(name)}"
        return address

    def start_scheduler(self):
        self.address = self.start("scheduler", "paceline-scheduler", f"--listen={self.address or '127.0.0.1:0'}",
                                  "--state-dir=state", ready=True)

    def start_server(self, name):
        self.start(name, "paceline-server", f"--scheduler={self.address}", f"--name={name}", ready=True)

    def start_worker(self, index, workers, *flags):
        self.start(f"w{index}", "paceline-worker", f"--scheduler={self.address}", "--job=job",
                   f"--workers={workers}", f"--name=w{index}", f"--index={index}",
                   f"--failure-timeout-ms={int(FAILURE_TIMEOUT_S * 1000)}", "--step-time-ms=10", *flags)

    def kill(self, name, how=signal.SIGKILL):
        self.processes[name].send_signal(how)
        if how == signal.SIGKILL:
            self.processes[name].wait()

    def wait(self, name):
        return self.processes[name].wait(timeout=PATIENCE_S)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def ask(self, command):
        reply = subprocess.run([str(BIN / "pacelinectl"), command, "job", "--json", f"--scheduler={self.address}"],
                               capture_output=True, text=True)
        if reply.returncode != 0:
            return None
        if command == "events":
            return [json.loads(line) for line in reply.stdout.splitlines()]
        return json.loads(reply.stdout)["jobs"][0]

    def step(self, group):
        """The step of a group; 0 when it is not there."""
        view = self.ask("groups")
        steps = {g["group"]: g["step"] for g in view["groups"]} if view else {}
        return steps.get(group, 0)

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        shutil.rmtree(self.folder)


class ClusterTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        self.cluster.start_scheduler()
        for name in ("server-a", "server-b"):
            self.cluster.start_server(name)

    def ends_well(self, names):
        for name in names:
            self.assertEqual(self.cluster.wait(name), 0, self.cluster.log(name))

    def all_samples_are_accounted_for(self, epochs):
        """What was drawn is applied, discarded or returned, and every epoch is whole."""
        job, _ = until(lambda: (lambda j: j and j["state"] == "finished" and j)(self.cluster.ask("jobs")),
                       "the job to be finished")
        self.assertEqual(job["samples_drawn"],
                         job["samples_applied"] + job["samples_discarded"] + job["samples_returned"], job)
        self.assertEqual(job["samples_applied"] + job["samples_discarded"], epochs * TRAINING_SAMPLES, job)
        return job

    def test_groups_train_without_waiting_for_each_other(self):
        for index in range(4):
            self.cluster.start_worker(index, 4, "--groups=3,1", "--epochs=1", "--slowdown=1,1,1,3")
        self.ends_well(["w0", "w1", "w2", "w3"])
        job = self.all_samples_are_accounted_for(epochs=1)
        self.assertEqual(job["samples_discarded"], 0)
        # Counted update by update, and by the formula from versions alone (docs/staleness.md).
        staleness = self.cluster.ask("staleness")
        self.assertEqual(len(staleness["by_group"]), 2)
        for group in staleness["by_group"]:
            self.assertEqual(group["sum"], group["formula_sum"], group)
        accuracy = {m["worker"]: m["value"] for m in job["metrics"] if m["name"] == "test_accuracy"}
        self.assertEqual(len(accuracy), 4)
        self.assertEqual(len(set(accuracy.values())), 1, "all workers end with the same weights")
        self.assertGreater(min(accuracy.values()), 0.75)

    def test_a_worker_is_killed_twice_and_comes_back(self):
        for index in range(3):
            self.cluster.start_worker(index, 3, "--epochs=2")
        until(lambda: self.cluster.step(0) >= 20, "20 steps")
        for _ in range(2):
            self.cluster.kill("w1")
            before = self.cluster.step(0)
            _, seconds = until(lambda: self.cluster.step(0) > before + 2, "the survivors to go on")
            # Promised: failure timeout + 1 s + one exchange. A second more for what asking takes.
            self.assertLess(seconds, FAILURE_TIMEOUT_S + 2)
            self.cluster.start_worker(1, 3, "--epochs=2")
            until(lambda: (self.cluster.ask("jobs") or {}).get("workers_live") == 3, "w1 to be back")
        self.ends_well(["w0", "w1", "w2"])
        self.all_samples_are_accounted_for(epochs=2)

    def test_the_scheduler_is_killed_and_training_goes_on(self):
        for index in range(3):
            self.cluster.start_worker(index, 3, "--groups=2,1", "--epochs=2")
        until(lambda: self.cluster.step(0) >= 20, "20 steps")
        members = self.cluster.ask("groups")["groups"]
        self.cluster.kill("scheduler")
        self.cluster.start_scheduler()
        after, _ = until(lambda: self.cluster.ask("groups"), "the scheduler to answer again")
        self.assertEqual([g["members"] for g in after["groups"]], [g["members"] for g in members])
        self.ends_well(["w0", "w1", "w2"])
        self.all_samples_are_accounted_for(epochs=2)
        self.assertNotIn("fence", {event["kind"] for event in self.cluster.ask("events")})


class LauncherTest(unittest.TestCase):
    def test_ctrl_c_ends_everything(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="paceline-launch-"))
        self.addCleanup(shutil.rmtree, folder)
        launcher = subprocess.Popen([str(BIN / "pacelinectl"), "run", "--workers=2", "--servers=2", "--output=run", "--",
                                     str(BIN / "paceline-worker"), "--epochs=100"], cwd=folder, start_new_session=True,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(launcher.kill)
        summary = folder / "run" / "summary.json"
        state, _ = until(lambda: (lambda s: s["samples_applied"] and s)(json.loads(summary.read_text()))
                         if summary.exists() else None, "some samples to be applied")
        pids = [process["pid"] for process in state["processes"]]
        self.assertEqual(len(pids), 5)
        launcher.send_signal(signal.SIGINT)
        self.assertEqual(launcher.wait(timeout=5), 128 + signal.SIGINT)
        self.assertEqual([pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()], [])
        self.assertEqual(json.loads(summary.read_text())["outcome"], "interrupted")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=lambda text: pathlib.Path(text).resolve())
    known, rest = parser.parse_known_args()
    BIN = known.bin
    unittest.main(argv=[sys.argv[0]] + rest, verbosity=2)
