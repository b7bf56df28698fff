// The session behind session.h. Split over session.cc (joining, steps, leaving),
// session_tensors.cc (from registration to first weights), session_ops.cc (operations),
// session_control.cc (directives, reports), session_samples.cc, session_guards.cc (weights of the
// past, gradients that are not finite) and session_leave.cc.
//
// Threads: the caller's; the control client's watch thread (directives); `control_thread_`
// (reports, acks: calls that block on the scheduler); `draw_thread_` (samples ahead of use); the
// heartbeat's; `timer_thread_` (retries and
// deadlines); I/O threads (outcomes). One mutex guards the state; no call to the scheduler and no
// OwnerLinks::Issue is made with it held.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/runtime/mutex.h"
#include "control/heartbeat.h"
#include "plan/group_tracker.h"
#include "plan/messages.h"
#include "plan/partitioner.h"
#include "plan/sample_lease.h"
#include "worker_client/owner_links.h"
#include "worker_client/session.h"

namespace paceline {

class SessionImpl final : public Session, public OwnerLinks::Listener {
 public:
  SessionImpl(const SessionOptions& options, std::unique_ptr<ControlClient> control,
              std::unique_ptr<Transport> transport);
  ~SessionImpl() override;

  absl::Status Start();

  absl::Status SetOptimizer(const NamedSpec& optimizer) override;
  absl::StatusOr<TensorId> RegisterTensor(const TensorSpec& spec) override;
  absl::Status Init(TensorId tensor, std::span<const float> values) override;
  absl::Status WaitReady() override;
  absl::StatusOr<std::shared_ptr<float[]>> AllocateTensor(TensorId tensor) override;
  absl::StatusOr<OperationHandle> PushPull(TensorId tensor, std::span<const float> gradient,
                                           std::span<float> weights,
                                           const OperationOptions& options) override;
  absl::StatusOr<OperationHandle> Push(TensorId tensor, std::span<const float> gradient,
                                       const OperationOptions& options) override;
  absl::StatusOr<OperationHandle> Reduce(TensorId tensor, std::span<const float> values,
                                         std::span<float> sum,
                                         const OperationOptions& options) override;
  absl::StatusOr<OperationHandle> Pull(TensorId tensor, std::span<float> weights,
                                       const OperationOptions& options) override;
  absl::StatusOr<OperationResult> Wait(OperationHandle operation) override;
  absl::Status WaitAll() override;
  absl::Status AtStepBoundary() override;
  absl::Status Barrier(const std::string& name) override;
  absl::StatusOr<SampleBatch> DrawSamples(uint32_t count) override;
  absl::StatusOr<TensorState> ReadState(TensorId tensor) override;
  absl::Status WriteState(TensorId tensor, const TensorState& state) override;
  absl::StatusOr<std::string> Checkpoint(const std::string& directory) override;
  void ReportProgress(const std::map<std::string, double>& metrics) override;
  absl::Status Leave(const std::string& reason) override;
  std::optional<std::string> asked_to_leave() const override;
  bool declared_dead() override;

  JobId job() const override { return joined_.job; }
  JobRank rank() const override { return joined_.rank; }
  NodeId node() const override { return joined_.self.node; }
  Step step() const override;
  JobSpec spec() const override;
  uint32_t group_size() const override;
  GroupId group() const override;
  bool alone() const override;
  SessionCounters counters() const override;

 private:
  // A tensor as this session registered it; its handle is the index in tensors_.
  struct Tensor {
    TensorSpec spec;
    std::vector<float> initial;  // until it is sealed
    bool has_initial = false;
    std::optional<TensorId> id;  // the scheduler's
    bool ready = false;
    std::vector<PlacedChunk> chunks;
    std::vector<Version> bases;  // of the weights this worker holds, per chunk
    Ordinal next_ordinal;        // within the step
    // Weights of the start round, for a Pull that comes before anything else: all members have the
    // same ones.
    std::vector<float> start;
    // The program holds weights of the group that this worker was in before, until it gets those
    // of now. What it pushes meanwhile carries nothing.
    bool left_behind = false;
  };

  struct Pending {
    FrameKind kind = FrameKind::kHeartbeat;
    uint32_t tensor = 0;  // handle; meaningless for Boundary
    Samples samples;
    std::vector<std::shared_ptr<ChunkOp>> ops;
    uint32_t remaining = 0;
    OperationResult result;
    absl::Status status;
    Ticks began;
    Ticks deadline;
    bool done = false;
    bool internal = false;  // nobody waits for it
    bool lapsed = false;    // computed on weights that a checkpoint has replaced
    bool start = false;     // of a start round
    std::function<void(const absl::StatusOr<OperationResult>&)> callback;
  };

  struct Retry {
    Ticks due;
    std::shared_ptr<ChunkOp> op;
  };

  // To be given up: its deadline has passed, its owner was out of reach for as long as any
  // operation may take, or the session has failed.
  struct Late {
    std::shared_ptr<ChunkOp> op;
    bool awaits_retry = false;
    absl::Status cause;
  };

  // session.cc
  absl::Status JoinJob(Ticks deadline);
  absl::Status WaitFormed(Ticks deadline);

  // session_tensors.cc
  absl::Status AwaitPrepared() REQUIRES(mutex_);
  absl::Status RegisterBatch(const std::vector<uint32_t>& batch);
  absl::StatusOr<NodeReply> AwaitPlacement(const RegisterTensorsRequest& request);
  absl::Status AwaitSealed(const std::vector<uint32_t>& batch);
  absl::Status WriteInitial(const std::vector<uint32_t>& batch);
  absl::Status StartRound(const std::vector<uint32_t>& batch);

  // session.cc
  absl::Status AdvanceStep() EXCLUDES(mutex_);
  bool Arrives() const EXCLUDES(mutex_);
  absl::Status Arrive() EXCLUDES(mutex_);
  Samples UnusedThisStep() const REQUIRES(mutex_);
  std::vector<SampleRange> TakeUnused() REQUIRES(mutex_);
  void BeginStep(Step step) REQUIRES(mutex_);
  void DropStartWeights() EXCLUDES(mutex_);
  // Waits for the answers up to `patience`, or not at all when it is 0.
  absl::Status SendBoundary(Step first, Step last, Samples unused, Ticks patience);
  std::vector<std::shared_ptr<ChunkOp>> MakeBoundary(const std::set<NodeId>& owners, Step first,
                                                     Step last, Samples unused, Ticks patience,
                                                     uint64_t* id) REQUIRES(mutex_);
  std::set<NodeId> Owners() const REQUIRES(mutex_);
  void ReturnUnused() EXCLUDES(mutex_, draw_mutex_);
  absl::Status CoverForGood() EXCLUDES(mutex_);
  bool IsToEnd() const;
  void EndIfStuck(Ticks now) REQUIRES(mutex_);
  // A call of the program waits for others from here until blocked_ is counted down.
  void Block() REQUIRES(mutex_);
  absl::Status CoverUntilGone() EXCLUDES(mutex_);

  // session_guards.cc
  // Whether its weights are of the plan's lineage; else they are from before a return to a
  // checkpoint, and what was computed on them trains nothing.
  bool IsCurrent(const Tensor& tensor) const REQUIRES(mutex_);
  bool Lapses(const Tensor& tensor) const REQUIRES(mutex_);
  absl::Status Adopt(bool leaving) EXCLUDES(mutex_, draw_mutex_);
  absl::Status CheckFinite() EXCLUDES(mutex_);

  // session_ops.cc
  struct OpRequest {
    FrameKind kind;
    uint32_t tensor;
    std::span<const float> values;
    std::span<float> out;
    OperationOptions options;
    std::optional<Ticks> patience = {};  // else options_.deadline
    bool start = false;                  // of a start round
  };
  // The weights of the start round, which are here already.
  OperationHandle PullStart(Tensor& held, const OpRequest& request) REQUIRES(mutex_);
  absl::StatusOr<uint64_t> Issue(const OpRequest& request);
  absl::Status CheckTensor(const OpRequest& request) REQUIRES(mutex_);
  std::shared_ptr<ChunkOp> MakeChunkOp(const OpRequest& request, const Tensor& tensor,
                                       uint32_t index) REQUIRES(mutex_);
  FrameHeader BaseHeader() const REQUIRES(mutex_);
  void OnOutcome(const std::shared_ptr<ChunkOp>& op, const absl::Status& status) override;
  static void CallBack(const Pending& finished);
  void OnLinkDown(const ServerInfo& peer, Ticks since, const std::string& cause) override;
  // After which pause the operation is to be sent again; none: it is done.
  std::optional<Ticks> Settle(Pending& pending, ChunkOp& op, const absl::Status& status)
      REQUIRES(mutex_);
  // The group went on without the operation: it is sent again for a later step, where this worker
  // goes on. False when that step may not begin yet.
  bool CatchUp(const Pending& pending, ChunkOp& op) REQUIRES(mutex_);
  // Its group goes on without this worker, which goes over to another.
  std::optional<Ticks> LeaveBehind(const Pending& pending, ChunkOp& op) REQUIRES(mutex_);
  void BecomePull(ChunkOp& op) REQUIRES(mutex_);
  absl::Status FromReply(const Pending& pending, const ChunkOp& op) REQUIRES(mutex_);
  void CountSamples(const Pending& pending, const ChunkOp& op, const absl::Status& status)
      REQUIRES(mutex_);
  absl::StatusOr<OperationResult> WaitFor(uint64_t id);
  // Also after an error, as each holds memory; the first error.
  absl::Status WaitForEach(const std::vector<uint64_t>& ids);
  // All of them, or those before the first that cannot be issued; waits also after an error, as
  // each holds memory.
  absl::Status IssueAndWait(const std::vector<OpRequest>& requests);
  // "PushPull of tensor 'w' chunk 0 in step 3".
  std::string NameOp(const Pending& pending, const ChunkOp& op) const REQUIRES(mutex_);
  std::string DescribeOp(const Pending& pending, const ChunkOp& op) const REQUIRES(mutex_);
  void FollowOwner(ChunkOp& op) REQUIRES(mutex_);
  void RetryAtOnce() REQUIRES(mutex_);
  std::vector<std::shared_ptr<ChunkOp>> TakeDueRetries(Ticks now) REQUIRES(mutex_);
  std::vector<Late> TakeLate(Ticks now) REQUIRES(mutex_);
  void RunTimer();

  // session_control.cc
  void OnDirective(const Directive& directive);
  void Apply(const PlanDirective& directive) REQUIRES(mutex_);
  void FollowOwners(const std::vector<ServerInfo>& servers_before, bool rolled_back)
      REQUIRES(mutex_);
  void Apply(const PrepareDirective& directive) REQUIRES(mutex_);
  void Apply(const CommitDirective& directive) REQUIRES(mutex_);
  void Apply(const AbortDirective& directive) REQUIRES(mutex_);
  void Apply(const FenceDirective& directive) REQUIRES(mutex_);
  void Apply(const SealedDirective& directive) REQUIRES(mutex_);
  void Apply(const CutDirective&) REQUIRES(mutex_) {}
  void Apply(const RecallSamplesDirective& directive) REQUIRES(mutex_);
  void Apply(const EndJobDirective& directive) REQUIRES(mutex_);
  void Apply(const RemoveDirective& directive) REQUIRES(mutex_);
  void OnStreamClosed(const absl::Status& cause) EXCLUDES(mutex_);
  void RunControl();
  bool SendReport() EXCLUDES(mutex_);
  void OnRefused(const absl::Status& cause) EXCLUDES(mutex_);
  void AskWhetherDead() EXCLUDES(mutex_);
  // False when the scheduler is away; the rest stays queued.
  bool SendQueued() EXCLUDES(mutex_, send_mutex_);
  void OpenWatch();
  WorkerReport MakeReport() EXCLUDES(mutex_);
  // What is given back is with the scheduler, or the session's deadline is over.
  absl::Status AwaitReturns() REQUIRES(mutex_);
  bool ReturnsQueued() const REQUIRES(mutex_);
  absl::Status Refill(uint32_t count, bool ahead) REQUIRES(draw_mutex_) EXCLUDES(mutex_);
  Samples WantedAhead(uint32_t count) const REQUIRES(mutex_);
  void StockUp(uint32_t count) REQUIRES(mutex_);
  absl::Status CheckDraw() REQUIRES(mutex_);
  SampleBatch TakeBatch(uint32_t count) REQUIRES(mutex_);
  void RunDraws();
  uint32_t StepTimeUs() const REQUIRES(mutex_);  // median; 0 = not known
  absl::StatusOr<NodeReply> CallScheduler(const NodeRequest& request);
  absl::StatusOr<NodeReply> CallScheduler(const NodeRequest& request, Ticks timeout);
  absl::StatusOr<NodeReply> CallUntil(const NodeRequest& request, Ticks deadline);
  void Fail(absl::Status status) REQUIRES(mutex_);
  Ticks Deadline() const;

  const SessionOptions options_;
  const std::unique_ptr<ControlClient> control_;
  std::unique_ptr<Transport> transport_;
  JoinReply joined_;  // constant after Start
  std::unique_ptr<OwnerLinks> links_;

  mutable Mutex mutex_;
  CondVar changed_;  // any state below
  CondVar control_wake_;
  CondVar timer_wake_;
  bool closing_ GUARDED_BY(mutex_) = false;
  bool leaving_ GUARDED_BY(mutex_) = false;  // the scheduler was told
  bool gone_ GUARDED_BY(mutex_) = false;     // its watch stream ended for that
  bool left_ GUARDED_BY(mutex_) = false;
  std::string said_waiting_ GUARDED_BY(mutex_);
  uint32_t blocked_ GUARDED_BY(mutex_) = 0;
  Ticks blocked_since_ GUARDED_BY(mutex_);
  Ticks stop_seen_ GUARDED_BY(mutex_);  // when the program was to end; 0: it is not
  std::optional<std::string> asked_to_leave_ GUARDED_BY(mutex_);
  // What the scheduler has said of this incarnation, or an owner or a fence without the reason.
  enum class Standing { kMember, kFenced, kDeclaredDead, kDisplaced };
  Standing standing_ GUARDED_BY(mutex_) = Standing::kMember;
  absl::Status failed_ GUARDED_BY(mutex_);  // ends every operation and call
  Plan plan_ GUARDED_BY(mutex_);
  bool have_plan_ GUARDED_BY(mutex_) = false;
  std::optional<GroupTracker> group_ GUARDED_BY(mutex_);
  std::vector<Tensor> tensors_ GUARDED_BY(mutex_);
  bool preparing_ GUARDED_BY(mutex_) = false;
  bool started_ GUARDED_BY(mutex_) = false;        // the start step is over
  std::optional<Step> passed_ GUARDED_BY(mutex_);  // owners were told: nothing more up to here
  Samples passed_unused_ GUARDED_BY(mutex_);       // and what of it reached no update
  bool arrives_ GUARDED_BY(mutex_) = false;        // in its next group, with this step
  uint64_t next_operation_ GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::shared_ptr<Pending>> pending_ GUARDED_BY(mutex_);
  std::vector<Retry> retries_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Pending>> called_back_ GUARDED_BY(mutex_);  // done, to be told

  Mutex
      draw_mutex_;  // held while samples are drawn: a draw says what came before it; before mutex_
  CondVar draws_wake_;
  uint32_t draw_ahead_ GUARDED_BY(mutex_) = 0;  // batch size of what is to be drawn; 0 = nothing
  Ticks next_stock_ GUARDED_BY(mutex_);
  bool draws_over_ GUARDED_BY(mutex_) = false;  // it leaves
  std::optional<SampleLease> lease_ GUARDED_BY(mutex_);
  bool samples_finished_ GUARDED_BY(mutex_) = false;
  std::vector<SampleRange> in_hand_ GUARDED_BY(mutex_);  // drawn in this step
  uint64_t offered_this_step_ GUARDED_BY(mutex_) = 0;    // of those, pushed to the lead chunk
  bool returns_rest_ GUARDED_BY(mutex_) = false;         // the rest is given back, not discarded
  bool pushed_this_step_ GUARDED_BY(mutex_) = false;
  // Under a quorum: the group is in this step already, without what this worker pushed.
  Step group_is_in_ GUARDED_BY(mutex_);
  SessionCounters counters_ GUARDED_BY(mutex_);
  std::optional<uint32_t> lineage_ GUARDED_BY(mutex_);  // of the weights trained on
  std::string not_finite_ GUARDED_BY(mutex_);           // tensor of this step's push, if any
  uint32_t not_finite_in_a_row_ GUARDED_BY(mutex_) = 0;

  Mutex send_mutex_;  // held while the outbox is sent; before mutex_
  std::deque<NodeRequest> outbox_ GUARDED_BY(mutex_);  // acks and returned samples
  bool watch_lost_ GUARDED_BY(mutex_) = false;
  bool new_stream_ GUARDED_BY(mutex_) = false;  // its full state has not come yet
  bool away_ GUARDED_BY(mutex_) = false;        // the scheduler, as the log was told
  std::map<std::string, Metric> metrics_ GUARDED_BY(mutex_);
  bool report_now_ GUARDED_BY(mutex_) = false;
  std::deque<uint32_t> step_times_us_ GUARDED_BY(mutex_);  // newest 32
  Ticks step_began_ GUARDED_BY(mutex_);
  Ticks waited_ GUARDED_BY(mutex_);  // in Wait, since the last report
  Ticks reported_at_ GUARDED_BY(mutex_);
  Epoch epoch_ GUARDED_BY(mutex_);
  double progress_ GUARDED_BY(mutex_) = 0;

  std::unique_ptr<HeartbeatThread> heartbeat_;
  std::thread control_thread_;
  std::thread timer_thread_;
  std::thread draw_thread_;
};

}  // namespace paceline
