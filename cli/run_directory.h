// The directory of one run: a log per process, the journal, summary.json, and the link
// runs/latest.
// Thread rule: one thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace paceline {

// Creates `output`, or runs/JOB-TIME where it is empty (-2, -3, ... when that exists), and points
// "latest" beside it there. Returns the path.
absl::StatusOr<std::string> CreateRunDirectory(const std::string& output, const std::string& job);

}  // namespace paceline
