#!/usr/bin/env python3
"""Daemons and workers that are killed, restarted and added. cluster_test.py --bin FOLDER [TEST]..."""

import unittest

from harness import FAILURE_TIMEOUT_S, TRAINING_SAMPLES, Cluster, main, until


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


if __name__ == "__main__":
    main()
