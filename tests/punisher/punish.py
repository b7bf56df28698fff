#!/usr/bin/env python3
"""Runs a job on real processes and does to them what a script of faults says; README.md."""

import argparse
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import cluster
import invariants
import network
import script
import watch
from cluster import Violation, harness
from script import CANARIES, EXTRA_SERVER, SCHEDULER, SERVERS, WORKERS

TICK_S = 0.02
# How much of a lap's samples are left for after the script.
LAST_PART = 0.95
# Beginnings and ends of laps: no promise, so long enough for a machine with other work.
BEGIN_S = END_S = 300
# From one line that says how far it is to the next.
SAY_S = 30


def say(text):
    print(text, flush=True)


class Poll:
    """What `pacelinectl jobs JOB` last said; asking never holds up the loop."""

    def __init__(self, run):
        self.run = run
        self.view = None
        self.process = None
        self.next = 0

    def tick(self):
        if self.process is None and time.monotonic() >= self.next:
            self.next = time.monotonic() + 0.5
            self.process = subprocess.Popen(
                [*self.run.place("operator"), harness.program("pacelinectl"), "jobs", f"train-{self.run.lap}", "--json",
                 f"--scheduler={self.run.address}", "--timeout-ms=1000"], stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, env=harness.clean_environment(**self.run.env))
        elif self.process is not None and self.process.poll() is not None:
            said = self.process.stdout.read()
            self.process.stdout.close()
            if self.process.returncode == 0:
                self.view = json.loads(said)["jobs"][0]
            self.process = None

    def close(self):
        if self.process is not None:
            self.process.communicate()

    def done(self):
        """The part of the job's samples that has been dealt with."""
        if not self.view or self.view["job"] != f"train-{self.run.lap}":
            return 0.0
        dealt = self.view["samples_applied"] + self.view["samples_discarded"]
        return dealt / self.view["samples_total"]


class Lap:
    """One job from its first step to its end, with the faults of its script."""

    def __init__(self, run, progress, memory, faults, verbose):
        self.run, self.progress, self.memory, self.verbose = run, progress, memory, verbose
        self.waiting = list(faults)
        self.on = []  # (disturbance, generator)
        self.applied = []
        self.poll = Poll(run)
        self.next_say = SAY_S
        self.late = collections.deque(maxlen=10_000)  # (when, seconds) of each tick

    def go(self, number):
        self.run.start_lap(number)
        self.progress.begin_lap()
        names = (*WORKERS, *CANARIES)
        self.until(lambda: all(self.progress.steps[n].count >= 3 for n in names), "everybody to make steps", BEGIN_S)
        if self.run.options.restores:
            self.run.take_checkpoints()
        begin = time.monotonic()
        while self.waiting or self.on:
            if self.poll.done() >= LAST_PART and self.waiting:
                say(f"  the job is nearly over: {len(self.waiting)} faults are left out")
                self.waiting = []
            self.start_faults(time.monotonic() - begin)
            self.step_faults()
            self.tick(set(names))
            self.say_where(time.monotonic() - begin)
        while self.poll.done() < LAST_PART and any(n in self.run.expected for n in WORKERS):
            self.tick(set(names))
            self.say_where(time.monotonic() - begin)
        return self.finish()

    def say_where(self, at):
        if at < self.next_say:
            return
        self.next_say = at + SAY_S
        say(f"  {at:4.0f} s: {len(self.applied)} faults done, {len(self.waiting)} to come; {self.poll.done():.0%} of the "
            f"samples; longest wait after single faults {self.progress.longest():.2f} s, of this process for a processor "
            f"{self.held_up():.2f} s; load {os.getloadavg()[0]:.1f}")

    def held_up(self):
        """How late this process itself was in the last half minute: on a machine with other work so is everybody."""
        return max((late for at, late in self.late if time.monotonic() - at < SAY_S), default=0.0)

    def start_faults(self, at):
        while self.waiting and self.waiting[0].at <= at:
            fault = self.waiting.pop(0)
            if self.verbose:
                say(f"  {fault}")
            self.applied.append(fault)
            disturbance = self.progress.begin(fault)
            alone = lambda d=disturbance: len(self.progress.relevant(d.begin, time.monotonic())) <= 1
            self.on.append((disturbance, self.run.apply(fault, alone)))

    def step_faults(self):
        still = []
        for disturbance, steps in self.on:
            try:
                next(steps)
                still.append((disturbance, steps))
            except StopIteration:
                disturbance.end = time.monotonic()
        self.on = still

    def tick(self, live):
        self.poll.tick()
        # The evaluation at its end takes a worker a multiple of what training does.
        self.memory.sample(self.run.expected if live else self.run.expected - set(WORKERS))
        if live:
            ended = [n for n in self.run.ended_by_themselves() if not (n in WORKERS and self.over(n))]
            if ended:
                raise Violation("; ".join(f"{n} ended by itself with {self.run.processes[n].returncode}" for n in ended))
            self.progress.check(live & {n for n in live if n in self.run.expected or n in CANARIES})
        before = time.monotonic()
        time.sleep(TICK_S)
        self.late.append((before, time.monotonic() - before - TICK_S))

    def over(self, name):
        return self.run.processes[name].returncode == 0 and self.poll.done() >= LAST_PART

    def until(self, condition, what, seconds):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise Violation(f"waited {seconds} s for {what}")
            for steps in self.progress.steps.values():
                steps.read()
            self.tick(set())

    def finish(self):
        run = self.run
        self.until(lambda: all(run.processes[n].poll() is not None for n in WORKERS), "the workers to end", END_S)
        for name in WORKERS:
            run.expected.discard(name)
            if run.processes[name].returncode != 0:
                raise Violation(f"{name} ended with {run.processes[name].returncode}")
        for name in CANARIES:
            run.signal(name, signal.SIGTERM)
        recovering = self.progress.relevant(time.monotonic(), time.monotonic())
        self.until(lambda: all(run.processes[n].poll() is not None for n in CANARIES), "the canaries to leave",
                   cluster.PATIENCE_S if recovering else cluster.END_S)
        invariants.canaries(run)
        for name in CANARIES:
            if run.processes[name].returncode != 0:
                raise Violation(f"{name} ended with {run.processes[name].returncode}")
        invariants.ledger(run, f"canary-{run.lap}")
        return invariants.ledger(run, f"train-{run.lap}", run.options.epochs * invariants.TRAINING_SAMPLES)


def undisturbed(options, link):
    """Test accuracy of the same job with nothing done to it, as fast as it goes."""
    run = cluster.Run(link, argparse.Namespace(**{**vars(options), "step_ms": 2}))
    try:
        run.start_daemons()
        begin = time.monotonic()
        for name in WORKERS:
            run.spawn(name)
        until_ended(run)
        value = invariants.accuracy(invariants.ledger(run, "train-0", options.epochs * invariants.TRAINING_SAMPLES))
        say(f"undisturbed: test accuracy {value:.4f} after {options.epochs} epochs in {time.monotonic() - begin:.0f} s")
        run.end_daemons()
        return value
    finally:
        run.close()


def until_ended(run):
    """The workers, however long that takes while the daemons are there; says how far they are."""
    poll, next_say = Poll(run), time.monotonic() + SAY_S
    while any(run.processes[name].poll() is None for name in WORKERS):
        poll.tick()
        gone = [name for name in run.ended_by_themselves() if name not in WORKERS]
        if gone:
            raise Violation(f"undisturbed: {gone[0]} ended by itself (load {os.getloadavg()[0]:.1f}): {run.log(gone[0])}")
        if time.monotonic() >= next_say:
            next_say += SAY_S
            say(f"undisturbed: {poll.done():.0%} of the samples")
        time.sleep(TICK_S)
    poll.close()
    for name in WORKERS:
        run.expected.discard(name)
        if run.processes[name].returncode != 0:
            raise Violation(f"undisturbed: {run.log(name)}")


def means_of(options):
    no_cuts = "switched off" if options.links == "off" else network.why_no_cuts()
    no_resets = network.why_no_resets()
    if options.links == "on" and no_cuts:
        sys.exit(f"punish: links cannot be cut here: {no_cuts}")
    say(f"cut links: {'skipped: ' + no_cuts if no_cuts else 'yes, in network namespaces'}")
    say(f"reset connections: {'skipped: ' + no_resets if no_resets else 'yes'}")
    restores = "on-server-loss" in harness.run_program("paceline-worker", "--help").stdout
    say(f"kill servers: {'yes' if restores else 'skipped: paceline-worker has no --on-server-loss'}")
    return script.Means(options.failure_timeout, not no_cuts, not no_resets, restores)


def punish(options, means):
    names = (SCHEDULER, *SERVERS, EXTRA_SERVER, *WORKERS, *CANARIES)
    link = network.Namespaces(names) if means.cuts else network.Loopback()
    options.restores = means.restores
    try:
        expected = options.undisturbed or undisturbed(options, link)
        return laps(options, means, link, expected)
    except Violation as violation:  # of the undisturbed run
        say(f"\nVIOLATION: {violation}")
        return 1
    finally:
        link.close()


def laps(options, means, link, expected):
    run = cluster.Run(link, options)
    progress, memory = watch.Progress(run), watch.Memory(run)
    lap, keep = None, True
    try:
        run.start_daemons()
        for number in range(options.laps):
            faults = (script.parse(options.script.read_text()) if options.script
                      else script.draw(options.seed, number, options.lap_seconds, means))
            say(f"lap {number + 1} of {options.laps}, seed {options.seed}: {len(faults)} faults")
            if not options.verbose:
                for fault in faults:
                    say(f"  {fault}")
            lap = Lap(run, progress, memory, faults, options.verbose)
            begin = time.monotonic()
            value = invariants.accuracy(lap.go(number), expected)
            say(f"  over after {time.monotonic() - begin:.0f} s: ledger exact, test accuracy {value:.4f} "
                f"({expected:.4f} undisturbed)")
        run.end_daemons()
        invariants.nothing_left(run)
        growths = watch.growths(memory, invariants.LIFE_S)
        report(run, progress, growths)
        invariants.flat(growths)
        say("clean")
        keep = False
        return 0
    except (Violation, AssertionError, subprocess.TimeoutExpired) as violation:
        complain(options, run, lap, violation)
        return 1
    finally:
        run.close(keep)


def report(run, progress, growths):
    done = sorted(progress.done.items())
    say(f"faults: {', '.join(f'{count} {kind}' for kind, count in done)}; {run.closed} connections closed by reset and lose")
    say(f"longest step with no fault near: {progress.quiet:.2f} s; after single faults (bound {progress.bound:.1f} s):")
    for what, (times, most) in sorted(progress.worst.items()):
        say(f"  {what:<24} {len(times):3} times, longest {most:.2f} s")
    for g in growths[:5]:
        say(f"memory: {g.bytes / 1000:+.0f} kB in {g.seconds:.0f} s, {g.who}, {g.size / 1e6:.1f} MB")
    if not growths:
        say(f"memory: no process lived {invariants.LIFE_S} s, not judged")


def complain(options, run, lap, violation):
    say(f"\nVIOLATION, seed {options.seed}, lap {run.lap + 1}: {violation}\n")
    if lap:
        say(f"load {os.getloadavg()[0]:.1f}; in the last {SAY_S} s this process itself waited up to {lap.held_up():.2f} s "
            "for a processor (README.md: Deadlines)")
        say("the script up to here (save it and replay it with --script FILE):")
        for fault in lap.applied:
            say(f"  {fault}")
    for name in run.processes:
        say(f"--- {name} (pid {run.processes[name].pid}, {run.processes[name].poll()})")
        say("\n".join(line for line in run.text(name).splitlines() if not line.startswith("step="))[-1500:])
    say(f"\nkept: {run.folder}")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--probe", required=True, type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1, help="of faults, without start and end")
    parser.add_argument("--script", type=pathlib.Path, help="faults of one lap, in place of drawn ones")
    parser.add_argument("--links", choices=("auto", "on", "off"), default="auto", help="network namespaces")
    parser.add_argument("--failure-timeout", type=float, default=5.0, help="seconds")
    parser.add_argument("--undisturbed", type=float, help="accuracy of an undisturbed run that was made before")
    parser.add_argument("--step-ms", type=int, default=100)
    parser.add_argument("--verbose", action="store_true", help="print each fault when it comes")
    options = parser.parse_args()
    harness.BIN, harness.PROBE = options.bin, options.probe
    # A lap is at most five minutes; its job is long enough not to end before its script does.
    options.laps = 1 if options.script else max(1, round(options.minutes / 5))
    options.lap_seconds = options.minutes * 60 / options.laps
    if options.script:
        options.lap_seconds = max(f.end for f in script.parse(options.script.read_text())) + 5
    steps = invariants.TRAINING_SAMPLES / (64 * len(WORKERS))
    epoch_s = steps * (options.step_ms / 1000 + 0.005)
    options.epochs = int(options.lap_seconds * 1.05 / epoch_s) + 1
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(f"punish: seed {options.seed}, {options.minutes:g} minutes, {options.epochs} epochs a lap, "
        f"failure timeout {options.failure_timeout:g} s")
    return punish(options, means_of(options))


if __name__ == "__main__":
    sys.exit(main())
