#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/core/core_impl.h"

namespace paceline {
namespace {

using scheduler::Candidate;
using scheduler::Change;

std::string NamesOf(const std::vector<Member>& members) {
  std::string names;
  for (const Member& m : members) absl::StrAppend(&names, names.empty() ? "" : ", ", m.name);
  return names;
}

}  // namespace

Member Core::Impl::MemberOf(const NodeRecord& record) const {
  Member member;
  member.node = record.id;
  member.name = record.name;
  member.incarnation = record.incarnation;
  member.rank = record.rank;
  member.index = record.index;
  member.host = record.host;
  member.data_address = record.data_address;
  return member;
}

Candidate Core::Impl::CandidateOf(const NodeRecord& record) const {
  return {record.id, record.rank, record.index, record.labels};
}

void Core::Impl::FormIfComplete(JobId id) {
  const JobRecord& forming = job(id);
  const std::vector<const NodeRecord*> workers = LiveWorkers(id);
  if (forming.state != JobState::kForming || workers.size() < forming.spec.workers) return;
  std::vector<Candidate> candidates;
  for (const NodeRecord* worker : workers) candidates.push_back(CandidateOf(*worker));
  GroupPlans groups;
  for (scheduler::PlannedGroup& planned :
       scheduler::PlanInitialGroups(forming.spec.groups, std::move(candidates))) {
    GroupPlan group;
    group.id = GroupId(static_cast<uint32_t>(groups.size()));
    group.generation = GroupGeneration(1);
    group.activation_step = forming.first_step;
    group.reason = std::move(planned.reason);
    for (NodeId member : planned.members) group.members.push_back(MemberOf(node(member)));
    group.planned_members = static_cast<uint32_t>(group.members.size());
    groups.push_back(std::move(group));
  }
  const std::string name = forming.spec.name;
  for (const GroupPlan& group : groups) {
    Say(name, "group",
        absl::StrCat("group ", group.id.value(), " of ", NamesOf(group.members), " (", group.reason,
                     ")"));
  }
  Decide(scheduler::GroupsChanged{id, std::move(groups)});
  Decide(scheduler::JobStateChanged{
      id, JobState::kRunning,
      absl::StrCat(workers.size(), " of ", forming.spec.workers, " joined")});
  Say(name, "running", job(id).reason);
  runtime(id).started_at = now_;
  SendPlanToAll(id);
  PlaceRegistrations(id);
  ReleaseBarriers(id);
}

// Servers learn every member's key, a worker its own.
Core::Impl::GroupPlans Core::Impl::WithKeysFor(const NodeRecord& to, GroupPlans groups) const {
  for (GroupPlan& group : groups) {
    for (Member& m : group.members) {
      if (to.role != Role::kServer && m.node != to.id) continue;
      const NodeRecord& record = state_.nodes.at(m.node);
      if (record.incarnation == m.incarnation) m.key = record.key;
    }
  }
  return groups;
}

// What came before a live incarnation is over as well.
std::vector<NodeRef> Core::Impl::FencedOf(const JobRecord& job) const {
  std::vector<NodeRef> fenced;
  for (const auto& [id, record] : state_.nodes) {
    if (record.role != Role::kWorker || record.job != job.id) continue;
    if (record.state == scheduler::NodeState::kLeft) continue;
    const uint64_t newest = record.incarnation.value();
    const Incarnation over(record.live() ? newest - 1 : newest);
    if (over > Incarnation(0)) fenced.push_back({id, over});
  }
  return fenced;
}

Plan Core::Impl::PlanFor(const JobRecord& job, const NodeRecord& to) const {
  Plan plan;
  plan.job = job.id;
  plan.spec = job.spec;
  plan.state = job.state;
  plan.reason = job.reason;
  plan.term = state_.term;
  plan.generation = job.generation;
  for (NodeId owner : OwnersOf(job)) {
    const NodeRecord& server = state_.nodes.at(owner);
    plan.servers.push_back({server.id, server.name, server.incarnation, server.host,
                            server.data_address,
                            to.role == Role::kServer ? server.key : SecretKey{}});
  }
  plan.tensors = job.tensors;
  GroupPlans groups;
  for (const auto& [id, group] : job.groups) groups.push_back(group);
  plan.groups = WithKeysFor(to, std::move(groups));
  plan.next_group = GroupId(job.next_group);
  plan.lead_tensor = job.lead_tensor;
  plan.init_writer = job.init_writer;
  plan.waiting = WaitingReason(job);
  if (to.role == Role::kServer) plan.fenced = FencedOf(job);
  plan.move = job.move;
  plan.moves = job.moves;
  plan.restore_from = job.restore_from;
  plan.lineage = job.lineage;
  plan.withdrawn = job.withdrawn;
  return plan;
}

// Why workers begin no further step, or empty.
std::string Core::Impl::WaitingReason(const JobRecord& job) const {
  const size_t live = LiveWorkers(job.id).size();
  if (job.state != JobState::kRunning || live >= job.spec.min_workers) return "";
  return absl::StrCat(live, " of at least ", job.spec.min_workers, " workers (min_workers)");
}

void Core::Impl::UpdateWaiting(JobId id) {
  const std::string reason = WaitingReason(job(id));
  JobRuntime& run = runtime(id);
  if (reason == run.told_waiting) return;
  Say(job(id).spec.name, "waiting",
      reason.empty() ? "goes on: enough workers are there" : absl::StrCat("waits: ", reason));
  run.told_waiting = reason;
  for (const NodeRecord* worker : LiveWorkers(id)) SendPlan(job(id), worker->id);
}

void Core::Impl::SendPlan(const JobRecord& job, NodeId to) {
  NodeSession& session = sessions_[to];
  session.refused.erase(job.id);  // what it says of this plan counts
  if (!session.watching) return;
  PlanDirective directive{0, PlanFor(job, node(to))};
  if (node(to).role == Role::kServer) {
    directive.change = NextChange();
    // Only the newest plan of a job counts; an ack of an older one says nothing that is needed.
    std::erase_if(session.plans, [&](const auto& p) { return p.second.first == job.id; });
    session.plans[directive.change] = {job.id, job.generation};
  }
  Send(to, std::move(directive));
}

void Core::Impl::SendPlanToAll(JobId id) {
  const JobRecord& planned = job(id);
  for (NodeId owner : OwnersOf(planned)) SendPlan(planned, owner);
  for (const NodeRecord* worker : LiveWorkers(id)) SendPlan(planned, worker->id);
}

// What is under way when a node opens its stream.
void Core::Impl::SendOpenWork(const JobRecord& job, const NodeRecord& to) {
  JobRuntime& run = runtime(job.id);
  for (const auto& [id, fence] : run.fences) {
    if (fence.awaited.count(to.id) == 0) continue;
    FenceDirective directive = fence.directive;
    directive.groups = WithKeysFor(to, std::move(directive.groups));
    Send(to.id, std::move(directive));
  }
  // Also to one that has acked: full state takes the place of all it was told before.
  const std::optional<Change>& change = run.plan.change();
  if (change && change->concerned.count(to.id) > 0) SendPrepare(job, *change, to.id);
  if (run.recalled.count(to.id) > 0) Send(to.id, RecallSamplesDirective{job.id});
  if (!to.asked_to_leave.empty()) Send(to.id, RemoveDirective{job.id, to.asked_to_leave});
  // A cut that holds steps does not outlive a stream.
  if (!run.cuts.empty() && run.cuts.front().awaited.count(to.id) > 0) WriteManifest(job.id);
}

void Core::Impl::SendPrepare(const JobRecord& job, const Change& change, NodeId to) {
  GroupPlans groups = WithKeysFor(node(to), change.groups);
  for (GroupPlan& group : groups) group.activation_step = paceline::Step(0);
  Send(to, PrepareDirective{change.id, job.id, std::move(groups), change.reason});
}

// Leavers go first: who wants to leave must not wait until a joiner is ready to compute. Those that
// change their group are next, for the same reason.
void Core::Impl::ProposeChange(JobId id) {
  const JobRecord& running = job(id);
  JobRuntime& run = runtime(id);
  if (running.state != JobState::kRunning || !running.moves.empty()) return;
  if (!run.leavers.empty() && run.leavers.size() == LiveWorkers(id).size()) {
    // Nobody is left who would need the new groups.
    return EndJob(id, JobState::kFinished, false, "all workers left");
  }
  const std::optional<Change>& current = run.plan.change();
  if (current) {
    const bool leave_waits = !run.leavers.empty() && current->leavers.empty();
    if (!leave_waits) return;
    AbortChange(id, "superseded: a worker leaves");
  }
  std::set<std::pair<NodeId, Incarnation>> grouped;
  for (const auto& [group_id, group] : running.groups) {
    for (const Member& m : group.members) grouped.emplace(m.node, m.incarnation);
  }
  Change change;
  if (!run.leavers.empty()) {
    AddLeavers(running, change);
  } else if (!AddMigrations(id, change)) {
    std::vector<const NodeRecord*> joiners;
    for (const NodeRecord* worker : LiveWorkers(id)) {
      if (grouped.count({worker->id, worker->incarnation}) == 0) joiners.push_back(worker);
    }
    if (joiners.empty()) return;
    AddJoiners(running, joiners, change);
  }
  change.id = NextChange();
  for (NodeId owner : OwnersOf(running)) change.concerned.insert(owner);
  Say(running.spec.name, "prepare", absl::StrCat("change ", change.id, ": ", change.reason));
  run.plan.Propose(change);
  for (NodeId to : change.concerned) SendPrepare(running, change, to);
}

void Core::Impl::AddLeavers(const JobRecord& job, Change& change) {
  for (const auto& [leaver, request] : runtime(job.id).leavers) {
    change.leavers.insert(leaver);
    absl::StrAppend(&change.reason, change.reason.empty() ? "" : "; ", "worker ", node(leaver).name,
                    " leaves");
  }
  for (const auto& [id, group] : job.groups) {
    const bool touched =
        std::any_of(group.members.begin(), group.members.end(),
                    [&](const Member& m) { return change.leavers.count(m.node) > 0; });
    if (!touched) continue;
    for (const Member& m : group.members) change.concerned.insert(m.node);
    GroupPlan next = group;
    std::erase_if(next.members, [&](const Member& m) { return change.leavers.count(m.node) > 0; });
    ++next.generation;
    ++next.activation_step;
    next.planned_members = static_cast<uint32_t>(next.members.size());
    next.reason = change.reason;
    change.groups.push_back(std::move(next));
  }
}

// Where a group begins that takes the place of none: no step comes a second time.
paceline::Step Core::Impl::NewestStep(const JobRecord& job) const {
  paceline::Step newest(job.samples.next_step());
  const auto run = runtimes_.find(job.id);
  if (run == runtimes_.end()) return newest;
  for (const auto& [server, report] : run->second.at_server) {
    for (const GroupStaleness& group : report.groups) newest = std::max(newest, group.last_step);
  }
  return newest;
}

void Core::Impl::AddJoiners(const JobRecord& job, const std::vector<const NodeRecord*>& joiners,
                            Change& change) {
  std::map<GroupId, GroupPlan> groups = job.groups;
  std::set<GroupId> touched;
  uint32_t next_group = job.next_group;
  for (const NodeRecord* joiner : joiners) {
    std::vector<scheduler::GroupInPlace> in_place;
    for (const auto& [id, group] : groups) {
      in_place.push_back({id, {}});
      for (const Member& m : group.members) {
        in_place.back().members.push_back(CandidateOf(node(m.node)));
      }
    }
    const scheduler::JoinerPlace place =
        scheduler::PlaceJoiner(job.spec.groups, in_place, CandidateOf(*joiner));
    const GroupId id = place.group ? *place.group : GroupId(next_group++);
    GroupPlan& group = groups[id];
    if (!place.group) group.activation_step = NewestStep(job);
    group.id = id;
    change.joiners.insert(joiner->id);
    if (touched.insert(id).second) {
      ++group.generation;
      ++group.activation_step;
    }
    group.members.push_back(MemberOf(*joiner));
    std::sort(group.members.begin(), group.members.end(),
              [](const Member& a, const Member& b) { return a.rank < b.rank; });
    group.reason = absl::StrCat("worker ", joiner->name, " joins: ", place.reason);
    absl::StrAppend(&change.reason, change.reason.empty() ? "" : "; ", "worker ", joiner->name,
                    " joins group ", id.value(), " (", place.reason, ")");
  }
  for (GroupId id : touched) {
    groups[id].planned_members = static_cast<uint32_t>(groups[id].members.size());
    for (const Member& m : groups[id].members) change.concerned.insert(m.node);
    change.groups.push_back(groups[id]);
  }
}

void Core::Impl::AbortChange(JobId id, const std::string& reason) {
  const std::optional<Change> change = runtime(id).plan.Abort();
  if (!change) return;
  Say(job(id).spec.name, "abort", absl::StrCat("change ", change->id, ": ", reason));
  for (NodeId to : change->concerned) Send(to, AbortDirective{change->id, id, reason});
}

void Core::Impl::CommitChange(JobId id) {
  JobRuntime& run = runtime(id);
  const std::map<GroupId, GroupPlan> before = job(id).groups;
  Change change = run.plan.Commit(before);
  Decide(scheduler::GroupsChanged{id, change.groups});
  for (const GroupPlan& group : change.groups) {
    Say(job(id).spec.name, "commit",
        absl::StrCat("change ", change.id, ": group ", group.id.value(), " generation ",
                     group.generation.value(), " from step ", group.activation_step.value(), ": ",
                     group.members.empty() ? "ends" : NamesOf(group.members), " (", change.reason,
                     ")"));
  }
  // Owners too that came after the proposal: their plan has the groups as they were.
  for (NodeId owner : OwnersOf(job(id))) change.concerned.insert(owner);
  for (NodeId to : change.concerned) {
    Send(to, CommitDirective{change.id, id, WithKeysFor(node(to), change.groups), change.reason});
  }
  CommitMigrations(id, change, before);
  for (NodeId leaver : change.leavers) {
    auto it = run.leavers.find(leaver);
    if (it == run.leavers.end()) continue;
    Decide(scheduler::NodeGone{node(leaver).ref(), false});
    Answer(it->second, NodeReply(Empty()));
    run.leavers.erase(it);
    ForgetWaiting(id, leaver);
    run.on_their_way.erase(leaver);
    Unsettle(id, leaver);
  }
  AbortCutOfEndedGroups(id);
  if (LiveWorkers(id).empty()) return EndJob(id, JobState::kFinished, false, "all workers left");
  NameInitWriter(id);
  ReleaseBarriers(id);
  ServeDraws(id);
  ProposeChange(id);
}

void Core::Impl::FenceWorker(const NodeRecord& dead, const std::string& reason) {
  const JobId id = dead.job;
  AbortChange(id, reason);
  GroupPlans groups;
  std::set<NodeId> concerned;
  for (const auto& [group_id, group] : job(id).groups) {
    GroupPlan next = group;
    std::erase_if(next.members, [&](const Member& m) { return m.node == dead.id; });
    const bool was_in = next.members.size() < group.members.size();
    if (!was_in && !MayCountOn(group, dead.id)) continue;
    ++next.generation;  // in force at once: the activation step stays
    next.last_fence = next.generation;
    next.reason = reason;
    for (const Member& m : next.members) concerned.insert(m.node);
    groups.push_back(std::move(next));
  }
  runtime(id).on_their_way.erase(dead.id);
  Say(job(id).spec.name, "fence", reason);
  Unsettle(id, dead.id);
  if (groups.empty()) return;
  Decide(scheduler::GroupsChanged{id, groups});
  for (const GroupPlan& group : groups) {
    Say(job(id).spec.name, "group",
        absl::StrCat("group ", group.id.value(), " generation ", group.generation.value(), ": ",
                     group.members.empty() ? "ends" : NamesOf(group.members), " (", reason, ")"));
  }
  scheduler::Fence fence;
  for (NodeId owner : OwnersOf(job(id))) fence.awaited.insert(owner);
  fence.directive = {NextChange(), id, dead.ref(), groups, reason};
  concerned.insert(fence.awaited.begin(), fence.awaited.end());
  for (NodeId to : concerned) {
    if (!node(to).live()) continue;
    FenceDirective directive = fence.directive;
    directive.groups = WithKeysFor(node(to), groups);
    Send(to, std::move(directive));
  }
  if (!fence.awaited.empty()) {
    runtime(id).fences.emplace(fence.directive.change, std::move(fence));
  }
  AbortCut(id, reason);
}

}  // namespace paceline
