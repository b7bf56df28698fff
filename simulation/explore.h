// Runs simulated clusters from many seeds until an invariant does not hold.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "simulation/scenario.h"

namespace paceline::simulation {

struct ExploreOptions {
  uint64_t first_seed = 1;
  uint64_t seeds = 1000;
  uint64_t max_failures = 1;  // then it ends
  Bugs bugs;
  bool trace = false;                            // every line of every run
  size_t last_lines = 40;                        // of a run that failed
  std::string command = "paceline-sim explore";  // to name in the command that replays
};

struct ExploreResult {
  uint64_t runs = 0;
  uint64_t balanced = 0;  // finished, with their books checked
  uint64_t events = 0;
  uint64_t updates = 0;
  uint64_t checkpoints = 0;
  uint64_t rollbacks = 0;
  uint64_t faults = 0;
  double virtual_seconds = 0;
  std::vector<uint64_t> failed;  // seeds
};

// Writes what failed, with the last lines of its trace and how to replay it, and a summary.
ExploreResult Explore(const ExploreOptions& options, std::ostream& out);

// The seed that is being run: for whoever reports a failed check of our own code.
uint64_t CurrentSeed();

}  // namespace paceline::simulation
