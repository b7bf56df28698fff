#include "parameter/group_table.h"

#include <algorithm>

namespace paceline {

void GroupTable::ApplyPlan(const std::vector<GroupPlan>& groups, const std::vector<NodeRef>& fenced,
                           GroupId next_group) {
  next_group_ = std::max(next_group_, next_group);
  std::vector<NodeRef> news;
  for (const NodeRef& dead : fenced) {
    if (IsFenced(dead.node, dead.incarnation)) continue;
    fenced_[dead.node] = dead.incarnation;
    news.push_back(dead);
  }
  for (const GroupPlan& group : groups) {
    const Generation* const newest = Newest(group.id);
    if (newest != nullptr && newest->plan->generation >= group.generation) continue;
    if (IsPastFence(group)) {
      HoldForAllSteps(group);
    } else {
      Append(group, newest == nullptr ? Step(0) : group.activation_step);
    }
  }
  for (auto it = groups_.begin(); it != groups_.end();) {
    const bool named = std::any_of(groups.begin(), groups.end(),
                                   [&it](const GroupPlan& g) { return g.id == it->first; });
    it = named ? std::next(it) : groups_.erase(it);
  }
  for (const NodeRef& dead : news) AwaitNoLonger(dead);
  CountLive();
}

bool GroupTable::IsPastFence(const GroupPlan& group) const {
  const Generation* const newest = Newest(group.id);
  return newest != nullptr && group.last_fence > newest->plan->generation;
}

bool GroupTable::MissedFence(const std::vector<GroupPlan>& groups) const {
  return std::any_of(groups.begin(), groups.end(),
                     [this](const GroupPlan& group) { return IsPastFence(group); });
}

void GroupTable::Commit(const std::vector<GroupPlan>& groups) {
  for (const GroupPlan& group : groups) {
    const Generation* const newest = Newest(group.id);
    if (newest != nullptr && newest->plan->generation >= group.generation) continue;
    Append(group, group.activation_step);
  }
  CountLive();
}

void GroupTable::Fence(const NodeRef& dead, const std::vector<GroupPlan>& groups) {
  Incarnation& fenced = fenced_[dead.node];
  fenced = std::max(fenced, dead.incarnation);
  for (const GroupPlan& group : groups) {
    const Generation* const newest = Newest(group.id);
    if (newest != nullptr && newest->plan->generation >= group.generation) continue;
    HoldForAllSteps(group);
    covered_.erase({group.id, dead.node});
  }
  AwaitNoLonger(dead);
  CountLive();
}

// It was going over from a group whose other members are past the steps it still owed there: what
// they are in holds for those, too.
void GroupTable::AwaitNoLonger(const NodeRef& dead) {
  for (auto& [id, generations] : groups_) {
    bool owes = false;
    for (size_t i = 0; i + 1 < generations.size(); ++i) {
      const Step next = generations[i + 1].activation;
      for (const Member& member : generations[i].plan->members) {
        owes = owes ||
               (next > Step(0) && member.node == dead.node &&
                member.incarnation <= dead.incarnation && !IsCovered(id, member, next - Step(1)));
      }
    }
    if (owes) HoldForAllSteps(GroupPlan(*generations.back().plan));
  }
}

void GroupTable::HoldForAllSteps(const GroupPlan& group) {
  groups_[group.id].clear();
  Append(group, Step(0));
}

void GroupTable::Append(const GroupPlan& group, Step activation) {
  std::deque<Generation>& generations = groups_[group.id];
  generations.push_back({std::make_shared<const GroupPlan>(group), activation});
  while (generations.size() > kKeptGenerations && IsOver(generations[0], generations[1])) {
    generations.pop_front();
  }
  if (generations.size() > kMaxGenerations) generations.pop_front();
}

// Whether each member is done with the steps that `generation` holds for.
bool GroupTable::IsOver(const Generation& generation, const Generation& next) const {
  if (next.activation == Step(0)) return true;
  const Step last = next.activation - Step(1);
  const GroupPlan& group = *generation.plan;
  return std::all_of(group.members.begin(), group.members.end(),
                     [&](const Member& member) { return IsCovered(group.id, member, last); });
}

bool GroupTable::IsFenced(NodeId node, Incarnation incarnation) const {
  const auto it = fenced_.find(node);
  return it != fenced_.end() && incarnation <= it->second;
}

GroupTable::Admitted GroupTable::Admit(GroupId group, GroupGeneration generation, Step step,
                                       NodeId sender, Incarnation incarnation) const {
  Admitted out{.generation = InForce(group, step)};
  if (IsFenced(sender, incarnation)) {
    out.admission = Admission::kFenced;
    return out;
  }
  const Generation* const newest = Newest(group);
  if (newest == nullptr && HasEnded(group)) {
    out.admission = Admission::kOldGeneration;
    return out;
  }
  if (newest == nullptr || generation > newest->plan->generation) return out;
  out.admission = Admission::kOldGeneration;
  if (out.generation == nullptr || out.generation->plan->generation != generation) return out;
  const std::vector<Member>& members = out.generation->plan->members;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].node != sender) continue;
    if (members[i].incarnation == incarnation) {
      out.admission = Admission::kAccept;
      out.position = i;
    } else {
      out.admission = incarnation < members[i].incarnation ? Admission::kFenced : Admission::kPark;
    }
  }
  return out;
}

bool GroupTable::Knows(GroupId group, NodeRef member) const {
  const auto generations = groups_.find(group);
  if (generations == groups_.end()) return false;
  for (const Generation& generation : generations->second) {
    for (const Member& m : generation.plan->members) {
      if (RefOf(m) == member) return true;
    }
  }
  return false;
}

Admission GroupTable::AdmitBoundary(GroupId group, GroupGeneration generation, NodeId sender,
                                    Incarnation incarnation) const {
  if (IsFenced(sender, incarnation)) return Admission::kFenced;
  const Generation* const newest = Newest(group);
  if (newest == nullptr && HasEnded(group)) return Admission::kOldGeneration;
  if (newest == nullptr || generation > newest->plan->generation) return Admission::kPark;
  return Knows(group, {sender, incarnation}) ? Admission::kAccept : Admission::kOldGeneration;
}

const GroupTable::Generation* GroupTable::InForce(GroupId group, Step step) const {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return nullptr;
  for (auto g = it->second.rbegin(); g != it->second.rend(); ++g) {
    if (g->activation <= step) return &*g;
  }
  return nullptr;
}

const GroupTable::Generation* GroupTable::Newest(GroupId group) const {
  const auto it = groups_.find(group);
  return it == groups_.end() || it->second.empty() ? nullptr : &it->second.back();
}

bool GroupTable::Cover(GroupId group, NodeId node, Incarnation incarnation, Step through) {
  const auto [it, first] = covered_.try_emplace({group, node}, DoneWith{incarnation, through});
  DoneWith& covered = it->second;
  if (first) return true;
  if (incarnation == covered.incarnation && through <= covered.through) return false;
  covered = {incarnation, through};
  return true;
}

bool GroupTable::IsCovered(GroupId group, const Member& member, Step step) const {
  if (step < member.first_step) return true;
  const auto it = covered_.find({group, member.node});
  return it != covered_.end() && it->second.incarnation == member.incarnation &&
         it->second.through >= step;
}

std::optional<Step> GroupTable::CoveredThrough(GroupId group, NodeId node,
                                               Incarnation incarnation) const {
  const auto it = covered_.find({group, node});
  if (it == covered_.end() || it->second.incarnation != incarnation) return std::nullopt;
  return it->second.through;
}

std::vector<CoveredStep> GroupTable::Covered() const {
  std::vector<CoveredStep> out;
  for (const auto& [key, done] : covered_) {
    out.push_back({key.first, key.second, done.incarnation, done.through});
  }
  return out;
}

void GroupTable::Learn(const std::vector<CoveredStep>& covered) {
  for (const CoveredStep& step : covered) {
    if (IsFenced(step.node, step.incarnation)) continue;
    const auto known = covered_.find({step.group, step.node});
    if (known != covered_.end() && known->second.incarnation > step.incarnation) continue;
    Cover(step.group, step.node, step.incarnation, step.through);
  }
}

void GroupTable::CountLive() {
  live_groups_ = 0;
  for (const auto& [id, generations] : groups_) {
    if (!generations.empty() && !generations.back().plan->members.empty()) ++live_groups_;
  }
  live_groups_ = std::max(1u, live_groups_);
}

}  // namespace paceline
