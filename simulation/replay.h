// Steps a scheduler's core through a recorded trace and prints what it decided.
#pragma once

#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace paceline::simulation {

struct ReplayOptions {
  std::string job;          // only decisions of this job; empty = all
  bool directives = false;  // what each node was told, too
  bool snapshot = false;    // the state at the end
};

// Writes one line per decision to `out`. A damaged trace is replayed up to the damage, which is
// then the error.
absl::Status Replay(std::string_view trace, const ReplayOptions& options, std::ostream& out);

}  // namespace paceline::simulation
