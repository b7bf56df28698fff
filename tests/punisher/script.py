"""Fault scripts: a pure function of the seed, and the text they are printed and read back in.

    12.40 kill w3 for 2.10            SIGKILL; started again under its name after 2.10 s
    20.00 stop scheduler for 4.00     SIGSTOP, SIGCONT
    31.50 term w1 for 1.00            SIGTERM: it leaves or ends well; started again
    40.00 drain server-1 for 2.00     chunks moved off, ended, started again
    50.00 join server-3 for 6.00      one more server; drained and ended after that
    61.00 cut w2 server-0 for 1.20    no packet passes between the two
    70.00 cut w2 * for 5.00           no packet passes between it and anybody
    80.00 reset w4 server-2 for 0.00  their connections are closed under them
    90.00 lose w4 * for 0.50          what servers answer is lost, then the connections break: w4 has to ask again
    95.00 move w2 1 for 0.00          an operator asks for it to go to group 1
"""

import dataclasses
import random
import re

WORKERS = tuple(f"w{i}" for i in range(6))
CANARIES = tuple(f"c{i}" for i in range(3))
SERVERS = tuple(f"server-{i}" for i in range(3))
GROUPS = ("0", "1")  # of the workers, at the start
EXTRA_SERVER = "server-3"
SCHEDULER = "scheduler"


@dataclasses.dataclass(frozen=True)
class Fault:
    at: float  # seconds of the lap
    kind: str
    target: str
    peer: str  # the other end of a link; * is everybody; where to of a move; else empty
    seconds: float  # until it is undone

    @property
    def end(self):
        return self.at + self.seconds

    def __str__(self):
        ends = f"{self.target} {self.peer}" if self.peer else self.target
        return f"{self.at:.2f} {self.kind} {ends} for {self.seconds:.2f}"


@dataclasses.dataclass(frozen=True)
class Means:
    """What this machine and these programs can do."""
    failure_timeout: float
    cuts: bool  # network namespaces
    resets: bool  # ss -K
    restores: bool  # servers that die are made good from checkpoints


def is_worker(name):
    return name[0] in "wc" and name[1:].isdigit()


def is_server(name):
    return name.startswith("server-")


def kinds(means):
    """[(weight, kind, targets, peers, shortest, longest)]; times in failure timeouts.

    A server must not be taken for dead where nothing could restore its chunks: it is stopped or cut off from the
    scheduler for a fraction of the timeout only. TCP's waits double, so a cut costs up to twice its length."""
    everyone = WORKERS + CANARIES
    table = [
        (6, "kill", everyone, (), 0.1, 1.5),
        (5, "stop", everyone, (), 0.1, 2.5),
        (3, "term", everyone, (), 0.1, 1.0),
        (3, "kill", (SCHEDULER,), (), 0.05, 1.5),
        (2, "stop", (SCHEDULER,), (), 0.1, 2.0),
        (1, "term", (SCHEDULER,), (), 0.05, 0.5),
        (3, "move", WORKERS, GROUPS, 0, 0),
        (2, "stop", SERVERS, (), 0.05, 0.6),
        (2, "drain", SERVERS, (), 0.2, 1.0),
        (2, "join", (EXTRA_SERVER,), (), 1.0, 2.0),
    ]
    if means.cuts:
        table += [
            (3, "cut", everyone, SERVERS, 0.1, 1.0),
            (2, "cut", everyone, (SCHEDULER,), 0.1, 2.0),
            (1, "cut", everyone, ("*",), 0.1, 2.0),
            (1, "cut", SERVERS, (SCHEDULER,), 0.05, 0.3),
            (1, "cut", SERVERS, SERVERS, 0.1, 1.0),
        ]
    if means.cuts and means.resets:
        table += [(5, "lose", everyone, ("*",), 0.1, 0.3)]
    if means.resets:
        table += [
            (3, "reset", everyone, SERVERS, 0, 0),
            (1, "reset", everyone, (SCHEDULER,), 0, 0),
            (1, "reset", SERVERS, (SCHEDULER,), 0, 0),
        ]
    if means.restores:
        table += [(2, "kill", SERVERS, (), 0.1, 2.0)]
    return table


def compatible(fault, others, means):
    """Whether one could tell afterwards what was to be expected: `others` are those drawn so far."""
    quiet = means.failure_timeout + 2
    near = [o for o in others if fault.at < o.end + quiet and o.at < fault.end + quiet]
    touched = {name for o in near for name in (o.target, o.peer) if name}
    if fault.target in touched and fault.target != SCHEDULER:
        return False
    if fault.target == SCHEDULER and any(o.target == SCHEDULER for o in near):
        return False
    if is_server(fault.target) and any(is_server(o.target) for o in near):
        return False
    # At least half of each job's workers are left alone.
    disturbed = {o.target for o in near} | {fault.target}
    return len(disturbed & set(WORKERS)) <= 3 and len(disturbed & set(CANARIES)) <= 1


def one(numbers, at, means):
    table = kinds(means)
    _, kind, targets, peers, shortest, longest = numbers.choices(table, [row[0] for row in table])[0]
    target = numbers.choice(targets)
    peers = [p for p in peers if p != target]
    seconds = numbers.uniform(shortest, longest) * means.failure_timeout
    return Fault(round(at, 2), kind, target, numbers.choice(peers) if peers else "", round(seconds, 2))


def draw(seed, lap, seconds, means):
    """The faults of a lap: half of them alone, with time to recover, the others in bursts of two to four."""
    numbers = random.Random(f"{seed}/{lap}")
    faults = []
    at = 1.0
    while True:
        for _ in range(numbers.choices((1, 2, 3, 4), (4, 2, 1, 1))[0]):
            fault = one(numbers, at, means)
            if fault.end > seconds:
                return sorted(faults, key=lambda f: f.at)
            if compatible(fault, faults, means):
                faults.append(fault)
                at += numbers.uniform(0.0, 1.0)
        at = max([at] + [f.end for f in faults]) + means.failure_timeout + 2 + numbers.uniform(0.0, 1.0)


def parse(text):
    """What str() of faults gave, a line each; empty lines and # are skipped."""
    faults = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = re.fullmatch(r"\s*([\d.]+) (kill|stop|term|drain|join|cut|reset|lose|move) ([\w-]+)(?: ([\w*-]+))? for ([\d.]+)\s*",
                             line)
        if not match:
            raise ValueError(f"not a fault: {line!r}; as in 12.40 kill w3 for 2.10")
        at, kind, target, peer, seconds = match.groups()
        faults.append(Fault(float(at), kind, target, peer or "", float(seconds)))
    return sorted(faults, key=lambda f: f.at)
