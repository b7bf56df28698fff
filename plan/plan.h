// What has been agreed for one job: the state every node of the job holds a copy of.
// Thread rule: values; no shared state.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "plan/job_spec.h"
#include "plan/tensor_spec.h"

namespace paceline {

// Issued by the scheduler at Join for (job, node, incarnation, role); proves the sender of a data
// connection (transport/authentication.h). All zero = not told to this node.
using SecretKey = std::array<uint8_t, 32>;

// Which incarnation of which node.
struct NodeRef {
  NodeId node;
  Incarnation incarnation;

  auto operator<=>(const NodeRef&) const = default;
};

struct Member {
  NodeId node;
  std::string name;
  Incarnation incarnation;
  JobRank rank;
  std::optional<WorkerIndex> index;
  std::string host;
  std::string data_address;  // of the worker's own listener; empty if it has none
  SecretKey key{};           // filled for owners and for the member itself only
  Step first_step;           // it owes nothing to the steps before: it joined with this one

  bool operator==(const Member&) const = default;
};

// A change of membership activates this many steps above the highest step its members acknowledged.
// A member that acknowledged step s goes on, and holds before step s + kActivationMargin until the
// change is committed or aborted; so nobody passes an activation step unknowingly.
inline constexpr uint64_t kActivationMargin = 2;

inline NodeRef RefOf(const Member& member) { return {member.node, member.incarnation}; }

struct GroupPlan {
  GroupId id;
  GroupGeneration generation;
  Step activation_step;  // first step that this generation takes
  // The newest generation that a fence made. Fences hold for every step that is not over, so who
  // missed it works by this plan at once, also before the activation step.
  GroupGeneration last_fence;
  // Members by the last ordered change (join, leave, migration): what `normalization: sum` scales
  // to. A death leaves it as it is.
  uint32_t planned_members = 0;
  std::vector<Member> members;  // in rank order
  std::string reason;           // why this grouping, shown as is

  bool operator==(const GroupPlan&) const = default;
};

struct ServerInfo {
  NodeId node;
  std::string name;
  Incarnation incarnation;
  std::string host;
  std::string data_address;  // "host:port"
  SecretKey key{};           // filled for servers only: chunks move between them

  bool operator==(const ServerInfo&) const = default;
};

// A chunk on its way to another owner.
struct ChunkMove {
  ChunkKey chunk;
  NodeId from;
  NodeId to;

  bool operator==(const ChunkMove&) const = default;
};

struct TensorPlan {
  TensorId id;
  TensorSpec spec;
  std::vector<NodeId> owners;  // per chunk, in chunk order
  bool sealed = false;         // initial values are complete

  bool operator==(const TensorPlan&) const = default;
};

enum class JobState : uint8_t {
  kForming = 1,  // fewer workers than asked for have joined
  kRunning = 2,
  kFinished = 3,  // all workers left
  kStopped = 4,   // by an operator or an error; `reason` says
};
std::string_view Name(JobState state);

struct Plan {
  JobId job;
  JobSpec spec;
  JobState state = JobState::kForming;
  std::string reason;   // of the state
  std::string waiting;  // not empty: workers begin no further step, and why (min_workers)
  Term term;
  JobGeneration generation;
  std::vector<ServerInfo> servers;  // that own a chunk of this job or hand one over, by node id
  std::vector<TensorPlan> tensors;  // by id
  std::vector<GroupPlan> groups;    // by id
  GroupId next_group;               // every group below it that `groups` does not name has ended
  TensorId lead_tensor;             // its first chunk is the lead chunk
  NodeId init_writer;               // the worker whose initial values count
  // Chunks whose owner (above) has not said yet that their state has come. `from` stops at this
  // plan and sends it; `to` answers with an Ack of `move` when it has all of its.
  uint64_t move = 0;
  std::vector<ChunkMove> moves;
  // `to` takes nothing more of these moves: its Ack says what it misses, and `from`, which still
  // has that, becomes its owner again with a move from and to itself.
  bool withdrawn = false;
  // Incarnations (and all before of the same node) whose frames no owner takes any more; told to
  // servers only, which may have missed a fence.
  std::vector<NodeRef> fenced;
  // Chunks of an older lineage take no part until they are loaded from this checkpoint; empty: none
  // is to be loaded.
  std::string restore_from;
  uint32_t lineage = 0;  // grows with each return to a checkpoint

  bool operator==(const Plan&) const = default;
};

// Samples an update carries go to the group's lead owner: the owner of the lead chunk.
std::optional<NodeId> LeadOwner(const Plan& plan);
const GroupPlan* FindGroup(const Plan& plan, NodeId member);
const TensorPlan* FindTensor(const Plan& plan, TensorId id);

}  // namespace paceline
