// The tensor lists of the transfer benches. compare_mxnet.py holds the same in Python and checks
// that both sides count the same bytes.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace paceline {

// Elements of each tensor; empty for a name that is none of 25x1M, resnet50, 200x4KiB, 1000x400B.
inline std::vector<size_t> TensorList(std::string_view name) {
  if (name == "25x1M") return std::vector<size_t>(25, 1'000'000);
  if (name == "200x4KiB") return std::vector<size_t>(200, 1024);
  if (name == "1000x400B") return std::vector<size_t>(1000, 100);
  if (name != "resnet50") return {};
  // He et al. 2016, table 1: a 7x7 convolution, four stages of bottleneck blocks, one dense layer.
  // Each convolution has a scale and a shift of its batch normalization behind it: 161 tensors,
  // 25,557,032 elements.
  std::vector<size_t> sizes;
  const auto convolution = [&](size_t in, size_t out, size_t kernel) {
    sizes.push_back(in * out * kernel * kernel);
    sizes.push_back(out);
    sizes.push_back(out);
  };
  convolution(3, 64, 7);
  size_t in = 64;
  constexpr struct { size_t blocks, width; } kStages[] = {{3, 64}, {4, 128}, {6, 256}, {3, 512}};
  for (const auto& stage : kStages) {
    for (size_t block = 0; block < stage.blocks; ++block) {
      convolution(in, stage.width, 1);
      convolution(stage.width, stage.width, 3);
      convolution(stage.width, 4 * stage.width, 1);
      if (block == 0) convolution(in, 4 * stage.width, 1);
      in = 4 * stage.width;
    }
  }
  sizes.push_back(in * 1000);
  sizes.push_back(1000);
  return sizes;
}

}  // namespace paceline
