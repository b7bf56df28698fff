// The scheduler's state machine: an event and the time go in, entries to make durable, decisions,
// replies and directives come out. It has no clock, thread, file, socket or randomness, so that the
// daemon, the simulator and the tests run the same code and a trace replays an incident.
//
//   Core core(options);
//   core.Recover(entries read from the journal);
//   loop:  core.Step(now, event);
//          Ready ready = core.TakeReady();
//          append ready.entries durably, then send ready.replies and ready.directives
//
// Invariants (checked by core_property_test):
//  1. Every chunk has exactly one owner; a change of it begins a new generation of the job.
//  2. Every live worker of a running job is in at most one group; without a change under way, in
//     exactly one.
//  3. Generations of a job and of each group never go back.
//  4. The activation step of a group never goes back, so for each step one generation holds: the
//     newest whose activation step is not above it.
//  5. Samples drawn = applied + discarded + returned + still held by live workers.
//  6. The state after Recover(entries) is the state that produced the entries; only the term is
//  new.
//
// Thread rule: one thread owns a Core.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "plan/events.h"

namespace paceline {

// Every bound of the core. What goes beyond one is refused: with ResourceExhausted where waiting
// may help, else with FailedPrecondition.
struct CoreLimits {
  uint32_t max_jobs = 64;               // forming or running at once
  uint32_t max_nodes = 4096;            // joined at once
  uint32_t max_finished_jobs = 32;      // kept for operators
  uint32_t max_gone_servers = 64;       // kept for operators
  uint32_t max_decisions = 10'000;      // kept for operators
  uint32_t max_tensors = 65'536;        // of a job
  uint32_t max_chunks = 1u << 20;       // of a job
  uint32_t max_barriers = 256;          // names waited for at once, per job
  uint32_t max_cuts = 16;               // checkpoints queued per job
  uint32_t max_metrics = 64;            // of a worker
  uint32_t max_worker_names = 100'000;  // that ever joined a job: their ranks are kept
  // Chunks that move at once: their rounds wait until they have arrived, the others go on.
  uint64_t move_bytes = 16u << 20;
  // After so long without a link from the old owner to the new one chunks go back to the old one,
  // and for a while (much longer where memory is what a server lacks) the two are not chosen again.
  Ticks move_outage = Seconds(10);
  Ticks move_avoidance = Seconds(60);
  Ticks move_avoidance_of_full = Seconds(1800);
};

struct CoreOptions {
  std::string cluster = "paceline";
  std::string version;  // shown to operators
  uint32_t heartbeat_interval_ms = 500;
  uint32_t failure_timeout_ms = 5000;  // of servers; a job brings its own for its workers
  CoreLimits limits;
};

class Core {
 public:
  explicit Core(CoreOptions options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Applies what an earlier scheduler decided, without deciding again, and starts a new term when
  // there was one. Call it once, before the first Step. Leases restart with the first Step.
  // DataLoss names the entry that cannot be read or does not follow the one before.
  absl::Status Recover(const std::vector<JournalEntry>& entries);

  // `now` never goes back. Events of nodes are valid in any order and with any content.
  void Step(Ticks now, SchedulerEvent event);

  // What the steps since the last call asked for; nothing of it is kept.
  Ready TakeReady();

  // Whether `node` names the newest incarnation of a node that is joined: FailedPrecondition as
  // its requests would get it. For the event loop, which refuses Watch streams with it.
  absl::Status CheckNode(NodeRef node) const;

  // The whole durable state as one entry, with the index of the last entry applied: a journal may
  // keep it in place of all entries up to that index. Recover takes it as the first entry.
  JournalEntry Compacted() const;

  // The durable state as text, the same for equal states; the term is left out.
  std::string Snapshot() const;

  Term term() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline
