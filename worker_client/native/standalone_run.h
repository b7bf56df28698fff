// paceline-worker --standalone K.
// Thread rule: no state.
#pragma once

#include "absl/status/status.h"
#include "common/runtime/clock.h"
#include "plan/job_spec.h"
#include "trainer/dataset.h"
#include "trainer/model.h"
#include "worker_client/native/options.h"

namespace paceline {

// Trains, prints a line per epoch and the test accuracy to stdout, saves the weights where asked.
absl::Status RunStandalone(Model& model, const DatasetSplit& data, const ProgramOptions& options,
                           const JobSpec& job, const Clock& clock);

}  // namespace paceline
