#include "trainer/model.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/safetensors/safetensors.h"
#include "plan/permutation.h"

namespace paceline {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Eigen cuts products by the cache sizes it finds, and the cut decides the order of sums.
void FixBlockSizes() {
  static const bool done = [] {
    Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 4 << 20);
    return true;
  }();
  static_cast<void>(done);
}

// In (0, 1].
double Uniform(uint64_t& state) {
  return static_cast<double>((SplitMix64(state) >> 11) + 1) * 0x1p-53;
}

// Box and Muller 1958; the second of each pair is left.
float Normal(uint64_t& state) {
  const double radius = std::sqrt(-2 * std::log(Uniform(state)));
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * Uniform(state)));
}

void CopyIn(const std::vector<float>& from, Matrix& to) {
  PACELINE_CHECK(from.size() == static_cast<size_t>(to.size()));
  std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
}

// Turns a row of logits into probabilities minus the one-hot label: the gradient of the loss.
// Returns the loss and whether the largest logit was the label's.
std::pair<double, bool> SoftmaxCrossEntropy(std::span<float> row, uint8_t label) {
  const auto largest = std::max_element(row.begin(), row.end());
  const bool correct = largest - row.begin() == label;
  const float top = *largest;
  const float own = row[label] - top;
  float sum = 0;
  for (float& v : row) {
    v = std::exp(v - top);
    sum += v;
  }
  for (float& v : row) v /= sum;
  row[label] -= 1.0f;
  return {std::log(static_cast<double>(sum)) - static_cast<double>(own), correct};
}

}  // namespace

// Buffers are Eigen's own, which are aligned: the order of a vectorised sum must not depend on an
// address.
struct Model::Layers {
  std::vector<Matrix> weights;
  std::vector<Matrix> biases;       // one row
  std::vector<Matrix> activations;  // [0] the input, then each layer's output
  Matrix delta;                     // gradient of the loss by a layer's output before ReLU
  Matrix weight_gradient;
};

absl::StatusOr<std::unique_ptr<Model>> Model::Create(std::string_view name) {
  if (name == "softmax") return std::make_unique<Model>(std::vector<uint32_t>{784, 10});
  if (name == "mlp") return std::make_unique<Model>(std::vector<uint32_t>{784, 128, 64, 10});
  return absl::InvalidArgumentError(absl::StrCat(
      "model '", Absl(name), "' is not known; known: ", absl::StrJoin(ModelNames(), ", ")));
}

const std::vector<std::string>& ModelNames() {
  static const std::vector<std::string> names = {"softmax", "mlp"};
  return names;
}

Model::Model(std::vector<uint32_t> widths)
    : widths_(std::move(widths)), layers_(std::make_unique<Layers>()) {
  PACELINE_CHECK(widths_.size() >= 2);
  FixBlockSizes();
  for (size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
    const uint32_t in = widths_[layer], out = widths_[layer + 1];
    const std::string name = absl::StrCat("dense", layer);
    tensors_.push_back({name + ".weight", {in, out}});
    tensors_.push_back({name + ".bias", {out}});
    layers_->weights.emplace_back(in, out);
    layers_->biases.emplace_back(1, out);
  }
  layers_->activations.resize(widths_.size());
}

Model::~Model() = default;

Parameters Model::InitialValues(uint64_t seed) const {
  Parameters values;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    std::vector<float>& tensor = values.emplace_back(tensors_[t].elements(), 0.0f);
    if (t % 2 == 1) continue;  // a bias
    uint64_t index_state = t;
    uint64_t state = seed ^ SplitMix64(index_state);
    const float scale = std::sqrt(2.0f / static_cast<float>(tensors_[t].shape[0]));
    for (float& v : tensor) v = scale * Normal(state);
  }
  return values;
}

BatchResult Model::Forward(const Dataset& data, std::span<const uint32_t> indices) {
  PACELINE_CHECK(data.features == widths_.front() && data.classes <= widths_.back());
  Layers& l = *layers_;
  const auto rows = static_cast<Eigen::Index>(indices.size());
  Matrix& input = l.activations[0];
  input.resize(rows, widths_.front());
  for (size_t row = 0; row < indices.size(); ++row) {
    PACELINE_CHECK(indices[row] < data.size());
    const std::span<const uint8_t> image = data.image(indices[row]);
    float* out = input.data() + row * image.size();
    for (size_t i = 0; i < image.size(); ++i)
      out[i] = (static_cast<float>(image[i]) / 255.0f - data.mean) / data.deviation;
  }
  for (size_t layer = 0; layer < l.weights.size(); ++layer) {
    Matrix& output = l.activations[layer + 1];
    output.resize(rows, widths_[layer + 1]);
    output.noalias() = l.activations[layer] * l.weights[layer];
    output.rowwise() += l.biases[layer].row(0);
    if (layer + 1 < l.weights.size()) output = output.cwiseMax(0.0f);
  }
  l.delta = l.activations.back();
  BatchResult result;
  result.samples = indices.size();
  for (size_t row = 0; row < indices.size(); ++row) {
    const auto [loss, correct] = SoftmaxCrossEntropy(
        {l.delta.data() + row * widths_.back(), widths_.back()}, data.labels[indices[row]]);
    result.loss_sum += loss;
    result.correct += correct ? 1 : 0;
  }
  return result;
}

void Model::Backward(Parameters& gradients) {
  Layers& l = *layers_;
  for (size_t layer = l.weights.size(); layer-- > 0;) {
    std::vector<float>& bias = gradients[2 * layer + 1];
    for (Eigen::Index row = 0; row < l.delta.rows(); ++row) {
      for (size_t i = 0; i < bias.size(); ++i) {
        bias[i] += l.delta(row, static_cast<Eigen::Index>(i));
      }
    }
    l.weight_gradient.resize(l.weights[layer].rows(), l.weights[layer].cols());
    l.weight_gradient.noalias() = l.activations[layer].transpose() * l.delta;
    std::memcpy(gradients[2 * layer].data(), l.weight_gradient.data(),
                gradients[2 * layer].size() * sizeof(float));
    if (layer == 0) break;
    Matrix before = l.delta * l.weights[layer].transpose();
    l.delta = (l.activations[layer].array() > 0.0f).select(before, 0.0f);
  }
}

BatchResult Model::Gradient(const Parameters& parameters, const Dataset& data,
                            std::span<const uint32_t> indices, Parameters& gradients) {
  PACELINE_CHECK(parameters.size() == tensors_.size());
  gradients.resize(tensors_.size());
  for (size_t t = 0; t < tensors_.size(); ++t) gradients[t].assign(tensors_[t].elements(), 0.0f);
  if (indices.empty()) return {};
  for (size_t layer = 0; layer < layers_->weights.size(); ++layer) {
    CopyIn(parameters[2 * layer], layers_->weights[layer]);
    CopyIn(parameters[2 * layer + 1], layers_->biases[layer]);
  }
  const BatchResult result = Forward(data, indices);
  Backward(gradients);
  return result;
}

BatchResult Model::Evaluate(const Parameters& parameters, const Dataset& data) {
  PACELINE_CHECK(parameters.size() == tensors_.size());
  for (size_t layer = 0; layer < layers_->weights.size(); ++layer) {
    CopyIn(parameters[2 * layer], layers_->weights[layer]);
    CopyIn(parameters[2 * layer + 1], layers_->biases[layer]);
  }
  constexpr uint32_t kBatch = 500;
  BatchResult total;
  std::vector<uint32_t> indices;
  for (uint32_t begin = 0; begin < data.size(); begin += kBatch) {
    indices.clear();
    for (uint32_t i = begin; i < std::min(begin + kBatch, data.size()); ++i) indices.push_back(i);
    const BatchResult part = Forward(data, indices);
    total.loss_sum += part.loss_sum;
    total.correct += part.correct;
    total.samples += part.samples;
  }
  return total;
}

absl::Status SaveParameters(const std::string& path, const Model& model,
                            const Parameters& parameters,
                            const std::map<std::string, std::string>& metadata) {
  PACELINE_CHECK(parameters.size() == model.tensors().size());
  std::vector<SafetensorsView> views;
  for (size_t t = 0; t < parameters.size(); ++t) {
    const TensorSpec& spec = model.tensors()[t];
    views.push_back({spec.name, spec.dtype, spec.shape, std::as_bytes(std::span(parameters[t]))});
  }
  return WriteSafetensors(path, metadata, views);
}

absl::StatusOr<Parameters> LoadParameters(const std::string& path, const Model& model) {
  PACELINE_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::Open(path));
  Parameters parameters;
  for (const TensorSpec& spec : model.tensors()) {
    PACELINE_ASSIGN_OR_RETURN(parameters.emplace_back(), reader.ReadFloats(spec.name, spec.shape));
  }
  return parameters;
}

}  // namespace paceline
