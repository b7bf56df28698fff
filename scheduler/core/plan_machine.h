// The two phases of a change of membership of one job: prepare -> acks of the nodes concerned ->
// commit with activation steps that nobody can have begun, each kActivationMargin above every acked
// step of its group. One change at a time; only an uncommitted one may be superseded or aborted.
// Thread rule: one thread owns it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "plan/plan.h"

namespace paceline::scheduler {

struct Change {
  uint64_t id = 0;
  std::vector<GroupPlan> groups;  // activation steps: the earliest they may have
  std::set<NodeId> concerned;
  std::set<NodeId> awaited;
  std::set<NodeId> leavers;
  std::set<NodeId> joiners;
  std::set<NodeId> movers;            // from one group to another
  std::map<GroupId, uint64_t> later;  // steps to leave before the activation, beyond the margin
  std::map<NodeId, Step> acked;
  std::string reason;
};

class PlanMachine {
 public:
  const std::optional<Change>& change() const { return change_; }

  void Propose(Change change) {
    change.awaited = change.concerned;
    change_ = std::move(change);
  }
  // True when every node concerned has acked.
  bool Ack(uint64_t id, NodeId node, Step step) {
    if (!change_ || change_->id != id || change_->awaited.erase(node) == 0) return false;
    change_->acked[node] = step;
    return change_->awaited.empty();
  }
  // The change to commit: the activation step of each group is beyond what the acks of those who
  // are in it (`in_place`) allow to begin, and above the one in force. Steps of two groups have
  // nothing to do with each other: who comes from another group says nothing about this one's.
  Change Commit(const std::map<GroupId, GroupPlan>& in_place) {
    Change change = *std::move(change_);
    change_.reset();
    Step left;  // where movers leave, at the latest: to them steps of a new group go on from there
    for (GroupPlan& group : change.groups) {  // new ones have the highest ids, and come last
      const auto before = in_place.find(group.id);
      const bool begins = before == in_place.end();
      const uint64_t later = change.later.contains(group.id) ? change.later[group.id] : 0;
      group.activation_step =
          std::max(group.activation_step, MaxAcked(change, begins ? group : before->second) +
                                              Step(kActivationMargin + later));
      if (!begins) left = std::max(left, group.activation_step);
      for (Member& member : group.members) {
        const bool moves = change.movers.contains(member.node);
        if (begins && moves) group.activation_step = std::max(group.activation_step, left);
        if (moves || change.joiners.contains(member.node)) {
          member.first_step = group.activation_step;
        }
      }
    }
    return change;
  }
  std::optional<Change> Abort() {
    std::optional<Change> change = std::move(change_);
    change_.reset();
    return change;
  }

 private:
  static Step MaxAcked(const Change& change, const GroupPlan& group) {
    Step highest;
    for (const Member& member : group.members) {
      const auto acked = change.acked.find(member.node);
      if (acked != change.acked.end()) highest = std::max(highest, acked->second);
    }
    return highest;
  }

  std::optional<Change> change_;
};

}  // namespace paceline::scheduler
