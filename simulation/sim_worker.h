// A worker as a process: a thin model of the session (worker_client/session.h). What is pure of it
// is the real thing: which generation holds for which step, the samples held, tensors to chunks.
//
//   join -> formed -> register -> (write initial values) -> sealed -> start round -> step ... ->
//   leave step: draw samples, compute, PushPull of every chunk, [Reduce], Boundary, [adopt the
//   weights of a checkpoint], wait for a change
//
// An operation is sent again under the same identity after a broken connection (same sequence) or
// an answer that says to (new sequence), until it is answered.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/group_tracker.h"
#include "plan/partitioner.h"
#include "plan/sample_lease.h"
#include "simulation/checker.h"
#include "simulation/network.h"
#include "simulation/scenario.h"
#include "simulation/sim_scheduler.h"

namespace paceline::simulation {

class SimWorker final : public Process {
 public:
  // Where a server that a plan names is found.
  using FindServer = std::function<FrameTaker*(const std::string& name)>;

  SimWorker(World* world, const Scenario* scenario, Checker* checker, SimScheduler* scheduler,
            Network* network, FindServer find_server, uint32_t index);

  // What a program would do with SIGTERM: it leaves at the next boundary.
  void AskToLeave() { asked_to_leave_ = true; }
  bool asked_to_leave() const { return asked_to_leave_; }
  NodeRef self() const { return self_; }
  // It has left; it is not started again.
  bool left() const { return phase_ == Phase::kLeft; }
  std::optional<GroupId> group() const {
    if (!group_ || !group_->in_group()) return std::nullopt;
    return group_->current().id;
  }
  bool training() const { return phase_ > Phase::kStartRound && phase_ < Phase::kAdopting; }
  // The group whose rounds it waits for, and since when it does what it does.
  std::optional<GroupId> waiting_group() const;
  Ticks since() const { return since_; }
  std::string Doing() const;

  // Called when the program ends because its session failed.
  std::function<void()> on_failed;

 protected:
  void OnStart() override;
  void OnKill() override;

 private:
  enum class Phase : uint8_t {
    kJoining,
    kForming,
    kRegistering,
    kPlacing,
    kSealing,
    kWriting,
    kStartRound,
    kBoundary,
    kDrawing,
    kComputing,
    kReducing,
    kExchanging,
    kAdopting,
    kReturning,
    kCovering,
    kLeaving,
    kLeaveWait,
    kPassingOn,
    kLeft,
  };
  struct Op {
    Operation operation;
    NodeId owner;
    uint64_t elements = 0;
    std::shared_ptr<const std::vector<float>> payload;
    bool needs_send = true;
    bool waited_for = true;
  };
  using OpPtr = std::shared_ptr<Op>;
  struct Link {
    FrameTaker* server = nullptr;
    std::shared_ptr<Connection> connection;
    bool connecting = false;
    uint32_t tries = 0;
    uint64_t last_sequence = 0;
    std::map<uint64_t, OpPtr> pending;
    bool gone = false;  // no plan names it any more
  };

  // ---- sim_worker.cc: the life of a session
  void Join();
  void Go();
  void Enter(Phase phase);
  void Register();
  void Place();
  void AwaitSeal();
  void WriteInitial();
  void StartRound();
  void BeginBoundary();
  void AwaitBoundary();
  bool IsCurrent(TensorId tensor) const;
  bool Lapses(TensorId tensor) const;
  bool MustAdopt(bool leaving) const;
  void Adopt();
  void AccountForStep();
  void Draw();
  void TakeBatch();
  void Compute();
  void Reduce();
  void Exchange();
  void Return();
  void ReturnUnused();
  void Cover();
  void Leave();
  void AwaitLeave();
  void Finish();
  void Fail(const std::string& why);
  // Of the caller's thread: repeated while the scheduler is away.
  void CallScheduler(NodeRequest request, std::function<void(const NodeReply&)> done);

  // ---- sim_worker_links.cc: operations
  Operation Header(OperationKind kind) const;
  void Issue(OpPtr op);
  void AnswerGone();
  std::vector<OpPtr> Pass(const std::set<NodeId>& owners, Step first, Step through, bool wait);
  std::set<NodeId> Owners() const;
  void IssueChunks(OperationKind kind, size_t first, size_t last, Ordinal ordinal, Samples samples);
  void SendPending(NodeId owner);
  void Connect(NodeId owner);
  void OnReply(NodeId owner, const DataReply& reply);
  void Settle(const OpPtr& op, const DataReply& reply);
  bool CatchUp(Op& op, const DataReply& reply);
  void LeaveBehind(const OpPtr& op, const DataReply& reply);
  void BecomePull(Op& op, const DataReply& reply);
  void IssueAgain(const OpPtr& op, Ticks pause);

  // ---- sim_worker_control.cc: directives, heartbeats, what is told to the scheduler
  void OpenWatch();
  void OnDirective(const Directive& directive);
  void Apply(const PlanDirective& directive);
  void Apply(const PrepareDirective& directive);
  void Apply(const CommitDirective& directive);
  void Apply(const AbortDirective& directive);
  void Apply(const FenceDirective& directive);
  void Apply(const SealedDirective& directive);
  void Apply(const CutDirective&) {}
  void Apply(const RecallSamplesDirective&);
  void Apply(const EndJobDirective& directive);
  void Apply(const RemoveDirective&);
  void FollowOwners(const std::vector<ServerInfo>& servers_before);
  void OnHeartbeatDue();
  void Pump();
  WorkerReport MakeReport() const;

  const Scenario* const scenario_;
  Checker* const checker_;
  SimScheduler* const scheduler_;
  Network* const network_;
  const FindServer find_server_;
  const uint32_t index_;

  // Of one life.
  Phase phase_ = Phase::kJoining;
  Ticks since_;
  NodeRef self_;
  uint32_t heartbeat_interval_ms_ = 500;
  std::shared_ptr<WatchStream> stream_;
  std::optional<GroupTracker> group_;
  Plan plan_;
  bool have_plan_ = false;
  std::optional<uint32_t> lineage_;  // of the weights trained on
  JobGeneration placed_at_;
  bool written_ = false;
  std::vector<PlacedChunk> chunks_;  // of all tensors
  std::vector<Version> bases_;
  std::optional<Step> passed_;  // owners were told: nothing more up to here
  Step next_step_;              // that is begun after the boundary
  std::map<NodeId, Link> links_;
  uint32_t outstanding_ = 0;  // operations that are waited for
  std::optional<SampleLease> lease_;
  bool samples_finished_ = false;
  std::vector<SampleRange> in_hand_;
  uint64_t used_this_step_ = 0;
  bool returns_rest_ = false;  // the rest is given back, not discarded
  std::vector<OpPtr> covering_;
  Step group_is_in_;  // without what this worker pushed
  WorkerLedger ledger_;
  std::deque<NodeRequest> outbox_;
  bool calling_ = false;
  Ticks reported_at_;
  Ticks step_began_;
  Ticks step_took_;
  bool busy_ = false;  // the caller's thread waits for the scheduler or computes
  bool asked_to_leave_ = false;
  bool gone_ = false;
  bool new_stream_ = false;
};

}  // namespace paceline::simulation
