"""What is seen while a run goes on: the steps of every worker, what disturbs them, and memory."""

import collections
import dataclasses
import pathlib
import re
import statistics
import time

from script import CANARIES, SCHEDULER, WORKERS, is_server
from cluster import Violation

STEP = re.compile(rb"^step=(\d+) .*at_us=(\d+)$", re.M)


class Steps:
    """The newest step of a worker, read from the growing file it writes them to."""

    def __init__(self, path):
        self.path = path
        self.offset = 0
        self.rest = b""
        self.last = None  # time.monotonic() of it
        self.count = 0

    def read(self):
        """[(when)] of the steps since the last call."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            text = file.read()
        self.offset += len(text)
        text = self.rest + text
        whole, _, self.rest = text.rpartition(b"\n")
        times = [int(at) / 1e6 for _, at in STEP.findall(whole)]
        self.count += len(times)
        if times:
            self.last = times[-1]
        return times


@dataclasses.dataclass
class Disturbance:
    fault: object
    begin: float
    end: float = None  # None while it is on

    def over_since(self, now):
        return 0 if self.end is None else now - self.end


class Progress:
    """Holds every worker that no fault touches to steps within failure timeout + 2 s of any single fault.

    A fault counts as single as long as no other one is on or has been within that time. While several are, the time
    runs from when the last of them was undone, and what is undone (a process started again) may take it twice."""

    def __init__(self, run):
        self.run = run
        self.bound = run.options.failure_timeout + 2
        self.disturbances = []
        self.steps = {}
        self.worst = {}  # stall after single faults, by what they were
        self.done = collections.Counter()  # faults by kind, of all laps
        self.quiet = 0.0  # longest step without any fault

    def longest(self):
        return max((most for _, most in self.worst.values()), default=0.0)

    def begin_lap(self):
        now = time.monotonic()
        self.disturbances = []
        for name in (*WORKERS, *CANARIES):
            path = self.run.folder / (f"{name}.steps" if name in WORKERS else f"{name}.log")
            if name not in self.steps:
                self.steps[name] = Steps(path)
            self.steps[name].read()
            self.steps[name].last = now
            self.steps[name].count = 0

    def begin(self, fault):
        self.done[fault.kind] += 1
        self.disturbances.append(Disturbance(fault, time.monotonic()))
        return self.disturbances[-1]

    def touched(self, name, begin):
        """Whether a fault of this worker itself was on since `begin`."""
        return any(name == d.fault.target and (d.end is None or d.end >= begin) for d in self.disturbances)

    def relevant(self, begin, now):
        return [d for d in self.disturbances if d.begin <= now and (d.end is None or d.end + self.bound >= begin)]

    def allowance(self, name, begin, now):
        """From when the time runs, and how much of it there is."""
        near = self.relevant(begin, now)
        if self.touched(name, begin):
            undone = [now if d.end is None else d.end for d in near]
            return max([begin, *undone]), 3 * self.bound
        if len(near) <= 1:
            return max([begin] + [d.begin for d in near if d.begin > begin]), self.bound
        return max([begin] + [now if d.end is None and d.fault.seconds > 0 and self.blocks(d) else d.end or d.begin
                              for d in near]), 2 * self.bound

    def blocks(self, disturbance):
        """Whether others may have to wait for as long as this is on: scripts bound how long that is."""
        fault = disturbance.fault
        return SCHEDULER in (fault.target, fault.peer) or fault.kind in ("stop", "cut")

    def check(self, live):
        """`live`: workers that have to make steps."""
        for name, steps in self.steps.items():
            previous = steps.last
            for at in steps.read():
                self.note(name, previous, at)
                previous = at
            now = time.monotonic()
            if name not in live:
                continue
            begin, bound = self.allowance(name, steps.last, now)
            if now - begin > bound:
                near = ", ".join(str(d.fault) for d in self.relevant(steps.last, now)) or "no fault at all"
                raise Violation(f"{name} makes no step: {now - steps.last:.1f} s after its last, "
                                f"{now - begin:.1f} s after it could have gone on (bound {bound:.1f} s); near: {near}")

    def note(self, name, begin, end):
        if self.touched(name, begin):
            return
        near = self.relevant(begin, end)
        if not near:
            self.quiet = max(self.quiet, end - begin)
        elif len(near) == 1:
            fault = near[0].fault
            what = f"{fault.kind} {re.sub('[0-9]+$', '', fault.target)}" + (
                f" {re.sub('[0-9]+$', '', fault.peer)}" if fault.peer else "")
            stall = end - max(begin, near[0].begin)
            times, most = self.worst.get(what, (set(), 0.0))
            self.worst[what] = (times | {near[0].begin}, max(most, stall))


class Memory:
    """What each process has allocated and touched, every two seconds of its life; pages of files are left out: they
    come with the code that runs for the first time, and go when somebody else needs memory."""

    EVERY_S = 2

    def __init__(self, run):
        self.run = run
        self.lives = {}  # (name, pid): [(when, bytes)]
        self.next = 0

    def sample(self, names):
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + self.EVERY_S
        for name, process in self.run.processes.items():
            if name not in names or process.poll() is not None:
                continue
            try:
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                continue
            kilobytes = sum(int(n) for n in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.M))
            self.lives.setdefault((name, process.pid), []).append((now, kilobytes * 1024))


@dataclasses.dataclass(order=True)
class Growth:
    """Of a process, from the median of the middle third of its life to that of the last one."""
    bytes: float
    seconds: float  # between the two
    who: str
    size: float  # in the last third
    share: float  # of a server that another one's chunks may have gone to: what it held for its own until then


def growths(memory, life_s):
    """Of the processes that lived so long, the greatest first."""
    found = []
    ends = [(name, points[-1][0]) for (name, _), points in memory.lives.items()]
    for (name, pid), points in memory.lives.items():
        begin, end = points[0][0], points[-1][0]
        if end - begin < life_s:
            continue
        third = (end - begin) / 3
        middle, last = (statistics.median(size for at, size in points if begin + k * third <= at <= begin + (k + 1) * third)
                        for k in (1, 2))
        inherits = is_server(name) and any(is_server(other) and other != name and begin < at < end - memory.EVERY_S
                                           for other, at in ends)
        share = middle - points[0][1] if inherits else 0.0
        found.append(Growth(last - middle, third, f"{name} ({pid})", last, share))
    return sorted(found, reverse=True)
