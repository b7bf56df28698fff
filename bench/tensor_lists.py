"""The tensor lists of bench/tensor_lists.h: elements of each tensor, fp32."""


def _resnet50():
    sizes = []

    def convolution(into, out, kernel):
        sizes.extend([into * out * kernel * kernel, out, out])

    convolution(3, 64, 7)
    into = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            convolution(into, width, 1)
            convolution(width, width, 3)
            convolution(width, 4 * width, 1)
            if block == 0:
                convolution(into, 4 * width, 1)
            into = 4 * width
    sizes.extend([into * 1000, 1000])
    assert len(sizes) == 161 and sum(sizes) == 25_557_032
    return sizes


TENSORS = {
    "25x1M": [1_000_000] * 25,
    "resnet50": _resnet50(),
    "200x4KiB": [1024] * 200,
    "1000x400B": [100] * 1000,
}
