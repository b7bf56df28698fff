#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "scheduler/core/core_impl.h"
#include "staleness/policy.h"

namespace paceline {
namespace {

constexpr size_t kMaxText = 256;
constexpr size_t kMaxLabels = 64;
constexpr char kJoinedAgain[] = "the same name joined again";

absl::Status CheckText(const char* field, const std::string& value, bool may_be_empty) {
  if (value.size() <= kMaxText && (may_be_empty || !value.empty())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "join: ", field, ": ", value.size(), " bytes; use ", may_be_empty ? 0 : 1, "..", kMaxText));
}

}  // namespace

absl::Status Core::Impl::CheckJoin(const JoinRequest& join) const {
  if (join.role != Role::kWorker && join.role != Role::kServer) {
    return absl::InvalidArgumentError(absl::StrCat("join: role: ", static_cast<int>(join.role),
                                                   "; only servers and workers join"));
  }
  PACELINE_RETURN_IF_ERROR(CheckText("name", join.name, false));
  PACELINE_RETURN_IF_ERROR(CheckText("host", join.host, true));
  PACELINE_RETURN_IF_ERROR(
      CheckText("data_address", join.data_address, join.role == Role::kWorker));
  if (join.labels.size() > kMaxLabels) {
    return absl::InvalidArgumentError(
        absl::StrCat("join: labels: ", join.labels.size(), "; use 0..", kMaxLabels));
  }
  for (const auto& [label, value] : join.labels) {
    PACELINE_RETURN_IF_ERROR(CheckText("label", label, false));
    PACELINE_RETURN_IF_ERROR(CheckText("label value", value, true));
  }
  if (join.role == Role::kServer) return absl::OkStatus();
  PACELINE_RETURN_IF_ERROR(Annotate(Validate(join.job), "job"));
  PACELINE_RETURN_IF_ERROR(Annotate(CheckSupported(join.job), "job"));
  const bool periodic = join.job.checkpoint_every_steps != 0 || join.job.checkpoint_every_s != 0;
  if (periodic && join.job.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError(
        "job: checkpoint_every: needs checkpoint_dir, a directory that all servers share");
  }
  return Annotate(StalenessPolicy::Create(join.job.policy).status(), "job");
}

// Nodes of ended jobs keep their number too: the newest node with this name is the one.
NodeId Core::Impl::IdByName(const JoinRequest& join) const {
  for (const auto& [id, record] : state_.nodes) {
    if (record.role != join.role || record.name != join.name) continue;
    if (record.role == Role::kServer || record.job_name == join.job.name) return id;
  }
  return NodeId(state_.last_node + 1);
}

// Whether the job that runs under this name is the one that `join` describes.
absl::Status Core::Impl::CheckSameJob(const JobRecord& holding, const JoinRequest& join) const {
  JobSpec joins = join.job;
  if (holding.spec.optimizer.name.empty()) joins.optimizer = {};
  const std::string difference = FirstDifference(holding.spec, joins);
  if (!difference.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("job ", join.job.name,
                                                   " holds another value of ", difference,
                                                   "; every worker must bring the first joiner's"));
  }
  if (holding.ranks.size() >= options_.limits.max_worker_names &&
      holding.ranks.count(join.name) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", join.job.name, ": ", holding.ranks.size(), " worker names; reuse names"));
  }
  return absl::OkStatus();
}

absl::StatusOr<JobId> Core::Impl::JobOfJoiner(const JoinRequest& join, uint64_t random) {
  if (JobRecord* holding = FindActiveJob(join.job.name)) {
    if (holding->spec.optimizer.name.empty() && !join.job.optimizer.name.empty()) {
      Decide(scheduler::OptimizerSet{holding->id, join.job.optimizer,
                                     holding->generation + JobGeneration(1)});
      SendPlanToAll(holding->id);
    }
    return holding->id;
  }
  const auto active = std::count_if(state_.jobs.begin(), state_.jobs.end(),
                                    [](const auto& job) { return job.second.active(); });
  if (static_cast<uint64_t>(active) >= options_.limits.max_jobs) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job ", join.job.name, ": ", active, " jobs are active, the limit; try again later"));
  }
  PACELINE_RETURN_IF_ERROR(CheckResume(join.job));
  ForgetOldJobs();
  const JobId id(state_.last_job + 1);
  scheduler::JobCreated created{id, join.job, absl::StrFormat("%08x", random & 0xFFFFFFFFu), {}};
  if (const auto it = state_.resumes.find(join.job.name); it != state_.resumes.end()) {
    created.resume = it->second;
  }
  Decide(created);
  if (created.resume) {
    const scheduler::SampleLedger& samples = job(id).samples;
    Say(join.job.name, "resume",
        absl::StrCat("from ", created.resume->path, ": step ", job(id).first_step.value(),
                     ", update ", created.resume->manifest.updates, ", epoch ",
                     samples.epoch().value(), ", lineage ", job(id).lineage));
  }
  return id;
}

// Ended jobs beyond the limit go, oldest first; one whose workers still run stays until they end.
void Core::Impl::ForgetOldJobs() {
  std::vector<JobId> ended;
  for (const auto& [id, job] : state_.jobs) {
    if (!job.active() && LiveWorkers(id).empty()) ended.push_back(id);
  }
  for (size_t i = 0; i + options_.limits.max_finished_jobs < ended.size(); ++i) {
    Decide(scheduler::JobForgotten{ended[i]});
    runtimes_.erase(ended[i]);
    for (auto& [node_id, session] : sessions_) {
      session.acked.erase(ended[i]);
      session.refused.erase(ended[i]);
      std::erase_if(session.plans, [&](const auto& p) { return p.second.first == ended[i]; });
    }
  }
  std::erase_if(sessions_, [this](const auto& s) { return state_.nodes.count(s.first) == 0; });
}

// Records of servers that are gone and whose names did not come back, oldest first.
void Core::Impl::ForgetGoneServers() {
  std::set<NodeId> owners;
  for (const auto& [id, job] : state_.jobs) owners.merge(OwnersOf(job));
  std::vector<NodeId> gone;
  for (const auto& [id, record] : state_.nodes) {
    if (record.role == Role::kServer && !record.live() && owners.count(id) == 0) gone.push_back(id);
  }
  for (size_t i = 0; i + options_.limits.max_gone_servers < gone.size(); ++i) {
    Decide(scheduler::NodeForgotten{gone[i]});
    sessions_.erase(gone[i]);
  }
}

JobRank Core::Impl::RankOf(const JobRecord& job, const std::string& name) const {
  auto it = job.ranks.find(name);
  if (it != job.ranks.end()) return it->second;
  std::set<JobRank> taken;
  for (const auto& [other, rank] : job.ranks) taken.insert(rank);
  JobRank rank(0);
  while (taken.count(rank) > 0) ++rank;
  return rank;
}

// Whether a server asks again because the answer to its join was lost: shards may have been placed
// on it already.
bool Core::Impl::IsSameServer(const NodeRecord& record, const JoinRequest& join) const {
  const auto session = sessions_.find(record.id);
  const bool heard = session != sessions_.end() && session->second.heard;
  return record.live() && !heard && record.role == Role::kServer && record.process_id != 0 &&
         record.process_id == join.process_id && record.host == join.host &&
         record.data_address == join.data_address;
}

void Core::Impl::AnswerJoin(RequestId request, const NodeRecord& record) {
  JoinReply reply;
  reply.self = record.ref();
  reply.job = record.job;
  reply.rank = record.rank;
  reply.term = state_.term;
  reply.key = record.key;
  reply.failure_timeout_ms = FailureTimeoutMs(record);
  // Three beats fit into the time after which a node counts as dead.
  reply.heartbeat_interval_ms =
      std::min(options_.heartbeat_interval_ms, std::max(1u, reply.failure_timeout_ms / 3));
  Answer(request, reply);
}

void Core::Impl::Handle(JoinEvent& event) {
  JoinRequest& join = event.join;
  absl::Status valid = CheckJoin(join);
  const JobRecord* const holding =
      join.role == Role::kWorker ? FindActiveJob(join.job.name) : nullptr;
  // Before it takes the place of a worker that lives.
  if (valid.ok() && holding != nullptr) valid = CheckSameJob(*holding, join);
  if (!valid.ok()) return Refuse(event.request, valid);
  const NodeId id = IdByName(join);
  const auto before = state_.nodes.find(id);
  const auto live = std::count_if(state_.nodes.begin(), state_.nodes.end(),
                                  [](const auto& n) { return n.second.live(); });
  if (before == state_.nodes.end() && static_cast<uint64_t>(live) >= options_.limits.max_nodes) {
    return Refuse(event.request, absl::ResourceExhaustedError(absl::StrCat(
                                     "join of ", join.name, ": ", live, " nodes, the limit")));
  }
  if (before != state_.nodes.end() && IsSameServer(before->second, join)) {
    sessions_[id].last_seen = now_;
    return AnswerJoin(event.request, before->second);
  }
  std::optional<NodeRecord> replaced;
  if (before != state_.nodes.end() && before->second.live()) {
    if (join.role == Role::kServer) {
      // Its jobs may return to a checkpoint on the one that joins.
      replaced = before->second;
      Decide(scheduler::NodeGone{replaced->ref(), true});
    } else {
      DeclareDead(id, kJoinedAgain);
    }
  }
  NodeRecord record;
  if (join.role == Role::kWorker) {
    absl::StatusOr<JobId> job_id = JobOfJoiner(join, event.random);
    if (!job_id.ok()) return Refuse(event.request, job_id.status());
    record.job = *job_id;
    record.job_name = join.job.name;
    record.rank = RankOf(job(record.job), join.name);
    record.index = join.index;
  }
  record.id = id;
  record.incarnation = Incarnation(state_.last_incarnation + 1);
  record.role = join.role;
  record.name = join.name;
  record.host = join.host;
  record.labels = join.labels;
  record.data_address = join.data_address;
  record.process_id = join.process_id;
  record.key = event.key;
  // One that ended without leaving has not been drained yet.
  record.draining = before != state_.nodes.end() && before->second.draining &&
                    before->second.state == scheduler::NodeState::kDead;
  Decide(scheduler::NodeJoined{record});
  sessions_[id] = NodeSession();
  sessions_[id].last_seen = now_;
  AnswerJoin(event.request, record);
  if (record.role == Role::kServer) {
    Say("", "join", absl::StrCat("server ", record.name, " at ", record.data_address));
    if (replaced) ServerGone(*replaced, absl::StrCat("died: ", kJoinedAgain));
    std::vector<JobId> jobs;
    for (const auto& [job_id, job] : state_.jobs) {
      if (job.active()) jobs.push_back(job_id);
    }
    for (JobId job_id : jobs) PlaceRegistrations(job_id);
    ForgetGoneServers();
    return;
  }
  const JobRecord& joined = job(record.job);
  Say(joined.spec.name, "join",
      absl::StrCat("worker ", record.name, ", rank ", record.rank.value(), ", ",
                   LiveWorkers(record.job).size(), " of ", joined.spec.workers));
  FormIfComplete(record.job);
  ProposeChange(record.job);
}

uint32_t Core::Impl::FailureTimeoutMs(const NodeRecord& record) const {
  if (record.role == Role::kServer) return options_.failure_timeout_ms;
  return state_.jobs.at(record.job).spec.failure_timeout_ms;
}

void Core::Impl::DeclareDead(NodeId id, const std::string& cause) {
  const NodeRecord dead = node(id);
  Decide(scheduler::NodeGone{dead.ref(), true});
  sessions_[id].watching = false;
  if (dead.role == Role::kServer) return ServerGone(dead, absl::StrCat("died: ", cause));
  if (job(dead.job).active()) WorkerDied(dead, cause);
}

void Core::Impl::WorkerDied(const NodeRecord& dead, const std::string& cause) {
  const std::string reason = absl::StrCat("worker ", dead.name, " died: ", cause);
  ForgetWaiting(dead.job, dead.id);
  if (LiveWorkers(dead.job).empty()) {
    Say(job(dead.job).spec.name, "fence", reason);
    return EndJob(dead.job, JobState::kStopped, true, absl::StrCat(reason, "; it was the last"));
  }
  FenceWorker(dead, reason);
  NameInitWriter(dead.job);
  ReleaseBarriers(dead.job);
  ServeDraws(dead.job);
  ProposeChange(dead.job);
}

void Core::Impl::ServerGone(const NodeRecord& dead, const std::string& how) {
  const std::string reason = absl::StrCat("server ", dead.name, " (", dead.host, ") ", how);
  Say("", "fence", reason);
  std::vector<JobId> lost, uncounted;
  for (const auto& [id, job] : state_.jobs) {
    if (job.active() && OwnersOf(job).count(dead.id) > 0) lost.push_back(id);
    if (!job.active() && LeadOwnerOf(job) == dead.id) uncounted.push_back(id);
  }
  for (JobId id : uncounted) SettleAll(id);
  for (JobId id : lost) {
    const std::string why = WhyNoRollBack(job(id));
    if (why.empty()) {
      RollBack(id, dead.id, reason);
    } else {
      EndJob(id, JobState::kStopped, true,
             absl::StrCat(reason, "; the shards it held are lost: ", why));
    }
  }
}

void Core::Impl::On(const NodeRecord& from, RequestId request, LeaveRequest& body) {
  const NodeRecord leaver = from;
  if (leaver.role == Role::kServer) {
    Answer(request, NodeReply(Empty()));
    // Under this name it may come back as one that owns chunks.
    if (leaver.draining) Decide(scheduler::ServerDraining{leaver.ref(), false});
    Decide(scheduler::NodeGone{leaver.ref(), true});
    sessions_[leaver.id].watching = false;
    return ServerGone(leaver, absl::StrCat("left: ", body.reason));
  }
  const std::string name = job(leaver.job).spec.name;
  StoreWorkerReport(leaver.id, std::move(body.last));
  JobRuntime& run = runtime(leaver.job);
  const bool in_group = [&] {
    for (const auto& [id, group] : job(leaver.job).groups) {
      for (const Member& m : group.members) {
        if (m.node == leaver.id && m.incarnation == leaver.incarnation) return true;
      }
    }
    return false;
  }();
  const bool last = LiveWorkers(leaver.job).size() == 1;
  if (run.leavers.count(leaver.id) == 0) {
    Say(name, "leave", absl::StrCat("worker ", leaver.name, ": ", body.reason));
  }
  if (job(leaver.job).state == JobState::kRunning && in_group && !last) {
    auto [it, first] = run.leavers.emplace(leaver.id, request);
    if (!first) {
      Refuse(std::exchange(it->second, request),
             absl::AbortedError("leave: superseded by a retry"));
    }
    DropMigration(leaver.job, leaver.id,
                  absl::AbortedError(absl::StrCat("worker ", leaver.name, " leaves the job")));
    ReleaseBarriers(leaver.job);
    return ProposeChange(leaver.job);
  }
  Decide(scheduler::NodeGone{leaver.ref(), false});
  Answer(request, NodeReply(Empty()));
  ForgetWaiting(leaver.job, leaver.id);
  run.on_their_way.erase(leaver.id);
  if (!job(leaver.job).active()) return;
  if (last) {
    const bool formed = job(leaver.job).state == JobState::kRunning;
    return EndJob(leaver.job, formed ? JobState::kFinished : JobState::kStopped, !formed,
                  formed ? "all workers left" : "all workers left before the job formed");
  }
  if (run.plan.change() && run.plan.change()->concerned.count(leaver.id) > 0) {
    AbortChange(leaver.job, absl::StrCat("worker ", leaver.name, " left"));
  }
  Unsettle(leaver.job, leaver.id);
  NameInitWriter(leaver.job);
  ReleaseBarriers(leaver.job);
  ServeDraws(leaver.job);
  ProposeChange(leaver.job);
}

// Requests of a node that is gone get no answer they could use, but each gets one.
void Core::Impl::ForgetWaiting(JobId id, NodeId gone) {
  JobRuntime& run = runtime(id);
  const absl::Status status =
      absl::FailedPreconditionError(absl::StrCat("node ", node(gone).name, " is gone"));
  const auto drop = [&](auto& by_node, auto request_of) {
    auto it = by_node.find(gone);
    if (it == by_node.end()) return;
    Refuse(request_of(it->second), status);
    by_node.erase(it);
  };
  DropMigration(id, gone, status);
  drop(run.leavers, [](RequestId r) { return r; });
  drop(run.registrations, [](const auto& r) { return r.request; });
  drop(run.draws, [](const auto& r) { return r.request; });
  for (auto& [name, arrived] : run.barriers) drop(arrived, [](RequestId r) { return r; });
  std::erase_if(run.waiting, [&](const scheduler::Waiting& w) {
    if (w.node != gone) return false;
    Refuse(w.request, status);
    return true;
  });
  run.recalled.erase(gone);
  std::deque<scheduler::Cut> kept;
  for (size_t i = 0; i < run.cuts.size(); ++i) {
    if (run.cuts[i].from == gone && i > 0) {
      Refuse(*run.cuts[i].request, status);
    } else {
      kept.push_back(std::move(run.cuts[i]));
    }
  }
  run.cuts = std::move(kept);
}

void Core::Impl::RefuseAllOf(JobId id, const absl::Status& status) {
  JobRuntime& run = runtime(id);
  // Who is leaving has what it wants.
  for (const auto& [n, request] : std::exchange(run.leavers, {})) {
    Decide(scheduler::NodeGone{node(n).ref(), false});
    Answer(request, NodeReply(Empty()));
  }
  for (const auto& [n, m] : std::exchange(run.migrations, {})) {
    if (m.request) Refuse(*m.request, status);
  }
  for (const auto& [n, r] : std::exchange(run.registrations, {})) Refuse(r.request, status);
  for (const auto& [n, r] : std::exchange(run.draws, {})) Refuse(r.request, status);
  for (const auto& [name, arrived] : std::exchange(run.barriers, {})) {
    for (const auto& [n, request] : arrived) Refuse(request, status);
  }
  for (const scheduler::Waiting& w : std::exchange(run.waiting, {})) Refuse(w.request, status);
  for (const scheduler::Cut& cut : std::exchange(run.cuts, {})) {
    if (cut.request) Refuse(*cut.request, status);
  }
}

void Core::Impl::EndJob(JobId id, JobState state, bool failed, const std::string& reason) {
  Decide(scheduler::JobStateChanged{id, state, reason});
  JobRuntime& run = runtime(id);
  run.plan.Abort();
  run.fences.clear();
  ClearCuts(id);
  RefuseAllOf(id, absl::AbortedError(absl::StrCat("job ", job(id).spec.name, " is ",
                                                  Absl(Name(state)), ": ", reason)));
  Say(job(id).spec.name, std::string(Name(state)), reason);
  for (const NodeRecord* worker : LiveWorkers(id)) {
    Send(worker->id, EndJobDirective{id, failed, reason});
  }
  // Owners report once more before they drop the shards, so that the last counts are not lost.
  run.ended_at = now_;
  for (NodeId owner : OwnersOf(job(id))) {
    if (node(owner).live()) run.ending.emplace(owner, false);
  }
  for (const auto& [worker, account] : job(id).samples.accounts()) {
    if (!account.outstanding.empty()) run.unsettled.insert(worker);
  }
  const std::optional<NodeId> lead = LeadOwnerOf(job(id));
  if (!lead || !node(*lead).live()) SettleAll(id);
  for (NodeId server : run.released) {
    const auto known = state_.nodes.find(server);
    const bool live = known != state_.nodes.end() && known->second.live();
    if (live && run.ending.count(server) == 0) Send(server, EndJobDirective{id, failed, reason});
  }
  SayDrained();
}

}  // namespace paceline
