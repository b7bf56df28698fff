// Checkpoints: the phases of a cut, and what is in between.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "scheduler/core/core_test_util.h"
#include "scheduler/core/journal_entry.h"

namespace paceline::scheduler {
namespace {

TEST_F(CoreTest, CutTakesTheMaximumOfEachGroup) {
  Start(2, Spec(2, "per-worker"));
  Register(W(0));
  c.applied[c.joined.at("server-0").self.node] = {{GroupId(0), paceline::Step(7)},
                                                  {GroupId(1), paceline::Step(3)}};
  c.applied[c.joined.at("server-1").self.node] = {{GroupId(0), paceline::Step(6)},
                                                  {GroupId(1), paceline::Step(4)}};
  const RequestId early = c.Ask(W(0), CheckpointRequest{"/tmp/ckpt"});
  EXPECT_EQ(c.StatusOf(early).code(), absl::StatusCode::kFailedPrecondition);
  c.Ask(W(0), InitDoneRequest{{TensorId(0), TensorId(1)}});
  const RequestId id = c.Ask(W(0), CheckpointRequest{"/tmp/ckpt"});
  ASSERT_TRUE(c.StatusOf(id).ok()) << c.StatusOf(id);
  EXPECT_EQ(c.ReplyOf<CheckpointReply>(id).cut,
            (std::map<GroupId, paceline::Step>{{GroupId(0), paceline::Step(7)},
                                               {GroupId(1), paceline::Step(4)}}));
}

TEST_F(CoreTest, TensorsThatAreRegisteredDuringACutBeginItAgainWithTheirOwners) {
  Start(1, Spec(2));
  Register(W(0));
  c.Ask(W(0), InitDoneRequest{{TensorId(0), TensorId(1)}});
  c.silent.insert(c.joined.at("server-0").self.node);
  const RequestId cut = c.Ask(W(0), CheckpointRequest{"/tmp/ckpt"});
  c.silent.clear();
  ASSERT_TRUE(c.Join(c.Server("server-1")).ok());
  c.Ask(W(1), RegisterTensorsRequest{{{"v", {100000}, DType::kF32, false}}});
  // Not with tensors that have no values yet.
  c.Tick(100);
  EXPECT_FALSE(c.Answered(cut));
  EXPECT_EQ(c.Received<CutDirective>("server-1").size(), 1u);  // abort
  c.Ask(W(0), InitDoneRequest{{TensorId(2)}});
  c.Tick(100);
  EXPECT_TRUE(c.StatusOf(cut).ok()) << c.StatusOf(cut);
  EXPECT_EQ(c.Received<CutDirective>("server-1").size(), 3u);  // abort, collect, copy
}

class CutTest : public CoreTest {
 protected:
  void StartTraining(const JobSpec& spec, uint32_t servers = 2) {
    Start(servers, spec);
    Register(W(0));
    c.Ask(W(0), InitDoneRequest{{TensorId(0), TensorId(1)}});
  }
  RequestId AskForCut() { return c.Ask(W(0), CheckpointRequest{"/ckpt"}); }
  // Nobody answers but by hand.
  RequestId BeginByHand() {
    for (const char* server : {"server-0", "server-1"}) {
      c.silent.insert(c.joined.at(server).self.node);
    }
    return AskForCut();
  }
  CutDirective Last(const std::string& server) { return c.Received<CutDirective>(server).back(); }
  void Ack(const std::string& server, uint64_t id, const std::string& part = "") {
    AckRequest ack;
    ack.id = id;
    if (!part.empty()) ack.part = {part, Bytes(100), 7};
    c.Ask(server, ack);
  }
};

// The connection broke after the answer, and the server sends it again.
TEST_F(CutTest, AnAnswerThatComesAgainIsNoAnswerToTheNextPhase) {
  StartTraining(Spec(2));
  const RequestId request = BeginByHand();
  const uint64_t collect = Last("server-0").cut;
  Ack("server-0", collect);
  Ack("server-1", collect);
  ASSERT_FALSE(Last("server-0").collect);
  for (const char* server : {"server-0", "server-1"}) Ack(server, collect);
  EXPECT_FALSE(Last("server-0").manifest) << "nothing is copied yet";
  const uint64_t copy = Last("server-0").cut;
  Ack("server-0", copy, "a");
  Ack("server-1", copy, "b");
  ASSERT_TRUE(Last("server-0").manifest);
  EXPECT_EQ(Last("server-0").manifest->parts.size(), 2u);
  Ack("server-0", copy, "a");
  EXPECT_FALSE(c.Answered(request)) << "the manifest is not written yet";
  Ack("server-0", Last("server-0").cut);
  EXPECT_TRUE(c.StatusOf(request).ok());
}

// Owners remember such a group, and may never hear that its member was done.
TEST_F(CutTest, NothingIsAwaitedOfAGroupThatHasEnded) {
  JobSpec spec = Spec(2);
  spec.groups = *ParseGroupSpec("per-worker");
  StartTraining(spec);
  c.Ask(W(1), LeaveRequest{});
  BeginByHand();
  AckRequest collected;
  collected.id = Last("server-0").cut;
  collected.applied = {{GroupId(0), paceline::Step(5)}, {GroupId(1), paceline::Step(9)}};
  for (const char* server : {"server-0", "server-1"}) c.Ask(server, collected);
  EXPECT_EQ(Last("server-0").steps.at(GroupId(0)), paceline::Step(5));
  EXPECT_GT(Last("server-0").steps.at(GroupId(1)), paceline::Step(1'000'000'000));
}

TEST_F(CutTest, AGroupThatEndedSaysNothingOfWhereTheSamplesStand) {
  JobSpec spec = Spec(2);
  spec.deterministic = true;
  spec.sample_count = 1000;
  spec.batch_size = 10;
  StartTraining(spec);
  c.applied_by_all({{GroupId(0), paceline::Step(3)}, {GroupId(7), paceline::Step(9)}});
  const RequestId request = AskForCut();
  ASSERT_TRUE(c.StatusOf(request).ok()) << c.StatusOf(request);
  EXPECT_EQ(c.manifests.back().samples.epoch, Epoch(0));
}

TEST_F(CutTest, AGroupThatEndsWhileItIsCopiedBeginsItAnew) {
  JobSpec spec = Spec(2);
  spec.groups = *ParseGroupSpec("per-worker");
  StartTraining(spec);
  const RequestId request = BeginByHand();
  AckRequest collected;
  collected.id = Last("server-0").cut;
  collected.applied = {{GroupId(0), paceline::Step(5)}, {GroupId(1), paceline::Step(9)}};
  for (const char* server : {"server-0", "server-1"}) c.Ask(server, collected);
  ASSERT_EQ(Last("server-0").steps.size(), 2u);
  c.silent.clear();
  c.applied_by_all({{GroupId(0), paceline::Step(6)}});
  c.Ask(W(1), LeaveRequest{});
  c.Tick(100);
  ASSERT_TRUE(c.StatusOf(request).ok()) << c.StatusOf(request);
  EXPECT_EQ(c.ReplyOf<CheckpointReply>(request).cut,
            (std::map<GroupId, paceline::Step>{{GroupId(0), paceline::Step(6)}}));
}

TEST_F(CutTest, AServerThatWroteNoPartFailsIt) {
  StartTraining(Spec(2));
  const RequestId request = BeginByHand();
  for (const char* server : {"server-0", "server-1"}) Ack(server, Last("server-0").cut);
  Ack("server-1", Last("server-1").cut);
  EXPECT_EQ(c.StatusOf(request).message(), "checkpoint: server server-1: wrote no part");
}

// The end of the stream before has not been seen: the server let go what it held.
TEST_F(CutTest, AnOwnersNewStreamBeginsItAnew) {
  StartTraining(Spec(2));
  const RequestId request = BeginByHand();
  const uint64_t first = Last("server-0").cut;
  Ack("server-0", first);
  c.Feed(WatchEvent{c.joined.at("server-1").self});
  EXPECT_TRUE(Last("server-0").abort);
  Ack("server-1", first);
  EXPECT_TRUE(Last("server-0").abort) << "what it said before counts no longer";
  c.silent.clear();
  c.Tick(100);
  EXPECT_TRUE(c.StatusOf(request).ok()) << c.StatusOf(request);
  EXPECT_EQ(c.ReplyOf<CheckpointReply>(request).path, "/ckpt/mnist-00000000-000002");
}

TEST_F(CutTest, AnOlderCheckpointGoesWhenTheNewerOneIsDurable) {
  JobSpec spec = Spec(2);
  spec.checkpoint_keep = 1;
  StartTraining(spec);
  size_t recorded = 0, dropped = 0;
  c.on_ready = [&](const Ready& ready) {
    for (const JournalEntry& entry : ready.entries) {
      recorded += std::holds_alternative<CheckpointRecorded>(*DecodeEntry(entry.bytes));
    }
    for (const DirectiveAction& action : ready.directives) {
      const auto* cut = std::get_if<CutDirective>(&action.directive.body);
      if (cut == nullptr || cut->drop.empty()) continue;
      EXPECT_EQ(recorded, 2u);
      EXPECT_EQ(cut->drop, std::vector<std::string>{"/ckpt/mnist-00000000-000001"});
      ++dropped;
    }
  };
  ASSERT_TRUE(c.StatusOf(AskForCut()).ok());
  ASSERT_TRUE(c.StatusOf(AskForCut()).ok());
  EXPECT_EQ(recorded, 2u);
  EXPECT_EQ(dropped, 1u);
}

TEST_F(CutTest, WhatIsToGoIsToldToAServerThatHearsIt) {
  JobSpec spec = Spec(2);
  spec.checkpoint_keep = 1;
  StartTraining(spec);
  ASSERT_TRUE(c.StatusOf(AskForCut()).ok());
  for (const char* server : {"server-0", "server-1"}) {
    c.silent.insert(c.joined.at(server).self.node);
  }
  const RequestId second = AskForCut();
  for (const char* server : {"server-0", "server-1"}) Ack(server, Last("server-0").cut);
  const uint64_t copy = Last("server-0").cut;
  Ack("server-0", copy, "a");
  Ack("server-1", copy, "b");
  const uint64_t manifest = Last("server-0").cut;
  c.Feed(WatchClosedEvent{c.joined.at("server-0").self});
  Ack("server-0", manifest);
  ASSERT_TRUE(c.StatusOf(second).ok());
  EXPECT_EQ(Last("server-1").drop, std::vector<std::string>{"/ckpt/mnist-00000000-000001"});
}

TEST_F(CutTest, NothingStaysOfOneThatTheEndOfTheJobCutsShort) {
  StartTraining(Spec(2));
  const RequestId request = BeginByHand();
  for (const char* server : {"server-0", "server-1"}) Ack(server, Last("server-0").cut);
  c.Operate(StopJobRequest{"mnist", true, "enough"});
  EXPECT_EQ(c.StatusOf(request).code(), absl::StatusCode::kAborted);
  const auto told = c.Received<CutDirective>("server-1");
  EXPECT_TRUE(told.back().abort);
  EXPECT_EQ(told.back().directory, "/ckpt/mnist-00000000-000001");
}

TEST_F(CutTest, TheyGoOnAfterTheFastestGroupHasEnded) {
  JobSpec spec = Spec(2, "per-worker");
  spec.checkpoint_every_steps = 100;
  spec.checkpoint_dir = "/ckpt";
  StartTraining(spec);
  const auto says = [this](uint32_t worker, uint64_t step) {
    WorkerReport report;
    report.group = GroupId(worker);
    report.step = paceline::Step(step);
    c.Ask(W(worker), report);
    c.Tick(100);
  };
  const auto taken = [this] { return c.manifests.size(); };
  says(0, 5000);
  says(1, 10);
  ASSERT_EQ(taken(), 1u);
  c.Ask(W(0), LeaveRequest{"done", 0, {}});
  says(1, 20);
  EXPECT_EQ(taken(), 1u);
  says(1, 120);
  EXPECT_EQ(taken(), 2u);
}

// Owners count those of their own lineage.
TEST_F(CutTest, UpdatesOfTheCheckpointAreCountedToo) {
  ResumeJobRequest resume{"mnist", "/old", {}};
  resume.manifest.spec = Spec(2);
  resume.manifest.updates = 335;
  c.Operate(resume);
  Start(1, Spec(2));
  Register(W(0));
  EXPECT_EQ(c.Job("mnist").updates, 335u);
  JobAtServer at;
  at.job = c.Job("mnist").id;
  at.lineage = c.Job("mnist").lineage;
  at.lead = true;
  at.updates = 3;
  ServerReport counted;
  counted.jobs = {at};
  c.Ask("server-0", counted);
  EXPECT_EQ(c.Job("mnist").updates, 338u);
}

// Registered while the job returns to a checkpoint of its own, although it resumed from another.
TEST_F(CutTest, TensorsWaitUntilTheShardsAreBack) {
  ResumeJobRequest resume{"mnist", "/old", {}};
  resume.manifest.spec = Spec(2);
  resume.manifest.tensors.resize(3);
  c.Operate(resume);
  Start(2, Spec(2));
  Register(W(0));
  ASSERT_TRUE(c.Job("mnist").tensors.at(0).sealed);
  ASSERT_TRUE(c.StatusOf(AskForCut()).ok());
  c.silent.insert(c.joined.at("server-0").self.node);
  c.Feed(ProcessEndedEvent{c.joined.at("server-1").self, "signal 9"});
  const PlanDirective back = c.Received<PlanDirective>("server-0").back();
  EXPECT_EQ(back.plan.restore_from, "/ckpt/mnist-00000000-000001");
  const RequestId added = c.Ask(W(1), RegisterTensorsRequest{{{"v", {100}, DType::kF32, false}}});
  EXPECT_EQ(c.Received<PlanDirective>("server-0").back().plan.restore_from,
            "/ckpt/mnist-00000000-000001");
  EXPECT_FALSE(c.Answered(added));
  c.silent.clear();
  Ack("server-0", back.change);
  EXPECT_TRUE(c.StatusOf(added).ok()) << c.StatusOf(added);
  EXPECT_EQ(c.Received<PlanDirective>("server-0").back().plan.restore_from, "/old");
}

}  // namespace
}  // namespace paceline::scheduler
