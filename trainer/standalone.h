// The reference of a synchronous job: K workers in one process and one thread. Worker r of step t
// of an epoch takes positions [(tK + r)b, (tK + r + 1)b) of the epoch's permutation, cut at its
// end, so last batches may be short or empty. The gradients are summed in rank order from zero,
// members without samples left out, divided once by the step's samples, and applied: what a
// deterministic job with one group must arrive at bit for bit. Summing and dividing are loops of
// its own, so that it shares no mistake with the owners'.
// Thread rule: no state.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "plan/job_spec.h"
#include "plan/permutation.h"
#include "trainer/dataset.h"
#include "trainer/learning_rate.h"
#include "trainer/model.h"

namespace paceline {

struct StandaloneOptions {
  uint32_t workers = 1;
  uint32_t batch_size = 64;  // of one worker
  uint64_t epochs = 1;
  uint64_t max_steps = 0;  // 0 = no limit
  uint64_t seed = 1;       // of the initial values and the order of the samples
  NamedSpec optimizer{"sgd", {}};
  LearningRate learning_rate;
};

struct StandaloneStep {
  Step step;  // from 0, over all epochs
  Epoch epoch;
  bool epoch_ends = false;
  BatchResult batch;  // of all workers, before the update
  const Parameters* parameters = nullptr;
};

// Steps of an epoch: samples / (workers x batch), rounded up.
uint64_t StepsPerEpoch(uint32_t samples, uint32_t workers, uint32_t batch_size);

// Positions of the permutation that this worker takes in this step of an epoch; may be empty.
SampleRange StandalonePart(const StandaloneOptions& options, uint32_t samples, Epoch epoch,
                           uint64_t step_in_epoch, uint32_t rank);

// The parameters after the last step. InvalidArgument names what is wrong in the options.
// `after_step` may be null.
absl::StatusOr<Parameters> TrainStandalone(
    Model& model, const Dataset& train, const StandaloneOptions& options,
    const std::function<void(const StandaloneStep&)>& after_step);

}  // namespace paceline
