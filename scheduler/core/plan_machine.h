// The two phases of a change of membership of one job: prepare -> acks of the nodes concerned ->
// commit with an activation step that nobody can have begun, kActivationMargin above every acked
// step. One change at a time; only an uncommitted one may be superseded or aborted.
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
  Step max_acked;
  bool acked = false;
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
    change_->max_acked = std::max(change_->max_acked, step);
    return change_->awaited.empty();
  }
  // The change to commit, its activation steps beyond what the acks allow to begin, and above those
  // in force.
  Change Commit() {
    Change change = *std::move(change_);
    change_.reset();
    for (GroupPlan& group : change.groups) {
      group.activation_step =
          std::max(group.activation_step, change.max_acked + Step(kActivationMargin));
      for (Member& member : group.members) {
        if (change.joiners.contains(member.node)) member.first_step = group.activation_step;
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
  std::optional<Change> change_;
};

}  // namespace paceline::scheduler
