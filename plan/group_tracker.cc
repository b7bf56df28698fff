#include "plan/group_tracker.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace paceline {

const Member* GroupTracker::Self(const GroupPlan& group) const {
  const auto self = std::find_if(group.members.begin(), group.members.end(),
                                 [this](const Member& member) { return member.node == self_; });
  return self == group.members.end() ? nullptr : &*self;
}

void GroupTracker::OnPlan(const Plan& plan) {
  for (const GroupPlan& group : plan.groups) Adopt(group);
  if (!current_ || next_.empty()) return;
  if (leaves_at_) {
    for (const GroupPlan& group : plan.groups) {
      const bool fenced = group.id == current_->id && group.last_fence > current_->generation;
      if (fenced) GoOverAtOnce();  // what holds without it holds for the step under way, too
    }
    return;
  }
  const bool there =
      std::any_of(plan.groups.begin(), plan.groups.end(),
                  [this](const GroupPlan& group) { return group.id == current_->id; });
  if (there) return;
  // Its group has ended: it was the last one in it.
  leaves_at_ = counts_before_ = step_ + Step(1);
  leaves_in_ = current_->generation + GroupGeneration(1);
}

Step GroupTracker::OnPrepare(const PrepareDirective& directive) {
  const bool of_next =
      !next_.empty() &&
      std::any_of(directive.groups.begin(), directive.groups.end(),
                  [this](const GroupPlan& group) { return group.id == next_.begin()->second.id; });
  const Step step = of_next ? ArrivalStep() : step_;
  const GroupId group = of_next ? next_.begin()->second.id : current_ ? current_->id : GroupId();
  holds_[directive.change] = {group, step + Step(kActivationMargin)};
  return step;
}

void GroupTracker::OnCommit(const CommitDirective& directive) {
  for (const GroupPlan& group : directive.groups) Adopt(group);
  holds_.erase(directive.change);
}

void GroupTracker::OnFence(const FenceDirective& directive) {
  for (const GroupPlan& group : directive.groups) {
    if (!current_) continue;
    if (group.id != current_->id) {
      if (!next_.empty() && group.id == next_.begin()->second.id) AdoptNext(group);
    } else if (group.generation > current_->generation && Self(group) != nullptr) {
      // One phase: in force at once, also for the step under way. What was due before has the dead
      // member in it.
      current_ = group;
      due_.erase(due_.begin(), due_.upper_bound(group.generation));
    } else if (IsWithoutSelf(group.generation)) {
      GoOverAtOnce();
    }
  }
}

void GroupTracker::Adopt(const GroupPlan& group) {
  const bool member = Self(group) != nullptr;
  if (!current_) {
    if (!member || leaves_at_) return;
    current_ = group;
    step_ = group.activation_step;
    return;
  }
  if (group.id != current_->id) {
    if (member || (!next_.empty() && group.id == next_.begin()->second.id)) AdoptNext(group);
    return;
  }
  if (group.generation <= current_->generation) return;
  if (member && group.last_fence > current_->generation) {
    // A fence that was missed: what holds now holds for the step under way, too.
    current_ = group;
    due_.clear();
  } else if (member) {
    due_[group.generation] = group;
  } else if (!leaves_at_) {
    leaves_at_ = counts_before_ = group.activation_step;
    leaves_in_ = group.generation;
  }
  TakeDue();
}

void GroupTracker::AdoptNext(const GroupPlan& group) {
  if (!next_.empty()) {
    const GroupPlan& newest = next_.rbegin()->second;
    if (group.id != newest.id || group.last_fence > newest.generation) {
      next_.clear();
    } else if (group.generation <= newest.generation) {
      return;
    }
  }
  if (next_.empty() && Self(group) == nullptr) return;
  next_[group.generation] = group;
}

// Whatever was agreed about its next group since: its membership says from where it counts.
Step GroupTracker::ArrivalStep() const {
  const GroupPlan& first = next_.begin()->second;
  const Step counts_from = Self(first)->first_step;
  return counts_from > Step(0) ? counts_from : first.activation_step;
}

bool GroupTracker::alone() const {
  return next_.empty() && current_->members.size() <= 1 &&
         std::all_of(due_.begin(), due_.end(),
                     [](const auto& due) { return due.second.members.size() <= 1; });
}

Step GroupTracker::counted_on_through() const {
  Step newest = step_;
  for (const auto& [generation, group] : due_) newest = std::max(newest, group.activation_step);
  return newest + Step(kActivationMargin);
}

Step GroupTracker::PassesThrough(Step next) const {
  Step last = next - Step(1);
  if (goes_over() && next >= *leaves_at_) last = std::max(last, counts_before_ - Step(1));
  return last;
}

void GroupTracker::GoOverAtOnce() {
  if (goes_over()) leaves_at_ = std::min(*leaves_at_, step_ + Step(1));
}

bool GroupTracker::MayBegin(Step step) const {
  return std::all_of(holds_.begin(), holds_.end(), [&](const auto& entry) {
    const Hold& hold = entry.second;
    return !current_ || hold.group != current_->id || step < hold.before;
  });
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
  if (!goes_over() || step_ < *leaves_at_) return;
  // The group goes on without this worker, which goes on in another group at that group's step.
  step_ = ArrivalStep();
  const std::map<GroupGeneration, GroupPlan> next = std::exchange(next_, {});
  leaves_at_.reset();
  leaves_in_.reset();
  due_.clear();
  current_ = next.begin()->second;
  for (const auto& [generation, group] : next) Adopt(group);
}

}  // namespace paceline
