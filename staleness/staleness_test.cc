#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "staleness/policy.h"
#include "staleness/recorder.h"
#include "staleness/version.h"

namespace paceline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StalenessRecorder::Application Push(uint32_t group, uint64_t base, uint64_t before,
                                    uint32_t groups = 1, uint64_t step = 0) {
  return {.group = GroupId(group),
          .groups = groups,
          .base = {.lineage = 0, .count = base},
          .before = {.lineage = 0, .count = before},
          .step = Step(step),
          .now = Seconds(1)};
}

TEST(Version, StalenessNeedsOneLineageAndAnOlderBase) {
  EXPECT_EQ(Staleness({1, 9}, {1, 4}), 5u);
  EXPECT_EQ(Staleness({1, 4}, {1, 4}), 0u);
  EXPECT_EQ(Staleness({1, 4}, {1, 5}), std::nullopt);
  EXPECT_EQ(Staleness({2, 9}, {1, 4}), std::nullopt);
}

TEST(Recorder, CountsWhatAHandWrittenHistorySays) {
  // Two groups in turn, each on the version it got with its last reply: 0, then always 1.
  StalenessRecorder recorder;
  recorder.Applied(Push(0, 0, 0, 2), {});  // tau 0
  recorder.Applied(Push(1, 0, 1, 2), {});  // tau 1
  recorder.Applied(Push(0, 1, 2, 2), {});  // tau 1
  recorder.Applied(Push(1, 2, 3, 2), {});  // tau 1
  const std::vector<GroupStaleness> groups = recorder.groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].tau.sum, 1u);
  EXPECT_EQ(groups[0].tau.max, 1u);
  EXPECT_THAT(groups[0].tau.buckets, ElementsAre(1, 1));
  EXPECT_EQ(groups[0].excess_sum, -1.0);
  EXPECT_EQ(groups[1].tau.sum, 2u);
  EXPECT_EQ(groups[1].excess_sum, 0.0);
  EXPECT_EQ(groups[1].first_base, 0u);
  EXPECT_EQ(groups[1].last, 4u);
  EXPECT_EQ(groups[1].base_gaps, 0);
  EXPECT_EQ(recorder.updates(), 4u);
}

TEST(Recorder, ValuesBeyondTheExactRangeShareTheLastBucket) {
  StalenessCounts counts;
  Count(counts, 127);
  Count(counts, 128);
  Count(counts, 5000);
  ASSERT_EQ(counts.buckets.size(), 129u);
  EXPECT_EQ(counts.buckets[127], 1u);
  EXPECT_EQ(counts.buckets[128], 2u);
  EXPECT_EQ(counts.max, 5000u);
  EXPECT_EQ(counts.sum, 5255u);
}

TEST(Recorder, CreditsOnlyWorkersThatHadSamples) {
  StalenessRecorder recorder;
  const std::vector<StalenessRecorder::Contribution> contributions = {{NodeId(7), Samples(32)},
                                                                      {NodeId(8), Samples(0)}};
  recorder.Applied(Push(3, 5, 9, 4, 17), contributions);
  recorder.Discarded(GroupId(3), NodeId(8), Samples(16));
  const std::vector<WorkerStaleness> workers = recorder.workers();
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[0].worker, NodeId(7));
  EXPECT_EQ(workers[0].applied, Samples(32));
  EXPECT_EQ(workers[0].tau.sum, 4u);
  EXPECT_EQ(workers[0].excess_sum, 1.0);
  EXPECT_EQ(workers[0].last_step, Step(17));
  EXPECT_EQ(workers[1].tau.count, 0u);
  EXPECT_EQ(workers[1].discarded, Samples(16));
}

// A history with every liberty: groups of any speed, bases that skip or repeat versions. The sum is
// checked against the formula written from the events themselves, not from the recorder's terms.
TEST(Recorder, ExactFormulaHoldsForRandomHistories) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const uint32_t groups = 1 + random() % 6;
    struct Pushed {
      int64_t base;
      int64_t made;
    };
    std::vector<std::vector<Pushed>> history(groups);
    std::vector<uint64_t> base(groups, 0);
    StalenessRecorder recorder;
    uint64_t version = random() % 10;
    for (uint64_t& b : base) b = random() % (version + 1);
    for (int i = 0; i < 300; ++i) {
      const uint32_t group = std::min(random() % groups, random() % groups);
      recorder.Applied(Push(group, base[group], version, groups), {});
      ++version;
      history[group].push_back({static_cast<int64_t>(base[group]), static_cast<int64_t>(version)});
      // Mostly the reply's version; at times an older or a newer one (a pull in between).
      base[group] = random() % 5 == 0 ? random() % (version + 1) : version;
    }
    for (const GroupStaleness& group : recorder.groups()) {
      const std::vector<Pushed>& pushed = history[group.group.value()];
      const auto m = static_cast<int64_t>(pushed.size());
      int64_t gaps = 0;
      for (size_t i = 0; i + 1 < pushed.size(); ++i) gaps += pushed[i + 1].base - pushed[i].made;
      const int64_t expected = pushed.back().made - pushed.front().base - m - gaps;
      EXPECT_EQ(static_cast<int64_t>(group.tau.sum), expected) << "seed " << seed;
      EXPECT_EQ(static_cast<int64_t>(group.last) - static_cast<int64_t>(group.first_base) -
                    static_cast<int64_t>(group.tau.count) - group.base_gaps,
                expected);
      EXPECT_EQ(group.base_gaps, gaps);
    }
  }
}

// While every group runs on its own last reply the mean is G - 1, whatever their speeds.
TEST(Recorder, MeanIsGroupsMinusOneForAnySpeeds) {
  for (const uint32_t groups : {1u, 2u, 5u}) {
    std::mt19937 random(groups);
    std::vector<uint64_t> base(groups, 0);
    StalenessRecorder recorder;
    uint64_t version = 0;
    const int pushes = 20000;
    for (int i = 0; i < pushes; ++i) {
      const uint32_t group = std::min(random() % groups, random() % groups);
      recorder.Applied(Push(group, base[group], version, groups), {});
      base[group] = ++version;
    }
    uint64_t sum = 0;
    for (const GroupStaleness& group : recorder.groups()) sum += group.tau.sum;
    // Exact but for the pushes that were still being computed at the end: below G of them.
    EXPECT_NEAR(static_cast<double>(sum) / pushes, groups - 1.0, 0.05) << groups;
  }
}

// A restore puts the count back: the step back is one more gap of the formula.
TEST(Recorder, FormulaSurvivesANewLineage) {
  StalenessRecorder recorder;
  recorder.Applied(Push(0, 8, 10), {});  // tau 2, makes 11
  StalenessRecorder::Application restored = Push(0, 3, 4);
  restored.base.lineage = restored.before.lineage = 1;
  recorder.Applied(restored, {});  // tau 1, makes 5
  const GroupStaleness group = recorder.groups()[0];
  EXPECT_EQ(group.tau.sum, 3u);
  EXPECT_EQ(group.base_gaps, 3 - 11);
  EXPECT_EQ(int64_t{5} - 8 - 2 - group.base_gaps, 3);
}

TEST(Policy, NoneNeitherDampsNorCompensates) {
  auto policy = StalenessPolicy::Create({"none", {}});
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ((*policy)->Weigh({.tau = 1000, .groups = 2}).weight, 1.0);
  EXPECT_FALSE((*policy)->compensates());
}

TEST(Policy, AnUnknownNameIsAnErrorThatListsTheKnown) {
  const absl::Status status = StalenessPolicy::Create({"dampen", {}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"dampen\" is not known; use none"));
  EXPECT_THAT(std::string(StalenessPolicy::Create({"none", {{"lambda", 1}}}).status().message()),
              HasSubstr("\"lambda\""));
}

}  // namespace
}  // namespace paceline
