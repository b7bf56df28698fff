// What a worker knows about its group: the generation in force, changes that are agreed but not due
// yet, where it must hold until a change is decided, and the group it goes over to.
//
// Invariants:
//  1. A worker that acknowledged a change in step s begins no step >= s + kActivationMargin before
//     the change is committed or aborted; so it always knows the generation of the step it is in.
//  2. A worker that goes over to another group counts there from the step its membership names. On
//     its way it acknowledges changes of that group as if it were in that step.
//
// Thread rule: one thread at a time (the session's mutex).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/types.h"
#include "plan/messages.h"
#include "plan/plan.h"

namespace paceline {

class GroupTracker {
 public:
  explicit GroupTracker(NodeId self) : self_(self) {}

  // From a full plan: the first group this worker is in, or a change it missed.
  void OnPlan(const Plan& plan);
  // Returns the step to acknowledge.
  Step OnPrepare(const PrepareDirective& directive);
  void OnCommit(const CommitDirective& directive);
  void OnAbort(uint64_t change) { holds_.erase(change); }
  // A new stream of directives: what is still under way is prepared again, the end of the rest was
  // missed.
  void OnNewStream() { holds_.clear(); }
  void OnFence(const FenceDirective& directive);

  // Nobody else is in the group now, or in a generation of it that is agreed, and it stays there.
  bool alone() const;

  // False while the worker has no group yet or has left its last one.
  bool in_group() const { return current_.has_value(); }
  const GroupPlan& current() const { return *current_; }
  Step step() const { return step_; }

  // Whether step() + 1 may begin now.
  bool MayAdvance() const { return MayBegin(step_ + Step(1)); }
  // Begins the next step, taking over a generation (or a group) that is due.
  void Advance() { AdvanceTo(step_ + Step(1)); }

  // ---- Steps that the group went on without this worker.
  // Whether `step`, a later one, may begin now.
  bool MayBegin(Step step) const;
  // step() is another one afterwards when the worker goes over to its next group.
  void AdvanceTo(Step step);
  // Whether the worker may go on in `step` with what it computed in this one: it is still in the
  // same group then.
  bool MayCarryTo(Step step) const { return MayBegin(step) && (!leaves_at_ || step < *leaves_at_); }

  // The step from which on the group does without this worker, once that is agreed.
  std::optional<Step> leaves_at() const { return leaves_at_; }
  // The last step that has to be passed on when `next` is begun: nobody waits for it after that.
  Step PassesThrough(Step next) const;
  // Whether there is a group to go over to at leaves_at().
  bool goes_over() const { return leaves_at_ && !next_.empty(); }
  // An owner works without this worker already, for every step of the group: it goes over with the
  // next step.
  void GoOverAtOnce();
  // The same when that word was lost with a stream: no step after this one counts on this worker.
  // Others are at most a step ahead; one that was taken in later is in the step it was taken in.
  Step counted_on_through() const;
  // An owner that works by `generation` of the current group does without this worker, for any
  // step: it is the one in which this worker has left, or came after it.
  bool IsWithoutSelf(GroupGeneration generation) const {
    return leaves_in_ && generation >= *leaves_in_;
  }

 private:
  struct Hold {
    GroupId group;
    Step before;
  };

  void Adopt(const GroupPlan& group);
  void AdoptNext(const GroupPlan& group);
  void TakeDue();
  const Member* Self(const GroupPlan& group) const;
  Step ArrivalStep() const;

  const NodeId self_;
  Step step_;
  std::optional<GroupPlan> current_;
  std::map<GroupGeneration, GroupPlan> due_;   // later generations of the current group
  std::map<GroupGeneration, GroupPlan> next_;  // of the group to go over to, as far as they matter
  std::optional<Step> leaves_at_;
  std::optional<GroupGeneration> leaves_in_;
  Step counts_before_;              // what leaves_at_ was agreed as
  std::map<uint64_t, Hold> holds_;  // by change: first step that may not begin
};

}  // namespace paceline
