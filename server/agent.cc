#include "server/agent.h"

#include <utility>
#include <variant>

#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/manifest.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "server/checkpoint_part.h"

namespace paceline {
namespace {

constexpr Ticks kCallTimeout = Seconds(5);
constexpr Ticks kJoinPause = Milliseconds(100);
constexpr Ticks kReportInterval = Milliseconds(250);
constexpr size_t kMaxQueued = 4096;

Ticks Now() { return Clock::Real().Now(); }

// A worker may have been in several groups.
std::vector<WorkerSamples> SamplesOf(const std::vector<WorkerStaleness>& by_group) {
  std::map<NodeId, WorkerSamples> totals;
  for (const WorkerStaleness& w : by_group) {
    WorkerSamples& total = totals[w.worker];
    total.worker = w.worker;
    total.applied += w.applied;
    total.discarded += w.discarded;
  }
  std::vector<WorkerSamples> out;
  for (const auto& [worker, total] : totals) out.push_back(total);
  return out;
}

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;  // clang 14 does not find it by itself

}  // namespace

ServerAgent::ServerAgent(ServerAgentOptions options, ControlClient* control,
                         std::function<void(const absl::Status&)> on_lost)
    : options_(std::move(options)), control_(control), on_lost_(std::move(on_lost)) {}

ServerAgent::~ServerAgent() { Stop(); }

void ServerAgent::Follow(Router* router) {
  router_ = router;
  heartbeat_ = std::make_unique<HeartbeatThread>(
      control_->Another(), joined_.self, Milliseconds(joined_.heartbeat_interval_ms),
      [this](const absl::Status& cause) { Lost(cause); });
  OpenWatch();
  thread_ = std::thread([this] { Run(); });
}

void ServerAgent::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  if (!thread_.joinable()) return;
  disk_.RequestStop();
  heartbeat_.reset();
  thread_.join();
  control_->StopWatch();
  // Before the disk is waited for: jobs go on, or end, without this server as soon as it is known.
  LeaveRequest leave;
  leave.reason = "the server was asked to end";
  const absl::Status status = control_->Call(joined_.self, leave, Seconds(1)).status();
  if (!status.ok()) {
    LogInfo("server", options_.name, ": left without an answer: ", std::string(status.message()));
  }
  disk_.Stop();
}

absl::Status ServerAgent::Join() {
  JoinRequest request;
  request.role = Role::kServer;
  request.name = options_.name;
  request.host = options_.host;
  request.labels = options_.labels;
  request.data_address = options_.data_address;
  request.process_id = options_.process_id;
  const Ticks deadline = Now() + options_.join_timeout;
  bool said = false;
  while (true) {
    auto reply = control_->Join(request, kCallTimeout);
    if (reply.ok()) {
      joined_ = *reply;
      return absl::OkStatus();
    }
    MutexLock lock(&mutex_);
    if (!IsWorthRetrying(reply.status()) || stopping_ || Now() + kJoinPause > deadline) {
      return Annotate(reply.status(),
                      absl::StrCat("server '", options_.name, "' cannot join the scheduler at ",
                                   control_->Peer()));
    }
    if (!std::exchange(said, true)) {
      LogInfo("server", options_.name, ": waiting for the scheduler at ", control_->Peer());
    }
    wake_.WaitFor(&mutex_, kJoinPause);
  }
}

void ServerAgent::OpenWatch() {
  control_->Watch(
      joined_.self, [this](Directive directive) { OnDirective(std::move(directive)); },
      [this](absl::Status cause) {
        ReleaseCuts();
        MutexLock lock(&mutex_);
        if (stopping_ || reopening_) return;
        if (!std::exchange(away_, true)) {
          LogWarning("server", options_.name, ": watch stream of ", control_->Peer(),
                     " ended: ", std::string(cause.message()));
        }
        watch_lost_ = true;
        wake_.Signal();
      });
}

// ---- Directives ---------------------------------------------------------------------------------

Router::Done ServerAgent::AckWhenDone(uint64_t id) {
  return [this, id](absl::Status status) {
    if (!status.ok()) {
      LogWarning("server", options_.name, ": directive ", id, ": ", std::string(status.message()));
    }
    if (id == 0) return;
    AckRequest ack;
    ack.id = id;
    ack.error = std::string(status.message());
    Queue(ack);
  };
}

void ServerAgent::OnArrived(uint64_t move, std::vector<ChunkKey> missing) {
  AckRequest ack;
  ack.id = move;
  ack.missing = std::move(missing);
  Queue(ack);
}

void ServerAgent::OnLinkDown(NodeId peer, Ticks since, const std::string& cause) {
  MutexLock lock(&mutex_);
  links_down_[peer] = {peer, static_cast<uint32_t>(since.value() / 1'000'000), cause};
  wake_.Signal();
}

void ServerAgent::OnDirective(Directive directive) {
  std::visit(Overloaded{
                 [this](const PlanDirective& d) { OnPlan(d); },
                 [this](const PrepareDirective& d) { router_->Prepare(d, AckWhenDone(d.change)); },
                 [this](const CommitDirective& d) { router_->Commit(d, AckWhenDone(0)); },
                 [this](const AbortDirective& d) { router_->Abort(d, AckWhenDone(0)); },
                 [this](const FenceDirective& d) { router_->Fence(d, AckWhenDone(d.change)); },
                 [this](const SealedDirective& d) { router_->Seal(d, AckWhenDone(0)); },
                 [this](const CutDirective& d) { OnCut(d); },
                 [](const RecallSamplesDirective&) {},
                 [this](const EndJobDirective& d) { router_->EndJob(d, AckWhenDone(0)); },
                 [](const RemoveDirective&) {},
             },
             directive.body);
}

void ServerAgent::OnPlan(const PlanDirective& directive) {
  const Router::Done answer = AckWhenDone(directive.change);
  if (directive.plan.restore_from.empty()) return router_->ApplyPlan(directive.plan, answer);
  router_->ApplyPlan(directive.plan, [this, plan = directive.plan, answer](absl::Status status) {
    if (!status.ok()) return answer(status);
    // Shard threads must not wait for the disk.
    const auto load = [this, plan, answer](const std::stop_token&) { Load(plan, answer); };
    if (const absl::Status posted = disk_.Post(load); !posted.ok()) answer(posted);
  });
}

void ServerAgent::Load(const Plan& plan, Router::Done done) {
  router_->FindAwaitingRestore(plan.job, [this, plan, done](std::vector<ChunkKey> keys) {
    if (keys.empty()) return done(absl::OkStatus());
    const auto load = [this, plan, keys, done](const std::stop_token& stop) {
      auto chunks = ReadChunks(plan.restore_from, plan, keys, stop);
      if (!chunks.ok()) return done(chunks.status());
      LogInfo("server", options_.name, ": loaded ", keys.size(), " chunks of job ", plan.spec.name,
              " from ", plan.restore_from);
      router_->Restore(plan.job, plan.lineage, *std::move(chunks), done);
    };
    if (const absl::Status posted = disk_.Post(load); !posted.ok()) done(posted);
  });
}

// Nobody may come to say when a cut's steps go on: a scheduler that is back begins another.
void ServerAgent::ReleaseCuts() {
  std::set<JobId> held;
  {
    MutexLock lock(&mutex_);
    held.swap(cutting_);
  }
  for (JobId job : held) router_->CutAbort(job);
}

void ServerAgent::OnCut(const CutDirective& cut) {
  {
    MutexLock lock(&mutex_);
    if (cut.collect && !cut.abort) cutting_.insert(cut.job);
    if (cut.abort || cut.manifest) cutting_.erase(cut.job);
  }
  if (!cut.drop.empty()) {
    const auto remove = [this, drop = cut.drop](const std::stop_token&) {
      for (const std::string& directory : drop) Remove(directory);
    };
    disk_.Post(remove).IgnoreError();  // what is not taken stays, and costs space only
    return;
  }
  if (cut.abort) {
    router_->CutAbort(cut.job);
    // After what was written there; when it is not taken, the next manifest's writer does it.
    if (cut.directory.empty()) return;
    disk_.Post([this, cut](const std::stop_token&) { Remove(cut.directory); }).IgnoreError();
    return;
  }
  if (cut.collect) {
    router_->CutCollect(cut.job, [this, id = cut.cut](std::map<GroupId, Step> applied) {
      AckRequest ack;
      ack.id = id;
      ack.applied = std::move(applied);
      Queue(ack);
    });
    return;
  }
  if (cut.manifest) {
    const auto write = [this, cut](const std::stop_token&) { WriteManifestOf(cut); };
    if (const absl::Status posted = disk_.Post(write); !posted.ok()) AckWhenDone(cut.cut)(posted);
    return;
  }
  router_->CutAt(cut.job, cut.steps,
                 [this, cut](absl::StatusOr<std::vector<ChunkSnapshot>> chunks) {
                   OnCopied(cut, std::move(chunks));
                 });
}

// On a shard thread: the groups go on; what was copied goes to the disk meanwhile.
void ServerAgent::OnCopied(const CutDirective& cut,
                           absl::StatusOr<std::vector<ChunkSnapshot>> chunks) {
  if (!chunks.ok()) return AckWhenDone(cut.cut)(chunks.status());
  auto shared = std::make_shared<std::vector<ChunkSnapshot>>(*std::move(chunks));
  const auto write = [this, cut, shared](const std::stop_token& stop) {
    auto part = WriteCheckpointPart(cut.directory, options_.name, *shared, stop);
    if (!part.ok()) return AckWhenDone(cut.cut)(part.status());
    AckRequest ack;
    ack.id = cut.cut;
    ack.part = *std::move(part);
    for (const ChunkSnapshot& chunk : *shared) {
      if (!chunk.workers) continue;
      ack.updates = chunk.state.version.count;
      ack.workers = SamplesOf(*chunk.workers);
    }
    Queue(std::move(ack));
  };
  if (const absl::Status posted = disk_.Post(write); !posted.ok()) AckWhenDone(cut.cut)(posted);
}

void ServerAgent::WriteManifestOf(const CutDirective& cut) {
  CheckpointManifest manifest = *cut.manifest;
  manifest.unix_time_ms = Clock::Real().UnixTimeMs();
  AckWhenDone(cut.cut)(WriteManifest(cut.directory, manifest));
}

void ServerAgent::Remove(const std::string& checkpoint) {
  const absl::Status removed = RemoveCheckpoint(checkpoint);
  if (!removed.ok()) {
    LogWarning("server", options_.name, ": cannot remove ", checkpoint, ": ",
               std::string(removed.message()));
  }
}

// ---- The agent's thread -------------------------------------------------------------------------

void ServerAgent::Queue(NodeRequest request) {
  MutexLock lock(&mutex_);
  if (outbox_.size() >= kMaxQueued) {
    // When a stream begins the scheduler asks again for all it still waits for.
    outbox_.clear();
    watch_lost_ = true;
  }
  outbox_.push_back(std::move(request));
  wake_.Signal();
}

// An error only when the same may be sent later.
absl::Status ServerAgent::Send(const NodeRequest& request) {
  const absl::Status status = control_->Call(joined_.self, request, kCallTimeout).status();
  if (status.ok() || IsWorthRetrying(status)) return status;
  LogWarning("server", options_.name,
             ": the scheduler refused an answer: ", std::string(status.message()));
  return absl::OkStatus();
}

absl::Status ServerAgent::SendQueued() {
  std::map<NodeId, LinkDownRequest> links;
  {
    MutexLock lock(&mutex_);
    links.swap(links_down_);
  }
  // Not kept when they do not get through: while it is so it is said again every few seconds, and
  // the scheduler must not hear of it later.
  for (const auto& [peer, link] : links) PACELINE_RETURN_IF_ERROR(Send(link));
  while (true) {
    NodeRequest request;
    {
      MutexLock lock(&mutex_);
      if (outbox_.empty()) return absl::OkStatus();
      request = std::move(outbox_.front());
      outbox_.pop_front();
    }
    const absl::Status status = Send(request);
    if (status.ok()) continue;
    MutexLock lock(&mutex_);
    outbox_.push_front(std::move(request));
    return status;
  }
}

void ServerAgent::ReopenWatch() {
  const auto set = [this](bool on) {
    MutexLock lock(&mutex_);
    reopening_ = on;
  };
  set(true);  // a stream that ends now is no news
  control_->StopWatch();
  set(false);
  OpenWatch();
}

absl::Status ServerAgent::Report() {
  const absl::Status status =
      control_->Call(joined_.self, router_->Report(), kCallTimeout).status();
  MutexLock lock(&mutex_);
  if (status.ok() && !watch_lost_ && std::exchange(away_, false)) {
    LogInfo("server", options_.name, ": ", control_->Peer(), " is back");
  }
  return status;
}

void ServerAgent::Run() {
  Ticks next_report = Now() + kReportInterval;
  while (true) {
    bool reopen = false;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && outbox_.empty() && links_down_.empty() && !watch_lost_ &&
             Now() < next_report) {
        wake_.WaitFor(&mutex_, next_report - Now());
      }
      if (stopping_) return;
      reopen = std::exchange(watch_lost_, false);
    }
    if (reopen) ReopenWatch();
    absl::Status status = SendQueued();
    if (Now() >= next_report) {
      status = Report();
      next_report = Now() + kReportInterval;
    }
    if (IsOfIncarnation(status)) return Lost(status);
    if (!status.ok() || reopen) {
      // The scheduler is away; what is queued stays. Do not spin until it is back, although the end
      // of each stream wakes this thread.
      MutexLock lock(&mutex_);
      const Ticks until = Now() + kJoinPause;
      for (Ticks now = Now(); !stopping_ && now < until; now = Now()) {
        wake_.WaitFor(&mutex_, until - now);
      }
    }
  }
}

void ServerAgent::Lost(const absl::Status& cause) {
  {
    MutexLock lock(&mutex_);
    if (stopping_ || std::exchange(lost_, true)) return;
  }
  on_lost_(cause);
}

}  // namespace paceline
