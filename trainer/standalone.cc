#include "trainer/standalone.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "parameter/optimizer.h"
#include "plan/permutation.h"

namespace paceline {
namespace {

absl::Status Check(const StandaloneOptions& options, const Dataset& train) {
  if (options.workers == 0) return absl::InvalidArgumentError("workers must be at least 1");
  if (options.batch_size == 0) return absl::InvalidArgumentError("batch_size must be at least 1");
  if (train.size() == 0) return absl::InvalidArgumentError("the training set is empty");
  if (!(options.learning_rate.base > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning_rate is ", options.learning_rate.base, ", must be above 0"));
  }
  return absl::OkStatus();
}

// Optimizer slots of every tensor, and how often it was applied.
class Updater {
 public:
  Updater(std::unique_ptr<const Optimizer> optimizer, const Parameters& parameters)
      : optimizer_(std::move(optimizer)) {
    for (const auto& tensor : parameters) {
      slots_.emplace_back(optimizer_->slots().size(), std::vector<float>(tensor.size(), 0.0f));
    }
  }

  void Apply(Parameters& parameters, const Parameters& gradient, float learning_rate) {
    ++t_;
    for (size_t tensor = 0; tensor < parameters.size(); ++tensor) {
      std::vector<std::span<float>> slots(slots_[tensor].begin(), slots_[tensor].end());
      optimizer_->Apply(parameters[tensor], slots, gradient[tensor], learning_rate, t_);
    }
  }

 private:
  std::unique_ptr<const Optimizer> optimizer_;
  std::vector<std::vector<std::vector<float>>> slots_;  // per tensor, per slot
  uint64_t t_ = 0;
};

void AddTo(Parameters& sum, const Parameters& gradient) {
  for (size_t t = 0; t < sum.size(); ++t) {
    for (size_t i = 0; i < sum[t].size(); ++i) sum[t][i] = sum[t][i] + gradient[t][i];
  }
}

void DivideBy(Parameters& sum, uint64_t samples) {
  const float divisor = static_cast<float>(samples);
  for (auto& tensor : sum) {
    for (float& v : tensor) v = v / divisor;
  }
}

}  // namespace

uint64_t StepsPerEpoch(uint32_t samples, uint32_t workers, uint32_t batch_size) {
  const uint64_t per_step = uint64_t{workers} * batch_size;
  return (samples + per_step - 1) / per_step;
}

SampleRange StandalonePart(const StandaloneOptions& options, uint32_t samples, Epoch epoch,
                           uint64_t step_in_epoch, uint32_t rank) {
  const uint64_t begin = (step_in_epoch * options.workers + rank) * options.batch_size;
  const uint64_t end = begin + options.batch_size;
  return {epoch, std::min<uint64_t>(begin, samples), std::min<uint64_t>(end, samples)};
}

absl::StatusOr<Parameters> TrainStandalone(
    Model& model, const Dataset& train, const StandaloneOptions& options,
    const std::function<void(const StandaloneStep&)>& after_step) {
  PACELINE_RETURN_IF_ERROR(Check(options, train));
  PACELINE_ASSIGN_OR_RETURN(auto optimizer, Optimizer::Create(options.optimizer));
  Parameters parameters = model.InitialValues(options.seed);
  Updater updater(std::move(optimizer), parameters);
  const uint64_t steps = StepsPerEpoch(train.size(), options.workers, options.batch_size);

  Parameters sum, gradient;
  StandaloneStep now;
  for (Epoch epoch; epoch.value() < options.epochs; ++epoch) {
    const std::vector<uint32_t> order = EpochPermutation(options.seed, epoch, train.size());
    for (uint64_t t = 0; t < steps; ++t) {
      if (options.max_steps != 0 && now.step.value() == options.max_steps) return parameters;
      now.batch = {};
      sum.clear();
      for (const auto& tensor : parameters) sum.emplace_back(tensor.size(), 0.0f);
      for (uint32_t rank = 0; rank < options.workers; ++rank) {
        const SampleRange part = StandalonePart(options, train.size(), epoch, t, rank);
        if (part.begin == part.end) continue;
        const auto indices = std::span(order).subspan(part.begin, part.end - part.begin);
        const BatchResult batch = model.Gradient(parameters, train, indices, gradient);
        AddTo(sum, gradient);
        now.batch.loss_sum += batch.loss_sum;
        now.batch.correct += batch.correct;
        now.batch.samples += batch.samples;
      }
      DivideBy(sum, now.batch.samples);
      const double progress = ProgressAt(StandalonePart(options, train.size(), epoch, t, 0),
                                         train.size(), options.epochs);
      updater.Apply(parameters, sum, options.learning_rate.At(now.step, progress));
      now.epoch = epoch;
      now.epoch_ends = t + 1 == steps;
      now.parameters = &parameters;
      if (after_step) after_step(now);
      ++now.step;
    }
  }
  return parameters;
}

}  // namespace paceline
