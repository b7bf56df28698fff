#!/usr/bin/env python3
"""The scripts themselves: the same for the same seed, and never more at once than can be judged."""

import sys
import unittest

import script
from script import Means

ALL = Means(failure_timeout=3, cuts=True, resets=True, restores=True)


class Script(unittest.TestCase):
    def test_is_a_function_of_its_seed(self):
        first = script.draw(7, 0, 300, ALL)
        self.assertEqual(first, script.draw(7, 0, 300, ALL))
        self.assertNotEqual(first, script.draw(8, 0, 300, ALL))
        self.assertNotEqual(first, script.draw(7, 1, 300, ALL))

    def test_reads_what_it_prints(self):
        faults = script.draw(3, 0, 600, ALL)
        self.assertEqual(faults, script.parse("\n".join(map(str, faults))))
        self.assertEqual(script.parse("# none\n\n"), [])
        with self.assertRaisesRegex(ValueError, "shoot w1"):
            script.parse("1.0 shoot w1 for 1.0")

    def test_every_seed_leaves_half_the_workers_alone_and_touches_one_server_at_a_time(self):
        for seed in range(200):
            faults = script.draw(seed, 0, 300, ALL)
            self.assertGreater(len(faults), 10, f"seed {seed}")
            for fault in faults:
                self.assertLessEqual(fault.end, 300)
                together = [o for o in faults if o.at <= fault.at < o.end + 5]
                self.assertLessEqual(len({o.target for o in together} & set(script.WORKERS)), 3, f"seed {seed}: {fault}")
                self.assertLessEqual(sum(script.is_server(o.target) for o in together), 1, f"seed {seed}: {fault}")
                self.assertNotEqual(fault.target, fault.peer)

    def test_every_role_and_kind_is_drawn(self):
        faults = [f for seed in range(50) for f in script.draw(seed, 0, 300, ALL)]
        for target in (*script.WORKERS, *script.CANARIES, *script.SERVERS, script.EXTRA_SERVER, script.SCHEDULER):
            self.assertTrue(any(f.target == target for f in faults), target)
        self.assertEqual({f.kind for f in faults}, {"kill", "stop", "term", "drain", "join", "cut", "reset", "lose", "move"})
        # Servers too, where checkpoints make them good.
        self.assertEqual({f.target for f in faults if f.kind == "kill"},
                         {*script.WORKERS, *script.CANARIES, *script.SERVERS, script.SCHEDULER})

    def test_no_server_is_taken_for_dead_where_nothing_could_restore_it(self):
        without = Means(failure_timeout=3, cuts=True, resets=True, restores=False)
        for seed in range(100):
            for fault in script.draw(seed, 0, 300, without):
                if not script.is_server(fault.target) or fault.kind in ("drain", "join"):
                    continue
                self.assertNotEqual(fault.kind, "kill")
                if fault.kind == "stop" or fault.peer == script.SCHEDULER:
                    self.assertLess(fault.seconds, 0.7 * 3, fault)

    def test_without_means_there_are_no_such_faults(self):
        poor = Means(failure_timeout=3, cuts=False, resets=False, restores=False)
        self.assertFalse([f for s in range(50) for f in script.draw(s, 0, 300, poor) if f.kind in ("cut", "reset", "lose")])


if __name__ == "__main__":
    sys.exit(unittest.main())
