#include "scheduler/core/sample_ledger.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace paceline::scheduler {
namespace {

JobSpec JobOf(uint32_t workers) {
  JobSpec spec;
  spec.workers = workers;
  spec.sample_count = 1000;
  spec.epochs = 2;
  spec.batch_size = 10;
  return spec;
}

TEST(SampleLedgerTest, GrantsAShareOfWhatIsLeftButABatchAtLeast) {
  SampleLedger ledger(JobOf(4));
  // 1000 left, 4 workers: 1000 / 8 = 125.
  auto ranges = ledger.Choose(NodeId(1), 1000, {4, 0});
  EXPECT_EQ(ranges, (std::vector<SampleRange>{{Epoch(0), 0, 125}}));
  ledger.ApplyDraw(NodeId(1), ranges);
  EXPECT_EQ(CountOf(ledger.Choose(NodeId(2), 1000, {4, 0})), 109u);  // 875 / 8
  // At 0.25 samples/s two minutes are 30.
  EXPECT_EQ(CountOf(ledger.Choose(NodeId(2), 1000, {4, 0.25})), 30u);
  // It holds more than two minutes of its rate: one batch.
  EXPECT_EQ(CountOf(ledger.Choose(NodeId(1), 1000, {4, 0.25})), 10u);
}

TEST(SampleLedgerTest, AllEpochsAreHandedOutOnce) {
  SampleLedger ledger(JobOf(2));
  std::map<std::pair<uint64_t, uint64_t>, int> seen;
  for (uint32_t turn = 0; !ledger.Exhausted(); ++turn) {
    const NodeId worker(1 + turn % 2);
    const auto ranges = ledger.Choose(worker, 64, {2, 0});
    for (const SampleRange& r : ranges) {
      for (uint64_t i = r.begin; i < r.end; ++i) ++seen[{r.epoch.value(), i}];
    }
    ledger.ApplyDraw(worker, ranges);
  }
  EXPECT_EQ(seen.size(), 2000u);
  for (const auto& [sample, times] : seen) EXPECT_EQ(times, 1);
}

TEST(SampleLedgerTest, DeterministicByStepAndRank) {
  JobSpec spec = JobOf(3);
  spec.deterministic = true;
  spec.sample_count = 70;  // 3 x 10 a step: 3 steps, in the last one 10, 0, 0
  SampleLedger ledger(spec);
  EXPECT_EQ(ledger.steps_per_epoch(), 3u);
  EXPECT_EQ(ledger.ChooseFor(1, JobRank(2)), (std::vector<SampleRange>{{Epoch(0), 50, 60}}));
  EXPECT_EQ(ledger.ChooseFor(2, JobRank(0)), (std::vector<SampleRange>{{Epoch(0), 60, 70}}));
  EXPECT_TRUE(ledger.ChooseFor(2, JobRank(1)).empty());
  EXPECT_FALSE(ledger.FinishedAt(5));
  EXPECT_TRUE(ledger.FinishedAt(6));
  // Asked twice: counted once.
  ledger.ApplyDrawFor(NodeId(1), 0, ledger.ChooseFor(0, JobRank(0)));
  ledger.ApplyDrawFor(NodeId(1), 0, ledger.ChooseFor(0, JobRank(0)));
  EXPECT_EQ(ledger.accounts().at(NodeId(1)).drawn, 10u);
}

}  // namespace
}  // namespace paceline::scheduler
