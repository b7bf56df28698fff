"""What tests of the real programs share: their processes on loopback, each ended with its test.

No test sees the PACELINE_* variables of whoever runs it.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(".")  # both are set by main()
PROBE = pathlib.Path(".")
TRAINING_SAMPLES = 55_000  # of Fashion-MNIST's 60,000; the others validate
FAILURE_TIMEOUT_S = 1.5
PATIENCE_S = 90


def until(condition, what, seconds=PATIENCE_S):
    """Waits for the condition; returns its value and how long that took."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        value = condition()
        if value:
            return value, time.monotonic() - begin
        time.sleep(0.02)  # between two looks, not in place of one
    raise AssertionError(f"waited {seconds} s for: {what() if callable(what) else what}")


def clean_environment(**more):
    """The environment without what a developer's shell may say to the programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return {**kept, **more}


def program(name):
    """The path of one of ours; any other path stays what it is."""
    return str(name if pathlib.Path(name).is_absolute() else BIN / name)


def temporary_folder(test):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="paceline-test-"))
    test.addCleanup(shutil.rmtree, folder)
    return folder


def run_program(name, *arguments, folder=None, variables={}, wrapper=()):
    """To its end."""
    return subprocess.run([*wrapper, program(name), *arguments], cwd=folder, env=clean_environment(**variables),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)


def run_job(folder, *arguments, output="run"):
    """`pacelinectl run` to its end: the finished process and what summary.json says."""
    done = run_program("pacelinectl", "run", f"--output={output}", *arguments, folder=folder)
    summary = pathlib.Path(folder) / output / "summary.json"
    return done, json.loads(summary.read_text()) if summary.exists() else None


def end(process):
    """Whatever state it is in. A launcher takes its own processes with it."""
    if process.poll() is None:
        process.kill()
    process.wait()


def read_only(folder):
    """What goes before a command for which the folder cannot be written; root needs a mount of its own for that."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        return []
    return ["unshare", "--mount", "sh", "-c",
            'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"', str(folder)]


def free_port(host="127.0.0.1"):
    """A port that was free a moment ago, for daemons that must be found before they run."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


class Cluster:
    """Each process has a log; all end with the cluster."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="paceline-cluster-"))
        self.processes = {}
        self.starts = {}  # name -> where in its log the newest process begins
        self.address = None
        self.env = {}  # of what the operator calls

    # ---- Processes

    def place(self, name):
        """What goes before a command that is to run where `name` is."""
        return []

    def start(self, name, binary, *flags, ready=False, env=None):
        command = [*self.place(name), program(binary), *flags]
        descriptors, writer = (), None
        if ready:
            reader, writer = os.pipe()
            command.append(f"--ready-fd={writer}")
            descriptors = (writer,)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.starts[name] = log.tell()
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                    cwd=self.folder, pass_fds=descriptors,
                                                    env=clean_environment(**(env or {})))
        if not ready:
            return None
        os.close(writer)
        with os.fdopen(reader) as pipe:
            address = pipe.readline().strip()
        assert address, f"{name} did not start: {self.log(name)}"
        return address

    def start_scheduler(self, *flags):
        self.address = self.start("scheduler", "paceline-scheduler", f"--listen={self.address or '127.0.0.1:0'}",
                                  "--state-dir=state", f"--failure-timeout-ms={int(FAILURE_TIMEOUT_S * 1000)}", *flags,
                                  ready=True)

    def start_server(self, name, *flags):
        return self.start(name, "paceline-server", f"--scheduler={self.address}", f"--name={name}", *flags, ready=True)

    def start_daemons(self, servers=2):
        self.start_scheduler()
        for i in range(servers):
            self.start_server(f"server-{i}")

    def worker_flags(self, name, workers, job):
        return (f"--scheduler={self.address}", f"--job={job}", f"--workers={workers}", f"--name={name}",
                f"--failure-timeout-ms={int(FAILURE_TIMEOUT_S * 1000)}")

    def start_worker(self, index, workers, *flags):
        """paceline-worker: trains, draws samples."""
        self.start(f"w{index}", "paceline-worker", *self.worker_flags(f"w{index}", workers, "job"), f"--index={index}",
                   "--step-time-ms=10", *flags)

    def start_probe(self, name, workers, *flags, job="job", env=None):
        """probe_worker: checks every number it gets."""
        self.start(name, PROBE, *self.worker_flags(name, workers, job), *flags, env=env)

    def kill(self, name, how=signal.SIGKILL):
        self.processes[name].send_signal(how)
        if how == signal.SIGKILL:
            self.processes[name].wait()

    def wait(self, name, seconds=PATIENCE_S):
        return self.processes[name].wait(timeout=seconds)

    def running(self, name):
        return self.processes[name].poll() is None

    # ---- What they say

    def text(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def log(self, name):
        """The end of it, for messages."""
        return f"--- {name}\n" + self.text(name)[-3000:]

    def steps(self, name):
        """[(step, members, version, seconds)] of a probe since it was started last."""
        path = self.folder / f"{name}.log"
        text = path.read_bytes()[self.starts[name]:].decode() if path.exists() else ""
        found = re.findall(r"^step=(\d+) members=(\d+) version=(\d+) at_us=(\d+)$", text, re.M)
        return [(int(s), int(m), int(v), int(t) / 1e6) for s, m, v, t in found]

    def step(self, name):
        steps = self.steps(name)
        return steps[-1][0] if steps else 0

    def members(self, name):
        """How many were in the probe's group in its last step."""
        steps = self.steps(name)
        return steps[-1][1] if steps else 0

    def until_step(self, names, step):
        until(lambda: all(self.step(n) >= step for n in names),
              lambda: f"{names} to reach step {step}\n" + "\n".join(self.log(n) for n in [*names, "scheduler"]))

    def until_members(self, names, members):
        until(lambda: all(self.members(n) == members for n in names),
              lambda: f"groups of {members}\n" + "\n".join(self.log(n) for n in [*names, "scheduler"]))

    def first_after(self, names, moment):
        """time.monotonic() at which the last of the probes had made a step that ended after the moment; None before."""
        ends = [next((t for _, _, _, t in self.steps(name) if t > moment), None) for name in names]
        return None if None in ends else max(ends)

    def longest_gap(self, name, since):
        """Between two steps of a probe that ended after `since` (time.monotonic())."""
        times = [t for _, _, _, t in self.steps(name)]
        return max((b - a for a, b in zip(times, times[1:]) if b > since), default=0)

    # ---- What the operator sees

    def ctl(self, *arguments):
        return run_program("pacelinectl", *arguments, f"--scheduler={self.address}", variables=self.env,
                           wrapper=self.place("operator"))

    def ask(self, command, job="job"):
        reply = self.ctl(command, *([job] if command not in ("status", "nodes") else []), "--json")
        if reply.returncode != 0:
            return None
        if command == "events":
            return [json.loads(line) for line in reply.stdout.splitlines()]
        view = json.loads(reply.stdout)
        return view["jobs"][0] if "jobs" in view and command not in ("status", "nodes") else view

    def events(self, kind, job="job"):
        return [e["text"] for e in self.ask("events", job) or [] if e["kind"] == kind]

    def moment(self, kind, text, since, job="job"):
        """time.monotonic() of the first such event after `since`; the scheduler writes the time of day, in ms."""
        offset = time.time() - time.monotonic()
        reply = self.ctl("events", job, "--json", "--limit=10000")
        for event in map(json.loads, reply.stdout.splitlines()):
            at = event["unix_time_ms"] / 1000 - offset
            if event["kind"] == kind and text in event["text"] and at >= since - 0.001:
                return at
        return None

    def joined(self, name):
        """Waits until the scheduler knows the worker."""
        until(lambda: name in [node["name"] for node in (self.ask("nodes") or {"nodes": []})["nodes"]],
              f"{name} to have joined")

    def group_step(self, group):
        """The step of a group; 0 when it is not there."""
        view = self.ask("groups")
        steps = {g["group"]: g["step"] for g in view["groups"]} if view else {}
        return steps.get(group, 0)

    def close(self):
        for process in self.processes.values():
            end(process)
        shutil.rmtree(self.folder)


class ClusterTest(unittest.TestCase):
    SERVERS = 2

    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        if self.SERVERS:
            self.cluster.start_daemons(self.SERVERS)

    def ends_well(self, *names):
        for name in names:
            self.assertEqual(self.cluster.wait(name), 0, self.cluster.log(name))
            self.assertNotIn("WRONG", self.cluster.text(name))

    def stop(self, *names):
        for name in names:
            self.cluster.kill(name, signal.SIGTERM)
        self.ends_well(*names)

    def samples_are_accounted_for(self, samples=None, job="job"):
        """What was drawn is applied, discarded or returned; nothing is lost or counted twice.

        The servers' last counts come within a second or two of the job's end.
        """
        view = {}

        def balanced():
            view.update(self.cluster.ask("jobs", job) or {})
            return view.get("state") == "finished" and view["samples_drawn"] == (
                view["samples_applied"] + view["samples_discarded"] + view["samples_returned"])

        until(balanced, lambda: f"drawn = applied + discarded + returned: {view}\n{self.cluster.log('scheduler')}", 10)
        if samples is not None:
            self.assertEqual(view["samples_applied"] + view["samples_discarded"], samples, view)
        return view


def compare(test, pairs, quiet, disturbed, allowed=2.0):
    """Runs the two in turn; each returns a longest step in seconds. The median of their ratios is the measure.

    One or two pairs are a look, not a measurement: their bar is that nothing waited for a timeout."""
    ratios = []
    for pair in range(pairs):
        calm, rough = quiet(pair), disturbed(pair)
        ratios.append(rough / calm)
        print(f"pair {pair}: longest step {calm * 1000:.0f} ms undisturbed, {rough * 1000:.0f} ms otherwise", flush=True)
        if pairs < 3:
            test.assertLess(rough, FAILURE_TIMEOUT_S)
    median = sorted(ratios)[len(ratios) // 2]
    print(f"median ratio {median:.2f} of {pairs} pairs (bound {allowed:g} from 3 pairs on)", flush=True)
    if pairs >= 3:
        test.assertLessEqual(median, allowed, ratios)


def run_one(test):
    result = unittest.TestResult()
    begin = time.monotonic()
    test.run(result)
    return test, result, time.monotonic() - begin


def main(at_once=3):
    """Runs the tests of the script that calls it, a few at a time: they mostly wait for timeouts."""
    global BIN, PROBE
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--probe", default=".", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("only", nargs="*", help="parts of test names")
    arguments = parser.parse_args()
    BIN, PROBE = arguments.bin, arguments.probe
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    tests = [t for case in suite for t in case
             if not arguments.only or any(part in t.id() for part in arguments.only)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for test, result, seconds in pool.map(run_one, tests):
            trouble = result.errors + result.failures
            print(f"{'FAILED' if trouble else 'ok    '} {test.id().removeprefix('__main__.')} ({seconds:.1f} s)",
                  flush=True)
            for _, text in trouble:
                print(text, flush=True)
            failed += bool(trouble)
    if not tests or failed:
        sys.exit(f"{failed} of {len(tests)} failed")
