// One simulated run of a cluster and a job, from its seed.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "simulation/scenario.h"
#include "simulation/world.h"

namespace paceline::simulation {

struct RunOptions {
  Bugs bugs;
  size_t keep_lines = 0;                            // newest lines of the trace in the result
  std::function<void(const std::string&)> on_line;  // every line of the trace
};

struct RunResult {
  std::optional<Violation> violation;
  std::string scenario;
  std::vector<std::string> lines;
  uint64_t events = 0;
  uint64_t updates = 0;
  uint64_t checkpoints = 0;
  uint64_t rollbacks = 0;  // returns to one, after the death of a server
  uint32_t faults = 0;
  bool balanced = false;  // the job finished and its books were checked
  Ticks took;             // virtual
};

RunResult Run(uint64_t seed, const RunOptions& options);

}  // namespace paceline::simulation
