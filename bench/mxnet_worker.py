"""One node of an MXNet dist_sync store that does nothing but exchange, for compare_mxnet.py.

    mxnet_worker.py TENSORS ROUNDS BLOCKS

Its role is in DMLC_ROLE. Marks and turns as bench/transfer_bench.cc.
"""
import os
import sys
import time

import numpy as np

# MXNet 1.9.1 still says np.bool; numpy below 1.24 has it.
import mxnet as mx

from tensor_lists import TENSORS


def say(line):
    print(line, flush=True)


def await_turn(block):
    path = os.path.join(os.environ["PACELINE_BENCH_GO"], str(block))
    while not os.path.exists(path):
        time.sleep(0.002)


def main():
    store = mx.kv.create("dist_sync")
    sizes = TENSORS[sys.argv[1]]
    rounds, blocks = int(sys.argv[2]), int(sys.argv[3])
    gradients = [mx.nd.ones((size,)) for size in sizes]
    sums = [mx.nd.zeros((size,)) for size in sizes]
    keys = list(range(len(sizes)))
    for key, size in zip(keys, sizes):
        store.init(key, mx.nd.zeros((size,)))

    def one_round():
        for key in keys:
            store.push(key, gradients[key], priority=-key)
        for key in keys:
            store.pull(key, sums[key], priority=-key)
        mx.nd.waitall()

    for _ in range(3):
        one_round()
    # Without an optimizer the server keeps the sum of the last round.
    for value in sums:
        assert np.all(value.asnumpy() == store.num_workers), value[0]
    for block in range(blocks):
        say("ready")
        await_turn(block)
        one_round()
        say("begin")
        began = time.perf_counter()
        for _ in range(rounds):
            one_round()
        took = time.perf_counter() - began
        say("end")
        say(f"block {took}")


if __name__ == "__main__":
    main()
