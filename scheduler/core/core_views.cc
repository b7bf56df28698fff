#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "scheduler/core/core_impl.h"
#include "staleness/ledger.h"

namespace paceline {

uint32_t Core::Impl::AgoMs(Ticks then) const {
  return static_cast<uint32_t>(
      std::clamp<int64_t>((now_ - then).value() / 1'000'000, 0, 0xFFFFFFFF));
}

NodeView Core::Impl::ViewOf(const NodeRecord& record) const {
  NodeView view;
  view.node = record.id;
  view.incarnation = record.incarnation;
  view.role = record.role;
  view.name = record.name;
  view.host = record.host;
  view.data_address = record.data_address;
  view.job = record.job_name;
  if (record.role == Role::kWorker) view.rank = record.rank;
  view.state = std::string(Name(record.state));
  if (record.live() && record.draining) {
    view.state = OwnsChunks(record.id) ? "draining" : "drained";
  }
  view.process_id = record.process_id;
  if (auto it = sessions_.find(record.id); it != sessions_.end()) {
    view.last_seen_ms = AgoMs(it->second.last_seen);
    view.worker = it->second.worker;
    view.server = it->second.server;
  }
  return view;
}

void Core::Impl::AddStaleness(const JobRecord& job, JobView& view) const {
  auto found = runtimes_.find(job.id);
  if (found == runtimes_.end()) return;
  const JobRuntime& run = found->second;
  std::map<GroupId, GroupStalenessView> groups;
  uint64_t fastest = 0;
  if (const JobAtServer* const report = LeadReport(job.id)) {
    view.updates = job.settled_updates + report->updates;  // owners count those of their lineage
    for (const GroupStaleness& raw : report->groups) {
      groups[raw.group].raw = raw;
      fastest = std::max(fastest, raw.last_step.value());
      AddCounts(raw.tau, view.tau);
    }
  }
  view.mean = MeanOf(view.tau);
  view.p50 = QuantileOf(view.tau, 0.50);
  view.p95 = QuantileOf(view.tau, 0.95);
  for (auto& [id, group] : groups) {
    const StalenessCounts& tau = group.raw.tau;
    group.mean = MeanOf(tau);
    group.p50 = QuantileOf(tau, 0.50);
    group.p95 = QuantileOf(tau, 0.95);
    if (tau.count > 0) group.excess_mean = group.raw.excess_sum / static_cast<double>(tau.count);
    group.step_lag = (fastest - group.raw.last_step.value()) / job.spec.local_steps;
    group.formula_sum = FormulaSum(group.raw);
    if (auto seen = run.seen_group.find(id); seen != run.seen_group.end()) {
      group.last_seen_ms = AgoMs(seen->second.at);
    }
    if (auto plan = job.groups.find(id); plan != job.groups.end()) {
      for (const Member& m : plan->second.members) group.members.push_back(m.name);
    }
    view.step = std::max(view.step, group.raw.last_step);
    view.group_staleness.push_back(std::move(group));
  }
  if (run.applied_history.size() >= 2) {
    const auto& [t0, a0] = run.applied_history.front();
    const auto& [t1, a1] = run.applied_history.back();
    if (t1 > t0 && a1 >= a0) {
      view.samples_per_s =
          static_cast<double>(a1 - a0) * 1e9 / static_cast<double>((t1 - t0).value());
    }
  }
}

void Core::Impl::AddWorkers(const JobRecord& job, JobView& view) const {
  static const JobRuntime kNothing;
  auto found = runtimes_.find(job.id);
  const JobRuntime& run = found == runtimes_.end() ? kNothing : found->second;
  uint64_t fastest = 0;  // as the owners saw it: a worker's own report may be newer than theirs
  for (const GroupStalenessView& group : view.group_staleness) {
    fastest = std::max(fastest, group.raw.last_step.value());
  }
  for (const auto& [id, record] : state_.nodes) {
    // One that came again after the end of the job belongs to the next one of this name, too.
    const bool here = record.job == job.id;
    const bool was_here = record.job_name == job.spec.name && job.ranks.count(record.name) > 0;
    if (record.role != Role::kWorker || (!here && !was_here)) continue;
    WorkerStalenessView worker;
    worker.name = record.name;
    bool member = false;  // a worker that has left is shown in the group it last pushed with
    const scheduler::SettledSamples before = SettledOf(job, id);
    worker.applied = Samples(before.applied);
    worker.discarded = Samples(before.discarded);
    for (const auto& [group_id, group] : job.groups) {
      for (const Member& m : group.members) {
        if (m.node != id) continue;
        worker.group = group_id;
        member = true;
      }
    }
    double excess = 0;
    uint64_t last_step = 0;
    if (const JobAtServer* const report = LeadReport(job.id)) {
      for (const WorkerStaleness& w : report->workers) {
        if (w.worker != id) continue;
        if (!member && w.last_step.value() >= last_step) worker.group = w.group;
        AddCounts(w.tau, worker.tau);
        excess += w.excess_sum;
        worker.applied += w.applied;
        worker.discarded += w.discarded;
        worker.carried += w.carried;
        worker.dropped += w.dropped;
        last_step = std::max(last_step, w.last_step.value());
      }
    }
    worker.mean = MeanOf(worker.tau);
    worker.p50 = QuantileOf(worker.tau, 0.50);
    worker.p95 = QuantileOf(worker.tau, 0.95);
    if (worker.tau.count > 0) {
      worker.excess_mean = excess / static_cast<double>(worker.tau.count);
      worker.step_lag = (fastest - std::min(fastest, last_step)) / job.spec.local_steps;
    }
    if (auto seen = run.seen_worker.find(id); seen != run.seen_worker.end()) {
      worker.last_seen_ms = AgoMs(seen->second.at);
    }
    auto account = job.samples.accounts().find(id);
    if (account != job.samples.accounts().end()) {
      worker.drawn = Samples(account->second.drawn);
      worker.returned = Samples(account->second.returned);
    }
    if (auto session = sessions_.find(id); here && session != sessions_.end()) {
      const WorkerReport& own = session->second.worker;
      worker.drawn_by_worker = own.drawn;
      worker.applied_by_worker = own.applied;
      worker.discarded_by_worker = own.discarded;
      worker.returned_by_worker = own.returned;
      view.epoch = std::max(view.epoch, own.epoch);
      for (const Metric& metric : own.metrics) {
        view.metrics.push_back({metric.name, metric.value, record.name, metric.step});
      }
    }
    view.drawn += worker.drawn;
    view.applied += worker.applied;
    view.discarded += worker.discarded;
    view.returned += worker.returned;
    if (here && record.live()) ++view.workers_live;
    view.worker_staleness.push_back(std::move(worker));
  }
}

namespace {

// Workers leave at the end of a job: its last members say less than who trained in a group.
void ListFormerMembers(JobView& view) {
  for (GroupStalenessView& group : view.group_staleness) {
    group.members.clear();
    for (const WorkerStalenessView& worker : view.worker_staleness) {
      const bool pushed = worker.tau.count > 0;
      if (pushed && worker.group == group.raw.group) group.members.push_back(worker.name);
    }
  }
}

}  // namespace

JobView Core::Impl::ViewOf(const JobRecord& job) const {
  JobView view;
  view.id = job.id;
  view.spec = job.spec;
  view.state = job.state;
  const std::string waiting = WaitingReason(job);
  view.reason = !waiting.empty()                  ? "waits: " + waiting
                : job.state == JobState::kRunning ? ""
                                                  : job.reason;
  view.generation = job.generation;
  view.group_generations = job.group_generations;
  view.servers = static_cast<uint32_t>(OwnersOf(job).size());
  view.total = Samples(job.samples.total());
  view.tensors = job.tensors;
  view.lineage = job.lineage;
  view.checkpoints = job.checkpoints;
  view.rollbacks = job.rollbacks;
  view.resumed_from = job.resumed_from;
  view.updates = job.settled_updates;
  AddStaleness(job, view);
  for (const auto& [id, group] : job.groups) {
    GroupView g;
    g.plan = group;
    for (const Member& m : group.members) {
      auto session = sessions_.find(m.node);
      if (session == sessions_.end()) continue;
      g.step = std::max(g.step, session->second.worker.step);
      g.step_time_us = std::max(g.step_time_us, session->second.worker.step_time_us);
    }
    view.step = std::max(view.step, g.step);
    view.groups.push_back(std::move(g));
  }
  AddWorkers(job, view);
  if (!job.active()) ListFormerMembers(view);
  auto run = runtimes_.find(job.id);
  if (run == runtimes_.end()) return view;
  view.not_finite = run->second.not_finite;
  for (const auto& [server, report] : run->second.at_server) {
    view.refused_frames += report.refused_frames;
  }
  if (run->second.started_at != Ticks()) {
    const Ticks until = job.active() ? now_ : run->second.ended_at;
    view.seconds_running = static_cast<uint64_t>(
        std::max<int64_t>(0, (until - run->second.started_at).value() / 1'000'000'000));
  }
  return view;
}

void Core::Impl::On(RequestId request, StatusQuery& query) {
  ClusterView view;
  view.version = options_.version;
  view.cluster = options_.cluster;
  view.term = state_.term;
  view.uptime_ms = AgoMs(started_at_);
  for (const auto& [id, record] : state_.nodes) {
    const bool shown =
        query.job.empty() || record.role == Role::kServer || record.job_name == query.job;
    if (shown) view.nodes.push_back(ViewOf(record));
  }
  for (const auto& [id, job] : state_.jobs) {
    if (ended_before_.count(id) > 0) continue;
    if (query.job.empty() || job.spec.name == query.job) view.jobs.push_back(ViewOf(job));
  }
  if (!query.job.empty() && view.jobs.empty()) {
    return Refuse(request, absl::NotFoundError(absl::StrCat(
                               "job ", query.job, " is not known; pacelinectl status lists all")));
  }
  Answer(request, OperatorReply(std::move(view)));
}

void Core::Impl::On(RequestId request, EventsQuery& query) {
  std::vector<DecisionRecord> events;
  for (const DecisionRecord& record : decisions_) {
    if (record.sequence <= query.after) continue;
    if (!query.job.empty() && record.job != query.job) continue;
    // After a number the ones that follow it, else the newest.
    if (events.size() >= query.limit) {
      if (query.after > 0) break;
      events.erase(events.begin());
    }
    events.push_back(record);
  }
  Answer(request, OperatorReply(std::move(events)));
}

void Core::Impl::On(RequestId request, StopJobRequest& stop) {
  JobRecord* job = FindActiveJob(stop.job);
  if (job == nullptr) {
    return Refuse(request, absl::NotFoundError(absl::StrCat(
                               "job ", stop.job,
                               " is not forming or running; pacelinectl status lists all")));
  }
  EndJob(job->id, JobState::kStopped, stop.failed,
         absl::StrCat("stopped by an operator", stop.reason.empty() ? "" : ": ",
                      stop.reason.substr(0, 1024)));
  Answer(request, OperatorReply(Empty()));
}

void Core::Impl::On(RequestId request, ProcessEndedRequest& ended) {
  Answer(request, OperatorReply(Empty()));
  for (const auto& [id, record] : state_.nodes) {
    const bool meant =
        record.live() && record.name == ended.name &&
        (record.role == Role::kServer ? ended.job.empty() : record.job_name == ended.job) &&
        record.process_id == ended.process_id;
    if (meant) return DeclareDead(id, absl::StrCat("its process ended: ", ended.cause));
  }
}

absl::StatusOr<const scheduler::NodeRecord*> Core::Impl::FindLiveWorker(const std::string& job,
                                                                        const std::string& name) {
  if (const JobRecord* const of = FindActiveJob(job)) {
    for (const NodeRecord* live : LiveWorkers(of->id)) {
      if (live->name == name) return live;
    }
  }
  return absl::NotFoundError(absl::StrCat("worker ", name, " of job ", job,
                                          " is not live; pacelinectl nodes lists those that are"));
}

void Core::Impl::On(RequestId request, RemoveWorkerRequest& remove) {
  const absl::StatusOr<const NodeRecord*> found = FindLiveWorker(remove.job, remove.worker);
  if (!found.ok()) return Refuse(request, found.status());
  const NodeRecord* const worker = *found;
  const std::string reason = absl::StrCat(
      "removed by an operator", remove.reason.empty() ? "" : ": ", remove.reason.substr(0, 1024));
  Decide(scheduler::AskedToLeave{worker->ref(), reason});
  Say(worker->job_name, "remove",
      absl::StrCat("worker ", worker->name, " is asked to leave: ", reason));
  Send(worker->id, RemoveDirective{worker->job, reason});
  Answer(request, OperatorReply(Empty()));
}

}  // namespace paceline
