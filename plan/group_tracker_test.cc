#include "plan/group_tracker.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

constexpr NodeId kSelf(1);

GroupPlan GroupOf(uint64_t generation, uint64_t activation, std::vector<uint32_t> members,
                  uint32_t id = 0) {
  GroupPlan group;
  group.id = GroupId(id);
  group.generation = GroupGeneration(generation);
  group.activation_step = Step(activation);
  for (const uint32_t node : members) {
    Member member;
    member.node = NodeId(node);
    group.members.push_back(std::move(member));
  }
  return group;
}

GroupTracker TrackerIn(GroupPlan group) {
  GroupTracker tracker(kSelf);
  Plan plan;
  plan.groups.push_back(std::move(group));
  tracker.OnPlan(plan);
  return tracker;
}

PrepareDirective Prepare(uint64_t change) {
  PrepareDirective directive;
  directive.change = change;
  return directive;
}

CommitDirective Commit(uint64_t change, std::vector<GroupPlan> groups) {
  CommitDirective directive;
  directive.change = change;
  directive.groups = std::move(groups);
  return directive;
}

FenceDirective Fence(GroupPlan group) {
  FenceDirective directive;
  directive.groups.push_back(std::move(group));
  return directive;
}

TEST(GroupTracker, CatchesUpUnderTheGenerationOfTheStepItGoesOnIn) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2}));
  tracker.OnCommit(Commit(1, {GroupOf(2, 5, {1, 2, 3})}));
  EXPECT_TRUE(tracker.MayCarryTo(Step(9)));
  tracker.AdvanceTo(Step(9));
  EXPECT_EQ(tracker.step(), Step(9));
  EXPECT_EQ(tracker.current().generation, GroupGeneration(2));
}

TEST(GroupTracker, CatchesUpNoFurtherThanAnOpenChangeOrItsLastStepAllow) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2}));
  EXPECT_EQ(tracker.OnPrepare(Prepare(7)), Step(0));
  EXPECT_TRUE(tracker.MayCarryTo(Step(1)));
  EXPECT_FALSE(tracker.MayCarryTo(Step(2)));
  tracker.OnCommit(Commit(7, {GroupOf(2, 6, {2}), GroupOf(3, 40, {1}, 1)}));
  EXPECT_TRUE(tracker.MayCarryTo(Step(5)));
  EXPECT_FALSE(tracker.MayCarryTo(Step(6))) << "its group does without it";
  EXPECT_TRUE(tracker.MayBegin(Step(6)));
  tracker.AdvanceTo(Step(8));
  EXPECT_EQ(tracker.current().id, GroupId(1));
  EXPECT_EQ(tracker.step(), Step(40));
}

TEST(GroupTracker, BeginsAtTheActivationStepOfTheFirstGroupItIsIn) {
  GroupTracker tracker(kSelf);
  Plan plan;
  plan.groups = {GroupOf(1, 0, {2, 3}, 0), GroupOf(4, 17, {1, 4}, 1)};
  tracker.OnPlan(plan);
  ASSERT_TRUE(tracker.in_group());
  EXPECT_EQ(tracker.current().id, GroupId(1));
  EXPECT_EQ(tracker.step(), Step(17));
}

TEST(GroupTracker, AGenerationTakesItsStepAndNoneBefore) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2}));
  tracker.OnCommit(Commit(5, {GroupOf(2, 2, {1, 2, 3})}));
  EXPECT_EQ(tracker.current().generation, GroupGeneration(1));
  tracker.Advance();
  EXPECT_EQ(tracker.current().generation, GroupGeneration(1));
  tracker.Advance();
  EXPECT_EQ(tracker.current().generation, GroupGeneration(2));
}

TEST(GroupTracker, ACommitForAStepUnderWayIsInForceAtOnce) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2}));
  tracker.Advance();
  tracker.OnCommit(Commit(5, {GroupOf(2, 1, {1, 2, 3})}));
  EXPECT_EQ(tracker.current().generation, GroupGeneration(2));
}

TEST(GroupTracker, HoldsTwoStepsAfterItsAckUntilTheChangeIsDecided) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2}));
  tracker.Advance();
  EXPECT_EQ(tracker.OnPrepare(Prepare(5)), Step(1));
  EXPECT_TRUE(tracker.MayAdvance());
  tracker.Advance();
  EXPECT_FALSE(tracker.MayAdvance()) << "step 3 may be one of the new generation";
  tracker.OnAbort(4);
  EXPECT_FALSE(tracker.MayAdvance());
  tracker.OnAbort(5);
  EXPECT_TRUE(tracker.MayAdvance());
  tracker.OnPrepare(Prepare(6));
  tracker.Advance();
  EXPECT_FALSE(tracker.MayAdvance());
  tracker.OnCommit(Commit(6, {GroupOf(2, 4, {1, 2, 3})}));
  EXPECT_TRUE(tracker.MayAdvance());
}

TEST(GroupTracker, ANewStreamEndsTheHoldsOfChangesWhoseEndWasMissed) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2}));
  tracker.OnPrepare(Prepare(5));
  tracker.Advance();
  ASSERT_FALSE(tracker.MayAdvance());
  tracker.OnNewStream();
  EXPECT_TRUE(tracker.MayAdvance());
}

TEST(GroupTracker, AFenceIsInForceAtOnce) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2, 3}));
  tracker.OnFence(Fence(GroupOf(2, 0, {1, 3})));
  EXPECT_EQ(tracker.current().members.size(), 2u);
}

// The generation that was due has the dead member in it; taking it would undo the fence.
TEST(GroupTracker, AFenceForgetsTheGenerationsThatWereDueBeforeIt) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2, 3}));
  tracker.OnCommit(Commit(5, {GroupOf(2, 2, {1, 2, 3, 4})}));
  tracker.OnFence(Fence(GroupOf(3, 2, {1, 3, 4})));
  tracker.Advance();
  tracker.Advance();
  EXPECT_EQ(tracker.current().generation, GroupGeneration(3));
}

TEST(GroupTracker, KnowsWhenItLeavesAndWhoDoesWithoutIt) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2}));
  EXPECT_FALSE(tracker.IsWithoutSelf(GroupGeneration(2)));
  tracker.OnCommit(Commit(5, {GroupOf(2, 2, {2})}));
  EXPECT_EQ(tracker.leaves_at(), Step(2));
  EXPECT_TRUE(tracker.in_group());
  EXPECT_FALSE(tracker.IsWithoutSelf(GroupGeneration(1)));
  EXPECT_TRUE(tracker.IsWithoutSelf(GroupGeneration(2)));
  EXPECT_TRUE(tracker.IsWithoutSelf(GroupGeneration(3))) << "a fence after the commit";
}

TEST(GroupTracker, MovesToItsNextGroupAtThatGroupsStep) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2}));
  tracker.OnCommit(Commit(5, {GroupOf(2, 1, {2}), GroupOf(8, 40, {1, 3}, 1)}));
  tracker.Advance();
  EXPECT_EQ(tracker.current().id, GroupId(1));
  EXPECT_EQ(tracker.step(), Step(40));
  EXPECT_FALSE(tracker.leaves_at());
}

// A worker that missed a commit for step 10 and the fence after it.
TEST(GroupTracker, APlanMakesUpForAFenceThatWasMissed) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1, 2}));
  tracker.Advance();
  Plan plan;
  plan.groups = {GroupOf(3, 10, {1, 3})};
  plan.groups[0].last_fence = GroupGeneration(3);
  tracker.OnPlan(plan);
  EXPECT_EQ(tracker.step(), Step(1));
  EXPECT_EQ(tracker.current().generation, GroupGeneration(3));
  // An ordered change waits for its step.
  plan.groups = {GroupOf(4, 12, {1, 3, 4})};
  plan.groups[0].last_fence = GroupGeneration(3);
  tracker.OnPlan(plan);
  EXPECT_EQ(tracker.current().generation, GroupGeneration(3));
}

TEST(GroupTracker, OneThatWillGetAMemberIsNotAlone) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 0, {1}));
  EXPECT_TRUE(tracker.alone());
  tracker.OnCommit(Commit(5, {GroupOf(2, 10, {1, 2})}));
  // Whoever leaves before step 10 still owes its last word to the joiner, which is in step 10 when
  // it acknowledges that this one leaves: in force from step 12.
  EXPECT_FALSE(tracker.alone());
  EXPECT_GE(tracker.counted_on_through(), Step(11));
}

// ---- From one group to another

GroupPlan Entered(uint64_t generation, uint64_t activation, uint64_t first_step,
                  std::vector<uint32_t> members = {1, 3}) {
  GroupPlan group = GroupOf(generation, activation, std::move(members), 1);
  for (Member& member : group.members) {
    if (member.node == kSelf) member.first_step = Step(first_step);
  }
  return group;
}

PrepareDirective PrepareOf(uint64_t change, GroupPlan group) {
  PrepareDirective directive = Prepare(change);
  directive.groups.push_back(std::move(group));
  return directive;
}

// In step 5 of group 0, to go over at its step 8 to step 40 of group 1.
GroupTracker OnItsWay() {
  GroupTracker tracker = TrackerIn(GroupOf(1, 5, {1, 2}));
  tracker.OnCommit(Commit(5, {GroupOf(2, 8, {2}), Entered(8, 40, 40)}));
  return tracker;
}

TEST(GroupTracker, OnItsWayItAnswersForTheGroupItGoesTo) {
  GroupTracker tracker = OnItsWay();
  EXPECT_TRUE(tracker.goes_over());
  EXPECT_EQ(tracker.OnPrepare(PrepareOf(6, Entered(9, 41, 40, {1, 3, 4}))), Step(40));
  // Its old group has other numbers: nothing holds it there.
  tracker.AdvanceTo(Step(7));
  EXPECT_TRUE(tracker.MayAdvance());
  tracker.Advance();
  EXPECT_EQ(tracker.step(), Step(40));
  EXPECT_TRUE(tracker.MayAdvance());
  EXPECT_FALSE(tracker.MayBegin(Step(42))) << "which may be of the new generation";
}

TEST(GroupTracker, ItArrivesWhereItCountsWhateverWasAgreedSince) {
  GroupTracker tracker = OnItsWay();
  tracker.OnCommit(Commit(6, {Entered(9, 44, 40, {1, 3, 4})}));
  tracker.AdvanceTo(Step(8));
  EXPECT_EQ(tracker.step(), Step(40));
  EXPECT_EQ(tracker.current().generation, GroupGeneration(8));
  tracker.AdvanceTo(Step(44));
  EXPECT_EQ(tracker.current().generation, GroupGeneration(9));
}

TEST(GroupTracker, AFenceOfTheGroupItGoesToHoldsWhenItArrives) {
  GroupTracker tracker = OnItsWay();
  tracker.OnCommit(Commit(6, {Entered(9, 44, 40, {1, 3, 4})}));
  GroupPlan fenced = Entered(10, 44, 40, {1, 4});
  fenced.last_fence = GroupGeneration(10);
  tracker.OnFence(Fence(fenced));
  tracker.AdvanceTo(Step(8));
  EXPECT_EQ(tracker.step(), Step(40));
  EXPECT_EQ(tracker.current().generation, GroupGeneration(10));
}

// Owners do without it for every step after a fence; it need not stay until the step agreed, but
// those who have not heard of the fence are told up to there.
TEST(GroupTracker, AFenceOfTheGroupItLeavesLetsItGoAtOnce) {
  GroupTracker tracker = OnItsWay();
  EXPECT_EQ(tracker.PassesThrough(Step(6)), Step(5));
  EXPECT_EQ(tracker.PassesThrough(Step(8)), Step(7));
  tracker.OnFence(Fence(GroupOf(3, 8, {2})));
  EXPECT_EQ(tracker.leaves_at(), Step(6));
  EXPECT_EQ(tracker.PassesThrough(Step(6)), Step(7));
  tracker.Advance();
  EXPECT_EQ(tracker.current().id, GroupId(1));
}

TEST(GroupTracker, APlanWithoutItsGroupSendsItOver) {
  GroupTracker tracker = TrackerIn(GroupOf(1, 5, {1}));
  Plan plan;
  plan.groups = {Entered(8, 40, 40)};
  tracker.OnPlan(plan);
  EXPECT_FALSE(tracker.alone()) << "others wait for it there";
  tracker.Advance();
  EXPECT_EQ(tracker.step(), Step(40));
}

// It asked to leave before it heard that it was to go over.
TEST(GroupTracker, LeavesTheGroupItGoesToAsWell) {
  GroupTracker tracker = OnItsWay();
  EXPECT_EQ(tracker.OnPrepare(PrepareOf(6, GroupOf(9, 41, {3}, 1))), Step(40));
  tracker.OnCommit(Commit(6, {GroupOf(9, 42, {3}, 1)}));
  EXPECT_EQ(tracker.leaves_at(), Step(8));
  tracker.AdvanceTo(Step(8));
  EXPECT_EQ(tracker.step(), Step(40));
  EXPECT_EQ(tracker.leaves_at(), Step(42));
  EXPECT_FALSE(tracker.goes_over());
}

}  // namespace
}  // namespace paceline
