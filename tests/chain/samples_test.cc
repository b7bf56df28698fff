// Where samples go, in three separate counts; and jobs beside and after one another.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <limits>
#include <map>

#include "common/base/status.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

constexpr uint32_t kElements = 2500;

// Takes part with nothing until all have run out, so that no round of its group waits for it.
absl::Status WaitForOthers(Session& session, TensorId tensor) {
  auto all = std::async(std::launch::async, [&session] { return session.Barrier("trained"); });
  std::vector<float> weights(kElements);
  while (all.wait_for(std::chrono::milliseconds(2)) != std::future_status::ready) {
    if (session.group_size() <= 1) continue;
    PACELINE_RETURN_IF_ERROR(PushPullAll(session, tensor, 0.0f, weights, Samples(0)).status());
    PACELINE_RETURN_IF_ERROR(session.AtStepBoundary());
  }
  return all.get();
}

// What it trains on while the scheduler is away was drawn before.
TEST(SamplesTest, AWorkerTrainsOnWhileTheSchedulerIsAway) {
  ChainCluster cluster(1);
  JobSpec job = JobOf("away", 1, "one");
  job.sample_count = 1'000'000;
  job.epochs = 1;
  job.batch_size = 8;
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements);
    const auto step = [&]() -> absl::Status {
      PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session->DrawSamples(8));
      EXPECT_EQ(batch.indices.size(), 8u);
      PACELINE_RETURN_IF_ERROR(
          PushPullAll(*session, tensor, 1.0f, weights, Samples(batch.indices.size())).status());
      return session->AtStepBoundary();
    };
    while (session->counters().drawn < Samples(8 * 1000)) PACELINE_RETURN_IF_ERROR(step());
    cluster.StopScheduler();
    const Samples drawn = session->counters().drawn;
    for (int i = 0; i < 500; ++i) PACELINE_RETURN_IF_ERROR(step());
    EXPECT_EQ(session->counters().drawn, drawn);
    cluster.StartScheduler();
    return session->Leave("enough");
  });
  EXPECT_TRUE(cluster.Await("away", [](const JobView& v) {
    return v.state == JobState::kFinished && v.drawn == v.applied + v.returned;
  }));
}

TEST(SamplesTest, DrawnAreAppliedDiscardedOrReturnedInEachOfThreeCounts) {
  ChainCluster cluster(2);
  JobSpec job = JobOf("samples", 4, "2,1,1");
  job.sample_count = 1999;
  job.epochs = 2;
  job.batch_size = 16;
  Mutex mutex;
  std::map<std::string, SessionCounters> own;
  std::atomic<uint64_t> in_hand{0}, discarded{0};
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements);
    bool left = false;
    for (int step = 0;; ++step) {
      PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session->DrawSamples(16));
      if (batch.finished) break;
      // The last worker leaves with samples in hand and more ahead.
      if (index == 3 && step == 8) {
        in_hand = batch.indices.size();
        PACELINE_RETURN_IF_ERROR(session->Leave("early"));
        left = true;
        break;
      }
      // Another draws some and pushes none of them, or not all, or what is no number.
      float value = 1.0f;
      uint64_t pushed = batch.indices.size();
      if (index == 2 && step == 5) pushed = 0;
      if (index == 2 && step == 6) pushed -= std::min<uint64_t>(pushed, 3);
      if (index == 2 && step == 7) value = std::numeric_limits<float>::infinity();
      discarded += step == 7 && index == 2 ? pushed : batch.indices.size() - pushed;
      PACELINE_RETURN_IF_ERROR(
          PushPullAll(*session, tensor, value, weights, Samples(pushed)).status());
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    }
    if (!left) {
      PACELINE_RETURN_IF_ERROR(WaitForOthers(*session, tensor));
      PACELINE_RETURN_IF_ERROR(session->Leave("done"));
    }
    MutexLock lock(&mutex);
    own["w" + std::to_string(index)] = session->counters();
    return absl::OkStatus();
  });

  JobView view;
  ASSERT_TRUE(cluster.Await(
      "samples",
      [](const JobView& v) {
        return v.state == JobState::kFinished && v.drawn == v.applied + v.discarded + v.returned;
      },
      &view))
      << view.drawn << " drawn, " << view.applied << " applied, " << view.discarded
      << " discarded, " << view.returned << " returned";
  EXPECT_EQ(view.applied + view.discarded, Samples(2 * 1999));
  ASSERT_EQ(view.worker_staleness.size(), 4u);
  for (const WorkerStalenessView& worker : view.worker_staleness) {
    SCOPED_TRACE(worker.name);
    const SessionCounters& mine = own.at(worker.name);
    // Ledger and owners; what the worker reported last; what its session says.
    EXPECT_EQ(worker.drawn, worker.applied + worker.discarded + worker.returned);
    EXPECT_EQ(worker.drawn_by_worker, worker.drawn);
    EXPECT_EQ(worker.applied_by_worker, worker.applied);
    EXPECT_EQ(worker.discarded_by_worker, worker.discarded);
    EXPECT_EQ(worker.returned_by_worker, worker.returned);
    EXPECT_EQ(mine.drawn, worker.drawn);
    EXPECT_EQ(mine.applied, worker.applied);
    EXPECT_EQ(mine.discarded, worker.discarded);
    EXPECT_EQ(mine.returned, worker.returned);
    EXPECT_GT(worker.applied, Samples(0));
  }
  EXPECT_GT(discarded, 3u);
  // By name: ranks go by who joined first.
  EXPECT_EQ(own.at("w2").discarded, Samples(discarded));
  EXPECT_GE(own.at("w3").returned, Samples(in_hand));
}

// Each worker brings another value; all must start from one worker's, on all servers.
absl::Status TrainOneJob(ChainCluster& cluster, const JobSpec& job, uint32_t index, float value,
                         std::vector<float>* start, std::vector<float>* end) {
  PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
  PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, value));
  start->resize(kElements);
  end->resize(kElements);
  PACELINE_ASSIGN_OR_RETURN(OperationHandle pull, session->Pull(tensor, *start, {}));
  PACELINE_RETURN_IF_ERROR(session->Wait(pull).status());
  for (int i = 0; i < 10; ++i) {
    PACELINE_RETURN_IF_ERROR(PushPullAll(*session, tensor, 1.0f, *end, Samples(1)).status());
    PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
  }
  return session->Leave("done");
}

TEST(JobsTest, TwoAtOnceAndOneAfterTheOtherStartCleanFromOneWorkersValues) {
  ChainCluster cluster(3);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<float>> start(6), end(6);
    RunWorkers(6, [&](uint32_t worker) -> absl::Status {
      const bool second = worker >= 3;
      const JobSpec job = JobOf(second ? "second" : "first", 3, "one");
      return TrainOneJob(cluster, job, worker % 3, 100.0f * static_cast<float>(worker + 1),
                         &start[worker], &end[worker]);
    });
    for (uint32_t worker = 0; worker < 6; ++worker) {
      const std::vector<float>& of_job = start[worker < 3 ? 0 : 3];
      EXPECT_EQ(start[worker], of_job);
      EXPECT_EQ(of_job, std::vector<float>(kElements, of_job[0])) << "none mixed";
      EXPECT_TRUE(worker < 3 ? of_job[0] <= 300.0f : of_job[0] >= 400.0f) << of_job[0];
      // Ten updates of 0.5 x (1 + 1 + 1) / 3.
      EXPECT_EQ(end[worker], std::vector<float>(kElements, of_job[0] - 5.0f));
    }
    for (const char* job : {"first", "second"}) {
      EXPECT_TRUE(
          cluster.Await(job, [](const JobView& v) { return v.state == JobState::kFinished; }));
    }
  }
}

}  // namespace
}  // namespace paceline
