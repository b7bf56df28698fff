#include "plan/group_tracker.h"

#include <algorithm>

#include "common/base/check.h"

namespace paceline {

bool GroupTracker::HasSelf(const GroupPlan& group) const {
  return std::any_of(group.members.begin(), group.members.end(),
                     [this](const Member& member) { return member.node == self_; });
}

void GroupTracker::OnPlan(const Plan& plan) {
  for (const GroupPlan& group : plan.groups) Adopt(group);
}

Step GroupTracker::OnPrepare(const PrepareDirective& directive) {
  holds_[directive.change] = step_ + Step(kActivationMargin);
  return step_;
}

void GroupTracker::OnCommit(const CommitDirective& directive) {
  for (const GroupPlan& group : directive.groups) Adopt(group);
  holds_.erase(directive.change);
}

void GroupTracker::OnFence(const FenceDirective& directive) {
  for (const GroupPlan& group : directive.groups) {
    if (current_ && group.id == current_->id && group.generation > current_->generation &&
        HasSelf(group)) {
      // One phase: in force at once, also for the step under way. What was due before has the dead
      // member in it.
      current_ = group;
      due_.erase(due_.begin(), due_.upper_bound(group.generation));
    }
  }
}

void GroupTracker::Adopt(const GroupPlan& group) {
  const bool member = HasSelf(group);
  if (!current_) {
    if (!member || leaves_at_) return;
    current_ = group;
    step_ = group.activation_step;
    return;
  }
  if (group.id == current_->id) {
    if (group.generation <= current_->generation) return;
    if (member && group.last_fence > current_->generation) {
      // A fence that was missed: what holds now holds for the step under way, too.
      current_ = group;
      due_.clear();
    } else if (member) {
      due_[group.generation] = group;
    } else if (!leaves_at_) {
      leaves_at_ = group.activation_step;
      leaves_in_ = group.generation;
    }
    TakeDue();
    return;
  }
  if (member) next_group_ = group;
}

bool GroupTracker::alone() const {
  return current_->members.size() <= 1 &&
         std::all_of(due_.begin(), due_.end(),
                     [](const auto& due) { return due.second.members.size() <= 1; });
}

Step GroupTracker::counted_on_through() const {
  Step newest = step_;
  for (const auto& [generation, group] : due_) newest = std::max(newest, group.activation_step);
  return newest + Step(kActivationMargin);
}

bool GroupTracker::MayBegin(Step step) const {
  return std::all_of(holds_.begin(), holds_.end(),
                     [step](const auto& hold) { return step < hold.second; });
}

void GroupTracker::TakeDue() {
  for (auto it = due_.begin(); it != due_.end() && it->second.activation_step <= step_;) {
    current_ = it->second;
    it = due_.erase(it);
  }
}

void GroupTracker::AdvanceTo(Step step) {
  PACELINE_CHECK(current_.has_value() && step > step_);
  step_ = step;
  TakeDue();
  if (!leaves_at_ || step_ < *leaves_at_ || !next_group_) return;
  // The group goes on without this worker, which goes on in another group at that group's step.
  current_ = *next_group_;
  step_ = current_->activation_step;
  next_group_.reset();
  leaves_at_.reset();
  leaves_in_.reset();
  due_.clear();
}

}  // namespace paceline
