// A scheduler that starts again from its journal.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/core/core_test_util.h"
#include "scheduler/core/journal_entry.h"

namespace paceline::scheduler {
namespace {

TEST_F(CoreTest, RecoversTheSameStateAfterEveryPrefix) {
  std::map<size_t, std::string> snapshots;
  c.on_ready = [&](const Ready& ready) {
    if (!ready.entries.empty()) snapshots[ready.entries.back().index] = c.core().Snapshot();
  };
  Start(2, Spec(2));
  Register(W(0));
  c.Ask(W(0), InitDoneRequest{{TensorId(0), TensorId(1)}});
  c.Ask(W(0), SetOptimizerRequest{{"adam", {}}});
  c.Ask(W(1), DrawSamplesRequest{Samples(100), {}, {}});
  c.Ask(W(1), ReturnSamplesRequest{{{Epoch(0), 50, 60}}});
  ASSERT_TRUE(c.Join(c.Worker(W(2), Spec(2), 2)).ok());
  c.Ask(W(0), LeaveRequest{});
  c.Feed(ProcessEndedEvent{c.joined.at(W(1)).self, "signal 9"});
  Report({{W(1), {10, 0}}});
  ASSERT_GT(snapshots.size(), 10u);
  for (const auto& [index, snapshot] : snapshots) {
    const std::unique_ptr<Core> recovered = c.Recovered(index);
    ASSERT_NE(recovered, nullptr);
    EXPECT_EQ(recovered->Snapshot(), snapshot) << "after entry " << index;
    EXPECT_EQ(recovered->term(), Term(2));
  }
  Core compacted((CoreOptions()));
  ASSERT_TRUE(compacted.Recover({c.core().Compacted()}).ok());
  EXPECT_EQ(compacted.Snapshot(), c.core().Snapshot());
}

TEST_F(CoreTest, NodesReattachAfterARestart) {
  Start(1, Spec(2));
  Register(W(0));
  c.RestartScheduler();
  for (const char* name : {"server-0", "worker-0", "worker-1"}) {
    c.Feed(WatchEvent{c.joined.at(name).self});
  }
  const RequestId again = Register(W(0));
  ASSERT_TRUE(c.StatusOf(again).ok()) << c.StatusOf(again);
  EXPECT_EQ(c.Received<PlanDirective>(W(1)).back().plan.term, Term(2));
  EXPECT_EQ(Members(c.Job("mnist")), "g0.1@0:0 1 ");
}

TEST_F(CoreTest, DamagedEntriesAreDataLoss) {
  Start(1, Spec(1));
  for (JournalEntry entry : c.journal()) {
    for (size_t cut = 0; cut < entry.bytes.size(); ++cut) {
      EXPECT_FALSE(DecodeEntry(std::string_view(entry.bytes).substr(0, cut)).ok());
    }
  }
  Core core((CoreOptions()));
  EXPECT_EQ(core.Recover({c.journal()[1]}).code(), absl::StatusCode::kDataLoss);
}

// What its owners counted is in no journal: better nothing than zeroes.
TEST_F(CoreTest, AJobThatEndedBeforeARestartIsNotShown) {
  Start(1, Spec(1));
  Register(W(0));
  c.Ask(W(0), LeaveRequest{"done", 0, {}});
  EXPECT_EQ(c.Job("mnist").state, JobState::kFinished);
  c.RestartScheduler();
  EXPECT_TRUE(std::get<ClusterView>(c.Operate(StatusQuery{})).jobs.empty());
}

TEST_F(CoreTest, AWorkerIsAskedToLeaveUntilItHas) {
  Start(1, Spec(2));
  c.Operate(RemoveWorkerRequest{"mnist", W(1), "its machine is wanted"});
  ASSERT_EQ(c.Received<RemoveDirective>(W(1)).size(), 1u);
  EXPECT_EQ(c.Received<RemoveDirective>(W(1))[0].reason,
            "removed by an operator: its machine is wanted");
  c.Feed(WatchEvent{c.joined.at(W(1)).self});  // what it may have missed comes again
  EXPECT_EQ(c.Received<RemoveDirective>(W(1)).size(), 2u);
  c.RestartScheduler();
  c.Feed(WatchEvent{c.joined.at(W(1)).self});
  EXPECT_EQ(c.Received<RemoveDirective>(W(1)).size(), 3u) << "also by the next scheduler";
  for (const std::string& other : {W(0), std::string("server-0")}) {
    c.Feed(WatchEvent{c.joined.at(other).self});
  }
  EXPECT_TRUE(c.StatusOf(c.Ask(W(1), LeaveRequest{"as asked", 0, {}})).ok());
  EXPECT_EQ(c.Job("mnist").workers_live, 1u);
  ASSERT_TRUE(c.Join(c.Worker(W(1), Spec(2), 1)).ok());
  EXPECT_EQ(c.Received<RemoveDirective>(W(1)).size(), 3u) << "it has come back on purpose";
}

}  // namespace
}  // namespace paceline::scheduler
