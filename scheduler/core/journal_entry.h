// The decided changes of the scheduler's durable state, and their binary form. The core turns every
// decision into entries and applies them; recovery applies the same entries again, so the two
// states cannot differ.
//
// Form: format number (3), then the entry as encoding.h writes it.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/core/fields.h"
#include "scheduler/core/state.h"

namespace paceline::scheduler {

// What errors say that name a journal which cannot be read.
inline constexpr std::string_view kDamagedHelp =
    "restore it from a copy, or move it away to start a new cluster (jobs then have to be "
    "resumed from their checkpoints)";

struct TermStarted {
  Term term;
};
struct JobCreated {
  JobId job;
  JobSpec spec;
  std::string run;
  std::optional<ResumeJobRequest> resume;
};
struct NodeJoined {
  NodeRecord node;
};
struct NodeGone {
  NodeRef node;
  bool dead = false;
};
struct JobStateChanged {
  JobId job;
  JobState state = JobState::kForming;
  std::string reason;
};
struct OptimizerSet {
  JobId job;
  NamedSpec optimizer;
  JobGeneration generation;
};
struct TensorsPlaced {
  JobId job;
  JobGeneration generation;
  TensorId lead;
  std::vector<TensorPlan> tensors;
};
struct InitWriterNamed {
  JobId job;
  NodeId writer;
  JobGeneration generation;
};
struct TensorsSealed {
  JobId job;
  std::vector<TensorId> tensors;
};
// A group without members ends.
struct GroupsChanged {
  JobId job;
  std::vector<GroupPlan> groups;
};
// `used`: what the owners had counted of this worker by then.
struct SamplesDrawn {
  JobId job;
  NodeRef worker;
  std::vector<SampleRange> ranges;
  uint64_t used = 0;
  bool for_step = false;  // deterministic
  Step step;
};
struct SamplesReturned {
  JobId job;
  NodeId worker;
  std::vector<SampleRange> ranges;
  uint64_t used = 0;
};
// The newest of the job; older ones beyond the number it keeps are gone.
struct CheckpointRecorded {
  JobId job;
  CheckpointRecord record;
};
// All shards return to a checkpoint, on owners that are alive.
struct RolledBack {
  JobId job;
  JobGeneration generation;
  uint32_t lineage = 0;
  std::string path;
  std::vector<TensorPlan> tensors;
  std::map<NodeId, SettledSamples> settled;
  uint64_t updates = 0;  // of the checkpoint
  RollbackTotals totals;
};
// All owners have what they were to load.
struct Restored {
  JobId job;
  RollbackTotals totals;
};
// Drawn before a return to a checkpoint and used for nothing that is left.
struct SamplesLost {
  JobId job;
  NodeId worker;
  std::vector<SampleRange> ranges;
};
// The next job of this name starts from a checkpoint.
struct ResumePrepared {
  ResumeJobRequest resume;
};
// An ended job and its nodes are no longer kept.
struct JobForgotten {
  JobId job;
};
// These chunks belong to another server from now on; until MovesDone their state is on its way.
struct ChunksMoved {
  JobId job;
  JobGeneration generation;
  uint64_t move = 0;
  std::vector<ChunkMove> moves;
};
// The new owners take nothing more of what moves. What they miss goes back with ChunksMoved, from
// and to the owner before; without anything missing MovesDone follows.
struct MovesWithdrawn {
  JobId job;
  JobGeneration generation;
};
struct MovesDone {
  JobId job;
  JobGeneration generation;
};
struct AskedToLeave {
  NodeRef worker;
  std::string reason;
};
struct ServerDraining {
  NodeRef server;
  bool draining = true;
};
// A server that is gone for long is no longer kept.
struct NodeForgotten {
  NodeId node;
};
struct StateCompacted {
  State state;
};

using Entry =
    std::variant<TermStarted, JobCreated, NodeJoined, NodeGone, JobStateChanged, OptimizerSet,
                 TensorsPlaced, InitWriterNamed, TensorsSealed, GroupsChanged, SamplesDrawn,
                 SamplesReturned, StateCompacted, JobForgotten, ChunksMoved, MovesDone,
                 ServerDraining, NodeForgotten, CheckpointRecorded, RolledBack, Restored,
                 SamplesLost, ResumePrepared, AskedToLeave, MovesWithdrawn>;

std::string EncodeEntry(const Entry& entry);
// DataLoss says what was wrong with the bytes.
absl::StatusOr<Entry> DecodeEntry(std::string_view bytes);

// Changes the state as decided. Entries of one journal always fit; FailedPrecondition names what an
// entry of another journal refers to.
absl::Status Apply(const Entry& entry, State& state);

}  // namespace paceline::scheduler
