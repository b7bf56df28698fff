#!/usr/bin/env python3
"""Accuracy and loss of saved weights on the test images, by nothing of Paceline's: evaluate.py FILE...

Reads safetensors and gzipped idx files by their specifications and computes in float64.
"""

import gzip
import json
import pathlib
import struct
import sys

import numpy

FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
# trainer/dataset.h: a model sees (pixel / 255 - mean) / deviation.
MEAN, DEVIATION = 0.2860, 0.3530


def read_idx(path):
    """github.com/cvdfoundation/mnist: two zero bytes, the type (8: bytes), the dimensions' number and sizes."""
    data = gzip.decompress(path.read_bytes())
    zero, kind, dimensions = struct.unpack(">HBB", data[:4])
    if zero != 0 or kind != 8:
        raise ValueError(f"{path}: not an idx file of bytes")
    shape = struct.unpack(f">{dimensions}I", data[4:4 + 4 * dimensions])
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)


def read_safetensors(path):
    """github.com/huggingface/safetensors: u64 length, a JSON header of that length, the values."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, tensor in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {tensor['dtype']}, expected F32")
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        tensors[name] = numpy.frombuffer(data[begin:end], "<f4").reshape(tensor["shape"]).astype(numpy.float64)
    return tensors


def evaluate(path):
    """(accuracy, mean cross-entropy) over the 10,000 test images of dense layers with ReLU between them."""
    tensors = read_safetensors(path)
    images = read_idx(FASHION_MNIST / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(FASHION_MNIST / "t10k-labels-idx1-ubyte.gz")
    values = (images.reshape(len(images), -1) / 255.0 - MEAN) / DEVIATION
    layers = len(tensors) // 2
    for layer in range(layers):
        values = values @ tensors[f"dense{layer}.weight"] + tensors[f"dense{layer}.bias"]
        if layer + 1 < layers:
            values = numpy.maximum(values, 0)
    accuracy = float((values.argmax(axis=1) == labels).mean())
    values -= values.max(axis=1, keepdims=True)
    log_likelihood = values[numpy.arange(len(labels)), labels] - numpy.log(numpy.exp(values).sum(axis=1))
    return accuracy, float(-log_likelihood.mean())


if __name__ == "__main__":
    for file in sys.argv[1:]:
        print("%s: test accuracy %.4f loss %.4f" % (file, *evaluate(file)))
