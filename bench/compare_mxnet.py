#!/usr/bin/env python3
"""Paceline, MXNet's dist_sync servers and a bare socket exchange, in turn on the same tensors.

All three exist at once as processes of their own and take turns, a block of rounds each: A B C
A B C ... Between turns the others only wait. A round is over for a worker when it has all sums. Rates
count what every worker sends and receives; a block's rate is that of its slowest worker. Processor
time is that of all processes of a side, between the first and the last mark of its turn.

    compare_mxnet.py --bin build/release --mxnet-python VENV/bin/python [--case 25x1M/shm/2w1s ...]

Prints a table and writes one JSON object a case to --output (build/bench/transfer.jsonl).
"""
import argparse
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from tensor_lists import TENSORS

HERE = pathlib.Path(__file__).resolve().parent
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PATIENCE_S = 300
DEFAULT_CASES = [
    f"{tensors}/{transport}/{workers}w1s"
    for tensors in ("25x1M", "resnet50")
    for workers in (1, 2, 4)
    for transport in ("shm", "tcp")
] + ["25x1M/shm-arena/2w1s", "resnet50/shm-arena/2w1s"] + [
    f"{tensors}/{transport}/2w1s" for tensors in ("200x4KiB", "1000x400B") for transport in ("shm", "tcp")
]


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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ours(args, tensors, transport, workers, servers, rounds):
    command = [
        f"{args.bin}/bin/pacelinectl", "run", "--workers", str(workers), "--servers", str(servers),
        "--", f"{args.bin}/bench/transfer_bench", tensors, transport, str(rounds), str(args.blocks),
    ]
    return Side("ours", [(command, {})], workers, {})


def mxnet(args, tensors, workers, servers, rounds):
    base = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_INTERFACE": "lo",
        "PYTHONPATH": str(HERE),
    }
    command = [args.mxnet_python, str(HERE / "mxnet_worker.py"), tensors, str(rounds),
               str(args.blocks)]
    roles = ["scheduler"] + ["server"] * servers + ["worker"] * workers
    return Side("mxnet", [(command, {"DMLC_ROLE": role}) for role in roles], workers, base)


def bare(args, tensors, workers, rounds):
    command = [f"{args.bin}/bench/bare_exchange", tensors, str(workers), str(rounds),
               str(args.blocks)]
    return Side("bare", [(command, {})], workers, {})


def run_case(args, case):
    tensors, transport, shape = case.split("/")
    workers, servers = (int(part) for part in shape.rstrip("s").split("w"))
    bytes_of_round = 2 * 4 * sum(TENSORS[tensors]) * workers
    # Blocks long enough for the processor clock (ticks of 10 ms) to mean something.
    rounds = max(3, args.block_bytes // bytes_of_round)
    rounds = min(rounds, 200)
    sides = [
        ours(args, tensors, transport, workers, servers, rounds),
        mxnet(args, tensors, workers, servers, rounds),
        bare(args, tensors, workers, rounds),
    ]
    try:
        for block in range(args.blocks):
            for side in sides:
                side.await_ready()
            for side in sides:
                side.take_turn(bytes_of_round * rounds)
    finally:
        for side in sides:
            side.stop()
    gigabytes = bytes_of_round * (rounds + 1) / 1e9  # a turn begins with a round that is not timed
    result = {"case": case, "unit": "GB/s"}
    for key, side in zip(("ours", "peer", "bare"), sides):
        result[key] = round(statistics.median(side.rates), 3)
        result[f"cpu_s_per_gb_{key}"] = round(statistics.median(side.cpu) / gigabytes, 3)
        result[f"min_{key}"] = round(min(side.rates), 3)
        result[f"max_{key}"] = round(max(side.rates), 3)
        result[f"peak_mb_{key}"] = round(side.peak_bytes / 1e6)
    result["ratio"] = round(result["ours"] / result["peer"], 2)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release", help="a build folder")
    parser.add_argument("--mxnet-python", required=True, help="a Python that has mxnet==1.9.1")
    parser.add_argument("--case", action="append", help="TENSORS/shm|shm-arena|tcp/WwSs; default: all")
    parser.add_argument("--blocks", type=int, default=7, help="turns of each side")
    parser.add_argument("--block-bytes", type=int, default=2_000_000_000)
    parser.add_argument("--output", default="build/bench/transfer.jsonl")
    args = parser.parse_args()
    args.bin = os.path.abspath(args.bin)
    output = pathlib.Path(args.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    print(f"{'case':22} {'ours':>17} {'MXNet':>17} {'bare':>17} {'ratio':>6}   CPU s/GB        peak MB")
    with output.open("w") as file:
        for case in args.case or DEFAULT_CASES:
            result = run_case(args, case)
            print(json.dumps(result), file=file, flush=True)
            rates = [
                f"{result[k]:6.2f} ({result['min_' + k]:.1f}-{result['max_' + k]:.1f})"
                for k in ("ours", "peer", "bare")
            ]
            cpu = " ".join(f"{result['cpu_s_per_gb_' + k]:.2f}" for k in ("ours", "peer", "bare"))
            peak = " ".join(str(result["peak_mb_" + k]) for k in ("ours", "peer", "bare"))
            print(f"{case:22} {rates[0]:>17} {rates[1]:>17} {rates[2]:>17} {result['ratio']:>6}   {cpu}  {peak}",
                  flush=True)


if __name__ == "__main__":
    main()
