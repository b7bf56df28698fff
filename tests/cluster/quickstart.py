#!/usr/bin/env python3
"""Runs what `make run` runs with seeds 1, 2 and 3: quickstart.py COMMAND...

COMMAND is the whole command line of `make run`. Its test accuracy, recomputed from the saved weights, must be at
least 0.86 with each seed and what summary.json says.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from evaluate import evaluate

LEAST = 0.86


def train(command, seed, folder):
    """(seconds, accuracy told, accuracy recomputed)"""
    weights, output = folder / f"weights-{seed}", folder / f"run-{seed}"
    environment = {**os.environ, "PACELINE_SEED": str(seed), "PACELINE_OUTPUT": str(output)}
    subprocess.run([*command, f"--save={weights}"], env=environment, check=True, stdin=subprocess.DEVNULL)
    summary = json.loads((output / "summary.json").read_text())
    return summary["seconds"], summary["metrics"]["test_accuracy"]["value"], evaluate(weights)[0]


def main():
    failed = 0
    with tempfile.TemporaryDirectory(prefix="paceline-quickstart-") as folder:
        for seed in (1, 2, 3):
            seconds, told, computed = train(sys.argv[1:], seed, pathlib.Path(folder))
            good = computed >= LEAST and abs(told - computed) <= 2e-4
            failed += not good
            print(f"seed {seed}: test accuracy {computed:.4f} (told: {told:.4f}) after {seconds:.0f} s: "
                  f"{'ok' if good else f'NOT at least {LEAST} and as told'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
