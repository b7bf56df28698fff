// The rows of the section `job:`, shared by workers, the launcher and the simulator.
// Thread rule: pure functions over the table and the spec.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/config/key_table.h"
#include "plan/job_spec.h"

namespace paceline {

// `spec` must outlive the table.
void AddJobKeys(KeyTable& table, JobSpec& spec);

// Validate(spec), with the origin of the field that the message names.
absl::Status CheckJob(const KeyTable& table, const JobSpec& spec);
// The same, and that this version can run it: before anything is started.
absl::Status CheckLaunchedJob(const KeyTable& table, const JobSpec& spec);

}  // namespace paceline
