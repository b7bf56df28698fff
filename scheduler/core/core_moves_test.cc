// Chunks that change their server.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/core/core_test_util.h"
#include "scheduler/core/journal_entry.h"

namespace paceline::scheduler {
namespace {

class MovesTest : public CoreTest {
 protected:
  // Two servers that share the weights of a job of two workers.
  void StartTwo() {
    Start(2, Spec(2));
    Register(W(0));
    c.Ask(W(0), InitDoneRequest{{TensorId(0), TensorId(1)}});
  }
  NodeId Server(uint32_t index) { return c.joined.at(absl::StrCat("server-", index)).self.node; }
};

// All weights of server-0 go to server-1 in batches of at most `move_bytes`.
TEST_F(MovesTest, ADrainingServerHandsOverEverythingInBatches) {
  StartTwo();
  const NodeId zero = Server(0);
  const NodeId one = Server(1);
  const JobGeneration before = c.Job("mnist").generation;
  c.silent.insert(one);  // chunks do not arrive yet
  c.Operate(DrainServerRequest{"server-0", false});
  JobView job = c.Job("mnist");
  EXPECT_EQ(job.generation, before + JobGeneration(1));
  for (const TensorPlan& tensor : job.tensors) {
    for (NodeId owner : tensor.owners) EXPECT_EQ(owner, one);
  }
  const Plan told = c.Received<PlanDirective>("server-0").back().plan;
  ASSERT_FALSE(told.moves.empty()) << "the old owner is told to whom";
  EXPECT_EQ(told.moves[0].from, zero);
  EXPECT_EQ(told.servers.size(), 2u);
  EXPECT_NE(told.servers[1].key, SecretKey{});
  EXPECT_EQ(c.Received<PlanDirective>(W(0)).back().plan.servers[0].key, SecretKey{});
  // Meanwhile nobody joins; a fence is still possible.
  ASSERT_TRUE(c.Join(c.Worker(W(2), Spec(2), 2)).ok());
  c.Tick(100);
  EXPECT_TRUE(c.Received<PrepareDirective>(W(0)).empty());
  AckRequest arrived;
  arrived.id = told.move;
  c.Ask("server-1", arrived);
  EXPECT_TRUE(c.Received<PlanDirective>(W(0)).back().plan.moves.empty());
  EXPECT_EQ(c.Received<PlanDirective>(W(0)).back().plan.servers.size(), 1u);
  EXPECT_FALSE(c.Received<PrepareDirective>(W(0)).empty()) << "the joiner's turn";
  EXPECT_EQ(StateOf("server-0"), "drained");
  // It may go without harm.
  c.Ask("server-0", LeaveRequest{"drained", 0, {}});
  EXPECT_EQ(c.Job("mnist").state, JobState::kRunning);
}

// server-0 drains, and server-1 is out of its reach: what has not come goes back.
TEST_F(MovesTest, AMoveWithoutALinkIsTakenBack) {
  Start(2, Spec(2));
  c.Ask(W(0), RegisterTensorsRequest{{{"w", {4096, 512}, DType::kF32, false}}});  // eight chunks
  c.Ask(W(0), InitDoneRequest{{TensorId(0)}});
  const NodeId zero = Server(0);
  const NodeId one = Server(1);
  c.silent.insert(one);
  c.Operate(DrainServerRequest{"server-0", false});
  const Plan first = c.Received<PlanDirective>("server-1").back().plan;
  ASSERT_EQ(first.moves.size(), 4u);
  c.Ask("server-0", LinkDownRequest{one, 9'999, "refused"});
  EXPECT_FALSE(c.Received<PlanDirective>("server-1").back().plan.withdrawn) << "not yet";
  c.Ask("server-0", LinkDownRequest{NodeId(77), 10'000, "refused"});
  EXPECT_FALSE(c.Received<PlanDirective>("server-1").back().plan.withdrawn) << "of another link";
  c.Ask("server-0", LinkDownRequest{one, 10'000, "refused"});
  const Plan asked = c.Received<PlanDirective>("server-1").back().plan;
  EXPECT_TRUE(asked.withdrawn);
  EXPECT_EQ(asked.move, first.move);
  EXPECT_EQ(asked.moves, first.moves);
  // The question outlives the scheduler.
  c.RestartScheduler();
  for (const std::string& name : {std::string("server-0"), std::string("server-1"), W(0)}) {
    c.Feed(WatchEvent{c.joined.at(name).self});
  }
  EXPECT_TRUE(c.Received<PlanDirective>("server-1").back().plan.withdrawn);
  // The first has come; server-0 gets the others again.
  AckRequest answer;
  answer.id = first.move;
  for (size_t i = 1; i < first.moves.size(); ++i) answer.missing.push_back(first.moves[i].chunk);
  answer.missing.push_back({TensorId(99), ChunkIndex(0)});  // never its own
  c.silent.insert(zero);
  c.Ask("server-1", answer);
  const Plan back = c.Received<PlanDirective>("server-0").back().plan;
  EXPECT_FALSE(back.withdrawn);
  EXPECT_NE(back.move, first.move);
  ASSERT_EQ(back.moves.size(), first.moves.size() - 1);
  for (size_t i = 0; i < back.moves.size(); ++i) {
    EXPECT_EQ(back.moves[i], (ChunkMove{first.moves[i + 1].chunk, zero, zero}));
  }
  const ChunkKey kept = first.moves[0].chunk;
  EXPECT_EQ(back.tensors[kept.tensor.value()].owners[kept.chunk.value()], one);
  AckRequest taken;
  taken.id = back.move;
  c.silent.clear();
  c.Ask("server-0", taken);
  EXPECT_TRUE(c.Received<PlanDirective>(W(0)).back().plan.moves.empty());
}

// Joins go on, and the two are left alone for a minute.
TEST_F(MovesTest, AfterAMoveWasTakenBackTheJobGoesOn) {
  StartTwo();
  const NodeId one = Server(1);
  c.silent.insert(one);
  std::vector<std::string> said;
  c.on_ready = [&said](const Ready& ready) {
    for (const DecisionRecord& decision : ready.decisions) said.push_back(decision.text);
  };
  c.Operate(DrainServerRequest{"server-0", false});
  const Plan first = c.Received<PlanDirective>("server-1").back().plan;
  ASSERT_TRUE(c.Join(c.Worker(W(2), Spec(2), 2)).ok());
  EXPECT_TRUE(c.Received<PrepareDirective>(W(0)).empty());
  c.Ask("server-0", LinkDownRequest{one, 10'000, "refused"});
  AckRequest answer;
  answer.id = first.move;
  for (const ChunkMove& move : first.moves) answer.missing.push_back(move.chunk);
  c.silent.clear();
  c.Ask("server-1", answer);
  EXPECT_FALSE(c.Received<PrepareDirective>(W(0)).empty()) << "the joiner's turn";
  EXPECT_EQ(std::count(said.begin(), said.end(),
                       absl::StrCat("move ", first.move,
                                    " is withdrawn: chunks of server-0 cannot go"
                                    " to server-1: no link since 10000 ms: refused")),
            1);
  EXPECT_EQ(StateOf("server-0"), "draining");
  const auto beat = [&](int64_t ms) {
    for (int64_t passed = 0; passed < ms; passed += 500) {
      for (const char* server : {"server-0", "server-1"}) c.Ask(server, Heartbeat{});
      for (uint32_t i = 0; i < 3; ++i) {
        WorkerReport report;
        report.step = paceline::Step(10);
        c.Ask(W(i), report);
      }
      c.Tick(500);
    }
  };
  beat(30'000);
  EXPECT_EQ(StateOf("server-0"), "draining");
  beat(60'000);
  EXPECT_EQ(StateOf("server-0"), "drained") << "tried again, with success";
}

// Memory that a server lacks is known when it has the plan: nothing is left there.
TEST_F(MovesTest, AMoveBeyondAQuotaIsTakenBack) {
  StartTwo();
  const NodeId zero = Server(0);
  const NodeId one = Server(1);
  c.silent.insert(one);
  c.Operate(DrainServerRequest{"server-0", false});
  const PlanDirective first = c.Received<PlanDirective>("server-1").back();
  AckRequest refused;
  refused.id = first.change;
  refused.error = "beyond the quota of 1000 bytes";
  c.Ask("server-1", refused);
  EXPECT_TRUE(c.Received<PlanDirective>("server-1").back().plan.withdrawn);
  AckRequest answer;
  answer.id = first.plan.move;
  for (const ChunkMove& move : first.plan.moves) answer.missing.push_back(move.chunk);
  c.silent.clear();
  c.Ask("server-1", answer);
  const Plan after = c.Received<PlanDirective>("server-0").back().plan;
  EXPECT_TRUE(after.moves.empty());
  for (const ChunkMove& move : first.plan.moves) {
    EXPECT_EQ(after.tensors[move.chunk.tensor.value()].owners[move.chunk.chunk.value()], zero);
  }
}

// While the lead chunk is on its way the old lead says that it is none.
TEST_F(MovesTest, WhatTheOldLeadCountedHoldsUntilTheNewOneCounts) {
  StartTwo();
  const Plan before = c.Received<PlanDirective>("server-0").back().plan;
  const std::string old =
      LeadOwner(before) == c.joined.at("server-0").self.node ? "server-0" : "server-1";
  const std::string other = old == "server-0" ? "server-1" : "server-0";
  ServerReport counted;
  JobAtServer at;
  at.job = before.job;
  at.lead = true;
  at.updates = 12;
  counted.jobs = {at};
  c.Ask(old, counted);
  EXPECT_EQ(c.Job("mnist").updates, 12u);
  c.silent.insert(c.joined.at(other).self.node);
  c.Operate(DrainServerRequest{old, false});
  at.lead = false;
  at.updates = 0;
  counted.jobs = {at};
  c.Ask(old, counted);
  EXPECT_EQ(c.Job("mnist").updates, 12u);
  at.lead = true;
  at.updates = 14;
  counted.jobs = {at};
  c.Ask(other, counted);
  EXPECT_EQ(c.Job("mnist").updates, 14u);
}

// A fence that an owner has not heard of when it hands over its last chunk is not waited for.
TEST_F(MovesTest, WhoOwnsNothingAnyMoreHoldsNoMoveUp) {
  StartTwo();
  const NodeId zero = Server(0);
  const NodeId one = Server(1);
  c.silent = {zero, one};
  c.Operate(DrainServerRequest{"server-0", false});
  AckRequest arrived;
  arrived.id = c.Received<PlanDirective>("server-1").back().plan.move;
  c.Feed(ProcessEndedEvent{c.joined.at(W(1)).self, "killed"});
  AckRequest fenced;
  fenced.id = c.Received<FenceDirective>("server-1").back().change;
  c.Ask("server-1", fenced);
  c.Ask("server-1", arrived);
  ASSERT_EQ(StateOf("server-0"), "drained");
  c.silent.clear();
  c.Operate(DrainServerRequest{"server-0", true});
  c.Operate(DrainServerRequest{"server-1", false});
  EXPECT_EQ(StateOf("server-1"), "drained");
}

// A supervisor starts it again, and its shards are to be elsewhere all the same.
TEST_F(MovesTest, AServerThatCrashesWhileItDrainsStillDrains) {
  Start(2, Spec(2));
  c.Operate(DrainServerRequest{"server-0", false});
  c.Feed(ProcessEndedEvent{c.joined.at("server-0").self, "signal 11"});
  ASSERT_TRUE(c.Join(c.Server("server-0")).ok());
  EXPECT_EQ(StateOf("server-0"), "drained");
  c.Ask("server-0", LeaveRequest{"drained", 0, {}});
  ASSERT_TRUE(c.Join(c.Server("server-0")).ok());
  EXPECT_EQ(StateOf("server-0"), "live");
}

TEST_F(MovesTest, TheOnlyServerCannotDrain) {
  Start(1, Spec(1));
  const RequestId id(1'000'000);
  absl::Status refused;
  c.on_ready = [&](const Ready& ready) {
    for (const ReplyAction& reply : ready.replies) {
      if (reply.request == id) refused = reply.reply.status();
    }
  };
  c.Feed(OperatorEvent{id, DrainServerRequest{"server-0", false}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("no other server could take its chunks"), std::string::npos);
  c.Feed(OperatorEvent{id, DrainServerRequest{"server-9", false}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
}

// What is sent to it for a chunk that it no longer has would wait there for ever.
TEST_F(MovesTest, WhoOwnsNothingAnyMoreIsToldSoWhenItIsBack) {
  StartTwo();
  c.silent.insert(Server(1));
  c.Operate(DrainServerRequest{"server-0", false});
  const Plan moving = c.Received<PlanDirective>("server-0").back().plan;
  ASSERT_FALSE(moving.moves.empty());
  c.Feed(WatchClosedEvent{c.joined.at("server-0").self});
  AckRequest arrived;
  arrived.id = moving.move;
  c.silent.clear();
  c.Ask("server-1", arrived);
  const auto now = [this] { return c.Job("mnist").generation; };
  ASSERT_GT(now(), moving.generation);
  EXPECT_EQ(c.Received<PlanDirective>("server-0").back().plan.generation, moving.generation);
  c.Feed(WatchEvent{c.joined.at("server-0").self});
  EXPECT_EQ(c.Received<PlanDirective>("server-0").back().plan.generation, now());
  EXPECT_TRUE(c.Received<PlanDirective>("server-0").back().plan.moves.empty());

  // Who has been restarted learns from its report that it knows the job.
  c.RestartScheduler();
  for (const char* name : {"server-0", "server-1"}) c.Feed(WatchEvent{c.joined.at(name).self});
  const size_t told = c.Received<PlanDirective>("server-0").size();
  ServerReport report;
  report.jobs.emplace_back().job = moving.job;
  c.Ask("server-0", report);
  ASSERT_EQ(c.Received<PlanDirective>("server-0").size(), told + 1);
  EXPECT_EQ(c.Received<PlanDirective>("server-0").back().plan.generation, now());
  c.Ask("server-0", report);
  EXPECT_EQ(c.Received<PlanDirective>("server-0").size(), told + 1) << "once";
}

TEST_F(MovesTest, ARestartedSchedulerGoesOnWithMoves) {
  StartTwo();
  c.silent.insert(c.joined.at("server-1").self.node);
  c.Operate(DrainServerRequest{"server-0", false});
  const std::string state = c.core().Snapshot();
  c.RestartScheduler();
  EXPECT_EQ(c.core().Snapshot(), state);
  c.silent.clear();
  for (const char* name : {"server-0", "server-1"}) c.Feed(WatchEvent{c.joined.at(name).self});
  for (const TensorPlan& tensor : c.Job("mnist").tensors)
    EXPECT_EQ(tensor.owners[0], c.joined.at("server-1").self.node);
  EXPECT_TRUE(c.Received<PlanDirective>("server-1").back().plan.moves.empty());
  c.RestartScheduler();
  EXPECT_EQ(StateOf("server-0"), "drained") << "as before the restart";
}

}  // namespace
}  // namespace paceline::scheduler
