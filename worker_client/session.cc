#include "worker_client/session.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "worker_client/session_impl.h"

namespace paceline {
namespace {

constexpr Ticks kJoinPause = Milliseconds(100);
constexpr Ticks kJoinTimeout = Seconds(5);
constexpr Ticks kWaitingLook = Milliseconds(500);
constexpr Ticks kSayWaitingAfter = Seconds(1);

Ticks Now() { return Clock::Real().Now(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Connect(const SessionOptions& options,
                                                          std::unique_ptr<ControlClient> control,
                                                          std::unique_ptr<Transport> transport) {
  PACELINE_RETURN_IF_ERROR(Validate(options.job));
  if (options.worker_name.empty()) {
    return absl::InvalidArgumentError("worker_name is empty; give each worker a stable name");
  }
  auto session = std::make_unique<SessionImpl>(options, std::move(control), std::move(transport));
  PACELINE_RETURN_IF_ERROR(session->Start());
  return session;
}

SessionImpl::SessionImpl(const SessionOptions& options, std::unique_ptr<ControlClient> control,
                         std::unique_ptr<Transport> transport)
    : options_(options), control_(std::move(control)), transport_(std::move(transport)) {}

SessionImpl::~SessionImpl() {
  {
    MutexLock lock(&mutex_);
    Fail(absl::CancelledError("the session was closed"));
    closing_ = true;
    control_wake_.SignalAll();
    timer_wake_.SignalAll();
    draws_wake_.SignalAll();
  }
  heartbeat_.reset();
  if (control_thread_.joinable()) control_thread_.join();
  if (timer_thread_.joinable()) timer_thread_.join();
  if (draw_thread_.joinable()) draw_thread_.join();
  std::vector<Retry> retries;
  std::vector<std::shared_ptr<Pending>> called_back;
  {
    MutexLock lock(&mutex_);
    retries.swap(retries_);
    called_back.swap(called_back_);
  }
  for (const auto& finished : called_back) CallBack(*finished);
  // What waited to be sent again is known to no link, which could end it.
  for (const Retry& retry : retries) {
    OnOutcome(retry.op, absl::CancelledError("the session was closed"));
  }
  if (joined_.self.node != NodeId()) control_->StopWatch();
  if (links_ != nullptr) links_->Shutdown(absl::CancelledError("the session was closed"));
  // No channel calls into the links once the transport is gone.
  transport_.reset();
  links_.reset();
}

// ---- Joining ------------------------------------------------------------------------------------

absl::Status SessionImpl::Start() {
  const Ticks deadline = Now() + options_.start_deadline;
  PACELINE_RETURN_IF_ERROR(JoinJob(deadline));
  const PeerIdentity self{joined_.job, joined_.self.node, joined_.self.incarnation,
                          PeerRole::kWorker};
  links_ =
      std::make_unique<OwnerLinks>(transport_.get(), self, joined_.key, options_.worker_name, this);
  {
    MutexLock lock(&mutex_);
    group_.emplace(joined_.self.node);
    step_began_ = reported_at_ = Now();
  }
  heartbeat_ = std::make_unique<HeartbeatThread>(
      control_->Another(), joined_.self, Milliseconds(joined_.heartbeat_interval_ms),
      [this](const absl::Status& cause) { OnRefused(cause); });
  OpenWatch();
  control_thread_ = std::thread([this] { RunControl(); });
  timer_thread_ = std::thread([this] { RunTimer(); });
  return WaitFormed(deadline);
}

absl::Status SessionImpl::JoinJob(Ticks deadline) {
  JoinRequest request;
  request.role = Role::kWorker;
  request.name = options_.worker_name;
  request.host = options_.host;
  request.labels = options_.labels;
  request.job = options_.job;
  request.index = options_.index;
  request.process_id = static_cast<uint64_t>(getpid());
  bool said = false;
  while (true) {
    auto reply = control_->Join(request, kJoinTimeout);
    if (reply.ok()) {
      joined_ = *reply;
      return absl::OkStatus();
    }
    if (!IsWorthRetrying(reply.status()) || Now() + kJoinPause > deadline) {
      return Annotate(reply.status(),
                      absl::StrCat("worker '", options_.worker_name, "' cannot join job '",
                                   options_.job.name, "' at ", control_->Peer()));
    }
    if (!std::exchange(said, true)) {
      LogInfo("worker", options_.worker_name, ": waiting for the scheduler at ", control_->Peer());
    }
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, kJoinPause);
  }
}

absl::Status SessionImpl::WaitFormed(Ticks deadline) {
  MutexLock lock(&mutex_);
  const Ticks say_at = Now() + kSayWaitingAfter;
  bool said = false;
  while (failed_.ok() && !(have_plan_ && group_->in_group())) {
    const Ticks now = Now();
    if (now >= say_at && !std::exchange(said, true)) {
      LogInfo("worker", options_.worker_name, ": joined; waiting for job '", options_.job.name,
              "' to take it in (", options_.job.workers, " workers expected at the start)");
    }
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "worker '", options_.worker_name, "' waited for job '", options_.job.name, "' to form (",
          options_.job.workers, " workers expected): ",
          have_plan_ && !plan_.reason.empty() ? plan_.reason
                                              : std::string("others have not joined")));
    }
    changed_.WaitFor(&mutex_, said ? deadline - now : std::min(deadline, say_at) - now);
  }
  return failed_;
}

// ---- Operations ---------------------------------------------------------------------------------

absl::StatusOr<OperationHandle> SessionImpl::PushPull(TensorId tensor,
                                                      std::span<const float> gradient,
                                                      std::span<float> weights,
                                                      const OperationOptions& options) {
  PACELINE_RETURN_IF_ERROR(WaitReady());
  PACELINE_ASSIGN_OR_RETURN(
      uint64_t id, Issue({FrameKind::kPushPull, tensor.value(), gradient, weights, options}));
  return OperationHandle(id);
}

absl::StatusOr<OperationHandle> SessionImpl::Push(TensorId tensor, std::span<const float> gradient,
                                                  const OperationOptions& options) {
  PACELINE_RETURN_IF_ERROR(WaitReady());
  PACELINE_ASSIGN_OR_RETURN(uint64_t id,
                            Issue({FrameKind::kPush, tensor.value(), gradient, {}, options}));
  return OperationHandle(id);
}

absl::StatusOr<OperationHandle> SessionImpl::Reduce(TensorId tensor, std::span<const float> values,
                                                    std::span<float> sum,
                                                    const OperationOptions& options) {
  PACELINE_RETURN_IF_ERROR(WaitReady());
  PACELINE_ASSIGN_OR_RETURN(uint64_t id,
                            Issue({FrameKind::kReduce, tensor.value(), values, sum, options}));
  return OperationHandle(id);
}

absl::StatusOr<OperationHandle> SessionImpl::Pull(TensorId tensor, std::span<float> weights,
                                                  const OperationOptions& options) {
  PACELINE_RETURN_IF_ERROR(WaitReady());
  const OpRequest request{FrameKind::kPull, tensor.value(), {}, weights, options};
  {
    MutexLock lock(&mutex_);
    PACELINE_RETURN_IF_ERROR(CheckTensor(request));
    Tensor& held = tensors_[tensor.value()];
    if (held.start.size() == weights.size() && !weights.empty()) return PullStart(held, request);
  }
  PACELINE_ASSIGN_OR_RETURN(uint64_t id, Issue(request));
  return OperationHandle(id);
}

OperationHandle SessionImpl::PullStart(Tensor& held, const OpRequest& request) {
  std::copy(held.start.begin(), held.start.end(), request.out.begin());
  held.start = {};
  held.left_behind = false;
  auto pending = std::make_shared<Pending>();
  pending->kind = FrameKind::kPull;
  pending->done = true;
  pending->callback = request.options.done;
  pending->result.versions = pending->result.bases = held.bases;
  for (const Version& version : held.bases) {
    pending->result.version = std::max(pending->result.version, version);
  }
  pending->result.base = pending->result.version;
  const uint64_t id = next_operation_++;
  if (pending->callback) {
    // On a thread of the session: the caller may hold a lock that its callback takes.
    called_back_.push_back(std::move(pending));
    timer_wake_.Signal();
  } else {
    pending_.emplace(id, std::move(pending));
  }
  return OperationHandle(id);
}

// ---- Steps --------------------------------------------------------------------------------------

std::set<NodeId> SessionImpl::Owners() const {
  std::set<NodeId> owners;
  for (const Tensor& tensor : tensors_) {
    for (const PlacedChunk& chunk : tensor.chunks) owners.insert(chunk.owner);
  }
  return owners;
}

std::vector<std::shared_ptr<ChunkOp>> SessionImpl::MakeBoundary(const std::set<NodeId>& owners,
                                                                Step first, Step last,
                                                                Samples unused, Ticks patience,
                                                                uint64_t* id) {
  const bool wait = patience > Ticks(0);
  auto pending = std::make_shared<Pending>();
  *id = next_operation_++;
  pending->kind = FrameKind::kBoundary;
  pending->began = Now();
  pending->deadline = wait ? std::min(Deadline(), Now() + patience) : Deadline();
  pending->internal = !wait;
  for (NodeId owner : owners) {
    auto op = std::make_shared<ChunkOp>();
    op->owner = owner;
    op->header = BaseHeader();
    op->header.kind = FrameKind::kBoundary;
    op->header.step = first;
    op->header.origin_step = last;
    op->header.samples = unused;
    op->tag = *id;
    pending->ops.push_back(op);
  }
  pending->remaining = pending->ops.size();
  pending_.emplace(*id, pending);
  return pending->ops;
}

absl::Status SessionImpl::SendBoundary(Step first, Step last, Samples unused, Ticks patience) {
  const bool wait = patience > Ticks(0);
  std::vector<std::shared_ptr<ChunkOp>> ops;
  uint64_t id = 0;
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    passed_ = std::max(passed_.value_or(Step()), last);
    passed_unused_ = unused;
    const std::set<NodeId> owners = Owners();
    if (owners.empty()) return absl::OkStatus();
    ops = MakeBoundary(owners, first, last, unused, patience, &id);
  }
  for (auto& op : ops) links_->Issue(op);
  return wait ? WaitFor(id).status() : absl::OkStatus();
}

// Samples that were drawn for this step and not pushed in it reach no update any more.
Samples SessionImpl::UnusedThisStep() const {
  uint64_t drawn = 0;
  for (const SampleRange& range : in_hand_) drawn += range.end - range.begin;
  return Samples(drawn > offered_this_step_ ? drawn - offered_this_step_ : 0);
}

// Of the batches drawn for this step: what was not pushed in it.
std::vector<SampleRange> SessionImpl::TakeUnused() {
  std::vector<SampleRange> unused;
  uint64_t pushed = std::exchange(offered_this_step_, 0);
  for (SampleRange range : std::exchange(in_hand_, {})) {
    const uint64_t used = std::min(pushed, range.end - range.begin);
    pushed -= used;
    range.begin += used;
    if (range.begin < range.end) unused.push_back(range);
  }
  for (const SampleRange& range : unused) counters_.returned += Samples(range.end - range.begin);
  return unused;
}

absl::Status SessionImpl::AdvanceStep() {
  Step now, next, last;
  Samples unused;
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    now = group_->step();
    next = std::max(now + Step(1), group_is_in_);
    last = group_->PassesThrough(next);
    // Told and accounted for at once: what is drawn from here on is of the next step.
    if (std::exchange(returns_rest_, false)) {
      ReturnSamplesRequest rest{TakeUnused()};
      if (!rest.ranges.empty()) outbox_.push_back(std::move(rest));
      control_wake_.Signal();
    }
    unused = UnusedThisStep();
    counters_.discarded += unused;
    in_hand_.clear();
    offered_this_step_ = 0;
  }
  PACELINE_RETURN_IF_ERROR(SendBoundary(now, last, unused, Ticks(0)));
  PACELINE_RETURN_IF_ERROR(CheckFinite());
  PACELINE_RETURN_IF_ERROR(Adopt(false));
  MutexLock lock(&mutex_);
  while (failed_.ok() && !plan_.waiting.empty()) {
    if (asked_to_leave_ || (options_.stop && options_.stop())) return absl::OkStatus();
    // For as long as it takes: more workers may come.
    if (std::exchange(said_waiting_, plan_.waiting) != plan_.waiting) {
      LogInfo("worker", options_.worker_name, ": waits before the next step: ", plan_.waiting);
    }
    changed_.WaitFor(&mutex_, kWaitingLook);
  }
  said_waiting_.clear();
  const Ticks deadline = Deadline();
  // What was not waited for may be taken into a later step meanwhile.
  const auto may_begin = [&]() NO_THREAD_SAFETY_ANALYSIS {
    next = std::max(next, group_->step() + Step(1));
    return group_->MayBegin(next);
  };
  Block();
  while (failed_.ok() && !may_begin() && Now() < deadline) {
    changed_.WaitFor(&mutex_, deadline - Now());
  }
  --blocked_;
  if (!failed_.ok()) return failed_;
  if (!may_begin()) {
    return absl::DeadlineExceededError(
        absl::StrCat("worker '", options_.worker_name, "' waited before step ", next.value(),
                     " for a change of its group to be decided by ", control_->Peer()));
  }
  BeginStep(next);
  return absl::OkStatus();
}

void SessionImpl::BeginStep(Step step) {
  pushed_this_step_ = false;
  group_is_in_ = Step();
  for (Tensor& tensor : tensors_) tensor.next_ordinal = Ordinal();
  const Ticks now = Now();
  step_times_us_.push_back((now - step_began_).value() / 1000);
  if (step_times_us_.size() > 32) step_times_us_.pop_front();
  step_began_ = now;
  const GroupId before = group_->current().id;
  group_->AdvanceTo(step);
  if (group_->current().id == before) return;
  LogInfo("worker", options_.worker_name, ": goes over from group ", before.value(), " to group ",
          group_->current().id.value(), ", step ", group_->step().value());
  arrives_ = preparing_ = true;  // nobody pushes before its start round there
  for (Tensor& tensor : tensors_) tensor.left_behind = tensor.ready;
  passed_.reset();
  step_times_us_.clear();  // of the other group
}

// As a joiner does, it takes part in its first round there with nothing, and goes on from the
// weights of that round. What it has drawn it trains on there.
absl::Status SessionImpl::Arrive() {
  std::vector<uint32_t> tensors;
  {
    MutexLock lock(&mutex_);
    if (!std::exchange(arrives_, false)) return absl::OkStatus();
    report_now_ = true;  // the scheduler waits for it before it changes more
    control_wake_.Signal();
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].ready) tensors.push_back(i);
    }
  }
  PACELINE_RETURN_IF_ERROR(StartRound(tensors));
  return AdvanceStep();
}

absl::Status SessionImpl::AtStepBoundary() {
  PACELINE_RETURN_IF_ERROR(WaitReady());
  PACELINE_RETURN_IF_ERROR(AdvanceStep());
  DropStartWeights();
  absl::Status status;
  while (status.ok() && Arrives()) status = Arrive();  // it may be sent on at once
  MutexLock lock(&mutex_);
  preparing_ = false;
  changed_.SignalAll();
  return status;
}

bool SessionImpl::Arrives() const {
  MutexLock lock(&mutex_);
  return arrives_;
}

void SessionImpl::DropStartWeights() {
  MutexLock lock(&mutex_);
  for (Tensor& tensor : tensors_) {
    if (tensor.ready) tensor.start = {};
  }
}

absl::Status SessionImpl::Barrier(const std::string& name) {
  PACELINE_RETURN_IF_ERROR(CallScheduler(BarrierRequest{name}).status());
  DropStartWeights();  // what others did before it shows from here on
  return absl::OkStatus();
}

absl::StatusOr<std::string> SessionImpl::Checkpoint(const std::string& directory) {
  {
    MutexLock lock(&mutex_);
    // The cut would have this step in it, and wait for this worker to end it.
    if (pushed_this_step_) {
      return absl::FailedPreconditionError(
          absl::StrCat("Checkpoint: worker '", options_.worker_name, "' has pushed in step ",
                       group_->step().value(), "; call AtStepBoundary first, then Checkpoint"));
    }
  }
  PACELINE_ASSIGN_OR_RETURN(NodeReply reply, CallScheduler(CheckpointRequest{directory}));
  const auto* written = std::get_if<CheckpointReply>(&reply);
  if (written == nullptr) return absl::InternalError("the scheduler answered Checkpoint oddly");
  return written->path;
}

// ---- What it says of itself ---------------------------------------------------------------------

Step SessionImpl::step() const {
  MutexLock lock(&mutex_);
  return group_->step();
}

JobSpec SessionImpl::spec() const {
  MutexLock lock(&mutex_);
  return plan_.spec;
}

uint32_t SessionImpl::group_size() const {
  MutexLock lock(&mutex_);
  return group_->current().members.size();
}

GroupId SessionImpl::group() const {
  MutexLock lock(&mutex_);
  return group_->current().id;
}

bool SessionImpl::alone() const {
  MutexLock lock(&mutex_);
  return group_->alone();
}

SessionCounters SessionImpl::counters() const {
  MutexLock lock(&mutex_);
  SessionCounters counters = counters_;
  counters.bytes_in = links_->bytes_in();
  counters.bytes_out = links_->bytes_out();
  return counters;
}

}  // namespace paceline
