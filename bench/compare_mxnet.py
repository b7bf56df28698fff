#!/usr/bin/env python3
"""Paceline, MXNet's dist_sync servers and a bare socket exchange, in turn on the same tensors.

All three exist at once and take turns (turns.py). A round is over for a worker when it has all sums.

    compare_mxnet.py --bin build/release --mxnet-python VENV/bin/python [--case 25x1M/shm/2w1s ...]

Prints a table and writes one JSON object a case to --output (build/bench/transfer.jsonl).
"""
import argparse
import json
import os
import pathlib
import socket
import statistics

from tensor_lists import TENSORS
from turns import Side, ours, take_turns

HERE = pathlib.Path(__file__).resolve().parent
DEFAULT_CASES = [
    f"{tensors}/{transport}/{workers}w1s"
    for tensors in ("25x1M", "resnet50")
    for workers in (1, 2, 4)
    for transport in ("shm", "tcp")
] + ["25x1M/shm-arena/2w1s", "resnet50/shm-arena/2w1s"] + [
    f"{tensors}/{transport}/2w1s" for tensors in ("200x4KiB", "1000x400B") for transport in ("shm", "tcp")
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
    take_turns(sides, args.blocks, bytes_of_round * rounds)
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
