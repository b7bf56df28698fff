#include "parameter/group_table.h"

#include <gtest/gtest.h>

#include <numeric>

#include "parameter/shard_test_util.h"

namespace paceline {
namespace {

// `group` with a member that joined with `step`.
GroupPlan Joined(GroupPlan group, uint32_t member, uint64_t step) {
  for (Member& m : group.members) {
    if (m.node == MemberNumber(member).node) m.first_step = Step(step);
  }
  return group;
}

bool IsCovered(const GroupTable& groups, uint32_t member, uint64_t step) {
  const GroupTable::Generation* const holds = groups.InForce(GroupId(0), Step(step));
  for (const Member& m : holds->plan->members) {
    if (m.node == MemberNumber(member).node) return groups.IsCovered(GroupId(0), m, Step(step));
  }
  return false;
}

TEST(GroupTable, AGenerationHoldsFromItsActivationStep) {
  GroupTable groups;
  groups.ApplyPlan({GroupOf(0, {0, 1})});
  groups.Commit({GroupOf(0, {0, 1, 2}, 2, 10)});
  const auto admit = [&groups](uint64_t generation, uint64_t step, uint32_t member,
                               uint64_t incarnation = 1) {
    return groups
        .Admit(GroupId(0), GroupGeneration(generation), Step(step), NodeId(100 + member),
               Incarnation(incarnation))
        .admission;
  };
  EXPECT_EQ(admit(1, 9, 0), Admission::kAccept);
  EXPECT_EQ(admit(1, 10, 0), Admission::kOldGeneration);
  EXPECT_EQ(admit(2, 10, 0), Admission::kAccept);
  EXPECT_EQ(admit(2, 10, 2), Admission::kAccept);
  EXPECT_EQ(admit(1, 9, 2), Admission::kOldGeneration);  // not a member yet
  EXPECT_EQ(admit(3, 20, 0), Admission::kPark);
  EXPECT_EQ(admit(2, 10, 0, 0), Admission::kFenced);  // an older incarnation
  EXPECT_EQ(
      groups.Admit(GroupId(7), GroupGeneration(1), Step(0), NodeId(100), Incarnation(1)).admission,
      Admission::kPark);
}

// What comes of a group that is not known is too early, or too late: nobody waits for the latter.
TEST(GroupTable, AGroupThatHasEndedIsNotOneThatIsYetToBegin) {
  GroupTable groups;
  GroupPlan other = GroupOf(0, {0, 1});
  other.id = GroupId(1);
  groups.ApplyPlan({other}, {}, GroupId(3));
  const auto admit = [&groups](uint32_t group) {
    const Admission boundary =
        groups.AdmitBoundary(GroupId(group), GroupGeneration(1), NodeId(100), Incarnation(1));
    const Admission push =
        groups.Admit(GroupId(group), GroupGeneration(1), Step(0), NodeId(100), Incarnation(1))
            .admission;
    EXPECT_EQ(push, boundary);
    return push;
  };
  EXPECT_EQ(admit(0), Admission::kOldGeneration);
  EXPECT_EQ(admit(1), Admission::kAccept);
  EXPECT_EQ(admit(2), Admission::kOldGeneration);
  EXPECT_EQ(admit(3), Admission::kPark);
}

TEST(GroupTable, AGenerationStaysUntilItsStepsAreOverAndNotForEver) {
  GroupTable groups;
  std::vector<uint32_t> members(30);
  std::iota(members.begin(), members.end(), 0);
  groups.ApplyPlan({GroupOf(0, members)});
  const auto leave_one = [&](uint64_t generation) {
    groups.Cover(GroupId(0), NodeId(100 + members.back()), Incarnation(1), Step(20 + generation));
    members.pop_back();
    groups.Commit({GroupOf(0, members, generation, 20 + generation)});
  };
  for (uint64_t generation = 2; generation <= 20; ++generation) leave_one(generation);
  const auto admitted =
      groups.Admit(GroupId(0), GroupGeneration(1), Step(21), NodeId(100), Incarnation(1));
  EXPECT_EQ(admitted.admission, Admission::kAccept);
  for (const uint32_t member : members) {
    groups.Cover(GroupId(0), NodeId(100 + member), Incarnation(1), Step(60));
  }
  leave_one(21);
  EXPECT_EQ(groups.InForce(GroupId(0), Step(21)), nullptr);
  EXPECT_NE(groups.InForce(GroupId(0), Step(41)), nullptr);
}

TEST(GroupTable, AJoinerOwesNothingToStepsBeforeItsOwnWhenAFenceComesFirst) {
  GroupTable groups;
  groups.ApplyPlan({GroupOf(0, {0, 1})});
  groups.Commit({Joined(GroupOf(0, {0, 1, 2}, 2, 10), 2, 10)});
  groups.Fence({NodeId(101), Incarnation(1)}, {Joined(GroupOf(0, {0, 2}, 3, 10), 2, 10)});
  EXPECT_TRUE(IsCovered(groups, 2, 9));
  EXPECT_FALSE(IsCovered(groups, 2, 10));
  EXPECT_FALSE(IsCovered(groups, 0, 9));
}

TEST(GroupTable, JoinersOfDifferentStepsOweNothingToTheStepsBeforeTheirs) {
  const auto joined = [](GroupPlan group) { return Joined(Joined(group, 2, 10), 3, 11); };
  GroupTable groups;
  groups.ApplyPlan({GroupOf(0, {0, 1})});
  groups.Commit({joined(GroupOf(0, {0, 1, 2}, 2, 10))});
  groups.Commit({joined(GroupOf(0, {0, 1, 2, 3}, 3, 11))});
  groups.Fence({NodeId(101), Incarnation(1)}, {joined(GroupOf(0, {0, 2, 3}, 4, 11))});
  EXPECT_FALSE(IsCovered(groups, 0, 9));
  EXPECT_TRUE(IsCovered(groups, 2, 9));
  EXPECT_FALSE(IsCovered(groups, 2, 10));
  EXPECT_TRUE(IsCovered(groups, 3, 10));
  EXPECT_FALSE(IsCovered(groups, 3, 11));
}

TEST(GroupTable, AnOwnerThatHearsOfAGroupLateDoesNotWaitForItsJoiners) {
  // Its first plan has the generation from step 10; a member of the one before is in step 9.
  GroupTable groups;
  groups.ApplyPlan({Joined(GroupOf(0, {0, 2}, 2, 10), 2, 10)});
  EXPECT_EQ(groups.InForce(GroupId(0), Step(9))->plan->generation, GroupGeneration(2));
  EXPECT_TRUE(IsCovered(groups, 2, 9));
  EXPECT_FALSE(IsCovered(groups, 2, 10));
  EXPECT_FALSE(IsCovered(groups, 0, 9));
}

// Its death is of the group that it went to; the one it came from has gone on, or has ended.
TEST(GroupTable, WhoDiesOnItsWayToAnotherGroupIsAwaitedInNone) {
  for (const bool by_plan : {false, true}) {
    GroupTable groups;
    groups.ApplyPlan({GroupOf(0, {0, 1}), GroupOf(1, {2}), GroupOf(2, {3, 1})});
    groups.Commit({GroupOf(0, {0}, 2, 43), GroupOf(1, {1, 2}, 2, 9)});
    groups.Commit({GroupOf(2, {3}, 2, 20)});
    groups.Cover(GroupId(2), MemberNumber(1).node, Incarnation(1), Step(19));
    ASSERT_EQ(groups.InForce(GroupId(0), Step(42))->plan->members.size(), 2u);
    const NodeRef dead{MemberNumber(1).node, Incarnation(1)};
    GroupPlan left = GroupOf(1, {2}, 3, 9);
    left.last_fence = left.generation;
    if (by_plan) {
      groups.ApplyPlan({GroupOf(0, {0}, 2, 43), left, GroupOf(2, {3}, 2, 20)}, {dead});
    } else {
      groups.Fence(dead, {left});
    }
    EXPECT_EQ(groups.InForce(GroupId(0), Step(42))->plan->members.size(), 1u);
    EXPECT_EQ(groups.InForce(GroupId(2), Step(19))->plan->generation, GroupGeneration(1))
        << "which it was done with";
  }
}

TEST(GroupTable, APlanMakesUpForAFenceThatWasMissed) {
  // A commit for step 10 was heard; then a member died while the stream of directives was broken.
  GroupTable groups;
  groups.ApplyPlan({GroupOf(0, {0, 1})});
  groups.Commit({Joined(GroupOf(0, {0, 1, 2}, 2, 10), 2, 10)});
  GroupPlan plan = Joined(GroupOf(0, {0, 2}, 3, 10), 2, 10);
  plan.last_fence = GroupGeneration(3);
  groups.ApplyPlan({plan});
  // Steps before 10 do without the dead one, and owe the joiner of step 10 nothing.
  EXPECT_EQ(groups.InForce(GroupId(0), Step(5))->plan->generation, GroupGeneration(3));
  EXPECT_TRUE(IsCovered(groups, 2, 9));
  EXPECT_FALSE(IsCovered(groups, 2, 10));
}

}  // namespace
}  // namespace paceline
