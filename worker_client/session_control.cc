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
constexpr Ticks kSchedulerPause = Milliseconds(50);
constexpr Ticks kReopenPause = Milliseconds(100);

Ticks Now() { return Clock::Real().Now(); }

}  // namespace

absl::StatusOr<NodeReply> SessionImpl::CallScheduler(const NodeRequest& request) {
  return CallScheduler(request, options_.deadline);
}

Ticks SessionImpl::Deadline() const { return Now() + options_.deadline; }

absl::StatusOr<NodeReply> SessionImpl::CallScheduler(const NodeRequest& request, Ticks timeout) {
  {
    MutexLock lock(&mutex_);
    Block();
  }
  absl::StatusOr<NodeReply> reply = CallUntil(request, Now() + timeout);
  MutexLock lock(&mutex_);
  --blocked_;
  return reply;
}

// A scheduler that is away or busy is waited for: it recovers, and training goes on meanwhile.
absl::StatusOr<NodeReply> SessionImpl::CallUntil(const NodeRequest& request, Ticks deadline) {
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
  const std::vector<ServerInfo> servers_before = std::move(plan_.servers);
  const bool rolled_back = have_plan_ && directive.plan.lineage != plan_.lineage;
  plan_ = directive.plan;
  have_plan_ = true;
  if (std::exchange(new_stream_, false)) group_->OnNewStream();
  if (!lineage_) lineage_ = plan_.lineage;
  group_->OnPlan(plan_);
  links_->SetOwners(plan_.servers);
  FollowOwners(servers_before, rolled_back);
  RetryAtOnce();
  if (plan_.state == JobState::kStopped) {
    Fail(absl::AbortedError(
        absl::StrCat("job '", plan_.spec.name, "' was stopped: ", plan_.reason)));
  }
}

// Chunks may have moved. An owner that is new here, or started again under its name, has missed
// which steps this member is done with. What was unused before a rollback is settled.
void SessionImpl::FollowOwners(const std::vector<ServerInfo>& servers_before, bool rolled_back) {
  std::set<NodeId> newcomers;
  std::set<NodeId> before = Owners();
  for (const ServerInfo& server : plan_.servers) {
    const bool again =
        std::any_of(servers_before.begin(), servers_before.end(), [&server](const ServerInfo& s) {
          return s.node == server.node && s.incarnation != server.incarnation;
        });
    if (again) before.erase(server.node);
  }
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
  const Samples unused = rolled_back ? Samples(0) : passed_unused_;
  for (auto& op : MakeBoundary(newcomers, *passed_, *passed_, unused, Ticks(0), &id)) {
    retries_.push_back({Now(), op});
  }
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
  RetryAtOnce();
}

void SessionImpl::Apply(const AbortDirective& directive) { group_->OnAbort(directive.change); }

void SessionImpl::Apply(const FenceDirective& directive) {
  if (directive.dead == joined_.self) {
    standing_ = Standing::kFenced;
    return Fail(absl::FailedPreconditionError(
        absl::StrCat("this worker was declared dead: ", directive.reason)));
  }
  group_->OnFence(directive);
  RetryAtOnce();
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
  report.step_time_us = StepTimeUs();
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

}  // namespace paceline
