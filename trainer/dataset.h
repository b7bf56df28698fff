// Labelled images: Fashion-MNIST as Debian's package dataset-fashion-mnist installs it (gzipped idx
// files, yann.lecun.com/exdb/mnist), split 55,000 / 5,000 / 10,000.
// Thread rule: values; reading has no state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace paceline {

inline constexpr std::string_view kFashionMnistDirectory = "/usr/share/datasets/fashion-mnist";

struct Dataset {
  uint32_t features = 0;  // values of an image
  uint32_t classes = 0;
  // A model sees (pixel / 255 - mean) / deviation.
  float mean = 0.0f;
  float deviation = 1.0f;
  std::vector<uint8_t> images;  // size() x features, 0..255
  std::vector<uint8_t> labels;  // 0 .. classes - 1

  uint32_t size() const { return static_cast<uint32_t>(labels.size()); }
  std::span<const uint8_t> image(uint32_t index) const {
    return std::span(images).subspan(size_t{index} * features, features);
  }
};

struct DatasetSplit {
  Dataset train;       // first 55,000 of the training file
  Dataset validation;  // its last 5,000
  Dataset test;        // the test file's 10,000
};

// NotFound when a file is missing (names the path and the package), DataLoss when one is damaged or
// not what it should be (names the path and what is wrong).
absl::StatusOr<DatasetSplit> LoadFashionMnist(const std::string& directory);

// One gzipped idx file of bytes with exactly these dimensions. NotFound or DataLoss; names the
// path.
absl::StatusOr<std::vector<uint8_t>> ReadIdx(const std::string& path,
                                             const std::vector<uint32_t>& dimensions);

// Samples [begin, end) of `all`.
Dataset Slice(const Dataset& all, uint32_t begin, uint32_t end);

}  // namespace paceline
