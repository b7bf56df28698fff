// Who is in which group from which step on, who was fenced, and which steps each member is done
// with: what an owner must know to say whose round a frame joins and when a round is whole.
// Thread rule: one thread; const methods are pure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/types.h"
#include "plan/messages.h"
#include "plan/plan.h"

namespace paceline {

enum class Admission : uint8_t {
  kAccept,
  kPark,           // of a generation that is not known here yet
  kOldGeneration,  // another one holds for its step, or its group has ended
  kFenced,         // the sender's incarnation is dead
};

// A member that contributes nothing more to steps up to `through`.
struct CoveredStep {
  GroupId group;
  NodeId node;
  Incarnation incarnation;
  Step through;
};

class GroupTable {
 public:
  struct Generation {
    std::shared_ptr<const GroupPlan> plan;
    Step activation;  // first step it holds for
  };
  struct Admitted {
    Admission admission = Admission::kPark;
    const Generation* generation = nullptr;  // that holds for the step, when there is one
    size_t position = 0;                     // of the sender in rank order, when accepted
  };

  // The whole state as the scheduler sees it: what is newer than known here takes its place; a
  // fence that was not heard of is made up for. `fenced` are refused from now on. Groups below
  // `next_group` that it does not name have ended.
  void ApplyPlan(const std::vector<GroupPlan>& groups, const std::vector<NodeRef>& fenced = {},
                 GroupId next_group = {});
  bool MissedFence(const std::vector<GroupPlan>& groups) const;
  // Each group's next generation from its activation step on; one without members ends.
  void Commit(const std::vector<GroupPlan>& groups);
  // The dead incarnation is refused from now on, and each group's next generation holds for every
  // step that is not over.
  void Fence(const NodeRef& dead, const std::vector<GroupPlan>& groups);

  bool IsFenced(NodeId node, Incarnation incarnation) const;
  Admitted Admit(GroupId group, GroupGeneration generation, Step step, NodeId sender,
                 Incarnation incarnation) const;

  // A Boundary holds whatever generation its member knows of: it is taken from any member.
  Admission AdmitBoundary(GroupId group, GroupGeneration generation, NodeId sender,
                          Incarnation incarnation) const;

  // The newest generation that holds for `step`; null before any.
  const Generation* InForce(GroupId group, Step step) const;
  const Generation* Newest(GroupId group) const;
  // Whether a generation that is kept has the member.
  bool Knows(GroupId group, NodeRef member) const;

  // The member contributes nothing more to steps up to `through`. False when that was known.
  bool Cover(GroupId group, NodeId node, Incarnation incarnation, Step through);
  bool IsCovered(GroupId group, const Member& member, Step step) const;
  std::optional<Step> CoveredThrough(GroupId group, NodeId node, Incarnation incarnation) const;

  // ---- For an owner that takes over from another.
  std::vector<CoveredStep> Covered() const;
  // What is newer here stays.
  void Learn(const std::vector<CoveredStep>& covered);

  // Groups with members: G of the staleness formulas, at least 1.
  uint32_t live_groups() const { return live_groups_; }

 private:
  // So many stay for repetitions of what was answered, and all whose steps are not over: while one
  // member computes, any number of others may leave one after the other.
  static constexpr size_t kKeptGenerations = 8;
  static constexpr size_t kMaxGenerations = 16'384;

  struct DoneWith {
    Incarnation incarnation;
    Step through;
  };

  // Whether a frame of a group that is not known here comes too late, and not too early.
  bool HasEnded(GroupId group) const { return group < next_group_; }
  void Append(const GroupPlan& group, Step activation);
  bool IsOver(const Generation& generation, const Generation& next) const;
  void HoldForAllSteps(const GroupPlan& group);
  void AwaitNoLonger(const NodeRef& dead);
  bool IsPastFence(const GroupPlan& group) const;  // that was not heard of here
  void CountLive();

  std::map<GroupId, std::deque<Generation>> groups_;  // oldest first
  std::map<NodeId, Incarnation> fenced_;              // the newest dead incarnation
  std::map<std::pair<GroupId, NodeId>, DoneWith> covered_;
  GroupId next_group_;  // highest told
  uint32_t live_groups_ = 1;
};

}  // namespace paceline
