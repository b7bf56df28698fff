#include "fashion.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "common/base/status.h"

namespace fashion {
namespace {

constexpr char kFolder[] = "/usr/share/datasets/fashion-mnist/";

float Input(uint8_t pixel) { return static_cast<float>(pixel) / 255.0f; }

// A gzipped idx file: a header, then bytes.
absl::StatusOr<std::vector<uint8_t>> Read(const std::string& name, unsigned header, unsigned size) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen((kFolder + name).c_str(), "rb"),
                                                        gzclose);
  std::vector<uint8_t> bytes(header + size);
  if (file == nullptr ||
      gzread(file.get(), bytes.data(), header + size) != static_cast<int>(header + size)) {
    return absl::NotFoundError(kFolder + name + ": install dataset-fashion-mnist");
  }
  bytes.erase(bytes.begin(), bytes.begin() + header);
  return bytes;
}

}  // namespace

absl::StatusOr<Images> Load(const std::string& part, uint32_t count) {
  Images images;
  PACELINE_ASSIGN_OR_RETURN(images.pixels,
                            Read(part + "-images-idx3-ubyte.gz", 16, count * kPixels));
  PACELINE_ASSIGN_OR_RETURN(images.labels, Read(part + "-labels-idx1-ubyte.gz", 8, count));
  return images;
}

Softmax::Softmax() {
  tensors = {{"weight", {kPixels, kClasses}}, {"bias", {kClasses}}};
  for (Tensor& tensor : tensors) {
    size_t elements = 1;
    for (const uint64_t size : tensor.shape) elements *= size;
    tensor.values.resize(elements);
    tensor.gradient.resize(elements);
  }
}

std::vector<float> Softmax::Predict(const uint8_t* pixels) const {
  std::vector<float> out = tensors[1].values;
  for (uint32_t p = 0; p < kPixels; ++p) {
    if (pixels[p] == 0) continue;
    const float* row = &tensors[0].values[size_t{p} * kClasses];
    for (uint32_t c = 0; c < kClasses; ++c) out[c] += Input(pixels[p]) * row[c];
  }
  const float top = *std::max_element(out.begin(), out.end());
  float sum = 0;
  for (float& value : out) sum += value = std::exp(value - top);
  for (float& value : out) value /= sum;
  return out;
}

double Softmax::Gradient(const Images& images, const std::vector<uint32_t>& indices) {
  for (Tensor& tensor : tensors) std::fill(tensor.gradient.begin(), tensor.gradient.end(), 0.0f);
  double loss = 0;
  for (const uint32_t i : indices) {
    const uint8_t* pixels = &images.pixels[size_t{i} * kPixels];
    std::vector<float> error = Predict(pixels);
    loss -= std::log(std::max(error[images.labels[i]], 1e-12f));
    error[images.labels[i]] -= 1.0f;
    for (uint32_t c = 0; c < kClasses; ++c) tensors[1].gradient[c] += error[c];
    for (uint32_t p = 0; p < kPixels; ++p) {
      if (pixels[p] == 0) continue;
      float* row = &tensors[0].gradient[size_t{p} * kClasses];
      for (uint32_t c = 0; c < kClasses; ++c) row[c] += Input(pixels[p]) * error[c];
    }
  }
  return loss;
}

double Softmax::Accuracy(const Images& images) const {
  uint32_t correct = 0;
  for (uint32_t i = 0; i < images.size(); ++i) {
    const std::vector<float> out = Predict(&images.pixels[size_t{i} * kPixels]);
    correct += std::max_element(out.begin(), out.end()) - out.begin() == images.labels[i];
  }
  return static_cast<double>(correct) / images.size();
}

}  // namespace fashion
