// Requests of nodes and operators to the scheduler, the replies, and the directives the scheduler
// sends on a node's Watch stream. Plain structs: control/grpc carries them as protobuf, tests as
// they are.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/types.h"
#include "plan/checkpoint.h"
#include "plan/permutation.h"
#include "plan/plan.h"
#include "plan/report.h"

namespace paceline {

enum class Role : uint8_t { kServer = 1, kWorker = 2, kOperator = 3, kViewer = 4 };
std::string_view Name(Role role);

struct JoinRequest {
  Role role = Role::kWorker;
  std::string name;  // stable; unique among servers, unique among workers of a job
  std::string host;
  std::map<std::string, std::string> labels;  // "rack", ...
  std::string data_address;
  JobSpec job;                       // workers only
  std::optional<WorkerIndex> index;  // workers only
  uint64_t process_id = 0;

  bool operator==(const JoinRequest&) const = default;
};

struct JoinReply {
  NodeRef self;
  JobId job;     // workers only
  JobRank rank;  // workers only
  Term term;
  SecretKey key{};  // proves this incarnation to data listeners; data listeners of servers learn
                    // it with the plan
  uint32_t heartbeat_interval_ms = 500;
  uint32_t failure_timeout_ms = 5000;

  bool operator==(const JoinReply&) const = default;
};

// Registers tensors in one batch; answered when the placement has been sent to the owners and
// acknowledged by them. Repeating a registration returns the same ids.
struct RegisterTensorsRequest {
  std::vector<TensorSpec> tensors;

  bool operator==(const RegisterTensorsRequest&) const = default;
};
struct RegisterTensorsReply {
  std::vector<TensorId> ids;  // in request order
  JobGeneration generation;   // the plan that holds them all

  bool operator==(const RegisterTensorsReply&) const = default;
};

// The initial values of these tensors are at all owners (writer only).
struct InitDoneRequest {
  std::vector<TensorId> tensors;

  bool operator==(const InitDoneRequest&) const = default;
};

struct SetOptimizerRequest {
  NamedSpec optimizer;

  bool operator==(const SetOptimizerRequest&) const = default;
};

// Draws samples ahead. In a deterministic job `step` names the step the batch is for, and the reply
// is that (step, rank)'s part, which may be empty although the job goes on.
// `received` counts what this incarnation has drawn so far: an answer that was lost on its way is
// given again, never drawn twice.
// `ahead`: nobody waits for them yet; answered at once, with nothing where others wait for samples.
struct DrawSamplesRequest {
  Samples wanted;
  Step step;
  Samples received;
  bool ahead = false;

  bool operator==(const DrawSamplesRequest&) const = default;
};
struct DrawSamplesReply {
  std::vector<SampleRange> ranges;
  bool finished = false;  // no samples are left in the job

  bool operator==(const DrawSamplesReply&) const = default;
};

struct ReturnSamplesRequest {
  std::vector<SampleRange> ranges;

  bool operator==(const ReturnSamplesRequest&) const = default;
};

// Released when every live worker of the job that has not left has arrived at `name`.
struct BarrierRequest {
  std::string name;

  bool operator==(const BarrierRequest&) const = default;
};

// Starts a consistent cut that the owners write below `directory` (empty: the job's
// checkpoint_dir); answered when it is complete.
struct CheckpointRequest {
  std::string directory;

  bool operator==(const CheckpointRequest&) const = default;
};
struct CheckpointReply {
  std::string path;
  std::map<GroupId, Step> cut;  // last step of each group that is in it

  bool operator==(const CheckpointReply&) const = default;
};

// After a return to a checkpoint: this worker holds weights of the new lineage everywhere, and of
// the samples it drew it still has these. What it had beyond the checkpoint is lost.
struct AdoptedRequest {
  uint32_t lineage = 0;
  std::vector<SampleRange> held;

  bool operator==(const AdoptedRequest&) const = default;
};

// A push of this worker held NaN or infinity in this tensor and was left out there. Told once per
// push.
struct NotFiniteRequest {
  std::string tensor;
  Step step;
  uint32_t in_a_row = 1;  // pushes of this worker, this one included

  bool operator==(const NotFiniteRequest&) const = default;
};

// An answer to a directive with `change` or `cut`: what the node was told is in force there.
struct AckRequest {
  uint64_t id = 0;                  // of the change, placement or cut
  Step step;                        // workers: the step they are in; the change activates above it
  std::map<GroupId, Step> applied;  // owners, for a cut: highest step applied or decided
  std::string error;                // not empty: the node could not
  CheckpointPart part{};            // owners, for the copy of a cut
  uint64_t updates = 0;             // the lead owner, with its part: of the lead chunk
  std::vector<WorkerSamples> workers{};  // the same: by the cut
  std::vector<ChunkKey> missing{};       // owners, for a move that was withdrawn: what has not come

  bool operator==(const AckRequest&) const = default;
};

struct LinkDownRequest {
  NodeId peer;
  uint32_t since_ms = 0;  // how long, with bytes outstanding
  std::string cause;

  bool operator==(const LinkDownRequest&) const = default;
};

struct LeaveRequest {
  std::string reason;
  int32_t exit_code = 0;
  WorkerReport last;

  bool operator==(const LeaveRequest&) const = default;
};

struct Heartbeat {
  bool operator==(const Heartbeat&) const = default;
};

// What a node can ask of the scheduler once joined.
using NodeRequest =
    std::variant<Heartbeat, RegisterTensorsRequest, InitDoneRequest, SetOptimizerRequest,
                 DrawSamplesRequest, ReturnSamplesRequest, BarrierRequest, CheckpointRequest,
                 AckRequest, LinkDownRequest, WorkerReport, ServerReport, LeaveRequest,
                 AdoptedRequest, NotFiniteRequest>;
struct Empty {
  bool operator==(const Empty&) const = default;
};
using NodeReply = std::variant<Empty, RegisterTensorsReply, DrawSamplesReply, CheckpointReply>;

// ---- Directives -------------------------------------------------------------------------------

// The whole plan of a job; replaces what the node holds. Owners answer with an Ack of `change` when
// it is not 0.
struct PlanDirective {
  uint64_t change = 0;
  Plan plan;

  bool operator==(const PlanDirective&) const = default;
};

// First phase of a change of membership: be ready for these groups, answer with the step you are
// in. Activation steps are not known yet (0).
struct PrepareDirective {
  uint64_t change = 0;
  JobId job;
  std::vector<GroupPlan> groups;  // a group without members ends
  std::string reason;

  bool operator==(const PrepareDirective&) const = default;
};

// Second phase: in force from each group's activation step on.
struct CommitDirective {
  uint64_t change = 0;
  JobId job;
  std::vector<GroupPlan> groups;
  std::string reason;

  bool operator==(const CommitDirective&) const = default;
};

struct AbortDirective {
  uint64_t change = 0;
  JobId job;
  std::string reason;

  bool operator==(const AbortDirective&) const = default;
};

// This incarnation is dead: refuse its frames, void its rounds. One phase.
struct FenceDirective {
  uint64_t change = 0;
  JobId job;
  NodeRef dead;
  std::vector<GroupPlan> groups;  // the groups it was in, without it, next generation
  std::string reason;

  bool operator==(const FenceDirective&) const = default;
};

struct SealedDirective {
  JobId job;
  std::vector<TensorId> tensors;

  bool operator==(const SealedDirective&) const = default;
};

// Cut, phase 1: hold later steps, answer with the highest step applied per group. Phase 2: copy
// when exactly these steps are in, release, write a part into `directory`, answer with it. Phase 3,
// one owner only: all parts are there; write the manifest. Apart from a cut: remove directories.
struct CutDirective {
  uint64_t cut = 0;
  JobId job;
  bool collect = true;                           // phase 1
  bool abort = false;                            // release; what is in `directory` goes
  std::map<GroupId, Step> steps;                 // phase 2
  std::string directory;                         // phases 2 and 3, and of an abort
  std::optional<CheckpointManifest> manifest{};  // phase 3
  std::vector<std::string> drop{};               // then it says nothing else

  bool operator==(const CutDirective&) const = default;
};

struct RecallSamplesDirective {
  JobId job;

  bool operator==(const RecallSamplesDirective&) const = default;
};

// Ends a job on a node: workers stop with `reason`, servers drop its shards.
struct EndJobDirective {
  JobId job;
  bool failed = false;
  std::string reason;

  bool operator==(const EndJobDirective&) const = default;
};

// Asks a worker to leave at its next step boundary.
struct RemoveDirective {
  JobId job;
  std::string reason;

  bool operator==(const RemoveDirective&) const = default;
};

struct Directive {
  uint64_t sequence = 0;  // per node and term; grows by one
  Term term;
  std::variant<PlanDirective, PrepareDirective, CommitDirective, AbortDirective, FenceDirective,
               SealedDirective, CutDirective, RecallSamplesDirective, EndJobDirective,
               RemoveDirective>
      body;

  bool operator==(const Directive&) const = default;
};

}  // namespace paceline
