"""What the tests of the real programs share: their processes on 127.0.0.1, each ended with its test."""

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

BIN = pathlib.Path(".")  # set by main()
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


def clean_environment(**more):
    """The environment without what a developer's shell may say to the programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return {**kept, **more}


def program(name):
    return str(BIN / name)


def run_job(folder, *arguments, output="run"):
    """`pacelinectl run` to its end: the finished process and what summary.json says."""
    done = subprocess.run([program("pacelinectl"), "run", f"--output={output}", *arguments], cwd=folder,
                          env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE_S)
    summary = pathlib.Path(folder) / output / "summary.json"
    return done, json.loads(summary.read_text()) if summary.exists() else None


def temporary_folder(test):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="paceline-test-"))
    test.addCleanup(shutil.rmtree, folder)
    return folder


class Cluster:
    """A scheduler, servers and workers, each a process with a log; all end with it."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="paceline-cluster-"))
        self.processes = {}
        self.address = None

    def start(self, name, binary, *flags, ready=False):
        command = [program(binary), *flags]
        descriptors, end = (), None
        if ready:
            begin, end = os.pipe()
            os.set_inheritable(end, True)
            command.append(f"--ready-fd={end}")
            descriptors = (end,)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                    cwd=self.folder, env=clean_environment(), pass_fds=descriptors)
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

    def ask(self, command, job="job"):
        reply = subprocess.run([program("pacelinectl"), command, job, "--json", f"--scheduler={self.address}"],
                               env=clean_environment(), capture_output=True, text=True)
        if reply.returncode != 0:
            return None
        if command == "events":
            return [json.loads(line) for line in reply.stdout.splitlines()]
        return json.loads(reply.stdout)["jobs"][0]

    def joined(self, name):
        """Waits until the scheduler knows the worker."""
        def known():
            reply = subprocess.run([program("pacelinectl"), "nodes", "--json", f"--scheduler={self.address}"],
                                   env=clean_environment(), capture_output=True, text=True)
            return reply.returncode == 0 and name in [node["name"] for node in json.loads(reply.stdout)["nodes"]]
        until(known, f"{name} to have joined")

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


def main():
    global BIN
    parser = argparse.ArgumentParser(usage="%(prog)s --bin FOLDER [TEST]...")
    parser.add_argument("--bin", required=True, type=lambda text: pathlib.Path(text).resolve())
    known, rest = parser.parse_known_args()
    BIN = known.bin
    unittest.main(module="__main__", argv=[sys.argv[0]] + rest, verbosity=2)
