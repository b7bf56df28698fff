// What a training program brings itself: data and a model. Fashion-MNIST and softmax regression.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/types.h"

namespace fashion {

inline constexpr uint32_t kPixels = 28 * 28;
inline constexpr uint32_t kClasses = 10;

struct Images {
  std::vector<uint8_t> pixels;  // size() x kPixels
  std::vector<uint8_t> labels;

  uint32_t size() const { return static_cast<uint32_t>(labels.size()); }
};

// `part` is "train" or "t10k"; its files hold `count` images.
absl::StatusOr<Images> Load(const std::string& part, uint32_t count);

struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::vector<float> values;
  std::vector<float> gradient;
  paceline::TensorId id{};
};

class Softmax {
 public:
  Softmax();

  // Fills the gradients with the sum over these samples; returns the sum of their losses.
  double Gradient(const Images& images, const std::vector<uint32_t>& indices);
  double Accuracy(const Images& images) const;

  std::vector<Tensor> tensors;  // weight [784, 10], bias [10]

 private:
  // A probability for each class.
  std::vector<float> Predict(const uint8_t* pixels) const;
};

}  // namespace fashion
