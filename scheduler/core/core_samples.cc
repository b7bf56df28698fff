#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "scheduler/core/core_impl.h"

namespace paceline {
namespace {

// How long a draw waits for what others may still return, beyond the time after which one that is
// silent is declared dead.
constexpr Ticks kRecallWait = Seconds(1);
constexpr Ticks kRateWindow = Seconds(5);

}  // namespace

scheduler::SettledSamples Core::Impl::CountedByOwners(JobId id, NodeId worker) const {
  scheduler::SettledSamples counted = SettledOf(state_.jobs.at(id), worker);
  const JobAtServer* const report = LeadReport(id);
  if (report == nullptr) return counted;
  for (const WorkerStaleness& w : report->workers) {
    if (w.worker != worker) continue;
    counted.applied += w.applied.value();
    counted.discarded += w.discarded.value();
  }
  return counted;
}

uint64_t Core::Impl::UsedByOwners(JobId id, NodeId worker) const {
  const scheduler::SettledSamples counted = CountedByOwners(id, worker);
  return counted.applied + counted.discarded;
}

void Core::Impl::On(const NodeRecord& from, RequestId request, DrawSamplesRequest& body) {
  const JobRecord& of = job(from.job);
  if (of.spec.sample_count == 0) {
    return Refuse(request, absl::FailedPreconditionError(absl::StrCat(
                               "draw: job ", of.spec.name, " has sample_count 0: it draws none")));
  }
  if (body.ahead) return DrawAhead(from, request, body);
  auto [it, first] = runtime(from.job).draws.try_emplace(from.id);
  if (!first) Refuse(it->second.request, absl::AbortedError("draw: superseded by a newer one"));
  it->second = {request, body, now_};
  ServeDraws(from.job);
}

void Core::Impl::DrawAhead(const NodeRecord& from, RequestId request,
                           const DrawSamplesRequest& body) {
  const JobRuntime& run = runtime(from.job);
  const JobRecord& of = job(from.job);
  const bool served = of.state == JobState::kRunning && run.unsettled.count(from.id) == 0 &&
                      run.draws.empty() && !of.spec.deterministic;
  DrawSamplesReply reply;
  if (served) reply.ranges = Hand(from, body);
  Answer(request, NodeReply(std::move(reply)));
}

// What an answer that was lost gave to it, or as much as it may have of what is left.
std::vector<SampleRange> Core::Impl::Hand(const NodeRecord& to, const DrawSamplesRequest& body) {
  const JobId id = to.job;
  std::vector<SampleRange> lost = job(id).samples.NotReceived(to.ref(), body.received.value());
  if (!lost.empty()) return lost;
  const scheduler::DrawLimits limits{LiveWorkers(id).size(), sessions_[to.id].samples_per_s};
  std::vector<SampleRange> ranges =
      job(id).samples.Choose(to.id, std::max<uint64_t>(1, body.wanted.value()), limits);
  if (ranges.empty()) return ranges;
  const Epoch before = job(id).samples.epoch();
  Decide(scheduler::SamplesDrawn{id, to.ref(), ranges, UsedByOwners(id, to.id), false,
                                 paceline::Step(0)});
  if (job(id).samples.epoch() != before) {
    Say(job(id).spec.name, "epoch",
        absl::StrCat("epoch ", before.value(), " is handed out: ", job(id).spec.sample_count,
                     " samples"));
  }
  runtime(id).recall_done = false;
  return ranges;
}

void Core::Impl::DrawForStep(const NodeRecord& from, RequestId request,
                             const DrawSamplesRequest& body) {
  const scheduler::SampleLedger& samples = job(from.job).samples;
  DrawSamplesReply reply;
  reply.ranges = samples.ChooseFor(body.step.value(), from.rank);
  reply.finished = samples.FinishedAt(body.step.value());
  if (!reply.ranges.empty()) {
    Decide(scheduler::SamplesDrawn{from.job, from.ref(), reply.ranges,
                                   UsedByOwners(from.job, from.id), true, body.step});
  }
  Answer(request, NodeReply(std::move(reply)));
}

// Whether samples may still come back from a worker other than `but`: one that was asked to return
// what it holds ahead; one that may be dead, or is and is not settled.
bool Core::Impl::MayComeBack(JobId id, NodeId but, Ticks waited) {
  JobRuntime& run = runtime(id);
  if (!run.recall_done) {
    run.recall_done = true;
    for (const NodeRecord* worker : LiveWorkers(id)) {
      const uint64_t batches = 2 * std::max<uint64_t>(1, job(id).spec.batch_size);
      if (worker->id == but || job(id).samples.Outstanding(worker->id) <= batches) continue;
      run.recalled.insert(worker->id);
      Send(worker->id, RecallSamplesDirective{id});
    }
  }
  if (waited >= Milliseconds(job(id).spec.failure_timeout_ms) + kRecallWait) return false;
  if (!run.recalled.empty() || !run.unsettled.empty()) return true;
  const std::vector<const NodeRecord*> workers = LiveWorkers(id);
  return std::any_of(workers.begin(), workers.end(), [&](const NodeRecord* worker) {
    if (worker->id == but || job(id).samples.Outstanding(worker->id) == 0) return false;
    return now_ - sessions_[worker->id].last_seen > Milliseconds(FailureTimeoutMs(*worker) / 2);
  });
}

void Core::Impl::ServeDraws(JobId id) {
  JobRuntime& run = runtime(id);
  if (job(id).state != JobState::kRunning) return;
  const bool by_step =
      job(id).spec.deterministic && job(id).spec.groups.kind == GroupSpec::Kind::kOne;
  std::erase_if(run.draws, [&](auto& entry) {
    const auto& [worker, draw] = entry;
    // What its last incarnation held is sorted out first: owners count per worker.
    if (run.unsettled.count(worker) > 0) return false;
    if (by_step) {
      DrawForStep(node(worker), draw.request, draw.body);
      return true;
    }
    DrawSamplesReply reply;
    reply.ranges = Hand(node(worker), draw.body);
    if (reply.ranges.empty()) {
      if (MayComeBack(id, worker, now_ - draw.since)) return false;
      reply.finished = true;
    }
    Answer(draw.request, NodeReply(std::move(reply)));
    return true;
  });
}

void Core::Impl::On(const NodeRecord& from, RequestId request, ReturnSamplesRequest& body) {
  const JobId id = from.job;
  const NodeId worker = from.id;
  if (!job(id).samples.Valid(body.ranges)) {
    return Refuse(request, absl::InvalidArgumentError(absl::StrCat(
                               "return of samples: a range is not within [0, ",
                               job(id).spec.sample_count, ") of an epoch of the job")));
  }
  const std::vector<SampleRange> held = job(id).samples.Held(worker, body.ranges);
  // What was returned was not used: the owners' count is not applied here, as it may lag.
  if (!held.empty()) Decide(scheduler::SamplesReturned{id, worker, held, 0});
  Answer(request, NodeReply(Empty()));
  runtime(id).recalled.erase(worker);
  ServeDraws(id);
}

void Core::Impl::StoreWorkerReport(NodeId id, WorkerReport report) {
  if (report.metrics.size() > options_.limits.max_metrics) {
    report.metrics.resize(options_.limits.max_metrics);
  }
  if (report.links.size() > options_.limits.max_metrics) {
    report.links.resize(options_.limits.max_metrics);
  }
  NodeSession& session = sessions_[id];
  const uint64_t applied = report.applied.value();
  if (session.rate_since == Ticks(0) || applied < session.rate_base) {
    session.rate_since = now_;
    session.rate_base = applied;
  } else if (now_ - session.rate_since >= kRateWindow) {
    session.samples_per_s = static_cast<double>(applied - session.rate_base) * 1e9 /
                            static_cast<double>((now_ - session.rate_since).value());
    session.rate_since = now_;
    session.rate_base = applied;
  }
  session.worker = std::move(report);
  ArriveIfReported(node(id));
}

void Core::Impl::On(const NodeRecord& from, RequestId request, WorkerReport& body) {
  Answer(request, NodeReply(Empty()));
  StoreWorkerReport(from.id, std::move(body));
}

// A worker is gone: what it held and did not use comes back once the lead owner has counted.
void Core::Impl::Unsettle(JobId id, NodeId worker) {
  runtime(id).unsettled.insert(worker);
  if (OwnersOf(job(id)).empty()) Settle(id, worker);
}

// What a gone worker held, or one of an ended job, and the owners never counted.
void Core::Impl::Settle(JobId id, NodeId worker) {
  JobRuntime& run = runtime(id);
  run.unsettled.erase(worker);
  const uint64_t used = UsedByOwners(id, worker);
  scheduler::SampleLedger after = job(id).samples;
  after.ApplyUsed(worker, used);
  auto account = after.accounts().find(worker);
  std::vector<SampleRange> rest;
  if (account != after.accounts().end()) rest = account->second.outstanding;
  if (rest.empty()) return;
  Decide(scheduler::SamplesReturned{id, worker, rest, used});
  Say(job(id).spec.name, "samples",
      absl::StrCat(scheduler::CountOf(rest), " samples of worker ", node(worker).name,
                   job(id).active() ? ", which is gone, are handed out again" : " were not used"));
}

void Core::Impl::SettleAll(JobId id) {
  for (NodeId worker : std::set<NodeId>(runtime(id).unsettled)) Settle(id, worker);
}

void Core::Impl::On(const NodeRecord& from, RequestId request, ServerReport& body) {
  Answer(request, NodeReply(Empty()));
  if (from.role != Role::kServer) return;
  const NodeId server = from.id;
  for (JobAtServer& report : body.jobs) {
    auto it = state_.jobs.find(report.job);
    if (it == state_.jobs.end()) {  // the end did not reach it
      Send(server, EndJobDirective{report.job, false, "the job is over"});
      continue;
    }
    JobRuntime& run = runtime(report.job);
    if (OwnersOf(it->second).count(server) == 0) {
      if (it->second.active()) {
        // By an earlier scheduler, whose last word to it may be lost.
        if (run.released.insert(server).second) SendPlan(it->second, server);
      } else if (run.ending.count(server) == 0) {
        Send(server, EndJobDirective{report.job, false, it->second.reason});
      }
      continue;
    }
    // What was counted before a return to a checkpoint is settled.
    if (report.lead && report.lineage != it->second.lineage) continue;
    for (const WorkerStaleness& w : report.workers) {
      scheduler::WorkerSeen& seen = run.seen_worker[w.worker];
      if (w.tau.count != seen.count || w.last_step.value() == 0) seen = {w.tau.count, now_};
    }
    for (const GroupStaleness& g : report.groups) {
      scheduler::WorkerSeen& seen = run.seen_group[g.group];
      if (g.tau.count != seen.count) seen = {g.tau.count, now_};
    }
    uint64_t applied = 0;
    for (const WorkerStaleness& w : report.workers) applied += w.applied.value();
    // While the lead chunk moves, its old owner no longer counts for what is settled.
    const bool lead = report.lead && LeadOwnerOf(it->second) == server;
    // What an owner counted as the lead holds until another has.
    JobAtServer& kept = run.at_server[server];
    const bool another =
        std::any_of(run.at_server.begin(), run.at_server.end(),
                    [&](const auto& at) { return at.first != server && at.second.lead; });
    if (kept.lead && !report.lead && !another) {
      kept.memory = report.memory;
      kept.refused_frames = report.refused_frames;
    } else {
      kept = report;
    }
    if (!lead) continue;
    std::erase_if(run.at_server, [&, owners = OwnersOf(it->second)](const auto& at) {
      return at.first != server && at.second.lead && !owners.contains(at.first);
    });
    run.applied_history.emplace_back(now_, applied);
    while (run.applied_history.size() > 16) run.applied_history.pop_front();
    // A fence that this owner has not acked yet may still change its counts; those of an earlier
    // term come with the plan.
    const bool fencing = sessions_[server].acked.count(report.job) == 0 ||
                         std::any_of(run.fences.begin(), run.fences.end(), [&](const auto& f) {
                           return f.second.awaited.count(server) > 0;
                         });
    // The last one may be late, and is made after all workers have left.
    if (!it->second.active() && run.ending.count(server) == 0) SettleAll(report.job);
    if (fencing || !it->second.active()) continue;
    SettleAll(report.job);
    ServeDraws(report.job);
  }
  sessions_[server].server = std::move(body);
  for (auto& [id, run] : runtimes_) {
    const auto ending = run.ending.find(server);
    if (ending == run.ending.end() || !std::exchange(ending->second, true)) continue;
    run.ending.erase(ending);
    if (LeadOwnerOf(job(id)) == server) SettleAll(id);  // no more will be counted
    Send(server, EndJobDirective{id, job(id).state == JobState::kStopped, job(id).reason});
  }
}

}  // namespace paceline
