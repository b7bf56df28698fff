// What the scheduler has decided and keeps over a restart. Changed only by Apply (journal_entry.h).
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/types.h"
#include "plan/messages.h"
#include "plan/operator_view.h"
#include "plan/plan.h"
#include "scheduler/core/sample_ledger.h"

namespace paceline::scheduler {

enum class NodeState : uint8_t { kLive = 1, kLeft = 2, kDead = 3 };
std::string_view Name(NodeState state);

struct NodeRecord {
  NodeId id;
  Incarnation incarnation;
  Role role = Role::kWorker;
  NodeState state = NodeState::kLive;
  std::string name;
  std::string host;
  std::map<std::string, std::string> labels;
  std::string data_address;
  JobId job;
  std::string job_name;
  JobRank rank;
  std::optional<WorkerIndex> index;
  uint64_t process_id = 0;
  SecretKey key{};
  bool draining = false;       // servers: owns no chunks longer than it must
  std::string asked_to_leave;  // workers: by an operator, with the reason

  NodeRef ref() const { return {id, incarnation}; }
  bool live() const { return state == NodeState::kLive; }
  bool operator==(const NodeRecord&) const = default;
};

// Samples of a worker whose fate no owner counts any more: of lineages before the present one.
struct SettledSamples {
  uint64_t applied = 0;
  uint64_t discarded = 0;

  bool operator==(const SettledSamples&) const = default;
};

struct JobRecord {
  JobId id;
  JobSpec spec;
  JobState state = JobState::kForming;
  std::string reason;
  JobGeneration generation;
  std::vector<TensorPlan> tensors;  // tensors[i].id is i
  TensorId lead_tensor;
  NodeId init_writer;
  std::map<GroupId, GroupPlan> groups;  // member keys are left out: nodes hold them
  uint32_t next_group = 0;
  uint64_t group_generations = 0;
  std::map<std::string, JobRank> ranks;  // by worker name, of all that ever joined
  uint64_t move = 0;                     // id of the chunks that move now
  std::vector<ChunkMove> moves;
  bool withdrawn = false;  // new owners are asked what they miss, which goes back
  SampleLedger samples;

  std::string run;            // tells runs of one name apart
  std::string resumed_from;   // path of a checkpoint
  paceline::Step first_step;  // of the initial groups
  uint32_t lineage = 0;
  std::vector<CheckpointRecord> checkpoints;  // oldest first; number 0: the one resumed from
  uint64_t last_checkpoint = 0;               // number
  // Owners load the shards of this generation from there; empty: nothing is to be loaded.
  std::string restore_from;
  JobGeneration restore_generation;
  std::map<NodeId, SettledSamples> settled;
  uint64_t settled_updates = 0;
  RollbackTotals rollbacks;

  bool active() const { return state == JobState::kForming || state == JobState::kRunning; }
  bool operator==(const JobRecord&) const = default;
};

struct State {
  Term term{1};
  uint32_t last_node = 0;
  uint64_t last_incarnation = 0;
  uint32_t last_job = 0;
  std::map<NodeId, NodeRecord> nodes;
  std::map<JobId, JobRecord> jobs;
  std::map<std::string, ResumeJobRequest> resumes;  // of jobs that are yet to start, by name

  bool operator==(const State&) const = default;
};

// The state as text, without term and keys.
std::string Dump(const State& state);

template <typename A>
void Fields(A& a, Is<NodeRecord> auto& v) {
  a(v.id, v.incarnation, v.role, v.state, v.name, v.host, v.labels, v.data_address, v.job,
    v.job_name, v.rank, v.index, v.process_id, v.key, v.draining, v.asked_to_leave);
}
template <typename A>
void Fields(A& a, Is<SettledSamples> auto& v) {
  a(v.applied, v.discarded);
}
template <typename A>
void Fields(A& a, Is<JobRecord> auto& v) {
  a(v.id, v.spec, v.state, v.reason, v.generation, v.tensors, v.lead_tensor, v.init_writer,
    v.groups, v.next_group, v.group_generations, v.ranks, v.samples, v.move, v.moves, v.run,
    v.resumed_from, v.first_step, v.lineage, v.checkpoints, v.last_checkpoint, v.restore_from,
    v.restore_generation, v.settled, v.settled_updates, v.rollbacks, v.withdrawn);
}
template <typename A>
void Fields(A& a, Is<State> auto& v) {
  a(v.term, v.last_node, v.last_incarnation, v.last_job, v.nodes, v.jobs, v.resumes);
}

}  // namespace paceline::scheduler
