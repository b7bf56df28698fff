// What paceline-worker trains and how: its own keys beside those of every worker.
// Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "common/config/key_table.h"
#include "plan/job_spec.h"
#include "trainer/dataset.h"
#include "trainer/learning_rate.h"

namespace paceline {

struct ProgramOptions {
  std::string model = "mlp";
  std::string dataset{kFashionMnistDirectory};
  std::optional<double> learning_rate;  // default: by optimizer
  std::optional<double> momentum;       // default: by optimizer
  std::optional<double> weight_decay;   // default: by optimizer
  uint64_t warmup_steps = 0;
  std::string decay = "linear";
  uint64_t max_steps = 0;  // of a group; 0 = no limit
  uint64_t eval_every = 0;
  std::string save;
  std::string step_log;
  std::vector<double> slowdown;  // by worker index; 1 where there is none
  uint32_t step_time_ms = 0;
  uint32_t standalone = 0;  // workers of the reference; 0 = take part in a job

  LearningRate schedule;  // filled by Complete
};

// The rows write into `options`, which must outlive the table.
void AddProgramKeys(KeyTable& table, ProgramOptions& options);

// Fills what depends on other keys, in `options` and in the job: the optimizer (Nesterov
// momentum 0.9), its rate, 5 epochs and batches of 64 where nothing is said, and the size of the
// training set. InvalidArgument names the key, the value and what is allowed.
absl::Status Complete(ProgramOptions& options, JobSpec& job, uint32_t train_samples);

// Before hours of training, whether its result can be written to `path` (empty: nothing is to be).
// InvalidArgument names the file or the directory and what is wrong with it.
absl::Status CheckCanSave(const std::string& path);

}  // namespace paceline
