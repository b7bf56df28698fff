// Workers that go over to another group.
#include <optional>

#include "scheduler/core/core_test_util.h"

namespace paceline::scheduler {
namespace {

using paceline::Step;

class MigrationTest : public CoreTest {
 protected:
  // Groups of worker-0, worker-1 and of worker-2, worker-3.
  void StartTwoGroups() {
    Start(1, Spec(4, "2"));
    Register(W(0));
    c.Ask(W(0), InitDoneRequest{{TensorId(0), TensorId(1)}});
    InStep(0, 40);
    InStep(1, 41);
    InStep(2, 7);
    InStep(3, 6);
  }
  void InStep(uint32_t worker, uint64_t step) {
    c.steps[c.joined.at(W(worker)).self.node] = Step(step);
  }
  RequestId Move(uint32_t worker, std::optional<uint32_t> group, const char* why = "") {
    std::optional<GroupId> to;
    if (group) to = GroupId(*group);
    const RequestId id(1'000'000 + ++moves_);
    c.Feed(OperatorEvent{id, MoveWorkerRequest{"mnist", W(worker), to, why}});
    return id;
  }
  std::string Refusal(uint32_t worker, std::optional<uint32_t> group) {
    const absl::Status status = c.StatusOf(Move(worker, group));
    return status.ok() ? "" : std::string(status.message());
  }
  void Says(uint32_t worker, uint32_t group, uint64_t step, uint32_t step_time_us = 0) {
    WorkerReport report;
    report.group = GroupId(group);
    report.step = Step(step);
    report.step_time_us = step_time_us;
    c.Ask(W(worker), report);
  }
  void Silence(const std::string& name) { c.silent.insert(c.joined.at(name).self.node); }
  void Hear(const std::string& name) {
    c.silent.erase(c.joined.at(name).self.node);
    c.Feed(WatchEvent{c.joined.at(name).self});
  }
  void Kill(uint32_t worker) { c.Feed(ProcessEndedEvent{c.joined.at(W(worker)).self, "killed"}); }
  std::string Now() { return Members(c.Job("mnist")); }
  int Said(const std::string& kind) {
    int count = 0;
    for (const DecisionRecord& d : c.decisions()) count += d.kind == kind;
    return count;
  }

  uint64_t moves_ = 0;
};

TEST_F(MigrationTest, ItIsOneChangeOfBothGroupsAtStepsThatNobodyHasBegun) {
  StartTwoGroups();
  const RequestId asked = Move(1, 1, "its disk is slow");
  EXPECT_TRUE(c.StatusOf(asked).ok());
  // Two above the highest step acknowledged in each: 41 and 7.
  EXPECT_EQ(Now(), "g0.2@43:0 g1.2@9:1 2 3 ");
  const CommitDirective commit = c.Received<CommitDirective>(W(1)).back();
  ASSERT_EQ(commit.groups.size(), 2u);
  EXPECT_EQ(commit.groups[0].planned_members, 1u);
  EXPECT_EQ(commit.groups[1].planned_members, 3u);
  const Member& moved = commit.groups[1].members[0];
  EXPECT_EQ(moved.first_step, Step(9)) << "it owes nothing to the steps before";
  EXPECT_EQ(moved.incarnation, c.joined.at(W(1)).self.incarnation);
  EXPECT_EQ(commit.groups[1].members[1].first_step, Step(0));
  EXPECT_EQ(commit.reason,
            "worker worker-1 goes from group 0 to group 1: asked for by an operator: its disk is "
            "slow");
  for (const char* node : {"server-0", "worker-0", "worker-3"}) {
    EXPECT_EQ(c.Received<CommitDirective>(node).size(), 1u) << node;
  }
}

TEST_F(MigrationTest, TheNewGroupCountsOnItAboutWhenItCanBeThere) {
  StartTwoGroups();
  Says(0, 0, 40, 30'000);
  Says(1, 0, 41, 30'000);
  Says(2, 1, 7, 10'000);
  Says(3, 1, 6, 9'000);
  Move(1, 1);
  // Group 1 makes six steps while it makes its last two in group 0, the first of them anyhow.
  EXPECT_EQ(Now(), "g0.2@43:0 g1.2@14:1 2 3 ");
}

TEST_F(MigrationTest, ToAGroupOfItsOwn) {
  StartTwoGroups();
  EXPECT_TRUE(c.StatusOf(Move(1, std::nullopt)).ok());
  EXPECT_EQ(Now(), "g0.2@43:0 g1.1@0:2 3 g2.1@43:1 ");
  EXPECT_EQ(Refusal(1, std::nullopt),
            "worker worker-1 of job mnist cannot go to a group of its own: it is alone in group 2, "
            "which is its own");
}

TEST_F(MigrationTest, AGroupEndsWithItsLastMember) {
  StartTwoGroups();
  Move(1, 1);
  Says(1, 1, 9);
  InStep(1, 9);
  EXPECT_TRUE(c.StatusOf(Move(0, 1)).ok());
  EXPECT_EQ(Now(), "g1.3@11:0 1 2 3 ");
  c.Feed(WatchEvent{c.joined.at("server-0").self});
  const Plan plan = c.Received<PlanDirective>("server-0").back().plan;
  EXPECT_EQ(plan.groups.size(), 1u);
  EXPECT_EQ(plan.next_group, GroupId(2)) << "so group 0 has been, and has ended";
}

TEST_F(MigrationTest, WhatCannotBeIsRefusedAndSaysWhatCan) {
  StartTwoGroups();
  EXPECT_EQ(Refusal(1, 0), "worker worker-1 of job mnist cannot go to group 0: it is there");
  EXPECT_EQ(Refusal(1, 7),
            "worker worker-1 of job mnist cannot go to group 7: there is none; the job has 0, 1 "
            "(pacelinectl groups mnist)");
  EXPECT_EQ(c.StatusOf(Move(1, 7)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Refusal(9, 1),
            "worker worker-9 of job mnist is not live; pacelinectl nodes lists those that are");
  EXPECT_EQ(c.StatusOf(Move(9, 1)).code(), absl::StatusCode::kNotFound);
  c.Operate(RemoveWorkerRequest{"mnist", W(0), ""});
  EXPECT_EQ(Refusal(0, 1), "worker worker-0 of job mnist cannot go to group 1: it leaves the job");
  Move(1, 1);
  EXPECT_EQ(Refusal(1, 0),
            "worker worker-1 of job mnist cannot go to group 0: it is still on its way to group 1; "
            "try again in a moment");
  Says(1, 1, 8);
  EXPECT_NE(Refusal(1, 0), "") << "it is to be in step 9";
  Says(1, 1, 9);
  EXPECT_EQ(Refusal(1, 0), "");
}

TEST_F(MigrationTest, AJobOfOneGroupStaysOne) {
  Start(1, Spec(2));
  const std::string refused = Refusal(1, std::nullopt);
  EXPECT_EQ(refused,
            "worker worker-1 of job mnist cannot go to a group of its own: with groups one all "
            "workers of a job are one group; start it with groups per-worker, a number, sizes or a "
            "label");
}

TEST_F(MigrationTest, ItWaitsForChunksThatMoveAndTheyForIt) {
  StartTwoGroups();
  for (uint32_t i = 0; i < 4; ++i) Says(i, i / 2, 50);
  ASSERT_TRUE(c.Join(c.Server("server-1")).ok());
  Silence("server-1");
  c.Operate(DrainServerRequest{"server-0", false});
  ASSERT_FALSE(c.Received<PlanDirective>("server-1").empty());
  const RequestId asked = Move(1, 1);
  EXPECT_FALSE(c.Answered(asked));
  EXPECT_EQ(Refusal(1, std::nullopt),
            "worker worker-1 of job mnist is to go to group 1 already; try again when it is there");
  c.Tick(100);
  EXPECT_EQ(Said("prepare"), 0);
  Hear("server-1");
  c.Tick(100);
  EXPECT_TRUE(c.StatusOf(asked).ok());
  EXPECT_EQ(Now(), "g0.2@43:0 g1.2@9:1 2 3 ");
}

TEST_F(MigrationTest, ALeaveGoesFirstAndItIsProposedAgain) {
  StartTwoGroups();
  Silence(W(3));
  const RequestId asked = Move(1, 1);
  EXPECT_EQ(Said("prepare"), 1);
  c.Ask(W(0), LeaveRequest{"done", 0, {}});
  EXPECT_EQ(Said("abort"), 1);
  // Who leaves concerns group 0 only; then group 0 ends with the move.
  EXPECT_EQ(Now(), "g0.2@43:1 g1.1@0:2 3 ");
  EXPECT_FALSE(c.Answered(asked));
  Hear(W(3));
  EXPECT_TRUE(c.StatusOf(asked).ok());
  EXPECT_EQ(Now(), "g1.2@9:1 2 3 ");
}

TEST_F(MigrationTest, ItLeavesTheJobInstead) {
  StartTwoGroups();
  Silence(W(3));
  const RequestId asked = Move(1, 1);
  c.Ask(W(1), LeaveRequest{"done", 0, {}});
  EXPECT_EQ(c.StatusOf(asked).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Now(), "g0.2@43:0 g1.1@0:2 3 ");
}

// Nobody waits for the arrival of one that is gone.
TEST_F(MigrationTest, ItLeavesTheJobOnItsWay) {
  StartTwoGroups();
  EXPECT_TRUE(c.StatusOf(Move(1, 1)).ok());
  ASSERT_EQ(Now(), "g0.2@43:0 g1.2@9:1 2 3 ");
  c.Ask(W(1), LeaveRequest{"done", 0, {}});
  for (uint32_t i : {0, 2, 3}) Says(i, i / 2, 100);
  ASSERT_TRUE(c.Join(c.Server("server-1")).ok());
  c.Operate(DrainServerRequest{"server-0", false});
  EXPECT_EQ(Said("moved"), 1);
}

// The group it comes from has ended, so that nothing but its own word says where it is.
TEST_F(MigrationTest, ARestartedSchedulerWaitsForItsArrival) {
  Start(1, Spec(2, "per-worker"));
  Register(W(0));
  c.Ask(W(0), InitDoneRequest{{TensorId(0), TensorId(1)}});
  InStep(0, 41);
  InStep(1, 7);
  EXPECT_TRUE(c.StatusOf(Move(0, 1)).ok());
  ASSERT_EQ(Now(), "g1.2@9:0 1 ");
  c.RestartScheduler();
  for (const std::string& node : {std::string("server-0"), W(0), W(1)}) Hear(node);
  Says(0, 0, 41);
  Says(1, 1, 8);
  EXPECT_EQ(
      Refusal(0, std::nullopt),
      "worker worker-0 of job mnist cannot go to a group of its own: it is still on its way to "
      "group 1; try again in a moment");
  Says(0, 1, 9);
  EXPECT_EQ(Refusal(0, std::nullopt), "");
}

TEST_F(MigrationTest, ItDiesBeforeItIsAgreed) {
  StartTwoGroups();
  Silence(W(3));
  const RequestId asked = Move(1, 1);
  Kill(1);
  EXPECT_EQ(c.StatusOf(asked).message(), "node worker-1 is gone");
  EXPECT_EQ(Now(), "g0.2@0:0 g1.1@0:2 3 ");
  EXPECT_EQ(Said("commit"), 0);
}

TEST_F(MigrationTest, AnotherDiesBeforeItIsAgreedAndItIsProposedAgain) {
  StartTwoGroups();
  Silence(W(3));
  const RequestId asked = Move(1, 1);
  Kill(3);
  EXPECT_TRUE(c.StatusOf(asked).ok());
  EXPECT_EQ(Now(), "g0.2@43:0 g1.3@9:1 2 ");
}

// Its old group may be in a step that counts on it, and knows it only from before the agreement.
TEST_F(MigrationTest, ADeathOnItsWayFencesBothGroups) {
  StartTwoGroups();
  Says(0, 0, 42);
  Move(1, 1);
  Says(1, 0, 42);
  Kill(1);
  EXPECT_EQ(Now(), "g0.3@43:0 g1.3@9:2 3 ");
  const FenceDirective fence = c.Received<FenceDirective>("server-0").back();
  ASSERT_EQ(fence.groups.size(), 2u);
  EXPECT_EQ(fence.groups[0].last_fence, GroupGeneration(3));
  EXPECT_EQ(c.Received<FenceDirective>(W(0)).size(), 1u);
}

TEST_F(MigrationTest, AGroupPastTheAgreementDoesNotCountOnIt) {
  StartTwoGroups();
  Move(1, 1);
  Says(0, 0, 43);
  Kill(1);
  EXPECT_EQ(Now(), "g0.2@43:0 g1.3@9:2 3 ");
}

TEST_F(MigrationTest, ADeathAfterItArrivedIsOfItsNewGroup) {
  StartTwoGroups();
  Move(1, 1);
  Says(1, 1, 9);
  Kill(1);
  EXPECT_EQ(Now(), "g0.2@43:0 g1.3@9:2 3 ");
}

TEST_F(MigrationTest, ARestartedSchedulerKnowsWhatWasAgreedAndWhoMayBeOnTheWay) {
  StartTwoGroups();
  Move(1, 1);
  const std::string state = c.core().Snapshot();
  c.RestartScheduler();
  EXPECT_EQ(c.core().Snapshot(), state);
  for (const char* name : {"server-0", "worker-0", "worker-1", "worker-2", "worker-3"}) {
    c.Feed(WatchEvent{c.joined.at(name).self});
  }
  EXPECT_EQ(c.Received<PlanDirective>(W(1)).back().plan.groups[1].members[0].first_step, Step(9));
  EXPECT_NE(Refusal(1, 0), "") << "it has not said that it is there";
  Kill(1);
  EXPECT_EQ(Now(), "g0.3@43:0 g1.3@9:2 3 ");
}

TEST_F(MigrationTest, WhatWasNotAgreedIsForgottenWithTheScheduler) {
  StartTwoGroups();
  Silence(W(3));
  const RequestId asked = Move(1, 1);
  c.RestartScheduler();
  Hear(W(3));
  c.Tick(100);
  EXPECT_FALSE(c.Answered(asked)) << "so whoever asked was not told that it will be";
  EXPECT_EQ(Now(), "g0.1@0:0 1 g1.1@0:2 3 ");
}

TEST_F(MigrationTest, ASecondOneWaitsForTheFirst) {
  StartTwoGroups();
  InStep(0, 41);
  InStep(1, 9);  // what it says on its way
  Silence("server-0");
  const RequestId first = Move(1, 1);
  const RequestId second = Move(2, 0);
  EXPECT_EQ(Said("prepare"), 1);
  Hear("server-0");
  EXPECT_TRUE(c.StatusOf(first).ok());
  EXPECT_TRUE(c.StatusOf(second).ok());
  EXPECT_EQ(Now(), "g0.3@44:0 2 g1.3@11:1 3 ");
}

}  // namespace
}  // namespace paceline::scheduler
