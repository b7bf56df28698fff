#!/usr/bin/env python3
"""Workers join, leave, die and come back. Every step of every probe checks each weight (probe_worker.cc)."""

import pathlib
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # tests/
import harness
from harness import FAILURE_TIMEOUT_S, TRAINING_SAMPLES, until


class Leaving(harness.ClusterTest):
    def test_one_has_ten_rounds_the_other_eleven(self):
        self.cluster.start_probe("w0", 2, "--steps=10")
        self.cluster.start_probe("w1", 2, "--steps=11")
        self.ends_well("w0", "w1")
        self.assertEqual(len(self.cluster.steps("w0")), 10)
        self.assertEqual(len(self.cluster.steps("w1")), 11)
        # Each of the eleven took exactly 1 from every weight, the last one alone as well, and at once.
        self.assertIn("left steps=11 weight=999989 ", self.cluster.text("w1"))
        self.assertLess(self.cluster.longest_gap("w1", 0), FAILURE_TIMEOUT_S)
        self.assertTrue(any("w1 (worker w0 leaves)" in e for e in self.cluster.events("commit")), "the group shrinks")

    def test_rank_0_ends_early_and_nothing_depends_on_it(self):
        for i in range(3):
            self.cluster.start_probe(f"w{i}", 3, f"--steps={10 if i == 0 else 60}", f"--index={i}")
            # Ranks are given in the order of joining.
            until(lambda: f"worker w{i}, rank {i}" in self.cluster.text("scheduler"), f"w{i} to be rank {i}")
        self.ends_well("w0")
        self.cluster.until_step(["w1", "w2"], 55)
        self.assertTrue(all(self.cluster.running(f"server-{i}") for i in range(2)))
        self.ends_well("w1", "w2")

    def test_one_joins_one_is_removed_and_nobody_stops(self):
        for i in range(2):
            self.cluster.start_probe(f"w{i}", 2)
        self.cluster.until_step(["w0", "w1"], 50)
        begin = time.monotonic()
        self.cluster.start_probe("w2", 2)
        self.cluster.until_members(["w0", "w1", "w2"], 3)
        self.cluster.until_step(["w0"], 100)
        reply = self.cluster.ctl("remove", "job", "w1", "--reason=a test")
        self.assertEqual(reply.returncode, 0, reply.stderr)
        self.ends_well("w1")
        self.assertIn("removed by an operator: a test", self.cluster.text("w1"))
        self.cluster.until_members(["w0", "w2"], 2)
        # Nobody waited: no failure timeout is in any step.
        self.assertLess(self.cluster.longest_gap("w0", begin), FAILURE_TIMEOUT_S)
        self.assertEqual(self.cluster.events("fence"), [])
        self.assertEqual(self.cluster.ctl("remove", "job", "w1").returncode, 4)
        self.stop("w0", "w2")


    def test_one_is_added_by_the_cli_and_ends(self):
        for i in range(2):
            self.cluster.start_probe(f"w{i}", 2)
        self.cluster.until_step(["w0", "w1"], 10)

        def add(name, job):
            self.cluster.start(name, "pacelinectl", "run", f"--scheduler={self.cluster.address}", f"--job={job}", "--add=1",
                               f"--output={name}", "--", str(harness.PROBE), "--steps=10")

        add("add", "job")
        self.cluster.until_members(["w0", "w1"], 3)
        self.assertEqual(self.cluster.wait("add"), 0, self.cluster.log("add"))
        self.cluster.until_members(["w0", "w1"], 2)
        self.assertIn("left steps=10", (self.cluster.folder / "add" / "worker-2.log").read_text())
        add("refused", "nosuchjob")
        self.assertEqual(self.cluster.wait("refused"), 4)
        self.assertIn("job nosuchjob does not run in this cluster", self.cluster.text("refused"))
        self.stop("w0", "w1")


class Moving(harness.ClusterTest):
    """From one group to another; probes check every weight of every step."""

    def test_one_goes_over_and_back_and_nobody_stops(self):
        names = [f"w{i}" for i in range(4)]
        for i, name in enumerate(names):
            self.cluster.start_probe(name, 4, "--groups=2,2", f"--index={i}")
        self.cluster.until_step(names, 50)
        begin = time.monotonic()
        for group, sizes in ((1, (1, 3, 3, 3)), (0, (2, 2, 2, 2))):
            reply = self.cluster.ctl("move", "job", "w1", f"--group={group}", "--reason=a test")
            self.assertEqual(reply.returncode, 0, reply.stderr)
            for name, size in zip(names, sizes):
                self.cluster.until_members([name], size)
            step = {name: len(self.cluster.steps(name)) for name in names}
            until(lambda: all(len(self.cluster.steps(n)) > step[n] + 20 for n in names), "20 steps of each")
            members = {g["group"]: g["members"] for g in self.cluster.ask("groups")["groups"]}
            self.assertEqual(len(members[group]), sizes[1], members)
        # Nobody waited: no failure timeout is in any step.
        for name in names:
            self.assertLess(self.cluster.longest_gap(name, begin), FAILURE_TIMEOUT_S)
        self.assertEqual(self.cluster.events("fence"), [])
        self.assertTrue(any("w1 goes from group 0 before step" in e for e in self.cluster.events("migrate")))
        self.stop(*names)

    def test_a_group_ends_with_its_last_member_and_a_new_one_begins(self):
        for i in range(2):
            self.cluster.start_probe(f"w{i}", 2, "--groups=per-worker", f"--index={i}")
        self.cluster.until_step(["w0", "w1"], 10)
        # Group 0 ends with its last member.
        self.assertEqual(self.cluster.ctl("move", "job", "w0", "--group=1").returncode, 0)
        self.cluster.until_members(["w0", "w1"], 2)
        self.assertEqual(self.cluster.ctl("move", "job", "w0", "--group=new").returncode, 0)
        self.cluster.until_members(["w0", "w1"], 1)
        self.assertEqual(self.cluster.ctl("move", "job", "w0", "--group=new").returncode, 1)
        self.assertEqual(self.cluster.ctl("move", "job", "w0", "--group=7").returncode, 4)
        self.assertEqual(self.cluster.ctl("move", "job", "w9", "--group=1").returncode, 4)
        self.assertEqual(self.cluster.ctl("move", "job", "w0", "--group=one").returncode, 2)
        self.stop("w0", "w1")

    def test_it_is_killed_on_its_way_and_both_groups_go_on(self):
        names = [f"w{i}" for i in range(4)]
        others = ["w0", "w2", "w3"]
        hold = self.cluster.folder / "hold-w1"
        for i, name in enumerate(names):
            self.cluster.start_probe(name, 4, "--groups=2,2", f"--index={i}", *([f"--hold={hold}"] if name == "w1" else []))
        self.cluster.until_step(names, 20)
        exchange = max(self.cluster.longest_gap(name, 0) for name in names)
        held = time.monotonic()
        hold.touch()
        until(lambda: "holds " in self.cluster.text("w1"), "it to stay in its step")
        # Agreed while it is in that step, the last but one that its old group counts on it for.
        self.assertEqual(self.cluster.ctl("move", "job", "w1", "--group=1").returncode, 0)
        steps = {name: len(self.cluster.steps(name)) for name in others}
        killed = time.monotonic()
        self.cluster.kill("w1")
        until(lambda: all(len(self.cluster.steps(name)) > steps[name] + 20 for name in others), "20 steps of each")
        for name in others:
            waited = self.cluster.longest_gap(name, killed) - (killed - held)
            self.assertLess(waited, FAILURE_TIMEOUT_S + 1 + exchange, name)
        self.assertNotIn("goes over", self.cluster.text("w1"), "it did not get there")
        fenced = self.cluster.events("group")
        for group in (0, 1):
            self.assertTrue(any(f"group {group} generation 3" in event for event in fenced), fenced)
        self.stop(*others)


class Dying(harness.ClusterTest):
    def die_and_return(self, name, others, everyone):
        step = self.cluster.step(others[0])
        exchange = max(self.cluster.longest_gap(other, 0) for other in others)
        self.cluster.kill(name)
        killed = time.monotonic()
        self.cluster.until_step(others, step + 5)
        self.cluster.until_members(others, everyone - 1)
        for other in others:
            # Promised: failure timeout + 1 s + one exchange.
            self.assertLess(self.cluster.longest_gap(other, killed), FAILURE_TIMEOUT_S + 1 + exchange)
        self.cluster.start_probe(name, everyone)
        self.cluster.until_members([name, *others], everyone)

    def test_one_of_four_is_killed_in_a_round_twice_and_rejoins(self):
        names = [f"w{i}" for i in range(4)]
        for name in names:
            self.cluster.start_probe(name, 4)
        self.cluster.until_step(names, 20)
        for _ in range(2):
            self.die_and_return("w2", ["w0", "w1", "w3"], 4)
        # The replacement began with the weights of then, not with its own initial values.
        self.assertEqual(self.cluster.text("w2").count("initial=1000000 step=1"), 1)
        self.assertEqual(self.cluster.text("w2").count("initial=1000000"), 3)
        self.stop(*names)

    def test_death_before_the_first_round_is_not_waited_for_for_ever(self):
        for moment in ("joined", "ready"):
            with self.subTest(moment):
                names = [f"{moment}-{i}" for i in range(3)]
                for name in names[:2]:
                    self.cluster.start_probe(name, 3, "--steps=30", job=moment)
                self.cluster.start_probe(names[2], 3, f"--die={moment}", job=moment)
                self.assertEqual(self.cluster.wait(names[2]), -signal.SIGKILL)
                died = time.monotonic()
                first, _ = until(lambda: self.cluster.first_after(names[:2], died), "the others' first round")
                self.assertLess(first - died, FAILURE_TIMEOUT_S + 2)
                self.ends_well(*names[:2])

    def test_stopped_beyond_the_timeout_and_continued(self):
        names = [f"w{i}" for i in range(3)]
        for name in names:
            self.cluster.start_probe(name, 3)
        self.cluster.until_step(names, 20)
        exchange = max(self.cluster.longest_gap(name, 0) for name in names)
        self.cluster.kill("w1", signal.SIGSTOP)
        stopped = time.monotonic()
        self.cluster.until_members(["w0", "w2"], 2)
        self.cluster.until_step(["w0", "w2"], self.cluster.step("w0") + 20)
        for name in ("w0", "w2"):
            self.assertLess(self.cluster.longest_gap(name, stopped), FAILURE_TIMEOUT_S + 1 + exchange)
        self.cluster.kill("w1", signal.SIGCONT)
        self.cluster.until_members(names, 3)  # it rejoined by itself
        self.assertIn("rejoins: ", self.cluster.text("w1"))
        self.stop(*names)

    def test_a_second_process_of_a_name_ends_the_first_for_good(self):
        names = ["w0", "w1"]
        for name in names:
            self.cluster.start_probe(name, 2)
        self.cluster.until_step(names, 20)
        first = self.cluster.processes["w1"]
        self.cluster.start_probe("w1", 2)
        self.assertEqual(first.wait(timeout=10), 1, self.cluster.log("w1"))
        self.assertIn("another process has joined under", self.cluster.text("w1"))
        self.assertNotIn("rejoins", self.cluster.text("w1"))
        self.cluster.until_members(names, 2)
        self.cluster.until_step(["w0"], self.cluster.step("w0") + 100)
        self.assertEqual(len(self.cluster.events("fence")), 1)
        self.stop(*names)

    def test_stopped_for_less_than_the_timeout_is_slow_not_dead(self):
        for i in range(2):
            self.cluster.start_probe(f"w{i}", 2)
        self.cluster.until_step(["w0", "w1"], 20)
        self.cluster.kill("w1", signal.SIGSTOP)
        time.sleep(FAILURE_TIMEOUT_S / 3)  # the time itself is what is tested
        self.cluster.kill("w1", signal.SIGCONT)
        self.cluster.until_step(["w0", "w1"], 60)
        self.assertEqual(self.cluster.events("fence"), [])
        self.stop("w0", "w1")


class Training(harness.ClusterTest):
    """paceline-worker, which draws samples: the ledger has to be exact."""

    def test_groups_train_without_waiting_for_each_other(self):
        began = time.monotonic()
        for index in range(4):
            self.cluster.start_worker(index, 4, "--groups=3,1", "--epochs=1", "--slowdown=1,1,1,3",
                                      f"--step-log=w{index}.steps")
        self.ends_well("w0", "w1", "w2", "w3")
        ended = time.monotonic()
        job = self.samples_are_accounted_for(TRAINING_SAMPLES)
        self.assertEqual(job["samples_discarded"], 0)
        # Counted update by update, and by the formula from versions alone (docs/staleness.md).
        staleness = self.cluster.ask("staleness")
        self.assertEqual(len(staleness["by_group"]), 2)
        for group in staleness["by_group"]:
            self.assertEqual(group["sum"], group["formula_sum"], group)
        members = {group["group"]: len(group["members"]) for group in staleness["by_group"]}
        self.assertEqual(sorted(members.values()), [1, 3])
        for worker in staleness["by_worker"]:
            lines = (self.cluster.folder / f"{worker['worker']}.steps").read_text().splitlines()
            steps = [re.fullmatch(r"step=(\d+) members=(\d+) at_us=(\d+)", line).groups() for line in lines]
            # One line for each update that it had a part in, and the group as it was.
            self.assertEqual([int(step) for step, _, _ in steps], list(range(1, worker["count"] + 1)), worker)
            self.assertEqual({int(size) for _, size, _ in steps}, {members[worker["group"]]}, worker)
            moments = [int(at) / 1e6 for _, _, at in steps]
            self.assertEqual(moments, sorted(moments))
            self.assertTrue(began < moments[0] and moments[-1] < ended, (began, moments[0], moments[-1], ended))
        accuracy = {m["worker"]: m["value"] for m in job["metrics"] if m["name"] == "test_accuracy"}
        self.assertEqual(len(accuracy), 4)
        self.assertEqual(len(set(accuracy.values())), 1, "all workers end with the same weights")
        self.assertGreater(min(accuracy.values()), 0.75)

    def test_one_goes_over_to_another_group_and_no_sample_is_lost(self):
        logs = [self.cluster.folder / f"steps-{index}" for index in range(4)]
        for index in range(4):
            self.cluster.start_worker(index, 4, "--groups=2,2", "--epochs=1", f"--step-log={logs[index]}")
        until(lambda: self.cluster.group_step(0) >= 20 and self.cluster.group_step(1) >= 20, "20 steps of each")
        begin = time.monotonic()
        reply = self.cluster.ctl("move", "job", "w1", "--group=1")
        self.assertEqual(reply.returncode, 0, reply.stderr)
        self.ends_well("w0", "w1", "w2", "w3")
        job = self.samples_are_accounted_for(TRAINING_SAMPLES)
        self.assertEqual(job["samples_discarded"], 0)
        for log in logs:
            ends = [int(at) / 1e6 for at in re.findall(r"at_us=(\d+)", log.read_text())]
            gap = max(b - a for a, b in zip(ends, ends[1:]) if b > begin)
            self.assertLess(gap, FAILURE_TIMEOUT_S, log)
        self.assertIn("members=3", logs[1].read_text())
        self.assertIn("members=1", logs[0].read_text())
        for group in self.cluster.ask("staleness")["by_group"]:
            self.assertEqual(group["sum"], group["formula_sum"], group)
        accuracy = [m["value"] for m in job["metrics"] if m["name"] == "test_accuracy"]
        self.assertEqual(len(accuracy), 4)
        self.assertEqual(len(set(accuracy)), 1, "all workers end with the same weights")
        self.assertGreater(min(accuracy), 0.75)

    def test_one_is_killed_twice_and_one_stopped_and_no_sample_is_lost(self):
        for index in range(3):
            self.cluster.start_worker(index, 3, "--epochs=2")
        until(lambda: self.cluster.group_step(0) >= 20, "20 steps")
        for deaths in (1, 2):
            self.cluster.kill("w1")
            until(lambda: len(self.cluster.events("fence")) == deaths, "w1 to be taken for dead")
            self.cluster.start_worker(1, 3, "--epochs=2")
            until(lambda: (self.cluster.ask("jobs") or {}).get("workers_live") == 3, "w1 to be back")
        self.cluster.kill("w2", signal.SIGSTOP)
        until(lambda: any("w2 died" in e for e in self.cluster.events("fence")), "w2 to be taken for dead")
        self.cluster.kill("w2", signal.SIGCONT)
        self.ends_well("w0", "w1", "w2")
        self.samples_are_accounted_for(2 * TRAINING_SAMPLES)


class Starting(harness.ClusterTest):
    def test_different_initial_values_and_a_writer_that_dies(self):
        names = [f"w{i}" for i in range(3)]
        for i, name in enumerate(names):
            # 72 MB each: the writer is killed while its values are on their way.
            self.cluster.start_probe(name, 3, f"--initial={2_000_000 + i}", "--elements=3000000", "--tensors=6",
                                     "--steps=5")
        # From the log, which is quicker than to ask.
        named, _ = until(lambda: re.search(r"worker (\w+) writes initial values", self.cluster.text("scheduler")), "a writer")
        writer = named.group(1)
        self.cluster.kill(writer)
        names.remove(writer)
        self.ends_well(*names)
        starts = {line.split()[2] for name in names for line in self.cluster.text(name).splitlines()
                  if line.startswith("started")}
        self.assertEqual(len(starts), 1, "all started from one worker's values")
        self.assertGreaterEqual(len(self.cluster.events("writer")), 2, "the first one was half-way")
        self.assertIn(starts.pop(), {f"initial={2_000_000 + i}" for i in range(3)})

    def test_two_jobs_at_once_and_a_third_after_them(self):
        for job, initial in (("a", 1_000), ("b", 2_000)):
            for i in range(2):
                self.cluster.start_probe(f"{job}{i}", 2, f"--initial={initial}", "--steps=40", job=job)
        self.ends_well("a0", "a1", "b0", "b1")
        for i in range(2):
            self.cluster.start_probe(f"c{i}", 2, "--initial=3000", "--steps=5", job="a")
        self.ends_well("c0", "c1")
        for name, start, end in (("a0", 1_000, 960), ("b0", 2_000, 1_960), ("c0", 3_000, 2_995)):
            self.assertIn(f"initial={start} ", self.cluster.text(name))
            self.assertIn(f"weight={end} ", self.cluster.text(name))


class FewTensors(harness.ClusterTest):
    SERVERS = 4

    def test_more_servers_than_tensors(self):
        for i in range(2):
            self.cluster.start_probe(f"w{i}", 2, "--tensors=1", "--elements=3", "--steps=20")
        self.ends_well("w0", "w1")


if __name__ == "__main__":
    harness.main()
