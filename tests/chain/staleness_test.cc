// Staleness as the owners count it, against raw versions that the workers gather.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <map>
#include <thread>

#include "common/base/status.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

constexpr uint32_t kElements = 2500;  // chunks of 1024 floats: two and a part
constexpr size_t kChunks = 3;
constexpr uint32_t kWorkers = 4;

struct Push {
  uint64_t base = 0;
  uint64_t version = 0;
};

// By group and chunk, in the order in which the group made them.
using Pushes = std::map<GroupId, std::vector<std::vector<Push>>>;

// docs/staleness.md, from the terms and not from the single values.
int64_t Formula(const std::vector<Push>& pushes) {
  int64_t gaps = 0;
  for (size_t i = 0; i + 1 < pushes.size(); ++i) {
    gaps += static_cast<int64_t>(pushes[i + 1].base) - static_cast<int64_t>(pushes[i].version);
  }
  return static_cast<int64_t>(pushes.back().version) - static_cast<int64_t>(pushes.front().base) -
         static_cast<int64_t>(pushes.size()) - gaps;
}

// Trains until the job has made `updates`; `compute_us` is how long worker `index` computes.
struct Run {
  std::string groups;
  uint64_t updates = 0;
  std::vector<int> compute_us = {0, 0, 0, 0};
};

Pushes Train(ChainCluster& cluster, const Run& run) {
  const JobSpec job = JobOf("staleness", kWorkers, run.groups);
  Pushes pushes;
  Mutex mutex;
  std::atomic<uint64_t> updates{0};
  std::barrier prepared(kWorkers);
  RunWorkers(kWorkers, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements);
    std::vector<std::vector<Push>> mine(kChunks);
    prepared.arrive_and_wait();  // from here on all groups have a base
    while (updates < run.updates) {
      if (run.compute_us[index] > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(run.compute_us[index]));
      }
      PACELINE_ASSIGN_OR_RETURN(const OperationResult result,
                                PushPullAll(*session, tensor, 1.0f, weights, Samples(1)));
      for (size_t c = 0; c < kChunks; ++c) {
        mine[c].push_back({result.bases[c].count, result.versions[c].count});
      }
      updates = std::max<uint64_t>(updates, result.versions[0].count);
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    }
    {
      MutexLock lock(&mutex);
      std::vector<std::vector<Push>>& of_group = pushes[session->group()];
      // Members see the same; one may have seen that it is over a step before another.
      if (of_group.empty() || of_group[0].size() < mine[0].size()) of_group = std::move(mine);
    }
    return session->Leave("done");
  });
  return pushes;
}

class Sums : public testing::TestWithParam<std::string> {};

TEST_P(Sums, EqualTheFormulaOverRawVersionsPerGroupAndChunk) {
  ChainCluster cluster(2);
  const Pushes pushes = Train(cluster, {.groups = GetParam(), .updates = 200});
  for (size_t c = 0; c < kChunks; ++c) {
    // Every version was made once: what a group does not see of a chunk others made.
    std::vector<uint64_t> versions;
    for (const auto& [group, chunks] : pushes) {
      int64_t sum = 0;
      for (const Push& push : chunks[c]) {
        versions.push_back(push.version);
        ASSERT_LT(push.base, push.version);
        sum += static_cast<int64_t>(push.version - 1 - push.base);
      }
      EXPECT_EQ(sum, Formula(chunks[c])) << "group " << group << " chunk " << c;
    }
    std::sort(versions.begin(), versions.end());
    for (size_t i = 0; i < versions.size(); ++i) ASSERT_EQ(versions[i], i + 1) << "chunk " << c;
  }

  uint64_t total = 0;
  for (const auto& [group, chunks] : pushes) total += chunks[0].size();
  JobView view;
  ASSERT_TRUE(cluster.Await(
      "staleness", [&](const JobView& v) { return v.updates >= total; }, &view));
  EXPECT_EQ(view.updates, total);
  ASSERT_EQ(view.group_staleness.size(), pushes.size());
  for (const GroupStalenessView& shown : view.group_staleness) {
    const std::vector<Push>& lead = pushes.at(shown.raw.group)[0];
    EXPECT_EQ(shown.raw.tau.count, lead.size());
    EXPECT_EQ(static_cast<int64_t>(shown.raw.tau.sum), Formula(lead)) << shown.raw.group;
    EXPECT_EQ(shown.formula_sum, Formula(lead));
    EXPECT_DOUBLE_EQ(shown.mean,
                     static_cast<double>(Formula(lead)) / static_cast<double>(lead.size()));
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, Sums, testing::Values("one", "2,2", "per-worker"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
                           return name;
                         });

// Between the moment when all groups have a base and the first end of any.
double MeanWhileAllTrain(const Pushes& pushes, uint64_t* count) {
  uint64_t end = UINT64_MAX;
  for (const auto& [group, chunks] : pushes) end = std::min(end, chunks[0].back().version);
  uint64_t sum = 0;
  *count = 0;
  for (const auto& [group, chunks] : pushes) {
    for (const Push& push : chunks[0]) {
      if (push.version > end) continue;
      sum += push.version - 1 - push.base;
      ++*count;
    }
  }
  return static_cast<double>(sum) / static_cast<double>(*count);
}

class Mean : public testing::TestWithParam<Run> {};

TEST_P(Mean, IsTheOtherGroupsWhileAllTrain) {
  ChainCluster cluster(1);
  const Pushes pushes = Train(cluster, GetParam());
  uint64_t count = 0;
  const double mean = MeanWhileAllTrain(pushes, &count);
  EXPECT_GE(count, 2000u);
  EXPECT_NEAR(mean, static_cast<double>(pushes.size()) - 1.0, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Groups, Mean,
                         testing::Values(Run{"one", 2100}, Run{"2,2", 2100},
                                         Run{"per-worker", 2100},
                                         Run{"per-worker", 2100, {200, 200, 200, 600}}),
                         [](const auto& info) {
                           return "Of" + std::to_string(info.index) +
                                  (info.param.compute_us[3] > 0 ? "_OneThreeTimesSlower" : "");
                         });

}  // namespace
}  // namespace paceline
