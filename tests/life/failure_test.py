#!/usr/bin/env python3
"""Deaths that a launcher sees, links that go dark, a job that is too small, a scheduler that comes back."""

import datetime
import itertools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # tests/
import harness
from harness import FAILURE_TIMEOUT_S, until


class Link(harness.ClusterTest):
    def test_a_data_port_that_one_worker_cannot_reach(self):
        port = self.cluster.text("server-1").split("serving at ")[1].split()[0].rsplit(":", 1)[1]
        self.cluster.start_probe("w0", 2)
        self.cluster.start_probe("w1", 2, "--operation-timeout-ms=4000",
                                 env={"LD_PRELOAD": str(harness.PROBE.parent / "libfirewall.so"),
                                      "FIREWALL_PORT": port})
        # The operation's deadline, and the start before it.
        self.assertNotIn(self.cluster.wait("w1", 4 + 4), (0, 3), self.cluster.log("w1"))
        error = self.cluster.text("w1")
        for both_ends in ("'w1'", f"server-1 at 127.0.0.1:{port}"):
            self.assertIn(both_ends, error.splitlines()[-1])
        links = self.cluster.events("link")
        self.assertTrue(any("link of w1 to server-1 is down since" in text for text in links), links)
        # The other one goes on without it.
        self.cluster.until_members(["w0"], 1)
        self.stop("w0")


class TooFew(harness.ClusterTest):
    def test_below_min_workers_the_job_waits_and_goes_on(self):
        for i in range(3):
            self.cluster.start_probe(f"w{i}", 3, "--min-workers=3")
        self.cluster.until_step(["w0", "w1", "w2"], 20)
        self.cluster.kill("w1")
        until(lambda: any("2 of at least 3 workers" in e for e in self.cluster.events("waiting")), "the job to wait")
        until(lambda: "waits before the next step: 2 of at least 3" in self.cluster.text("w0"), "w0 to say that it waits")
        until(lambda: "waits before the next step: 2 of at least 3" in self.cluster.text("w2"), "w2 to say that it waits")
        held = self.cluster.step("w0")
        self.assertIn("waits: 2 of at least 3", self.cluster.ask("jobs")["reason"])
        self.cluster.start_probe("w1", 3, "--min-workers=3")
        self.cluster.until_members(["w0", "w1", "w2"], 3)
        # A process starts in the time of dozens of steps, of which there were none but the one that was under way.
        without = [step for step, members, _, _ in self.cluster.steps("w0") if step > held and members < 3]
        self.assertLessEqual(len(without), 1, without)
        self.cluster.until_step(["w0", "w1", "w2"], held + 20)
        # Who waits can be ended and removed all the same.
        self.cluster.kill("w1")
        until(lambda: self.cluster.text("w0").count("waits before the next step: 2 of at least 3") == 2, "w0 to wait again")
        self.cluster.kill("w0", signal.SIGTERM)
        self.assertEqual(self.cluster.wait("w0", 5), 0, self.cluster.log("w0"))
        self.assertEqual(self.cluster.ctl("remove", "job", "w2").returncode, 0)
        self.assertEqual(self.cluster.wait("w2", 5), 0, self.cluster.log("w2"))


class Scheduler(harness.ClusterTest):
    def test_is_killed_and_restarted_and_training_goes_on(self):
        names = [f"w{i}" for i in range(3)]
        for name in names:
            self.cluster.start_probe(name, 3, "--groups=2,1")
        self.cluster.until_step(names, 20)
        members = self.cluster.ask("groups")["groups"]
        for _ in range(3):
            began = time.monotonic()
            self.cluster.kill("scheduler")
            step = self.cluster.step("w0")
            self.cluster.until_step(names, step + 5)  # without any scheduler
            self.cluster.start_scheduler()
            after, _ = until(lambda: self.cluster.ask("groups"), "the scheduler to answer again")
            self.assertEqual([g["members"] for g in after["groups"]], [g["members"] for g in members])
            # Longer than a lease: none runs out because of the restart.
            step = self.cluster.step("w0")
            self.cluster.until_step(names, step + int((FAILURE_TIMEOUT_S + 1) / 0.01))
            for name in names:
                self.assertLess(self.cluster.longest_gap(name, began), FAILURE_TIMEOUT_S)
        self.assertNotIn("fence", {event["kind"] for event in self.cluster.ask("events")})
        self.stop(*names)


class Restarts(harness.ClusterTest):
    """PACELINE_RESTARTS and PACELINE_PAIRS choose how often; `make restart-test` runs what is promised."""

    def longest_step(self, name, restarts, seconds):
        """Of a run of so many seconds, in which the scheduler is killed and restarted so many times."""
        probes = [f"{name}-{i}" for i in range(3)]
        for probe in probes:
            self.cluster.start_probe(probe, 3, "--step-ms=20", job=name)
        self.cluster.until_step(probes, 10)
        members = [g["members"] for g in self.cluster.ask("groups", name)["groups"]]
        began = time.monotonic()
        for i in range(restarts):
            until(lambda: time.monotonic() - began >= seconds * (i + 0.5) / restarts, "the next restart", seconds + 10)
            self.cluster.kill("scheduler")
            self.cluster.start_scheduler()
        until(lambda: time.monotonic() - began >= seconds, "the end of the run", seconds + 10)
        longest = max(self.cluster.longest_gap(probe, began) for probe in probes)
        after, _ = until(lambda: self.cluster.ask("groups", name), "the scheduler to answer")
        self.assertEqual([g["members"] for g in after["groups"]], members)
        self.stop(*probes)
        return longest

    def test_the_longest_step_is_that_of_undisturbed_runs(self):
        restarts = int(os.environ.get("PACELINE_RESTARTS", "2"))
        harness.compare(self, int(os.environ.get("PACELINE_PAIRS", "1")),
                        lambda pair: self.longest_step(f"quiet-{pair}", 0, restarts * 1.5),
                        lambda pair: self.longest_step(f"restarted-{pair}", restarts, restarts * 1.5))


class Launched:
    """pacelinectl run in a folder of its own."""

    def __init__(self, test, *flags, program=None):
        self.folder = harness.temporary_folder(test)
        self.log = open(self.folder / "launcher.log", "wb")
        test.addCleanup(self.log.close)
        command = [harness.program("pacelinectl"), "run", "--output=run", *flags, "--",
                   *(program or [str(harness.PROBE)])]
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=self.log, stderr=self.log,
                                        start_new_session=True, env=harness.clean_environment())
        test.addCleanup(harness.end, self.process)

    def text(self, name="launcher"):
        path = self.folder / ("launcher.log" if name == "launcher" else f"run/{name}.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def summary(self):
        path = self.folder / "run" / "summary.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def times(self, name):
        """time.monotonic() of the steps of a probe."""
        return [int(line.rsplit("=", 1)[1]) / 1e6 for line in self.text(name).splitlines() if line.startswith("step=")]

    def pids(self):
        return {p["name"]: p["pid"] for p in self.summary().get("processes", []) if not p.get("ended")}

    def running(self, step=10):
        """Waits until every worker has made some steps; their process ids."""
        def all_step():
            pids = self.pids()
            workers = [n for n in pids if n.startswith("worker")]
            made = [self.text(n).count("\nstep=") for n in workers]
            return pids if workers and len(made) == len(workers) and min(made) >= step else None
        return until(all_step, lambda: "workers to make steps\n" + self.text())[0]


class LauncherTest(harness.ClusterTest):
    SERVERS = 0

    def nothing_is_left(self, pids):
        until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids.values()), "no orphan", 5)

    def test_a_death_that_the_launcher_sees_is_known_at_once(self):
        """PACELINE_KILLS chooses how often."""
        kills = int(os.environ.get("PACELINE_KILLS", "3"))
        # Half a minute of silence would be needed without it.
        launched = Launched(self, "--workers=3", "--servers=1", "--failure-timeout-ms=30000", f"--restarts={kills}")
        launched.running()
        exchange = max(b - a for name in ("worker-0", "worker-1") for a, b in itertools.pairwise(launched.times(name)))
        offset = time.time() - time.monotonic()
        survivor = "worker-0"
        detections, rounds, gaps, dead = [], [], [], set()
        for kill in range(kills):
            pids, _ = until(lambda: (lambda now: now.get("worker-2", 0) not in {0, *dead} and now)(launched.pids()),
                            "the launcher to name worker-2's new process")
            dead.add(pids["worker-2"])
            killed = time.monotonic()
            os.kill(pids["worker-2"], signal.SIGKILL)
            fences = lambda: [line.split()[0] for line in launched.text("scheduler").splitlines()
                              if "fence: worker worker-2 died: its process ended: signal 9" in line]
            until(lambda: len(fences()) > kill, launched.text, 5)
            said = datetime.datetime.strptime(fences()[kill], "%Y-%m-%dT%H:%M:%S.%f%z").timestamp() - offset
            detections.append(said - killed)
            until(lambda: launched.times(survivor)[-1] > said + 0.05, "the survivors to go on", 5)
            times = launched.times(survivor)
            rounds.append(next(t for t in times if t > said) - said)
            gaps.append(max(b - a for a, b in zip(times, times[1:]) if b > killed))
            # Promised: detection in 0.2 s, then the round in 1 s + one exchange.
            self.assertLess(detections[-1], 0.2)
            self.assertLess(rounds[-1], 1 + exchange)
            until(lambda: launched.text("worker-2").count("started ") == kill + 2, "worker-2 to be back")
        print(f"{kills} deaths that the launcher saw: detected after {statistics.median(detections) * 1000:.0f} ms (median), "
              f"{max(detections) * 1000:.0f} ms (max; bound 200 ms); round over {statistics.median(rounds) * 1000:.0f} ms "
              f"(median), {max(rounds) * 1000:.0f} ms (max) after that; longest step of a survivor {max(gaps) * 1000:.0f} ms",
              flush=True)
        pids = launched.running()
        launched.process.send_signal(signal.SIGTERM)
        self.assertEqual(launched.process.wait(timeout=5), 128 + signal.SIGTERM)
        self.nothing_is_left(pids)

    def test_signals_end_everything(self):
        for how in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(how.name):
                launched = Launched(self, "--workers=2", "--servers=2")
                pids = launched.running()
                self.assertEqual(len(pids), 5)
                launched.process.send_signal(how)
                self.assertEqual(launched.process.wait(timeout=5), 128 + how)
                self.nothing_is_left(pids)
                self.assertEqual(launched.summary()["outcome"], "interrupted")

    def test_a_killed_launcher_leaves_nothing(self):
        launched = Launched(self, "--workers=2", "--servers=1")
        pids = launched.running()
        launched.process.kill()
        launched.process.wait()
        self.nothing_is_left(pids)
        self.assertEqual(launched.summary()["outcome"], "interrupted")

    def test_each_role_that_fails_is_named_and_the_exit_code_tells(self):
        for role in ("worker-1", "server-0", "scheduler"):
            with self.subTest(role):
                launched = Launched(self, "--workers=2", "--servers=1", "--failure-timeout-ms=1500", program=[
                    str(harness.PROBE), "--steps=200"])
                pids = launched.running()
                os.kill(pids[role], signal.SIGKILL)
                self.assertEqual(launched.process.wait(timeout=30), 1, launched.text())
                self.assertRegex(launched.text(), rf"{role} (failed|ended while the job ran): signal 9")
                self.nothing_is_left(pids)

    def test_a_server_that_was_drained_may_be_ended(self):
        launched = Launched(self, "--workers=2", "--servers=2")
        pids = launched.running()
        scheduler = re.search(r"cluster '.*' at (\S+)", launched.text("scheduler")).group(1)
        drained = harness.run_program("pacelinectl", "drain", "server-0", f"--scheduler={scheduler}")
        self.assertEqual(drained.returncode, 0, drained.stderr)
        os.kill(pids["server-0"], signal.SIGTERM)
        until(lambda: "server-0 ended while the job ran: exit code 0" in launched.text(), launched.text, 10)
        made = {n: len(launched.times(n)) for n in ("worker-0", "worker-1")}
        until(lambda: all(len(launched.times(n)) >= made[n] + 20 for n in made), launched.text, 20)
        for name in made:
            os.kill(pids[name], signal.SIGTERM)
        self.assertEqual(launched.process.wait(timeout=20), 0, launched.text())
        self.assertEqual(launched.summary()["outcome"], "succeeded")
        self.nothing_is_left(pids)

    def test_workers_that_all_fail_are_no_success(self):
        launched = Launched(self, "--workers=2", "--servers=1", program=["/bin/sh", "-c", "exit 3"])
        self.assertEqual(launched.process.wait(timeout=20), 1)
        self.assertIn("failed: exit code 3", launched.text())
        self.assertEqual(launched.summary()["outcome"], "failed")


if __name__ == "__main__":
    harness.main()
