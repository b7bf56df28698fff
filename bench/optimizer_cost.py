#!/usr/bin/env python3
"""What an optimizer at the server costs: the same tensors summed, and updated, in turn.

    optimizer_cost.py --bin build/release [--case 25x1M/tcp/2w1s ...]

Three jobs exist at once and take turns (turns.py): one whose servers only sum, one with SGD and
momentum, one with Adam. `cost` is how much slower the large-tensor round is than without an update;
the bar on tcp is 15 %. On shared memory `bound` is the rate at which memory alone would let the round
pass, when every byte that the path moves is moved once: per value and worker

    the worker's gradient into the arena  4 read + 4 written     the owner adds it         8 + 4
    new weights into the arena            4 + 4                  the worker takes them     4 + 4

and per value the update: the sum, the weights and each slot read, weights and slots written. The
memory's rate is measured in every turn (memory_rate). The bar is 0.7 of the bound. Exit code 1 when a
bar is missed.
"""
import argparse
import os
import statistics
import subprocess
import sys

from tensor_lists import TENSORS
from turns import ours, take_turns

SLOTS = {"momentum": 1, "adam": 2}
PATH_BYTES = 8 + 12 + 8 + 8
COST_BAR = 0.15
BOUND_BAR = 0.7
CASES = [f"25x1M/{transport}/{workers}w1s" for transport in ("tcp", "shm") for workers in (1, 2, 4)]


def bound_of(rate, workers, slots):
    update = 4 + (1 + slots) * 8
    return rate * 8 / (PATH_BYTES + update / workers)


def run_case(args, case):
    tensors, transport, shape = case.split("/")
    workers, servers = (int(part) for part in shape.rstrip("s").split("w"))
    bytes_of_round = 2 * 4 * sum(TENSORS[tensors]) * workers
    rounds = max(3, args.block_bytes // bytes_of_round)
    sides = [
        ours(args, tensors, transport, workers, servers, rounds, optimizer, optimizer or "sum")
        for optimizer in (None, *SLOTS)
    ]
    rates = []

    def measure_memory():
        rates.append(float(subprocess.check_output([f"{args.bin}/bench/memory_rate"])))

    take_turns(sides, args.blocks, bytes_of_round * rounds, measure_memory)
    plain = statistics.median(sides[0].rates)
    memory = statistics.median(rates)
    missed = []
    for side, slots in zip(sides[1:], SLOTS.values()):
        got = statistics.median(side.rates)
        cost, bound = plain / got - 1, bound_of(memory, workers, slots)
        print(f"{case:16} {side.name:9} {plain:7.2f} {got:7.2f} ({min(side.rates):.1f}-{max(side.rates):.1f})"
              f" {100 * cost:6.1f}% {bound:7.2f} {got / bound:6.2f}", flush=True)
        if transport == "tcp" and cost > COST_BAR:
            missed.append(f"{case} {side.name}: costs {100 * cost:.1f} %, bar {100 * COST_BAR:.0f} %")
        if transport == "shm" and got < BOUND_BAR * bound:
            missed.append(f"{case} {side.name}: {got / bound:.2f} of the bound, bar {BOUND_BAR}")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release", help="a build folder")
    parser.add_argument("--case", action="append", help="TENSORS/shm|tcp/WwSs; default: 25x1M")
    parser.add_argument("--blocks", type=int, default=7, help="turns of each side")
    parser.add_argument("--block-bytes", type=int, default=2_000_000_000)
    args = parser.parse_args()
    args.bin = os.path.abspath(args.bin)
    print(f"{'case':16} {'optimizer':9} {'sum':>7} {'GB/s':>7} {'':9} {'cost':>7} {'bound':>7} {'of it':>6}")
    missed = [text for case in args.case or CASES for text in run_case(args, case)]
    for text in missed:
        print(f"missed: {text}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
