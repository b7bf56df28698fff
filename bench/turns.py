"""Sides of a comparison that exist at once and take turns, a block of rounds each: A B C A B C ...

Between turns the others only wait. Rates count what every worker sends and receives; a block's rate is
that of its slowest worker. Processor time is that of all processes of a side, between the first and
the last mark of its turn.
"""
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PATIENCE_S = 300


def processes_of(root):
    """(utime + stime in seconds, resident bytes) of a process and all its descendants."""
    stats, children = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        stats[int(entry)] = fields
        children.setdefault(int(fields[1]), []).append(int(entry))
    found, left = [], [root]
    while left:
        pid = left.pop()
        left += children.get(pid, [])
        if pid in stats:
            # With the children it has reaped: nothing may end unseen during a turn.
            ticks = sum(int(stats[pid][i]) for i in (11, 12, 13, 14))
            found.append((ticks / TICK, int(stats[pid][21]) * PAGE))
    return found


class Side:
    """One of the three: a process group whose workers print marks and wait for their turns."""

    def __init__(self, name, commands, workers, environment):
        self.name, self.workers = name, workers
        self.folder = tempfile.mkdtemp(prefix=f"paceline-bench-{name}-")
        self.lines = queue.Queue()
        self.rates, self.cpu = [], []
        self.peak_bytes = 0
        self.turn = 0
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.processes = []
        for command, extra in commands:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=self.log,
                text=True,
                cwd=self.folder,
                env={**os.environ, **environment, **extra, "PACELINE_BENCH_GO": self.folder},
                start_new_session=True,
            )
            self.processes.append(process)
            threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process):
        for line in process.stdout:
            # pacelinectl puts the worker's name before each line.
            words = line.split()
            for i, word in enumerate(words):
                if word in ("ready", "begin", "end", "block"):
                    self.lines.put((word, float(words[i + 1]) if word == "block" else None))
                    break

    def _await(self, word, count):
        values = []
        deadline = time.monotonic() + PATIENCE_S
        while len(values) < count:
            try:
                got, value = self.lines.get(timeout=1)
            except queue.Empty:
                if time.monotonic() > deadline or any(
                    process.poll() not in (None, 0) for process in self.processes
                ):
                    self.log.seek(0)
                    sys.exit(f"{self.name} did not say {word!r}:\n{self.log.read()[-4000:]}")
                continue
            if got == word:
                values.append(value)
        return values

    def await_ready(self):
        self._await("ready", self.workers)

    def _processor_seconds(self):
        total = resident = 0
        for process in self.processes:
            for seconds, bytes_ in processes_of(process.pid):
                total += seconds
                resident += bytes_
        self.peak_bytes = max(self.peak_bytes, resident)
        return total

    def take_turn(self, bytes_of_block):
        before = self._processor_seconds()
        pathlib.Path(self.folder, str(self.turn)).touch()
        self.turn += 1
        took = max(self._await("block", self.workers))
        used = self._processor_seconds() - before
        self.rates.append(bytes_of_block / took / 1e9)
        self.cpu.append(used)

    def stop(self):
        deadline = time.monotonic() + 20
        for process in self.processes:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)  # its own session's group
            except ProcessLookupError:
                pass
            process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def ours(args, tensors, transport, workers, servers, rounds, optimizer=None, name="ours"):
    """A job of transfer_bench; args has bin and blocks."""
    command = [
        f"{args.bin}/bin/pacelinectl", "run", "--workers", str(workers), "--servers", str(servers),
        "--", f"{args.bin}/bench/transfer_bench", tensors, transport, str(rounds), str(args.blocks),
    ]
    return Side(name, [(command + ([optimizer] if optimizer else []), {})], workers, {})


def take_turns(sides, blocks, bytes_of_block, between=lambda: None):
    """Each side's turn, `blocks` times over, and their end."""
    try:
        for _ in range(blocks):
            for side in sides:
                side.await_ready()
            between()
            for side in sides:
                side.take_turn(bytes_of_block)
    finally:
        for side in sides:
            side.stop()
