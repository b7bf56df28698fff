#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "worker_client/session_impl.h"

namespace paceline {
namespace {

constexpr Ticks kReportInterval = Milliseconds(500);
constexpr Ticks kControlTimeout = Seconds(5);
constexpr uint32_t kBatchesAhead = 16;
constexpr Ticks kSchedulerPause = Milliseconds(50);
constexpr Ticks kReopenPause = Milliseconds(100);
constexpr Ticks kNoSamplesPause = Milliseconds(10);

Ticks Now() { return Clock::Real().Now(); }

}  // namespace

absl::StatusOr<NodeReply> SessionImpl::CallScheduler(const NodeRequest& request) {
  return CallScheduler(request, options_.deadline);
}

Ticks SessionImpl::Deadline() const { return Now() + options_.deadline; }

// A scheduler that is away or busy is waited for: it recovers, and training goes on meanwhile.
absl::StatusOr<NodeReply> SessionImpl::CallScheduler(const NodeRequest& request, Ticks timeout) {
  const Ticks deadline = Now() + timeout;
  while (true) {
    const Ticks left = std::max(deadline - Now(), kSchedulerPause);
    absl::StatusOr<NodeReply> reply = control_->Call(joined_.self, request, left);
    if (IsOfIncarnation(reply.status())) AskWhetherDead();
    if (!IsWorthRetrying(reply.status()) || Now() + kSchedulerPause > deadline) return reply;
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
    if (closing_) return absl::CancelledError("the session was closed");
    changed_.WaitFor(&mutex_, kSchedulerPause);
  }
}

// Whether a refusal was of this incarnation, and not of what it asked.
void SessionImpl::AskWhetherDead() {
  const absl::Status status = control_->Call(joined_.self, Heartbeat{}, kControlTimeout).status();
  if (IsOfIncarnation(status)) OnRefused(status);
}

void SessionImpl::Fail(absl::Status status) {
  if (failed_.ok()) failed_ = std::move(status);
  changed_.SignalAll();
  timer_wake_.Signal();
}

// ---- Directives: on the watch thread, never blocking --------------------------------------------

void SessionImpl::OnDirective(const Directive& directive) {
  MutexLock lock(&mutex_);
  if (closing_) return;
  std::visit([this](const auto& body) NO_THREAD_SAFETY_ANALYSIS { Apply(body); }, directive.body);
  changed_.SignalAll();
}

void SessionImpl::Apply(const PlanDirective& directive) {
  if (directive.plan.job != joined_.job) return;
  if (have_plan_ && directive.plan.generation < plan_.generation) return;
  plan_ = directive.plan;
  have_plan_ = true;
  if (std::exchange(new_stream_, false)) group_->OnNewStream();
  if (!lineage_) lineage_ = plan_.lineage;
  group_->OnPlan(plan_);
  links_->SetOwners(plan_.servers);
  FollowOwners();
  if (plan_.state == JobState::kStopped) {
    Fail(absl::AbortedError(
        absl::StrCat("job '", plan_.spec.name, "' was stopped: ", plan_.reason)));
  }
}

// Chunks may have moved. An owner that is new here has missed which steps this member is done with.
void SessionImpl::FollowOwners() {
  std::set<NodeId> newcomers;
  const std::set<NodeId> before = Owners();
  for (Tensor& tensor : tensors_) {
    const TensorPlan* const placed = tensor.id ? FindTensor(plan_, *tensor.id) : nullptr;
    if (placed == nullptr) continue;
    for (size_t i = 0; i < tensor.chunks.size() && i < placed->owners.size(); ++i) {
      tensor.chunks[i].owner = placed->owners[i];
      if (before.count(placed->owners[i]) == 0) newcomers.insert(placed->owners[i]);
    }
  }
  if (newcomers.empty() || !passed_ || !group_->in_group()) return;
  uint64_t id = 0;
  for (auto& op : MakeBoundary(newcomers, *passed_, *passed_, passed_unused_, Ticks(0), &id)) {
    retries_.push_back({Now(), op});
  }
  timer_wake_.Signal();
}

void SessionImpl::OnLinkDown(const ServerInfo& peer, Ticks since, const std::string& cause) {
  MutexLock lock(&mutex_);
  if (closing_ || left_) return;
  LogWarning("worker", options_.worker_name, ": the link to ", peer.name, " at ", peer.data_address,
             " is down since ", since.value() / 1'000'000,
             " ms while operations wait for it: ", cause);
  outbox_.push_back(
      LinkDownRequest{peer.node, static_cast<uint32_t>(since.value() / 1'000'000), cause});
  control_wake_.Signal();
}

void SessionImpl::Apply(const PrepareDirective& directive) {
  AckRequest ack;
  ack.id = directive.change;
  ack.step = group_->OnPrepare(directive);
  outbox_.push_back(ack);
  control_wake_.Signal();
}

void SessionImpl::Apply(const CommitDirective& directive) {
  group_->OnCommit(directive);
  for (const GroupPlan& group : directive.groups) {
    auto it = std::find_if(plan_.groups.begin(), plan_.groups.end(),
                           [&](const GroupPlan& known) { return known.id == group.id; });
    if (it == plan_.groups.end()) {
      plan_.groups.push_back(group);
    } else {
      *it = group;
    }
  }
}

void SessionImpl::Apply(const AbortDirective& directive) { group_->OnAbort(directive.change); }

void SessionImpl::Apply(const FenceDirective& directive) {
  if (directive.dead == joined_.self) {
    standing_ = Standing::kFenced;
    return Fail(absl::FailedPreconditionError(
        absl::StrCat("this worker was declared dead: ", directive.reason)));
  }
  group_->OnFence(directive);
}

void SessionImpl::Apply(const SealedDirective& directive) {
  for (TensorPlan& tensor : plan_.tensors) {
    if (std::find(directive.tensors.begin(), directive.tensors.end(), tensor.id) !=
        directive.tensors.end()) {
      tensor.sealed = true;
    }
  }
}

void SessionImpl::Apply(const RecallSamplesDirective&) {
  // Answered also with nothing: another worker's draw waits for it.
  ReturnSamplesRequest unused;
  if (lease_) unused.ranges = lease_->TakeAll();
  for (const SampleRange& range : unused.ranges) {
    counters_.returned += Samples(range.end - range.begin);
  }
  outbox_.push_back(std::move(unused));
  control_wake_.Signal();
}

void SessionImpl::Apply(const EndJobDirective& directive) {
  if (directive.job != joined_.job || left_) return;
  Fail(absl::AbortedError(absl::StrCat("job '", options_.job.name, "' ended: ", directive.reason)));
}

void SessionImpl::Apply(const RemoveDirective& directive) {
  if (directive.job == joined_.job) asked_to_leave_ = directive.reason;
}

// ---- Reports, acks ------------------------------------------------------------------------------

void SessionImpl::OpenWatch() {
  {
    MutexLock lock(&mutex_);
    new_stream_ = true;
  }
  control_->Watch(
      joined_.self, [this](Directive directive) { OnDirective(directive); },
      [this](absl::Status cause) { OnStreamClosed(cause); });
}

void SessionImpl::OnStreamClosed(const absl::Status& cause) {
  MutexLock lock(&mutex_);
  if (closing_ || left_) return;
  if (leaving_ && IsOfIncarnation(cause)) {
    // It has left, and no word about its group comes after this.
    gone_ = true;
    changed_.SignalAll();
    return;
  }
  if (IsOfIncarnation(cause)) {
    standing_ = absl::IsAlreadyExists(cause) ? Standing::kDisplaced : Standing::kDeclaredDead;
    return Fail(cause);
  }
  if (!std::exchange(away_, true)) {
    LogWarning("worker", options_.worker_name, ": watch stream of ", control_->Peer(),
               " ended: ", std::string(cause.message()));
  }
  watch_lost_ = true;
  control_wake_.Signal();
}

bool SessionImpl::SendQueued() {
  // Leave sends what is queued beside the control thread; each request is sent and taken off once.
  MutexLock one_sender(&send_mutex_);
  while (true) {
    NodeRequest request;
    {
      MutexLock lock(&mutex_);
      if (outbox_.empty()) return true;
      request = outbox_.front();
    }
    const absl::Status status = control_->Call(joined_.self, request, kControlTimeout).status();
    if (IsWorthRetrying(status)) return false;
    MutexLock lock(&mutex_);
    outbox_.pop_front();
    changed_.SignalAll();
    if (status.ok() || (leaving_ && IsOfIncarnation(status))) continue;
    LogWarning("worker", options_.worker_name,
               ": the scheduler refused a report: ", std::string(status.message()));
  }
}

void SessionImpl::RunControl() {
  bool pause = false;  // the scheduler is away: do not spin until it is back
  while (true) {
    bool reopen = false;
    {
      MutexLock lock(&mutex_);
      if (closing_) return;
      const Ticks until = pause ? Now() + kReopenPause : reported_at_ + kReportInterval;
      const auto idle = [this]() NO_THREAD_SAFETY_ANALYSIS {
        return outbox_.empty() && !report_now_ && !watch_lost_;
      };
      for (Ticks now = Now(); now < until && !closing_ && (pause || idle()); now = Now()) {
        control_wake_.WaitFor(&mutex_, until - now);
      }
      if (closing_) return;
      reopen = std::exchange(watch_lost_, false);
      report_now_ = report_now_ || Now() >= reported_at_ + kReportInterval;
    }
    if (reopen) {
      control_->StopWatch();
      OpenWatch();
    }
    const bool sent = SendQueued() && SendReport();
    pause = reopen || !sent;
  }
}

// False when the scheduler is away.
bool SessionImpl::SendReport() {
  {
    MutexLock lock(&mutex_);
    if (!std::exchange(report_now_, false) || left_) return true;
  }
  const absl::Status status = control_->Call(joined_.self, MakeReport(), kControlTimeout).status();
  if (IsOfIncarnation(status)) OnRefused(status);
  MutexLock lock(&mutex_);
  if (status.ok() && !watch_lost_ && std::exchange(away_, false)) {
    LogInfo("worker", options_.worker_name, ": ", control_->Peer(), " is back");
  }
  return !IsWorthRetrying(status);
}

void SessionImpl::OnRefused(const absl::Status& cause) {
  MutexLock lock(&mutex_);
  // To one that is leaving it says that it has left.
  if (left_ || leaving_) return;
  standing_ = absl::IsAlreadyExists(cause) ? Standing::kDisplaced : Standing::kDeclaredDead;
  Fail(cause);
}

WorkerReport SessionImpl::MakeReport() {
  WorkerReport report;
  report.links = links_->Transports();
  report.bytes_in = Bytes(links_->bytes_in());
  report.bytes_out = Bytes(links_->bytes_out());
  MutexLock lock(&mutex_);
  const Ticks now = Now();
  if (group_->in_group()) report.group = group_->current().id;
  report.step = group_->step();
  report.epoch = epoch_;
  if (!step_times_us_.empty()) {
    std::vector<uint32_t> times(step_times_us_.begin(), step_times_us_.end());
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    report.step_time_us = times[times.size() / 2];
  }
  const int64_t window = (now - reported_at_).value();
  if (window > 0) {
    report.wait_permille = std::min<int64_t>(1000, waited_.value() * 1000 / window);
  }
  waited_ = Ticks();
  reported_at_ = now;
  report.drawn = counters_.drawn;
  report.applied = counters_.applied;
  report.discarded = counters_.discarded;
  report.returned = counters_.returned;
  for (const auto& [name, metric] : metrics_) report.metrics.push_back(metric);
  return report;
}

void SessionImpl::ReportProgress(const std::map<std::string, double>& metrics) {
  MutexLock lock(&mutex_);
  for (const auto& [name, value] : metrics) {
    metrics_[name] = Metric{name, value, group_ ? group_->step() : Step()};
  }
}

// ---- Samples ------------------------------------------------------------------------------------

absl::Status SessionImpl::AwaitReturns() {
  const auto queued = [this]() NO_THREAD_SAFETY_ANALYSIS {
    return std::any_of(outbox_.begin(), outbox_.end(), [](const NodeRequest& request) {
      return std::holds_alternative<ReturnSamplesRequest>(request);
    });
  };
  const Ticks deadline = Deadline();
  while (failed_.ok() && queued() && Now() < deadline) {
    changed_.WaitFor(&mutex_, deadline - Now());
  }
  return failed_;
}

absl::Status SessionImpl::Refill(uint32_t count) {
  DrawSamplesRequest request;
  {
    MutexLock lock(&mutex_);
    // What is given back may come again with this draw. The scheduler has to know of it first: told
    // a second time, after a lost answer, it would take the samples away again.
    PACELINE_RETURN_IF_ERROR(AwaitReturns());
    const bool deterministic = plan_.spec.deterministic;
    request.wanted = Samples(std::min<uint64_t>(
        deterministic ? count : uint64_t{count} * kBatchesAhead, options_.max_lease_samples));
    // Step 0 of a group is its start step, which draws nothing.
    request.step = group_->step() - Step(1);
    request.received = counters_.drawn;
  }
  PACELINE_ASSIGN_OR_RETURN(NodeReply reply, CallScheduler(request));
  const auto* drawn = std::get_if<DrawSamplesReply>(&reply);
  if (drawn == nullptr) return absl::InternalError("the scheduler answered DrawSamples oddly");
  MutexLock lock(&mutex_);
  for (const SampleRange& range : drawn->ranges) {
    if (range.end < range.begin || range.end > plan_.spec.sample_count) {
      return absl::InternalError(absl::StrCat("the scheduler leased samples ", range.begin, "..",
                                              range.end, " of ", plan_.spec.sample_count));
    }
    counters_.drawn += Samples(range.end - range.begin);
  }
  lease_->Add(drawn->ranges);
  samples_finished_ = drawn->finished;
  return absl::OkStatus();
}

absl::StatusOr<SampleBatch> SessionImpl::DrawSamples(uint32_t count) {
  if (count == 0) return absl::InvalidArgumentError("DrawSamples: count is 0; ask for at least 1");
  PACELINE_RETURN_IF_ERROR(WaitReady());
  MutexLock one_draw(&draw_mutex_);
  const Ticks deadline = Deadline();
  while (true) {
    bool refill = false;
    {
      MutexLock lock(&mutex_);
      if (!failed_.ok()) return failed_;
      if (plan_.spec.sample_count == 0) {
        return absl::FailedPreconditionError(
            "DrawSamples: the job has no training set; set job.sample_count");
      }
      if (!lease_) lease_.emplace(plan_.spec.seed, plan_.spec.sample_count);
      const bool deterministic = plan_.spec.deterministic;
      refill = deterministic || lease_->available() == 0;
      if (refill && samples_finished_ && lease_->available() == 0) {
        return SampleBatch{epoch_, {}, true, progress_};
      }
    }
    if (refill) PACELINE_RETURN_IF_ERROR(Refill(count));
    MutexLock lock(&mutex_);
    SampleLease::Batch batch = lease_->Take(count);
    const bool finished = batch.indices.empty() && samples_finished_;
    if (!batch.indices.empty()) {
      epoch_ = batch.epoch;
      progress_ = ProgressAt(batch.ranges.front(), plan_.spec.sample_count, plan_.spec.epochs);
      in_hand_.insert(in_hand_.end(), batch.ranges.begin(), batch.ranges.end());
    }
    // A member with an empty part still takes part in its group's step.
    if (!batch.indices.empty() || finished || plan_.spec.deterministic || !group_->alone()) {
      return SampleBatch{epoch_, std::move(batch.indices), finished, progress_};
    }
    // All that is left is leased to others, who may return it.
    if (Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "worker '", options_.worker_name, "' waited for samples from ", control_->Peer()));
    }
    changed_.WaitFor(&mutex_, kNoSamplesPause);
  }
}

}  // namespace paceline
