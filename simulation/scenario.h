// What a run is made of, drawn from its seed.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/job_spec.h"
#include "plan/tensor_spec.h"
#include "simulation/random.h"

namespace paceline::simulation {

// Bugs put in on purpose, to show that the invariants find them. They are in the simulated hosts,
// never in what production runs.
struct Bugs {
  bool release_before_durable = false;  // replies and directives leave before the journal has them
  bool retry_applied_twice = false;     // an owner forgets whom it has answered
  bool redo_keeps_accumulator = false;  // a voided round's sum is still in the next one
};

struct Scenario {
  JobSpec job;
  std::vector<TensorSpec> tensors;
  uint32_t servers = 1;
  uint32_t spare_workers = 0;  // names that join while the job runs
  uint32_t spare_servers = 0;  // the same
  uint32_t faults = 0;
  bool servers_die = false;  // they come back under their names; the job returns to a checkpoint

  // Of 100 000 messages or calls.
  uint32_t lost_calls = 0;      // requests or their replies
  uint32_t resets = 0;          // of a data connection, by a frame
  uint32_t lost_replies = 0;    // the connection breaks with the reply on it
  uint32_t repeated = 0;        // frames that come a second time
  uint32_t lost_parts = 0;      // of chunks that move, or the answers to them
  uint32_t broken_watches = 0;  // by a directive
  uint32_t not_finite = 0;      // gradients with a NaN

  Ticks longest_step = Milliseconds(40);  // of computing
  Ticks latency = Milliseconds(1);        // typical of the network
  Ticks sync = Milliseconds(2);           // typical of the journal's disk
  uint64_t compact_after = 0;             // journal entries; 0 = never
  uint64_t move_bytes = 16u << 20;        // that move at once
  bool reduces = false;                   // each step has a Reduce after its pushes
};

Scenario DrawScenario(Random& random);
std::string Describe(const Scenario& scenario);

}  // namespace paceline::simulation
