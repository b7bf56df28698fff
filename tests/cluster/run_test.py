#!/usr/bin/env python3
"""`pacelinectl run` with real programs, and what it leaves behind. run_test.py --bin FOLDER [TEST]..."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from evaluate import evaluate
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # tests/
from harness import (TRAINING_SAMPLES, Cluster, clean_environment, end, main, program, run_job, run_program,
                     temporary_folder, until)

NUMBER = (int, float)
SUMMARY = {
    "job": str, "outcome": str, "reason": str, "seconds": NUMBER, "workers": int, "servers": int, "groups": int,
    "generations": int, "samples_drawn": int, "samples_applied": int, "samples_discarded": int,
    "samples_returned": int, "updates": int, "checkpoints": int, "newest_checkpoint": (str, type(None)),
    "resumed_from": (str, type(None)), "rollbacks": dict, "not_finite_pushes": int, "refused_frames": int, "metrics": dict,
    "staleness": dict, "processes": list}
ROLLBACKS = {"count": int, "steps": int, "updates": int, "samples": int, "seconds": NUMBER}
METRIC = {"value": NUMBER, "worker": str, "step": int}
COUNTS = {"count": int, "mean": NUMBER, "p95": NUMBER, "max": int}
STALENESS = {**COUNTS, "p50": NUMBER, "by_group": list, "by_worker": list}
BY_GROUP = {**COUNTS, "group": int, "members": list}
BY_WORKER = {**COUNTS, "worker": str, "group": int}
PROCESS = {"role": str, "name": str, "pid": int, "exit_code": (int, type(None)), "signal": (int, type(None)),
           "seconds": NUMBER, "cpu_seconds": NUMBER, "peak_rss_bytes": int}
# One of four workers is three times slower; steps last at least 5 ms, whatever the machine.
HYBRID = ("--workers=4", "--groups=3,1", "--epochs=1")
SLOW_FOURTH = ("--slowdown=1,1,1,3", "--step-time-ms=5")


def names(members):
    return sorted(member["name"] for member in members)


class SummaryTest(unittest.TestCase):
    """summary.json has every key of its schema, of its type, and its figures agree with one another."""

    def setUp(self):
        self.folder = temporary_folder(self)

    def has_exactly(self, entry, schema):
        self.assertEqual(set(entry), set(schema))
        for key, kind in schema.items():
            self.assertIsInstance(entry[key], kind, key)
            self.assertNotIsInstance(entry[key], bool, key)

    def check(self, summary, outcome, workers, servers, restarts=0):
        self.has_exactly(summary, SUMMARY)
        self.has_exactly(summary["rollbacks"], ROLLBACKS)
        self.assertEqual(summary["outcome"], outcome)
        self.assertEqual((summary["workers"], summary["servers"]), (workers, servers))
        self.assertEqual(summary["samples_drawn"], summary["samples_applied"] + summary["samples_discarded"]
                         + summary["samples_returned"])
        for metric in summary["metrics"].values():
            self.has_exactly(metric, METRIC)
        self.check_staleness(summary["staleness"], summary["updates"])
        for process in summary["processes"]:
            self.check_process(process, summary["seconds"])
        roles = [process["role"] for process in summary["processes"]]
        self.assertEqual({role: roles.count(role) for role in ("scheduler", "server", "worker")},
                         {"scheduler": 1, "server": servers, "worker": workers})

    def check_staleness(self, staleness, updates):
        self.has_exactly(staleness, STALENESS)
        self.assertEqual(staleness["count"], updates)
        groups = staleness["by_group"]
        for entry in groups:
            self.has_exactly(entry, BY_GROUP)
        for entry in staleness["by_worker"]:
            self.has_exactly(entry, BY_WORKER)
        self.assertEqual(sum(group["count"] for group in groups), staleness["count"])
        self.assertAlmostEqual(sum(group["count"] * group["mean"] for group in groups),
                               staleness["count"] * staleness["mean"], places=6)
        if groups:
            self.assertEqual(max(group["max"] for group in groups), staleness["max"])
        self.assertLessEqual(staleness["p50"], staleness["p95"])
        self.assertLessEqual(staleness["p95"], staleness["max"])

    def check_process(self, process, seconds):
        self.has_exactly(process, PROCESS)
        self.assertNotEqual(process["exit_code"] is None, process["signal"] is None, process)
        self.assertTrue(0 < process["seconds"] <= seconds, process)
        # User and system time, on however many cores; nothing starts without any.
        self.assertGreater(process["cpu_seconds"], 0, process)
        self.assertGreater(process["peak_rss_bytes"], 500_000, process)
        self.assertFalse(pathlib.Path(f"/proc/{process['pid']}").exists(), process)

    def exit_codes(self, summary):
        return {process["name"]: process["exit_code"] for process in summary["processes"]}

    def test_succeeded_and_the_accuracy_is_that_of_the_saved_weights(self):
        done, summary = run_job(self.folder, "--servers=2", *HYBRID, "--", "paceline-worker", "--save=weights",
                                *SLOW_FOURTH)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check(summary, "succeeded", workers=4, servers=2)
        self.assertEqual(set(self.exit_codes(summary).values()), {0})
        self.assertEqual((summary["samples_applied"], summary["samples_discarded"]), (TRAINING_SAMPLES, 0))
        self.assertEqual(summary["groups"], 2)
        members = {group["group"]: len(group["members"]) for group in summary["staleness"]["by_group"]}
        self.assertEqual(members, {0: 3, 1: 1})
        group_of = {name: group["group"] for group in summary["staleness"]["by_group"] for name in group["members"]}
        self.assertEqual({entry["worker"]: entry["group"] for entry in summary["staleness"]["by_worker"]}, group_of)

        accuracy, loss = evaluate(self.folder / "weights")
        self.assertGreater(accuracy, 0.7)
        metrics = summary["metrics"]
        # Float32 and float64 may order two nearly equal classes of an image differently: two images of 10,000.
        self.assertAlmostEqual(metrics["test_accuracy"]["value"], accuracy, delta=2e-4)
        self.assertAlmostEqual(metrics["test_loss"]["value"], loss, delta=1e-4)
        for index in range(4):
            log = (self.folder / "run" / f"worker-{index}.log").read_text()
            told = re.search(r"test accuracy ([0-9.]+) loss ([0-9.]+)", log)
            self.assertAlmostEqual(float(told.group(1)), accuracy, delta=2.5e-4, msg=log)
            self.assertAlmostEqual(float(told.group(2)), loss, delta=2e-4, msg=log)

    def test_failed_a_program_that_exits_with_3_at_its_start(self):
        done, summary = run_job(self.folder, "--workers=2", "--", "sh", "-c", "exit 3")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(summary["reason"], r"^worker-[01] failed: exit code 3")
        self.assertIn("worker-", done.stderr)
        self.check(summary, "failed", workers=2, servers=1)
        codes = self.exit_codes(summary)
        self.assertIn(3, (codes["worker-0"], codes["worker-1"]))
        self.assertEqual((summary["samples_drawn"], summary["updates"], summary["metrics"]), (0, 0, {}))

    def test_failed_one_program_that_exits_with_3_after_its_work(self):
        script = '"$0" --max-steps=30; test "$PACELINE_WORKER_INDEX" != 1 || exit 3'
        done, summary = run_job(self.folder, "--workers=3", "--groups=per-worker", "--", "sh", "-c", script,
                                program("paceline-worker"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.check(summary, "failed", workers=3, servers=1)
        self.assertEqual(self.exit_codes(summary),
                         {"scheduler": 0, "server-0": 0, "worker-0": 0, "worker-1": 3, "worker-2": 0})
        self.assertTrue(summary["reason"].startswith("worker-1 failed: exit code 3"), summary["reason"])
        # Three groups of 30 updates on batches of 64.
        self.assertEqual((summary["updates"], summary["samples_applied"]), (90, 90 * 64))

    def test_interrupted_by_ctrl_c(self):
        launcher = subprocess.Popen(
            [program("pacelinectl"), "run", "--workers=2", "--servers=2", "--output=run", "--", "paceline-worker",
             "--epochs=100"], cwd=self.folder, env=clean_environment(), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(end, launcher)
        path = self.folder / "run" / "summary.json"
        running, _ = until(lambda: (lambda s: s["samples_applied"] and s)(json.loads(path.read_text()))
                           if path.exists() else None, "some samples to be applied")
        self.assertEqual((running["outcome"], running["reason"]), ("interrupted", "running"))
        launcher.send_signal(signal.SIGINT)
        self.assertEqual(launcher.wait(timeout=5), 128 + signal.SIGINT)
        summary = json.loads(path.read_text())
        self.check(summary, "interrupted", workers=2, servers=2)
        self.assertIn("signal 2", summary["reason"])
        self.assertGreater(summary["samples_applied"], 0)


class OneClusterTest(unittest.TestCase):
    """Daemons that outlive jobs: `pacelinectl run --scheduler`."""

    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        self.cluster.start_scheduler()
        for name in ("server-a", "server-b"):
            self.cluster.start_server(name)
        self.folder = self.cluster.folder

    def stop(self, job):
        return self.cluster.ctl("stop", job, "--reason=for a test")

    def start_job(self, job, *arguments, output=None):
        launcher = subprocess.Popen(
            [program("pacelinectl"), "run", f"--scheduler={self.cluster.address}", f"--job={job}",
             f"--output={output or job}", *arguments], cwd=self.folder, env=clean_environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(launcher.stdout.close)
        self.addCleanup(end, launcher)
        return launcher

    def ends_well(self, launcher):
        output, _ = launcher.communicate(timeout=90)
        self.assertEqual(launcher.returncode, 0, output)

    def test_figures_of_the_summary_are_those_of_the_command_line(self):
        self.ends_well(self.start_job("job", *HYBRID, "--", "paceline-worker", *SLOW_FOURTH))
        summary = json.loads((self.folder / "job" / "summary.json").read_text())
        shown = self.cluster.ask("staleness")
        told = summary["staleness"]
        for key in ("count", "mean", "p50", "p95", "max"):
            self.assertEqual(shown[key], told[key], key)
        for part, schema in (("by_group", BY_GROUP), ("by_worker", BY_WORKER)):
            self.assertEqual([{key: entry[key] for key in schema} for entry in shown[part]], told[part])
        # The same sum counted update by update and from versions alone (docs/staleness.md).
        for group in shown["by_group"]:
            self.assertEqual(group["sum"], group["formula_sum"], group)
            self.assertAlmostEqual(group["sum"], group["count"] * group["mean"], places=6)
        self.assertEqual(sum(shown["buckets"]), shown["count"])
        job = self.cluster.ask("jobs")
        for key in ("samples_drawn", "samples_applied", "samples_discarded", "samples_returned", "updates", "groups"):
            self.assertEqual(job[key], summary[key], key)
        self.assertEqual(job["servers"], summary["servers"])

    def test_samples_are_accounted_for_by_worker(self):
        self.ends_well(self.start_job("job", "--workers=4", "--groups=3,1", "--", "paceline-worker",
                                      "--max-steps=40", *SLOW_FOURTH))
        job = self.cluster.ask("jobs")
        workers = self.cluster.ask("staleness")["by_worker"]
        self.assertEqual(len(workers), 4)
        for worker in workers:
            # Drawn and returned are the scheduler's counts, applied and discarded the servers'.
            self.assertEqual(worker["samples_drawn"], worker["samples_applied"] + worker["samples_discarded"]
                             + worker["samples_returned"], worker)
            # And the worker's own count of the samples it computed gradients of.
            log = (self.folder / "job" / f"{worker['worker']}.log").read_text()
            computed = int(re.search(r"(\d+) samples", log).group(1))
            self.assertEqual(computed, worker["samples_applied"], worker)
            self.assertEqual(computed, 40 * 64)
        for key in ("samples_drawn", "samples_applied", "samples_discarded", "samples_returned"):
            self.assertEqual(sum(worker[key] for worker in workers), job[key], key)
        self.assertGreater(job["samples_returned"], 0, "what was leased ahead comes back")

    # Both jobs name their first tensor dense0.weight, of different shapes. Deterministic jobs of one group end with
    # the bits of a run that no other job can touch.
    def test_two_jobs_at_once_and_one_after_them_are_on_their_own(self):
        common = ("--workers=3", "--groups=one", "--deterministic")
        jobs = {"a": ("--model=mlp", "--seed=1"), "b": ("--model=softmax", "--seed=2"),
                "c": ("--model=mlp", "--seed=3")}
        worker = ("--", "paceline-worker", "--max-steps=150")
        expected = {}
        for job, flags in jobs.items():
            run_program("paceline-worker", "--standalone=3", "--max-steps=150", f"--save=alone-{job}", *flags,
                        folder=self.folder)
            expected[job] = (self.folder / f"alone-{job}").read_bytes()
        self.assertEqual(len(set(expected.values())), 3)

        first = {job: self.start_job(job, *common, *worker, f"--save=saved-{job}", *jobs[job]) for job in ("a", "b")}
        for launcher in first.values():
            self.ends_well(launcher)
        self.ends_well(self.start_job("c", *common, *worker, "--save=saved-c", *jobs["c"]))
        for job, weights in expected.items():
            self.assertEqual((self.folder / f"saved-{job}").read_bytes(), weights, f"job {job}")
        # A name is free again when its job has ended; nothing of the old one is left in the new.
        again = self.start_job("a", *common, *worker, "--save=saved-again", *jobs["a"], output="again")
        self.ends_well(again)
        self.assertEqual((self.folder / "saved-again").read_bytes(), expected["a"])

    def test_the_name_of_a_running_job_is_taken(self):
        running = self.start_job("a", "--", "paceline-worker", "--epochs=1000")
        until(lambda: (self.cluster.ask("jobs", "a") or {}).get("samples_applied"), "job a to train")
        second = self.start_job("a", "--", "paceline-worker", output="second")
        output, _ = second.communicate(timeout=30)
        self.assertEqual(second.returncode, 1)
        self.assertIn("job a is running in this cluster with 1 workers", output)
        self.assertFalse((self.folder / "second").exists())
        self.assertEqual(self.cluster.ask("jobs", "a")["state"], "running")
        self.assertEqual(self.stop("a").returncode, 0)
        running.communicate(timeout=30)
        self.assertEqual(running.returncode, 1)
        summary = json.loads((self.folder / "a" / "summary.json").read_text())
        self.assertEqual(summary["outcome"], "failed")
        self.assertIn("stopped by an operator: for a test", summary["reason"])


if __name__ == "__main__":
    main(at_once=1)
