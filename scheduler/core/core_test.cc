#include "scheduler/core/core.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/core/core_test_util.h"
#include "scheduler/core/journal_entry.h"

namespace paceline::scheduler {
namespace {

TEST_F(CoreTest, FormsTheJobWhenAllWorkersHaveJoined) {
  Start(1, Spec(3));
  EXPECT_EQ(c.Job("mnist").state, JobState::kRunning);
  EXPECT_EQ(Members(c.Job("mnist")), "g0.1@0:0 1 2 ");
  const auto plans = c.Received<PlanDirective>(W(2));
  ASSERT_FALSE(plans.empty());
  EXPECT_EQ(plans.back().plan.groups.size(), 1u);
}

TEST_F(CoreTest, GroupsAsAskedFor) {
  Start(1, Spec(4, "3,1"));
  EXPECT_EQ(Members(c.Job("mnist")), "g0.1@0:0 1 2 g1.1@0:3 ");
}

TEST_F(CoreTest, SizesFollowTheWorkerIndexThenTheRank) {
  const JobSpec spec = Spec(3, "2,1");
  // Ranks in order of joining: index 2 has rank 0, index 0 rank 1, index 1 rank 2.
  ASSERT_TRUE(c.Join(c.Worker("c", spec, 2)).ok());
  ASSERT_TRUE(c.Join(c.Worker("a", spec, 0)).ok());
  ASSERT_TRUE(c.Join(c.Worker("b", spec, 1)).ok());
  EXPECT_EQ(Members(c.Job("mnist")), "g0.1@0:1 2 g1.1@0:0 ");
}

TEST_F(CoreTest, ADifferentSpecIsRefusedByField) {
  ASSERT_TRUE(c.Join(c.Worker(W(0), Spec(2), 0)).ok());
  JobSpec other = Spec(2);
  other.seed = 9;
  const absl::Status status = c.Join(c.Worker(W(1), other, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("seed: 0 != 9"), std::string::npos) << status;
}

TEST_F(CoreTest, WhatThisVersionDoesNotDoIsRefusedByName) {
  const std::vector<std::pair<std::string, std::function<void(JobSpec&)>>> asked = {
      {"aggregation", [](JobSpec& spec) { spec.aggregation = Aggregation::kPeer; }},
      {"local_steps", [](JobSpec& spec) { spec.local_steps = 4; }},
      {"gate", [](JobSpec& spec) { spec.gate = true; }},
      {"max_staleness", [](JobSpec& spec) { spec.max_staleness = 64; }},
      {"codecs",
       [](JobSpec& spec) {
         spec.codecs["*"] = {"two_bit", {}};
       }},
      {"policy",
       [](JobSpec& spec) {
         spec.policy = {"guess", {}};
       }},
  };
  for (const auto& [field, ask] : asked) {
    ClusterForTest cluster;
    JobSpec spec = Spec(2);
    ask(spec);
    const absl::Status status = cluster.Join(cluster.Worker("w0", spec, 0));
    EXPECT_FALSE(status.ok()) << field;
    EXPECT_NE(std::string(status.message()).find(field), std::string::npos) << status;
  }
}

TEST_F(CoreTest, PlacesSealsAndReturnsTheSameIds) {
  Start(2, Spec(2));
  const RequestId first = Register(W(0));
  const RequestId second = Register(W(1));
  ASSERT_TRUE(c.StatusOf(first).ok()) << c.StatusOf(first);
  EXPECT_EQ(c.ReplyOf<RegisterTensorsReply>(first).ids,
            (std::vector<TensorId>{TensorId(0), TensorId(1)}));
  EXPECT_EQ(c.ReplyOf<RegisterTensorsReply>(second), c.ReplyOf<RegisterTensorsReply>(first));
  const Plan plan = c.Received<PlanDirective>(W(1)).back().plan;
  EXPECT_EQ(plan.init_writer, c.joined.at(W(0)).self.node);
  EXPECT_EQ(plan.servers.size(), 2u);
  const InitDoneRequest done{{TensorId(0), TensorId(1)}};
  EXPECT_EQ(c.StatusOf(c.Ask(W(1), done)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(c.StatusOf(c.Ask(W(0), done)).ok());
  EXPECT_EQ(c.Received<SealedDirective>("server-1").size(), 1u);
  EXPECT_EQ(c.Received<SealedDirective>(W(1)).size(), 1u);
}

TEST_F(CoreTest, AnotherShapeIsRefusedWithBothSpecs) {
  Start(1, Spec(1));
  Register(W(0));
  const absl::Status status =
      c.StatusOf(c.Ask(W(0), RegisterTensorsRequest{{{"w", {784, 64}, DType::kF32, false}}}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "tensor w: registered as f32[784,128], now as f32[784,64]; every worker must register "
            "the same");
}

TEST_F(CoreTest, RegistrationWaitsForAServerAndForItsAck) {
  Start(0, Spec(1));
  const RequestId id = Register(W(0));
  EXPECT_FALSE(c.Answered(id));
  ASSERT_TRUE(c.Join(c.Server("server-0"), false).ok());
  EXPECT_FALSE(c.Answered(id));
  c.Feed(WatchEvent{c.joined.at("server-0").self});
  EXPECT_TRUE(c.StatusOf(id).ok());
}

TEST_F(CoreTest, RegistrationEndsWithTheReasonOfAServerThatCannotTakeThePlan) {
  c.silent.insert(NodeId(1));
  Start(1, Spec(1));
  ASSERT_EQ(c.joined.at("server-0").self.node, NodeId(1));
  const RequestId id = Register(W(0));
  EXPECT_FALSE(c.Answered(id));
  AckRequest ack;
  ack.id = c.Received<PlanDirective>("server-0").back().change;
  ack.error = "more than the quota; raise it or add servers";
  c.Ask("server-0", ack);
  // Another code would make the session try again until its deadline.
  EXPECT_EQ(c.StatusOf(id), absl::FailedPreconditionError(
                                "server server-0: more than the quota; raise it or add servers"));
}

TEST_F(CoreTest, KeysReachOwnersAndTheMemberOnly) {
  Start(1, Spec(2));
  Register(W(0));
  const auto keys = [&](const std::string& name) {
    int known = 0;
    const std::vector<PlanDirective> received = c.Received<PlanDirective>(name);
    for (const Member& m : received.back().plan.groups[0].members) {
      if (m.key != SecretKey{}) ++known;
    }
    return known;
  };
  EXPECT_EQ(keys("server-0"), 2);
  EXPECT_EQ(keys(W(1)), 1);
}

TEST_F(CoreTest, AJoinerEntersWhereNobodyCanHaveBegun) {
  Start(1, Spec(2));
  Register(W(0));
  c.steps[c.joined.at(W(0)).self.node] = paceline::Step(41);
  c.steps[c.joined.at(W(1)).self.node] = paceline::Step(40);
  ASSERT_TRUE(c.Join(c.Worker(W(2), Spec(2), 2)).ok());
  // Who acked step 41 may have begun step 42 before it hears of the commit.
  EXPECT_EQ(Members(c.Job("mnist")), "g0.2@43:0 1 2 ");
  EXPECT_EQ(c.Received<CommitDirective>("server-0").size(), 1u);
  EXPECT_EQ(c.Received<CommitDirective>(W(2)).size(), 1u);
}

TEST_F(CoreTest, AnEndedJobShowsWhoTrainedInEachGroup) {
  Start(1, Spec(3, "2,1"));
  Register(W(0));
  JobAtServer at;
  at.job = c.joined.at(W(0)).job;
  at.lead = true;
  for (uint32_t i = 0; i < 3; ++i) {
    WorkerStaleness w;
    w.worker = c.joined.at(W(i)).self.node;
    w.group = GroupId(i / 2);
    w.tau = {1, 0, 0, {1}};
    w.last_step = paceline::Step(w.group == GroupId(0) ? 9 : 4);
    at.workers.push_back(w);
  }
  at.groups.resize(2);
  at.groups[1].group = GroupId(1);
  at.groups[0].last_step = paceline::Step(9);
  at.groups[1].last_step = paceline::Step(4);
  // A worker's own report, newer than the owner's, makes nobody lag.
  WorkerReport own;
  own.step = paceline::Step(12);
  c.Ask(W(0), own);
  c.Ask("server-0", ServerReport{Bytes(0), Bytes(0), 0, 0, {at}});
  ASSERT_EQ(c.Job("mnist").group_staleness.size(), 2u);
  EXPECT_EQ(c.Job("mnist").group_staleness[0].members, (std::vector<std::string>{W(0), W(1)}));
  EXPECT_EQ(c.Job("mnist").worker_staleness[0].step_lag, 0u);
  EXPECT_EQ(c.Job("mnist").worker_staleness[2].step_lag, 5u);
  c.Ask(W(0), LeaveRequest{"done", 0, {}});
  EXPECT_EQ(c.Job("mnist").group_staleness[0].members, std::vector<std::string>{W(1)});
  c.Ask(W(1), LeaveRequest{"done", 0, {}});
  c.Ask(W(2), LeaveRequest{"done", 0, {}});
  const JobView job = c.Job("mnist");
  EXPECT_EQ(job.state, JobState::kFinished);
  EXPECT_EQ(job.group_staleness[0].members, (std::vector<std::string>{W(0), W(1)}));
  EXPECT_EQ(job.group_staleness[1].members, std::vector<std::string>{W(2)});
  EXPECT_EQ(job.worker_staleness[2].group, GroupId(1));
}

// A node whose registration ran out of time asks again: one of them waits.
TEST_F(CoreTest, ARegistrationTakesThePlaceOfTheNodesEarlierOne) {
  c.silent.insert(NodeId(1));
  Start(1, Spec(1));
  const RequestId first = Register(W(0));
  const RequestId second = Register(W(0));
  EXPECT_EQ(c.StatusOf(first).code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(c.Answered(second));
}

TEST_F(CoreTest, ALeaverLeavesByTheTwoPhases) {
  Start(1, Spec(3));
  Register(W(0));
  const RequestId id = c.Ask(W(1), LeaveRequest{"done", 0, {}});
  EXPECT_TRUE(c.StatusOf(id).ok()) << c.StatusOf(id);
  EXPECT_EQ(Members(c.Job("mnist")), "g0.2@2:0 2 ");
  EXPECT_EQ(c.Received<PrepareDirective>(W(1)).size(), 1u);
  EXPECT_TRUE(c.StatusOf(c.Ask(W(1), LeaveRequest{})).ok()) << "a retry is answered";
  c.Ask(W(0), LeaveRequest{});
  c.Ask(W(2), LeaveRequest{});
  EXPECT_EQ(c.Job("mnist").state, JobState::kFinished);
}

TEST_F(CoreTest, OwnersGetEndOfJobAfterTheirLastReport) {
  Start(1, Spec(1));
  Register(W(0));
  c.Ask(W(0), LeaveRequest{"done", 0, {}});
  EXPECT_TRUE(c.Received<EndJobDirective>("server-0").empty());
  Report({{W(0), {20, 0}}});  // it was on its way
  EXPECT_TRUE(c.Received<EndJobDirective>("server-0").empty());
  Report({{W(0), {30, 0}}});
  EXPECT_EQ(c.Received<EndJobDirective>("server-0").size(), 1u);
  EXPECT_EQ(c.Job("mnist").applied, Samples(30));
}

TEST_F(CoreTest, ADeadWorkerIsFencedAndItsSamplesComeBack) {
  Start(1, Spec(2));
  Register(W(0));
  c.Ask(W(1), DrawSamplesRequest{Samples(100), {}, {}});
  Report({{W(1), {30, 10}}});
  for (int i = 0; i < 60; ++i) {
    c.Ask(W(0), Heartbeat{});
    c.Ask("server-0", Heartbeat{});
    c.Tick(100);
  }
  EXPECT_EQ(Members(c.Job("mnist")), "g0.2@0:0 ");
  ASSERT_EQ(c.Received<FenceDirective>("server-0").size(), 1u);
  EXPECT_EQ(c.Received<FenceDirective>(W(0)).size(), 1u);
  Report({{W(1), {50, 10}}});
  const JobView job = c.Job("mnist");
  EXPECT_EQ(job.drawn, Samples(100));
  EXPECT_EQ(job.applied, Samples(50));
  EXPECT_EQ(job.discarded, Samples(10));
  EXPECT_EQ(job.returned, Samples(40));
  // The 40 that came back ([60, 100)) are handed out first.
  const auto reply =
      c.ReplyOf<DrawSamplesReply>(c.Ask(W(0), DrawSamplesRequest{Samples(10), {}, {}}));
  EXPECT_EQ(reply.ranges, (std::vector<SampleRange>{{Epoch(0), 60, 70}}));
}

// One that dies near the end holds samples that nobody else could train on once all have finished.
TEST_F(CoreTest, NobodyIsDoneBeforeASilentWorkersSamplesAreSettled) {
  Start(1, Spec(2));
  Register(W(0));
  c.Ask(W(1), DrawSamplesRequest{Samples(100), {}, {}});
  RequestId last;
  do {
    last = c.Ask(W(0), DrawSamplesRequest{Samples(1000), {}, {}});
  } while (c.Answered(last));
  ASSERT_EQ(c.Received<RecallSamplesDirective>(W(1)).size(), 1u);
  for (int i = 0; i < 55; ++i) {
    c.Ask(W(0), Heartbeat{});
    c.Ask("server-0", Heartbeat{});
    c.Tick(100);
    ASSERT_FALSE(c.Answered(last)) << i;
  }
  Report({{W(1), {30, 0}}});
  ASSERT_TRUE(c.StatusOf(last).ok());
  const auto rest = c.ReplyOf<DrawSamplesReply>(last);
  EXPECT_FALSE(rest.finished);
  ASSERT_EQ(rest.ranges.size(), 1u);
  EXPECT_EQ(rest.ranges[0].begin, 30u);
}

// Started again by mistake, with other settings: the worker that trains is not disturbed.
TEST_F(CoreTest, AJoinerThatIsRefusedTakesNobodysPlace) {
  Start(1, Spec(2));
  Register(W(0));
  JobSpec other = Spec(2);
  other.seed = 77;
  EXPECT_EQ(c.Join(c.Worker(W(0), other, 0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(c.StatusOf(c.Ask(W(0), Heartbeat{})).ok());
  EXPECT_EQ(Members(c.Job("mnist")), "g0.1@0:0 1 ");
}

TEST_F(CoreTest, AnAnswerToADrawThatWasLostIsGivenAgain) {
  Start(1, Spec(2));
  Register(W(0));
  const auto first =
      c.ReplyOf<DrawSamplesReply>(c.Ask(W(0), DrawSamplesRequest{Samples(10), {}, {}}));
  const auto lost =
      c.ReplyOf<DrawSamplesReply>(c.AskAndLose(W(0), DrawSamplesRequest{Samples(20), {}, {}}));
  c.RestartScheduler();
  const auto again =
      c.ReplyOf<DrawSamplesReply>(c.Ask(W(0), DrawSamplesRequest{Samples(20), {}, {}}));
  EXPECT_EQ(again.ranges, lost.ranges);
  EXPECT_NE(again.ranges, first.ranges);
  EXPECT_EQ(c.Job("mnist").drawn, Samples(30));
}

TEST_F(CoreTest, AFenceAbortsAnOpenChangeWhichIsProposedAgain) {
  Start(1, Spec(2));
  Register(W(0));
  const NodeId first = c.joined.at(W(0)).self.node;
  c.silent.insert(first);
  ASSERT_TRUE(c.Join(c.Worker(W(2), Spec(2), 2)).ok());
  EXPECT_EQ(Members(c.Job("mnist")), "g0.1@0:0 1 ");
  c.silent.clear();
  c.Feed(ProcessEndedEvent{c.joined.at(W(1)).self, "signal 9"});
  EXPECT_EQ(c.Received<AbortDirective>("server-0").size(), 1u);
  EXPECT_EQ(Members(c.Job("mnist")), "g0.3@2:0 2 ");
}

TEST_F(CoreTest, AStaleIncarnationIsRefusedWithBoth) {
  Start(1, Spec(2));
  const NodeRef old = c.joined.at(W(1)).self;
  ASSERT_TRUE(c.Join(c.Worker(W(1), Spec(2), 1)).ok());
  const NodeRef fresh = c.joined.at(W(1)).self;
  EXPECT_EQ(fresh.node, old.node);
  EXPECT_EQ(c.joined.at(W(1)).rank, JobRank(1));
  const absl::Status status = c.core().CheckNode(old);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(status.message(),
            absl::StrCat("node worker-1: incarnation ", old.incarnation.value(),
                         " is not the newest, which is ", fresh.incarnation.value(),
                         ": another process has joined under this name; give "
                         "each a name of its own if both are to run"));
}

TEST_F(CoreTest, ADeadServerStopsTheJobByName) {
  Start(1, Spec(1));
  Register(W(0));
  c.Feed(ProcessEndedEvent{c.joined.at("server-0").self, "signal 9"});
  const JobView job = c.Job("mnist");
  EXPECT_EQ(job.state, JobState::kStopped);
  EXPECT_NE(job.reason.find("server server-0"), std::string::npos);
  ASSERT_EQ(c.Received<EndJobDirective>(W(0)).size(), 1u);
  EXPECT_TRUE(c.Received<EndJobDirective>(W(0))[0].failed);
}

TEST_F(CoreTest, AFinishedNameIsANewJob) {
  Start(1, Spec(1));
  c.Ask(W(0), LeaveRequest{});
  ASSERT_TRUE(c.Join(c.Worker(W(0), Spec(1), 0)).ok());
  EXPECT_EQ(c.joined.at(W(0)).job, JobId(2));
}

TEST_F(CoreTest, OldEndedJobsAreForgotten) {
  CoreOptions options;
  options.limits.max_finished_jobs = 2;
  ClusterForTest small(options);
  for (int i = 0; i < 6; ++i) {
    JobSpec spec = Spec(1);
    spec.name = absl::StrCat("job-", i);
    ASSERT_TRUE(small.Join(small.Worker(W(0), spec, 0)).ok());
    small.Ask(W(0), LeaveRequest{});
  }
  const auto view = std::get<ClusterView>(small.Operate(StatusQuery{}));
  ASSERT_EQ(view.jobs.size(), 3u);  // two kept when the last one came, and that one
  EXPECT_EQ(view.jobs[0].spec.name, "job-3");
  EXPECT_EQ(view.nodes.size(), 3u);
}

TEST_F(CoreTest, OptimizerFirstHolds) {
  Start(1, Spec(2));
  Register(W(0));
  EXPECT_TRUE(c.StatusOf(c.Ask(W(0), SetOptimizerRequest{{"sgd", {{"momentum", 0.9}}}})).ok());
  EXPECT_TRUE(c.StatusOf(c.Ask(W(1), SetOptimizerRequest{{"sgd", {{"momentum", 0.9}}}})).ok());
  const absl::Status status =
      c.StatusOf(c.Ask(W(1), SetOptimizerRequest{{"sgd", {{"momentum", 0.8}}}}));
  EXPECT_NE(status.message().find("optimizer.momentum: 0.9 != 0.8"), std::string::npos) << status;
}

TEST_F(CoreTest, BarrierWaitsForAllLive) {
  Start(1, Spec(3));
  const RequestId a = c.Ask(W(0), BarrierRequest{"x"});
  const RequestId b = c.Ask(W(1), BarrierRequest{"x"});
  EXPECT_FALSE(c.Answered(a));
  c.Feed(ProcessEndedEvent{c.joined.at(W(2)).self, "exit 1"});
  EXPECT_TRUE(c.StatusOf(a).ok());
  EXPECT_TRUE(c.StatusOf(b).ok());
}

TEST_F(CoreTest, StopJobEndsItEverywhere) {
  Start(1, Spec(1));
  Register(W(0));
  c.Operate(StopJobRequest{"mnist", true, "enough"});
  EXPECT_EQ(c.Job("mnist").state, JobState::kStopped);
  EXPECT_EQ(c.StatusOf(c.Ask(W(0), DrawSamplesRequest{Samples(1), {}, {}})).code(),
            absl::StatusCode::kAborted);
}

TEST_F(CoreTest, WhoSawAProcessEndNeedNotWaitForTheLease) {
  Start(1, Spec(2));
  Register(W(0));
  JoinRequest join = c.Worker(W(1), Spec(2), 1);
  join.process_id = 77;
  ASSERT_TRUE(c.Join(join).ok());
  // Not of the process that joined, of another job, or of a server of that name.
  c.Operate(ProcessEndedRequest{"mnist", W(1), 76, "signal 9"});
  c.Operate(ProcessEndedRequest{"other", W(1), 77, "signal 9"});
  c.Operate(ProcessEndedRequest{"", W(1), 77, "signal 9"});
  EXPECT_EQ(c.Job("mnist").workers_live, 2u);
  c.Operate(ProcessEndedRequest{"mnist", W(1), 77, "signal 9"});
  EXPECT_EQ(c.Job("mnist").workers_live, 1u);
  EXPECT_EQ(c.Received<FenceDirective>(W(0)).back().reason,
            "worker worker-1 died: its process ended: signal 9");
  c.Operate(ProcessEndedRequest{"mnist", W(1), 77, "signal 9"});  // twice is once
  EXPECT_EQ(c.Job("mnist").workers_live, 1u);
}

// One that gave its chunks away and missed the end keeps what it knows of the job until it is told.
TEST_F(CoreTest, AServerThatStillReportsAnEndedJobIsToldSo) {
  Start(2, Spec(1));
  Register(W(0));
  c.Ask(W(0), InitDoneRequest{{TensorId(0), TensorId(1)}});
  c.Operate(DrainServerRequest{"server-0", false});
  c.RestartScheduler();
  for (const char* name : {"server-0", "server-1"}) c.Feed(WatchEvent{c.joined.at(name).self});
  JobAtServer known;
  known.job = c.joined.at(W(0)).job;
  c.Ask("server-0", ServerReport{Bytes(0), Bytes(0), 0, 0, {known}});
  EXPECT_TRUE(c.Received<EndJobDirective>("server-0").empty()) << "members may still ask it";
  c.Operate(StopJobRequest{"mnist", false, "enough"});
  EXPECT_EQ(c.Received<EndJobDirective>("server-0").size(), 1u);
  c.Ask("server-0", ServerReport{Bytes(0), Bytes(0), 0, 0, {known}});
  EXPECT_EQ(c.Received<EndJobDirective>("server-0").size(), 2u) << "it still knows the job";
}

TEST_F(CoreTest, BelowMinWorkersNobodyBeginsAStep) {
  JobSpec spec = Spec(2);
  spec.min_workers = 2;
  Start(1, spec);
  EXPECT_EQ(c.Received<PlanDirective>(W(0)).back().plan.waiting, "");
  c.Feed(ProcessEndedEvent{c.joined.at(W(1)).self, "killed"});
  c.Tick(100);
  EXPECT_EQ(c.Received<PlanDirective>(W(0)).back().plan.waiting,
            "1 of at least 2 workers (min_workers)");
  EXPECT_NE(c.Job("mnist").reason.find("waits: 1 of at least 2"), std::string::npos);
  ASSERT_TRUE(c.Join(c.Worker(W(1), spec, 1)).ok());
  c.Tick(100);
  EXPECT_EQ(c.Received<PlanDirective>(W(0)).back().plan.waiting, "");
}

TEST_F(CoreTest, OwnersLearnWithThePlanWhoIsFenced) {
  Start(1, Spec(2));
  Register(W(0));
  const NodeRef first = c.joined.at(W(1)).self;
  c.Feed(ProcessEndedEvent{first, "killed"});
  c.Feed(WatchEvent{c.joined.at("server-0").self});
  std::vector<NodeRef> fenced = c.Received<PlanDirective>("server-0").back().plan.fenced;
  EXPECT_NE(std::find(fenced.begin(), fenced.end(), first), fenced.end());
  EXPECT_TRUE(c.Received<PlanDirective>(W(0)).back().plan.fenced.empty());
}

TEST_F(CoreTest, TheFirstNodeOfAClusterHasNothingBeforeItToFence) {
  for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(c.Join(c.Worker(W(i), Spec(2), i)).ok());
  Register(W(0));
  ASSERT_TRUE(c.Join(c.Server("server-0")).ok());
  const Plan told = c.Received<PlanDirective>("server-0").back().plan;
  for (const NodeRef& fenced : told.fenced) {
    EXPECT_GT(fenced.incarnation, Incarnation(0)) << fenced.node;
  }
}

TEST_F(CoreTest, RecordsOfGoneServersAreBounded) {
  Start(0, Spec(1));
  for (int i = 0; i < 100; ++i) {
    const std::string name = absl::StrCat("s", i);
    ASSERT_TRUE(c.Join(c.Server(name)).ok());
    c.Ask(name, LeaveRequest{"done", 0, {}});
  }
  const ClusterView cluster = std::get<ClusterView>(c.Operate(StatusQuery{}));
  EXPECT_LE(cluster.nodes.size(), 1 + 64 + 1u);
}

}  // namespace
}  // namespace paceline::scheduler
