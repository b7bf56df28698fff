// The training loop of paceline-worker over a session; docs/sdk.md explains it step by step.
// Thread rule: one thread calls Run; `stop` may be set from anywhere, a signal handler included.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/runtime/clock.h"
#include "trainer/dataset.h"
#include "trainer/model.h"
#include "worker_client/native/options.h"
#include "worker_client/session.h"

namespace paceline {

struct TrainingResult {
  uint64_t steps = 0;
  Samples samples;  // that this worker computed gradients of
  BatchResult test;
  Parameters parameters;
};

class TrainingLoop {
 public:
  // `index` chooses the slowdown. All arguments outlive the loop.
  TrainingLoop(Session& session, Model& model, const DatasetSplit& data,
               const ProgramOptions& options, uint32_t index, const Clock& clock,
               const std::atomic<bool>& stop);

  // Trains until the job has no more samples, evaluates the final weights on the test set, saves
  // them where asked, and leaves the job. Cancelled: `stop` was set or an operator asked this
  // worker to leave (the job was left cleanly).
  absl::StatusOr<TrainingResult> Run();

 private:
  absl::Status Prepare();
  absl::Status LeaveEarly(const std::string& reason);
  absl::StatusOr<bool> TrainStep();  // false: no samples are left
  Step UpdatesSoFar() const;
  float LearningRateOfGroup() const;
  void ComputeGradient(const SampleBatch& batch);
  absl::Status Exchange(Samples samples);
  // Issues one operation per tensor and waits for all, also after an error: the session uses the
  // memory of each until it is done. The first error wins.
  absl::Status OnEveryTensor(
      const std::function<absl::StatusOr<OperationHandle>(size_t tensor)>& issue);
  absl::Status OpenStepLog();
  void LogStep(Step step);
  void Report(const BatchResult& batch);
  absl::Status WaitForOthers();
  absl::Status PullAll();
  absl::Status Finish();

  Session& session_;
  Model& model_;
  const DatasetSplit& data_;
  const ProgramOptions& options_;
  const double slowdown_;
  const Clock& clock_;
  const std::atomic<bool>& stop_;

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> step_log_{nullptr, std::fclose};

  uint32_t batch_size_ = 0;
  double progress_ = 0;  // of the newest batch
  std::vector<TensorId> tensors_;
  Parameters gradients_;
  BatchResult recent_;  // since the last report
  BatchResult last_;
  TrainingResult result_;
};

}  // namespace paceline
