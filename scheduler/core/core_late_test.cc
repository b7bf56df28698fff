// What is lost, late, or meets something else that is under way.
#include <gtest/gtest.h>

#include "scheduler/core/core_test_util.h"

namespace paceline::scheduler {
namespace {

TEST_F(CoreTest, AServerWhoseJoinWasNotAnsweredAsksAgainAndKeepsItsShards) {
  Start(0, Spec(1));
  const RequestId id = Register(W(0));
  JoinRequest server = c.Server("server-0");
  server.process_id = 77;
  ASSERT_TRUE(c.Join(server, false).ok());
  const NodeRef self = c.joined.at("server-0").self;
  ASSERT_TRUE(c.Join(server).ok());
  EXPECT_EQ(c.joined.at("server-0").self, self);
  EXPECT_TRUE(c.StatusOf(id).ok());
  EXPECT_EQ(c.Job("mnist").state, JobState::kRunning);
  // Another process of the same name takes its place: what the first one held is lost.
  server.process_id = 78;
  ASSERT_TRUE(c.Join(server).ok());
  EXPECT_NE(c.joined.at("server-0").self, self);
  EXPECT_EQ(c.Job("mnist").state, JobState::kStopped);
}

TEST_F(CoreTest, AfterARestartAGoneWorkerIsSettledWhenItsOwnerHasThePlan) {
  Start(1, Spec(2));
  Register(W(0));
  ASSERT_TRUE(c.StatusOf(c.Ask(W(1), DrawSamplesRequest{Samples(10), {}, {}})).ok());
  // The owner never hears of the fence; the scheduler that decided it dies.
  const NodeRef server = c.joined.at("server-0").self;
  c.Feed(WatchClosedEvent{server});
  c.Feed(ProcessEndedEvent{c.joined.at(W(1)).self, "killed"});
  c.RestartScheduler();
  // Its counts may still grow by what the dead one pushed.
  Report({{W(1), {0, 0}}});
  EXPECT_EQ(c.Job("mnist").returned, Samples(0));
  c.Feed(WatchEvent{server});
  Report({{W(1), {10, 0}}});
  EXPECT_EQ(c.Job("mnist").returned, Samples(0));
  EXPECT_EQ(c.Job("mnist").drawn, c.Job("mnist").applied);
}

TEST_F(CoreTest, AGroupPlanSaysOfTheLastFenceAndOfWhoWasPlanned) {
  Start(1, Spec(3));
  Register(W(0));
  c.Feed(ProcessEndedEvent{c.joined.at(W(2)).self, "killed"});
  GroupPlan group = c.Job("mnist").groups.front().plan;
  EXPECT_EQ(group.last_fence, group.generation);
  EXPECT_EQ(group.planned_members, 3u);
  const GroupGeneration fenced = group.generation;
  ASSERT_TRUE(c.Join(c.Worker(W(3), Spec(3), 3)).ok());
  group = c.Job("mnist").groups.front().plan;
  EXPECT_EQ(group.last_fence, fenced);
  EXPECT_EQ(group.planned_members, 3u);
  ASSERT_TRUE(c.Join(c.Worker(W(4), Spec(3), 4)).ok());
  EXPECT_EQ(c.Job("mnist").groups.front().plan.planned_members, 4u);
}

TEST_F(CoreTest, AnOwnerThatCameAfterTheProposalHearsOfTheCommit) {
  Start(1, Spec(2));
  const NodeId slow = c.joined.at(W(1)).self.node;
  c.silent.insert(slow);
  ASSERT_TRUE(c.Join(c.Worker(W(2), Spec(2), 2)).ok());
  const auto prepared = c.Received<PrepareDirective>(W(1));
  ASSERT_EQ(prepared.size(), 1u);
  Register(W(0));  // the server has no part in the change that is under way
  EXPECT_TRUE(c.Received<PrepareDirective>("server-0").empty());
  AckRequest ack;
  ack.id = prepared[0].change;
  c.Ask(W(1), ack);
  const auto commits = c.Received<CommitDirective>("server-0");
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].groups[0].generation, GroupGeneration(2));
}

TEST_F(CoreTest, AMemberKnowsTheStepItJoinedWith) {
  Start(1, Spec(2));
  c.steps[c.joined.at(W(0)).self.node] = paceline::Step(17);
  ASSERT_TRUE(c.Join(c.Worker(W(2), Spec(2), 2)).ok());
  // Who acked step 17 may be in step 18 before it hears of the commit.
  EXPECT_EQ(Members(c.Job("mnist")), "g0.2@19:0 1 2 ");
  c.Feed(ProcessEndedEvent{c.joined.at(W(1)).self, "signal 9"});
  const GroupPlan group = c.Job("mnist").groups[0].plan;
  ASSERT_EQ(group.members.size(), 2u);
  EXPECT_EQ(group.members[0].first_step, paceline::Step(0));
  EXPECT_EQ(group.members[1].first_step, paceline::Step(19));
}

// Samples for later are given to nobody while others have none.
TEST_F(CoreTest, ADrawAheadIsAnsweredAtOnceAndTakesNothingFromThoseWhoWait) {
  JobSpec spec = Spec(2);
  spec.epochs = 1;
  Start(1, spec);
  Register(W(0));
  DrawSamplesRequest ahead{Samples(200), {}, {}, true};
  EXPECT_EQ(c.ReplyOf<DrawSamplesReply>(c.Ask(W(0), ahead)).ranges,
            (std::vector<SampleRange>{{Epoch(0), 0, 200}}));
  for (int i = 0; i < 100; ++i) c.Ask(W(0), ahead);
  EXPECT_EQ(c.Job("mnist").drawn, Samples(1000));
  const auto none = c.ReplyOf<DrawSamplesReply>(c.Ask(W(0), ahead));
  EXPECT_TRUE(none.ranges.empty());
  EXPECT_FALSE(none.finished) << "some may come back";
  const RequestId waits = c.Ask(W(1), DrawSamplesRequest{Samples(10), {}, {}});
  EXPECT_FALSE(c.Answered(waits));
  EXPECT_EQ(c.Received<RecallSamplesDirective>(W(0)).size(), 1u);
  const RequestId later = c.Ask(W(0), ahead);
  EXPECT_TRUE(c.Answered(later));
  c.Ask(W(0), ReturnSamplesRequest{{{Epoch(0), 900, 1000}}});
  EXPECT_EQ(c.ReplyOf<DrawSamplesReply>(waits).ranges,
            (std::vector<SampleRange>{{Epoch(0), 900, 910}}));
}

TEST_F(CoreTest, AnEndedJobKeepsTheCountsOfWorkersThatCameAgain) {
  Start(1, Spec(2));
  Register(W(0));
  c.Ask(W(0), DrawSamplesRequest{Samples(20), {}, {}});
  c.Ask(W(1), DrawSamplesRequest{Samples(20), {}, {}});
  Report({{W(0), {20, 0}}, {W(1), {20, 0}}});
  c.Ask(W(0), LeaveRequest{});
  c.Ask(W(1), LeaveRequest{});
  ASSERT_TRUE(c.Join(c.Worker(W(1), Spec(2), 1)).ok());
  const auto jobs = std::get<ClusterView>(c.Operate(StatusQuery{"mnist"})).jobs;
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].state, JobState::kFinished);
  EXPECT_EQ(jobs[0].applied, Samples(40));
  EXPECT_EQ(jobs[0].drawn, Samples(40));
  EXPECT_EQ(jobs[0].workers_live, 0u);
  EXPECT_EQ(jobs[1].drawn, Samples(0));
  EXPECT_EQ(jobs[1].workers_live, 1u);
}

TEST_F(CoreTest, SamplesOfAWorkerThatMayBeDeadAreWaitedFor) {
  JobSpec spec = Spec(2);
  spec.sample_count = 20;
  spec.epochs = 1;
  spec.failure_timeout_ms = 4000;
  Start(1, spec);
  Register(W(0));
  c.Ask(W(1), DrawSamplesRequest{Samples(10), {}, {}});
  c.Ask(W(0), DrawSamplesRequest{Samples(10), {}, {}});
  c.Tick(2100);  // worker-1 is silent for more than half of its time
  c.Ask(W(0), Heartbeat{});
  c.Ask("server-0", Heartbeat{});
  Report({{W(0), {10, 0}}});
  const RequestId draw = c.Ask(W(0), DrawSamplesRequest{Samples(10), {}, {}});
  EXPECT_FALSE(c.Answered(draw));
  c.Tick(2000);  // it is dead
  EXPECT_FALSE(c.Answered(draw));
  Report({{W(0), {10, 0}}});
  ASSERT_TRUE(c.Answered(draw));
  EXPECT_EQ(c.ReplyOf<DrawSamplesReply>(draw).ranges,
            (std::vector<SampleRange>{{Epoch(0), 0, 10}}));
}

TEST_F(CoreTest, WhatADeadWorkerHeldIsSettledAlsoAfterTheEnd) {
  Start(1, Spec(2));
  Register(W(0));
  c.Ask(W(1), DrawSamplesRequest{Samples(10), {}, {}});
  c.Feed(ProcessEndedEvent{c.joined.at(W(1)).self, "signal 9"});
  c.Ask(W(0), LeaveRequest{});
  ASSERT_EQ(c.Job("mnist").state, JobState::kFinished);
  Report({{W(1), {1, 0}}});  // it was on its way
  EXPECT_EQ(c.Job("mnist").returned, Samples(0));
  Report({{W(1), {4, 0}}});
  EXPECT_EQ(c.Job("mnist").applied, Samples(4));
  EXPECT_EQ(c.Job("mnist").returned, Samples(6));
}

TEST_F(CoreTest, ARecallThatWasLostWithAStreamIsSentAgain) {
  JobSpec spec = Spec(2);
  spec.sample_count = 100;
  spec.epochs = 1;
  Start(1, spec);
  Register(W(0));
  for (int i = 0; i < 3; ++i) c.Ask(W(1), DrawSamplesRequest{Samples(40), {}, {}});
  c.Feed(WatchClosedEvent{c.joined.at(W(1)).self});
  RequestId draw;
  do {
    draw = c.Ask(W(0), DrawSamplesRequest{Samples(40), {}, {}});
  } while (c.Answered(draw));
  EXPECT_TRUE(c.Received<RecallSamplesDirective>(W(1)).empty());
  c.Feed(WatchEvent{c.joined.at(W(1)).self});
  EXPECT_EQ(c.Received<RecallSamplesDirective>(W(1)).size(), 1u);
}

TEST_F(CoreTest, AGroupThatBeginsLaterBeginsAtTheNewestStep) {
  JobSpec spec = Spec(2);
  spec.deterministic = true;
  Start(1, spec);
  Register(W(0));
  c.Ask(W(0), DrawSamplesRequest{Samples(10), paceline::Step(30), {}});
  c.Feed(ProcessEndedEvent{c.joined.at(W(1)).self, "signal 9"});
  // The last of the group comes again: a group of its own takes the place of the one that ended.
  ASSERT_TRUE(c.Join(c.Worker(W(1), spec, 1), false).ok());
  c.Feed(ProcessEndedEvent{c.joined.at(W(0)).self, "signal 9"});
  c.Feed(WatchEvent{c.joined.at(W(1)).self});
  c.Tick(100);
  // Step 30 was drawn for; its samples are not drawn a second time.
  EXPECT_EQ(c.Job("mnist").groups.back().plan.activation_step, paceline::Step(32));
}

}  // namespace
}  // namespace paceline::scheduler
