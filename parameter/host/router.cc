#include "parameter/host/router.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "parameter/host/frame_codec.h"
#include "parameter/host/key_table.h"
#include "parameter/host/shard_mover.h"
#include "parameter/host/shard_thread.h"
#include "parameter/host/verdict_links.h"
#include "plan/chunking.h"

namespace paceline {
namespace {

// Calls `done` with the first error, or OK, when every thread has arrived.
class Arrivals {
 public:
  Arrivals(uint32_t expected, Router::Done done) : left_(expected), done_(std::move(done)) {}

  void Arrive(const absl::Status& status) EXCLUDES(mutex_) {
    absl::Status first;
    {
      MutexLock lock(&mutex_);
      status_.Update(status);
      if (--left_ > 0) return;
      first = status_;
    }
    if (done_) done_(first);
  }

 private:
  Mutex mutex_;
  uint32_t left_ GUARDED_BY(mutex_);
  absl::Status status_ GUARDED_BY(mutex_);
  const Router::Done done_;
};

// Calls `done` with what is missing of all threads when every one has arrived.
class MovedHere {
 public:
  using Done = std::function<void(std::vector<ChunkKey>)>;
  MovedHere(uint32_t expected, Done done) : left_(expected), done_(std::move(done)) {}

  void Arrive(const std::vector<ChunkKey>& missing) EXCLUDES(mutex_) {
    std::vector<ChunkKey> all;
    {
      MutexLock lock(&mutex_);
      missing_.insert(missing_.end(), missing.begin(), missing.end());
      if (--left_ > 0) return;
      all.swap(missing_);
    }
    done_(std::move(all));
  }

 private:
  Mutex mutex_;
  uint32_t left_ GUARDED_BY(mutex_);
  std::vector<ChunkKey> missing_ GUARDED_BY(mutex_);
  const Done done_;
};

// What the chunks that `self` owns take at rest, with one sum in the making.
uint64_t MemoryOf(const Plan& plan, NodeId self, size_t slots) {
  uint64_t bytes = 0;
  for (const TensorPlan& tensor : plan.tensors) {
    const std::vector<ChunkRange> ranges = CutIntoChunks(tensor.spec, plan.spec.chunk_bytes);
    for (size_t i = 0; i < ranges.size() && i < tensor.owners.size(); ++i) {
      if (tensor.owners[i] == self) bytes += ranges[i].length * sizeof(float) * (slots + 2);
    }
  }
  return bytes;
}

PeerLinkOptions LinkOptionsOf(const RouterOptions& options) {
  return {options.self, options.incarnation, options.key, options.transport, options.on_link_down};
}

class RouterImpl final : public Router {
 public:
  explicit RouterImpl(const RouterOptions& options)
      : options_(options),
        mover_(
            {LinkOptionsOf(options), [this](ReturnedChunk chunk) { TakeBack(std::move(chunk)); }}),
        verdict_links_(
            {LinkOptionsOf(options),
             [this](const FrameHeader& header,
                    std::shared_ptr<const std::vector<std::byte>> question) {
               AskHere(header, std::move(question));
             },
             [this](JobId job, uint32_t thread, uint32_t lineage, std::vector<std::byte> answer) {
               Deliver(job, thread, lineage, std::move(answer));
             }}) {
    PACELINE_CHECK(options_.threads >= 1);
    for (uint32_t i = 0; i < options_.threads; ++i) {
      threads_.push_back(std::make_unique<ShardThread>(
          options_, i, &counters_, [this](const FrameHeader& header, const auto& answer) {
            verdict_links_.OnLocalReply(header, answer);
          }));
    }
  }
  ~RouterImpl() override { StopMoving(); }

  // ---- FrameSink
  void OnAccepted(std::shared_ptr<Channel> channel) override;
  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) override;
  // Shards copy each piece before they look at it.
  bool AbsorbsInPlace() const override { return true; }
  void OnClosed(Channel& channel, const absl::Status& cause) override;

  // ---- KeyStore
  absl::StatusOr<ChannelKey> Find(const PeerIdentity& peer) const override {
    return keys_.Find(peer);
  }

  // ---- Router
  void ApplyPlan(const Plan& plan, Done done) override;
  void Prepare(const PrepareDirective& directive, Done done) override;
  void Commit(const CommitDirective& directive, Done done) override;
  void Abort(const AbortDirective& directive, Done done) override;
  void Fence(const FenceDirective& directive, Done done) override;
  void Seal(const SealedDirective& directive, Done done) override;
  void EndJob(const EndJobDirective& directive, Done done) override;
  void CutCollect(JobId job, std::function<void(std::map<GroupId, Step>)> done) override;
  void CutAt(JobId job, const std::map<GroupId, Step>& steps,
             std::function<void(absl::StatusOr<std::vector<ChunkSnapshot>>)> done) override;
  void CutAbort(JobId job) override;
  void StopMoving() override {
    mover_.Stop();
    verdict_links_.Stop();
  }
  void FindAwaitingRestore(JobId job, std::function<void(std::vector<ChunkKey>)> done) override;
  void Restore(JobId job, uint32_t lineage, std::vector<RestoredChunk> chunks, Done done) override;
  ServerReport Report() override;
  void AwaitThreads() override { CollectReports(); }

 private:
  using JobTask = std::function<absl::Status(ShardThread&, JobShards*, ParameterShard::Replies*)>;

  absl::StatusOr<std::shared_ptr<const PreparedPlan>> PreparePlan(const Plan& plan) const;
  std::shared_ptr<MovedHere> ArrivalsOf(const Plan& plan) const;
  // Runs `task` on every shard thread with its part of the job (null when it has none).
  void OnEveryThread(JobId job, Done done, JobTask task) EXCLUDES(order_mutex_);
  std::map<JobId, JobAtServer> CollectReports();
  void TakeBack(ReturnedChunk chunk);
  uint32_t BusyPermille() EXCLUDES(report_mutex_);
  void AskHere(const FrameHeader& header, std::shared_ptr<const std::vector<std::byte>> question);
  void Deliver(JobId job, uint32_t thread, uint32_t lineage, std::vector<std::byte> answer);

  const RouterOptions options_;
  RouterCounters counters_;
  PeerKeyTable keys_;
  ShardMover mover_;
  VerdictLinks verdict_links_;
  Mutex order_mutex_;  // directives reach every thread in one order
  Mutex report_mutex_;
  Ticks reported_at_ GUARDED_BY(report_mutex_) = Clock::Real().Now();
  uint64_t reported_busy_ns_ GUARDED_BY(report_mutex_) = 0;
  std::vector<std::unique_ptr<ShardThread>> threads_;  // last: they use what is above
};

// ---- Frames ---------------------------------------------------------------------------------

void RouterImpl::OnAccepted(std::shared_ptr<Channel> channel) {
  ++counters_.connections;
  for (const auto& thread : threads_) {
    thread->Post([channel](ShardThread& t) { t.Open(channel); });
  }
}

void RouterImpl::OnClosed(Channel& channel, const absl::Status& /*cause*/) {
  --counters_.connections;
  for (const auto& thread : threads_) {
    thread->Post([closed = &channel](ShardThread& t) { t.Close(closed); });
  }
}

absl::Status RouterImpl::OnFrame(Channel& channel, const FrameHeader& header, Payload payload) {
  if (header.job != channel.peer().job) {
    return absl::PermissionDeniedError(absl::StrCat(
        "frame for job ", header.job.value(), " on a channel of job ", channel.peer().job.value()));
  }
  const bool from_owner = channel.peer().role == PeerRole::kServer;
  const bool between_owners =
      header.kind == FrameKind::kMoveShard || header.kind == FrameKind::kVerdict;
  if (!ToOperation(header, 0) || from_owner != between_owners) {
    return absl::InvalidArgumentError(absl::StrCat("an owner takes no ", Absl(Name(header.kind)),
                                                   header.reply ? " replies" : " frames",
                                                   from_owner ? " of owners" : " of workers"));
  }
  counters_.bytes_in += payload.bytes().size();
  const auto full = [] {
    return absl::ResourceExhaustedError("too many frames wait for the shard threads");
  };
  if (header.kind != FrameKind::kBoundary) {
    const uint32_t index =
        JobShards::ThreadOf({header.tensor, header.chunk}, static_cast<uint32_t>(threads_.size()));
    return threads_[index]->Post({header, std::move(payload), &channel, nullptr}) ? absl::OkStatus()
                                                                                  : full();
  }
  if (header.total != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a Boundary carries no payload, this one ", header.total, " bytes"));
  }
  auto answer = std::make_shared<BoundaryAnswer>();
  answer->outstanding = static_cast<uint32_t>(threads_.size());
  for (const auto& thread : threads_) {
    if (!thread->Post({header, Payload(), &channel, answer})) return full();
  }
  return absl::OkStatus();
}

// ---- Directives -----------------------------------------------------------------------------

void RouterImpl::OnEveryThread(JobId job, Done done, JobTask task) {
  auto arrivals =
      std::make_shared<Arrivals>(static_cast<uint32_t>(threads_.size()), std::move(done));
  MutexLock lock(&order_mutex_);
  for (const auto& thread : threads_) {
    thread->Post([job, task, arrivals](ShardThread& t) {
      ParameterShard::Replies replies;
      const absl::Status status = task(t, t.Find(job), &replies);
      t.Send(job, replies);
      arrivals->Arrive(status);
    });
  }
}

absl::StatusOr<std::shared_ptr<const PreparedPlan>> RouterImpl::PreparePlan(
    const Plan& plan) const {
  auto prepared = std::make_shared<PreparedPlan>();
  prepared->plan = plan;
  for (GroupPlan& group : prepared->plan.groups) {
    for (Member& member : group.members) member.key = {};  // only the key table keeps keys
  }
  size_t slots = 0;
  if (!plan.spec.optimizer.name.empty()) {
    PACELINE_ASSIGN_OR_RETURN(prepared->optimizer, Optimizer::Create(plan.spec.optimizer));
    slots = prepared->optimizer->slots().size();
  }
  PACELINE_ASSIGN_OR_RETURN(prepared->policy, StalenessPolicy::Create(plan.spec.policy));
  prepared->over_quota = options_.job_memory_quota != 0 &&
                         MemoryOf(plan, options_.self, slots) > options_.job_memory_quota;
  return prepared;
}

// Tells when every thread has the chunks that the plan brings here, or what they miss of them; null
// when it brings none.
std::shared_ptr<MovedHere> RouterImpl::ArrivalsOf(const Plan& plan) const {
  const bool comes =
      std::any_of(plan.moves.begin(), plan.moves.end(),
                  [this](const ChunkMove& move) { return move.to == options_.self; });
  if (!comes || !options_.on_arrived) return nullptr;
  return std::make_shared<MovedHere>(
      static_cast<uint32_t>(threads_.size()),
      [tell = options_.on_arrived, job = plan.job,
       move = plan.move](std::vector<ChunkKey> missing) { tell(job, move, std::move(missing)); });
}

void RouterImpl::ApplyPlan(const Plan& plan, Done done) {
  auto prepared = PreparePlan(plan);
  if (!prepared.ok()) {
    LogError("router", "plan of job ", plan.job.value(), ": ", prepared.status().ToString());
    if (done) done(prepared.status());
    return;
  }
  absl::Status quota;
  if ((*prepared)->over_quota) {
    quota = absl::ResourceExhaustedError(absl::StrCat(
        "job ", plan.job.value(), ": its shards here would take more than the quota of ",
        options_.job_memory_quota, " bytes per job; raise it or add servers"));
  }
  const std::shared_ptr<MovedHere> arrived = ArrivalsOf(plan);
  OnEveryThread(
      plan.job, std::move(done),
      [plan = *std::move(prepared), quota, arrived, mover = &mover_, links = &verdict_links_](
          ShardThread& t, JobShards* /*job*/, ParameterShard::Replies* replies) {
        const JobId id = plan->plan.job;
        if (t.HasEnded(id)) return absl::OkStatus();
        JobShards& job = t.FindOrAdd(id);
        job.OnHandOver([mover](OutgoingChunk chunk) { mover->Give(std::move(chunk)); });
        job.OnQuestion([links, thread = t.index()](OutgoingQuestion question) {
          links->Ask(thread, std::move(question));
        });
        job.ApplyPlan(plan, t.Now(), replies);
        links->Follow(id, job.verdict_lead());
        if (arrived != nullptr && plan->plan.withdrawn) {
          arrived->Arrive(job.Missing());
        } else if (arrived != nullptr) {
          job.WhenAllArrived([arrived] { arrived->Arrive({}); });
        }
        return quota;
      });
  mover_.Follow(plan);
  keys_.Learn(plan.job, plan.groups);
  keys_.Learn(plan.job, plan.servers);
  for (const NodeRef& dead : plan.fenced) keys_.Fence(plan.job, dead);
}

void RouterImpl::TakeBack(ReturnedChunk chunk) {
  const uint32_t index = JobShards::ThreadOf(chunk.chunk, static_cast<uint32_t>(threads_.size()));
  threads_[index]->Post([chunk = std::move(chunk)](ShardThread& t) {
    JobShards* const job = t.Find(chunk.job);
    if (job == nullptr) return;
    ParameterShard::Replies replies;
    job->TakeBack(chunk.chunk, chunk.move, chunk.bytes, t.Now(), &replies);
    t.Send(chunk.job, replies);
  });
}

// An owner is ready for new members when it can authenticate them: it parks frames of generations
// it does not know.
void RouterImpl::Prepare(const PrepareDirective& directive, Done done) {
  keys_.Learn(directive.job, directive.groups);
  OnEveryThread(
      directive.job, std::move(done),
      [](ShardThread&, JobShards*, ParameterShard::Replies*) { return absl::OkStatus(); });
}

void RouterImpl::Abort(const AbortDirective& directive, Done done) {
  OnEveryThread(
      directive.job, std::move(done),
      [](ShardThread&, JobShards*, ParameterShard::Replies*) { return absl::OkStatus(); });
}

void RouterImpl::Commit(const CommitDirective& directive, Done done) {
  OnEveryThread(directive.job, std::move(done),
                [directive](ShardThread& t, JobShards* job, ParameterShard::Replies* replies) {
                  if (job != nullptr) job->Commit(directive, t.Now(), replies);
                  return absl::OkStatus();
                });
  keys_.Learn(directive.job, directive.groups);
}

void RouterImpl::Fence(const FenceDirective& directive, Done done) {
  keys_.Fence(directive.job, directive.dead);
  OnEveryThread(directive.job, std::move(done),
                [directive](ShardThread& t, JobShards* job, ParameterShard::Replies* replies) {
                  if (job != nullptr) job->Fence(directive, t.Now(), replies);
                  return absl::OkStatus();
                });
}

void RouterImpl::Seal(const SealedDirective& directive, Done done) {
  OnEveryThread(directive.job, std::move(done),
                [directive](ShardThread& t, JobShards* job, ParameterShard::Replies* replies) {
                  if (job != nullptr) job->Seal(directive.tensors, t.Now(), replies);
                  return absl::OkStatus();
                });
}

void RouterImpl::EndJob(const EndJobDirective& directive, Done done) {
  keys_.EndJob(directive.job);
  mover_.Forget(directive.job);
  // A thread that has not ended the job yet may still ask: the last one leaves nothing.
  OnEveryThread(directive.job, std::move(done),
                [id = directive.job, links = &verdict_links_](ShardThread& t, JobShards*,
                                                              ParameterShard::Replies*) {
                  t.EndJob(id);
                  links->Forget(id);
                  return absl::OkStatus();
                });
}

// ---- Verdicts -------------------------------------------------------------------------------

void RouterImpl::AskHere(const FrameHeader& header,
                         std::shared_ptr<const std::vector<std::byte>> question) {
  const uint32_t index =
      JobShards::ThreadOf({header.tensor, header.chunk}, static_cast<uint32_t>(threads_.size()));
  threads_[index]->Post([header, question = std::move(question)](ShardThread& t) {
    std::optional<Operation> operation = ToOperation(header, ShardThread::kLocalRoute);
    JobShards* const job = t.Find(header.job);
    if (job == nullptr || !operation) return;  // the job ended
    operation->total_bytes = question->size();
    ParameterShard::Replies replies;
    job->OnOperation(*operation, {0, *question}, nullptr, t.Now(), &replies);
    t.Send(header.job, replies);
  });
}

void RouterImpl::Deliver(JobId id, uint32_t thread, uint32_t lineage,
                         std::vector<std::byte> answer) {
  threads_[thread]->Post([id, lineage, answer = std::move(answer)](ShardThread& t) {
    JobShards* const job = t.Find(id);
    if (job == nullptr) return;
    ParameterShard::Replies replies;
    job->OnVerdict(lineage, answer, t.Now(), &replies);
    t.Send(id, replies);
  });
}

// ---- Cuts -----------------------------------------------------------------------------------

void RouterImpl::CutCollect(JobId id, std::function<void(std::map<GroupId, Step>)> done) {
  struct Merged {
    Mutex mutex;
    std::map<GroupId, Step> steps GUARDED_BY(mutex);
  };
  auto merged = std::make_shared<Merged>();
  const auto finish = [merged, done = std::move(done)](const absl::Status&) {
    std::map<GroupId, Step> steps;
    {
      MutexLock lock(&merged->mutex);
      steps = merged->steps;
    }
    done(std::move(steps));
  };
  OnEveryThread(id, finish,
                [merged](ShardThread& t, JobShards* job, ParameterShard::Replies* replies) {
                  if (job == nullptr) return absl::OkStatus();
                  const std::map<GroupId, Step> steps = job->CutCollect(t.Now(), replies);
                  MutexLock lock(&merged->mutex);
                  for (const auto& [group, step] : steps) {
                    Step& highest = merged->steps.try_emplace(group, step).first->second;
                    highest = std::max(highest, step);
                  }
                  return absl::OkStatus();
                });
}

void RouterImpl::CutAt(JobId id, const std::map<GroupId, Step>& steps,
                       std::function<void(absl::StatusOr<std::vector<ChunkSnapshot>>)> done) {
  struct Merged {
    Mutex mutex;
    std::vector<ChunkSnapshot> chunks GUARDED_BY(mutex);
  };
  auto merged = std::make_shared<Merged>();
  auto arrivals = std::make_shared<Arrivals>(
      static_cast<uint32_t>(threads_.size()),
      [merged, done = std::move(done)](const absl::Status& status) {
        if (!status.ok()) return done(status);
        std::vector<ChunkSnapshot> chunks;
        {
          MutexLock lock(&merged->mutex);
          chunks = std::move(merged->chunks);
        }
        std::sort(chunks.begin(), chunks.end(),
                  [](const ChunkSnapshot& a, const ChunkSnapshot& b) { return a.key < b.key; });
        done(std::move(chunks));
      });
  // Arrives when this thread has its copies, which is later than the task that asks for them.
  const auto arrive = [merged, arrivals](absl::StatusOr<std::vector<ChunkSnapshot>> chunks) {
    if (chunks.ok()) {
      MutexLock lock(&merged->mutex);
      for (ChunkSnapshot& chunk : *chunks) merged->chunks.push_back(std::move(chunk));
    }
    arrivals->Arrive(chunks.status());
  };
  OnEveryThread(id, nullptr,
                [steps, arrive](ShardThread& t, JobShards* job, ParameterShard::Replies* replies) {
                  if (job == nullptr) {
                    arrive(absl::NotFoundError("no shards of this job are here"));
                  } else {
                    job->CutAt(steps, arrive, t.Now(), replies);
                  }
                  return absl::OkStatus();
                });
}

void RouterImpl::CutAbort(JobId id) {
  OnEveryThread(id, nullptr, [](ShardThread& t, JobShards* job, ParameterShard::Replies* replies) {
    if (job != nullptr) {
      job->CutAbort(absl::AbortedError("the cut was aborted"), t.Now(), replies);
    }
    return absl::OkStatus();
  });
}

// ---- Returning to a checkpoint ----------------------------------------------------------------

void RouterImpl::FindAwaitingRestore(JobId id, std::function<void(std::vector<ChunkKey>)> done) {
  struct Merged {
    Mutex mutex;
    std::vector<ChunkKey> keys GUARDED_BY(mutex);
  };
  auto merged = std::make_shared<Merged>();
  const auto finish = [merged, done = std::move(done)](const absl::Status&) {
    std::vector<ChunkKey> keys;
    {
      MutexLock lock(&merged->mutex);
      keys = merged->keys;
    }
    done(std::move(keys));
  };
  OnEveryThread(id, finish, [merged](ShardThread&, JobShards* job, ParameterShard::Replies*) {
    if (job == nullptr) return absl::OkStatus();
    const std::vector<ChunkKey> keys = job->AwaitingRestore();
    MutexLock lock(&merged->mutex);
    merged->keys.insert(merged->keys.end(), keys.begin(), keys.end());
    return absl::OkStatus();
  });
}

void RouterImpl::Restore(JobId id, uint32_t lineage, std::vector<RestoredChunk> chunks, Done done) {
  const auto count = static_cast<uint32_t>(threads_.size());
  auto parts = std::make_shared<std::vector<std::vector<RestoredChunk>>>(count);
  for (RestoredChunk& chunk : chunks) {
    (*parts)[JobShards::ThreadOf(chunk.key, count)].push_back(std::move(chunk));
  }
  OnEveryThread(id, std::move(done),
                [parts, lineage](ShardThread& t, JobShards* job, ParameterShard::Replies* replies) {
                  if (job == nullptr) {
                    return absl::NotFoundError("the job ended before its shards were loaded");
                  }
                  job->Restore(lineage, std::move((*parts)[t.index()]), t.Now(), replies);
                  return absl::OkStatus();
                });
}

// ---- Report ---------------------------------------------------------------------------------

uint32_t RouterImpl::BusyPermille() {
  uint64_t busy = 0;
  for (const auto& thread : threads_) busy += thread->busy_ns();
  MutexLock lock(&report_mutex_);
  const Ticks now = Clock::Real().Now();
  const auto span = static_cast<uint64_t>((now - reported_at_).value()) * threads_.size();
  const uint64_t permille = span == 0 ? 0 : (busy - reported_busy_ns_) * 1000 / span;
  reported_at_ = now;
  reported_busy_ns_ = busy;
  return static_cast<uint32_t>(std::min<uint64_t>(permille, 1000));
}

std::map<JobId, JobAtServer> RouterImpl::CollectReports() {
  struct Collected {
    Mutex mutex;
    CondVar changed;
    size_t left GUARDED_BY(mutex) = 0;
    std::vector<JobAtServer> parts GUARDED_BY(mutex);
  };
  auto collected = std::make_shared<Collected>();
  {
    MutexLock lock(&collected->mutex);
    collected->left = threads_.size();
  }
  for (const auto& thread : threads_) {
    thread->Post([collected](ShardThread& t) {
      std::vector<JobAtServer> parts = t.Report();
      MutexLock lock(&collected->mutex);
      for (JobAtServer& part : parts) collected->parts.push_back(std::move(part));
      --collected->left;
      collected->changed.SignalAll();
    });
  }
  std::map<JobId, JobAtServer> jobs;
  {
    MutexLock lock(&collected->mutex);
    while (collected->left > 0) collected->changed.Wait(&collected->mutex);
    for (JobAtServer& part : collected->parts) {
      JobAtServer& job = jobs[part.job];
      job.job = part.job;
      Merge(job, std::move(part));
    }
  }
  return jobs;
}

ServerReport RouterImpl::Report() {
  std::map<JobId, JobAtServer> jobs = CollectReports();
  ServerReport report;
  report.bytes_in = Bytes(counters_.bytes_in.load());
  report.bytes_out = Bytes(counters_.bytes_out.load());
  report.connections = static_cast<uint64_t>(std::max<int64_t>(0, counters_.connections.load()));
  report.busy_permille = BusyPermille();
  for (const auto& [id, memory] : mover_.Memory()) {
    if (jobs.contains(id)) jobs[id].memory += memory;
  }
  for (auto& [id, job] : jobs) report.jobs.push_back(std::move(job));
  return report;
}

}  // namespace

std::unique_ptr<Router> NewRouter(const RouterOptions& options) {
  return std::make_unique<RouterImpl>(options);
}

}  // namespace paceline
