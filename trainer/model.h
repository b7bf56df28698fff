// Models to try a cluster with: dense layers with ReLU between them, softmax and cross-entropy at
// the end. The same batch and parameters give the same bits in every process: one thread, fixed
// block sizes, aligned buffers.
// Thread rule: a Model belongs to one thread at a time (it holds the buffers of its layers).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/tensor_spec.h"
#include "trainer/dataset.h"

namespace paceline {

// Values per tensor, in the order of Model::tensors().
using Parameters = std::vector<std::vector<float>>;

struct BatchResult {
  double loss_sum = 0;   // cross-entropy in nats, over the samples
  uint64_t correct = 0;  // samples whose largest logit is the label's
  uint64_t samples = 0;

  double loss() const { return samples == 0 ? 0 : loss_sum / static_cast<double>(samples); }
  double accuracy() const {
    return samples == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(samples);
  }
};

class Model {
 public:
  // "softmax" (784-10) or "mlp" (784-128-64-10); InvalidArgument names the known ones.
  static absl::StatusOr<std::unique_ptr<Model>> Create(std::string_view name);
  // widths[0] features, widths.back() classes; at least two.
  explicit Model(std::vector<uint32_t> widths);
  ~Model();

  // dense0.weight [in, out], dense0.bias [out], dense1.weight, ...
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  // Weights are normal with variance 2 / inputs (He et al. 2015), biases 0. Depends on nothing but
  // the seed and the widths.
  Parameters InitialValues(uint64_t seed) const;

  // The loss of these samples and its gradient, both summed over the samples, not averaged.
  // `gradients` is overwritten; without samples it is 0. An index beyond `data` is a failed check.
  BatchResult Gradient(const Parameters& parameters, const Dataset& data,
                       std::span<const uint32_t> indices, Parameters& gradients);

  BatchResult Evaluate(const Parameters& parameters, const Dataset& data);

 private:
  struct Layers;

  BatchResult Forward(const Dataset& data, std::span<const uint32_t> indices);
  void Backward(Parameters& gradients);

  const std::vector<uint32_t> widths_;
  std::vector<TensorSpec> tensors_;
  std::unique_ptr<Layers> layers_;
};

// "softmax", "mlp".
const std::vector<std::string>& ModelNames();

// A safetensors file of the parameters; atomic.
absl::Status SaveParameters(const std::string& path, const Model& model,
                            const Parameters& parameters,
                            const std::map<std::string, std::string>& metadata);
absl::StatusOr<Parameters> LoadParameters(const std::string& path, const Model& model);

}  // namespace paceline
