// Workers that go over from one group of their job to another: one change of both groups.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "scheduler/core/core_impl.h"

namespace paceline {
namespace {

using scheduler::Change;
using scheduler::JobRecord;
using scheduler::Migration;

// A worker owes its old group up to two steps after the agreement; the new one does not count on it
// before about as long has passed there. A bound for measurements that are off.
constexpr uint64_t kMaxLaterSteps = 100;

const GroupPlan* GroupOf(const JobRecord& job, NodeId worker) {
  for (const auto& [id, group] : job.groups) {
    for (const Member& m : group.members) {
      if (m.node == worker) return &group;
    }
  }
  return nullptr;
}

std::string NameOf(const std::optional<GroupId>& group) {
  return group ? absl::StrCat("group ", group->value()) : "a group of its own";
}

std::string GroupsOf(const JobRecord& job) {
  std::string ids;
  for (const auto& [id, group] : job.groups) {
    absl::StrAppend(&ids, ids.empty() ? "" : ", ", id.value());
  }
  return ids;
}

}  // namespace

// ---- What may move where ------------------------------------------------------------------------

absl::Status Core::Impl::CheckMigration(const JobRecord& job, const NodeRecord& worker,
                                        const std::optional<GroupId>& to) const {
  const std::string what = absl::StrCat("worker ", worker.name, " of job ", job.spec.name,
                                        " cannot go to ", NameOf(to), ": ");
  const auto no = [&what](const auto&... why) {
    return absl::FailedPreconditionError(absl::StrCat(what, why...));
  };
  if (job.state != JobState::kRunning) return no("the job is forming; try again when it runs");
  if (job.spec.groups.kind == GroupSpec::Kind::kOne) {
    return no(
        "with groups one all workers of a job are one group; start it with groups "
        "per-worker, a number, sizes or a label");
  }
  const GroupPlan* const from = GroupOf(job, worker.id);
  if (from == nullptr) return no("it is about to join; try again when it is in a group");
  if (to == from->id) return no("it is there");
  if (!to && from->members.size() == 1) {
    return no("it is alone in group ", from->id.value(), ", which is its own");
  }
  if (to && job.groups.count(*to) == 0) {
    return absl::NotFoundError(absl::StrCat(what, "there is none; the job has ", GroupsOf(job),
                                            " (pacelinectl groups ", job.spec.name, ")"));
  }
  const auto run = runtimes_.find(job.id);
  if (!worker.asked_to_leave.empty() ||
      (run != runtimes_.end() && run->second.leavers.count(worker.id) > 0)) {
    return no("it leaves the job");
  }
  if (run != runtimes_.end() && run->second.on_their_way.count(worker.id) > 0) {
    return no("it is still on its way to group ", from->id.value(), "; try again in a moment");
  }
  return absl::OkStatus();
}

void Core::Impl::On(RequestId request, MoveWorkerRequest& move) {
  const absl::StatusOr<const NodeRecord*> found = FindLiveWorker(move.job, move.worker);
  if (!found.ok()) return Refuse(request, found.status());
  const NodeRecord* const worker = *found;
  const std::string reason =
      absl::StrCat("asked for by an operator", move.reason.empty() ? "" : ": ", move.reason);
  const absl::Status status = Migrate(worker->job, worker->id, {move.group, reason, request});
  if (!status.ok()) Refuse(request, status);
}

// Answered when it is agreed, or the worker is gone before.
absl::Status Core::Impl::Migrate(JobId id, NodeId worker, Migration migration) {
  PACELINE_RETURN_IF_ERROR(CheckMigration(job(id), node(worker), migration.to));
  JobRuntime& run = runtime(id);
  const auto [it, first] = run.migrations.try_emplace(worker, std::move(migration));
  if (!first) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", node(worker).name, " of job ", job(id).spec.name, " is to go to ",
                     NameOf(it->second.to), " already; try again when it is there"));
  }
  Say(job(id).spec.name, "migrate",
      absl::StrCat("worker ", node(worker).name, " is to go from group ",
                   GroupOf(job(id), worker)->id.value(), " to ", NameOf(it->second.to), " (",
                   it->second.reason, ")"));
  ProposeChange(id);
  return absl::OkStatus();
}

void Core::Impl::DropMigration(JobId id, NodeId worker, const absl::Status& status) {
  JobRuntime& run = runtime(id);
  const auto migration = run.migrations.extract(worker);
  if (migration.empty()) return;
  Say(job(id).spec.name, "migrate",
      absl::StrCat("worker ", node(worker).name, " does not go to ", NameOf(migration.mapped().to),
                   ": ", status.message()));
  if (migration.mapped().request) Refuse(*migration.mapped().request, status);
}

// ---- The change ---------------------------------------------------------------------------------

// Those that are waited for and still can; false when there is none.
bool Core::Impl::AddMigrations(JobId id, Change& change) {
  const std::map<NodeId, Migration> waiting = runtime(id).migrations;
  if (waiting.empty()) return false;
  std::map<GroupId, GroupPlan> groups = job(id).groups;
  std::set<GroupId> touched;
  uint32_t next_group = job(id).next_group;
  for (const auto& [worker, migration] : waiting) {
    const absl::Status status = CheckMigration(job(id), node(worker), migration.to);
    if (!status.ok()) {
      DropMigration(id, worker, status);
      continue;
    }
    const GroupId from = GroupOf(job(id), worker)->id;
    const GroupId to = migration.to ? *migration.to : GroupId(next_group++);
    const std::string reason =
        absl::StrCat("worker ", node(worker).name, " goes from group ", from.value(), " to group ",
                     to.value(), ": ", migration.reason);
    if (!migration.to) {
      groups[to].id = to;
      groups[to].activation_step = NewestStep(job(id));
    }
    for (GroupId one : {from, to}) {
      GroupPlan& group = groups[one];
      for (const Member& m : group.members) change.concerned.insert(m.node);
      if (touched.insert(one).second) {
        ++group.generation;
        ++group.activation_step;
        group.reason.clear();
      }
      absl::StrAppend(&group.reason, group.reason.empty() ? "" : "; ", reason);
    }
    std::erase_if(groups[from].members, [w = worker](const Member& m) { return m.node == w; });
    groups[to].members.push_back(MemberOf(node(worker)));
    change.movers.insert(worker);
    change.later[to] = std::max(change.later[to], StepsBefore(job(id), from, to));
    absl::StrAppend(&change.reason, change.reason.empty() ? "" : "; ", reason);
  }
  for (GroupId one : touched) {
    std::vector<Member>& members = groups[one].members;
    std::sort(members.begin(), members.end(),
              [](const Member& a, const Member& b) { return a.rank < b.rank; });
    groups[one].planned_members = static_cast<uint32_t>(members.size());
    change.groups.push_back(groups[one]);
  }
  return !change.movers.empty();
}

// How many steps `to` makes, beyond the first, while `from` makes two.
uint64_t Core::Impl::StepsBefore(const JobRecord& job, GroupId from, GroupId to) const {
  const auto step_time_us = [&](GroupId id) -> uint64_t {
    uint64_t longest = 0;
    const auto group = job.groups.find(id);
    if (group == job.groups.end()) return 0;
    for (const Member& m : group->second.members) {
      const auto session = sessions_.find(m.node);
      if (session == sessions_.end() || session->second.worker.group != id) continue;
      longest = std::max<uint64_t>(longest, session->second.worker.step_time_us);
    }
    return longest;
  };
  const uint64_t there = step_time_us(to);
  if (there == 0) return 0;
  const uint64_t steps = (2 * step_time_us(from) + there - 1) / there;
  return std::min(steps == 0 ? 0 : steps - 1, kMaxLaterSteps);
}

// What is agreed: who moves is on its way until it reports a step of its new group.
void Core::Impl::CommitMigrations(JobId id, const Change& change,
                                  const std::map<GroupId, GroupPlan>& before) {
  JobRuntime& run = runtime(id);
  for (NodeId worker : change.movers) {
    const GroupPlan* const to = GroupOf(job(id), worker);
    for (const auto& [from, group] : before) {
      for (const Member& m : group.members) {
        if (m.node == worker) run.on_their_way[worker] = {from};
      }
    }
    const GroupId from = *run.on_their_way[worker].begin();
    const auto last = std::find_if(change.groups.begin(), change.groups.end(),
                                   [from](const GroupPlan& g) { return g.id == from; });
    const auto migration = run.migrations.extract(worker);
    Say(job(id).spec.name, "migrate",
        absl::StrCat("worker ", node(worker).name, " goes from group ", from.value(),
                     " before step ", last->activation_step.value(), " to group ", to->id.value(),
                     " from step ", to->activation_step.value()));
    if (!migration.empty() && migration.mapped().request) {
      Answer(*migration.mapped().request, OperatorReply(Empty()));
    }
  }
}

// ---- Until it has arrived -----------------------------------------------------------------------

void Core::Impl::ArriveIfReported(const NodeRecord& worker) {
  const auto run = runtimes_.find(worker.job);
  if (run == runtimes_.end() || run->second.on_their_way.count(worker.id) == 0) return;
  const WorkerReport& report = sessions_[worker.id].worker;
  const GroupPlan* const group = GroupOf(job(worker.job), worker.id);
  if (group == nullptr || report.group != group->id) return;
  for (const Member& m : group->members) {
    if (m.node == worker.id && report.step >= m.first_step) {
      run->second.on_their_way.erase(worker.id);
    }
  }
}

// A scheduler that starts again does not know who has arrived until it hears from them.
void Core::Impl::ExpectArrivals(JobId id) {
  for (const auto& [to, group] : job(id).groups) {
    for (const Member& m : group.members) {
      if (m.first_step == paceline::Step(0)) continue;
      std::set<GroupId> others;
      for (const auto& [other, plan] : job(id).groups) {
        if (other != to) others.insert(other);
      }
      // Also when the one it comes from has ended: it must arrive before it is asked for more.
      runtime(id).on_their_way[m.node] = std::move(others);
    }
  }
}

// Whether `group`, which `worker` is no member of, may have steps under way that count on it: it
// was agreed that it goes over to another one, where it has not arrived.
bool Core::Impl::MayCountOn(const GroupPlan& group, NodeId worker) const {
  const auto run = runtimes_.find(state_.nodes.at(worker).job);
  if (run == runtimes_.end()) return false;
  const auto way = run->second.on_their_way.find(worker);
  if (way == run->second.on_their_way.end() || way->second.count(group.id) == 0) return false;
  return std::any_of(group.members.begin(), group.members.end(), [&](const Member& m) {
    const auto session = sessions_.find(m.node);
    return session == sessions_.end() || session->second.worker.group != group.id ||
           session->second.worker.step < group.activation_step;
  });
}

}  // namespace paceline
