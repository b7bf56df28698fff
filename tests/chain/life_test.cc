// The life of sessions: connecting, leaving, ending without a word, again and again.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "common/base/status.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

constexpr uint32_t kElements = 3000;  // chunks of 1024 floats: two and a part

TEST(LifeTest, WorkersConnectTrainAndLeaveAgainAndAgain) {
  ChainCluster cluster(2);
  for (int round = 0; round < 8; ++round) {
    const JobSpec job = JobOf("life-" + std::to_string(round), 3, round % 2 ? "per-worker" : "2,1");
    RunWorkers(3, [&](uint32_t index) -> absl::Status {
      PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
      PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
      PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 3));
      return session->Leave("done");
    });
    JobView view;
    EXPECT_TRUE(cluster.Await(
        job.name, [](const JobView& v) { return v.state == JobState::kFinished; }, &view))
        << Name(view.state) << ": " << view.reason;
  }
}

TEST(LifeTest, LeavesOneAfterTheOtherWhileTheRestTrain) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("shrinking", 4, "one");
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    PACELINE_RETURN_IF_ERROR(
        TrainSteps(*session, tensor, kElements, 5 + 5 * static_cast<int>(index)));
    return session->Leave("done");
  });
}

// More changes of the group than it has steps: the step that the slow one is in stays open.
TEST(LifeTest, ManyLeaveOneAfterTheOtherWhileOneComputes) {
  constexpr uint32_t kWorkers = 14;
  ChainCluster cluster(2);
  const JobSpec job = JobOf("patient", kWorkers, "one");
  Mutex mutex;
  CondVar changed;
  uint32_t left = 0;
  RunWorkers(kWorkers, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 2));
    {
      MutexLock lock(&mutex);
      while (left < (index == 0 ? kWorkers - 1 : index - 1)) changed.Wait(&mutex);
    }
    if (index == 0) PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 1));
    const absl::Status status = session->Leave("done");
    MutexLock lock(&mutex);
    ++left;
    changed.SignalAll();
    return status;
  });
}

TEST(LifeTest, EndsWithoutLeaving) {
  ChainCluster cluster(2);
  for (int round = 0; round < 4; ++round) {
    const JobSpec job = JobOf("silent-" + std::to_string(round), 2, "per-worker");
    RunWorkers(2, [&](uint32_t index) -> absl::Status {
      PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
      PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
      return TrainSteps(*session, tensor, kElements, 2);
    });
  }
}

// An operation that nobody else completes is under way when the session ends.
TEST(LifeTest, EndsWithOperationsOutstanding) {
  ChainCluster cluster(2);
  for (int round = 0; round < 6; ++round) {
    const JobSpec job = JobOf("outstanding-" + std::to_string(round), 2, "one");
    std::atomic<int> ended{0};
    std::barrier ready(2);
    RunWorkers(2, [&](uint32_t index) -> absl::Status {
      std::vector<float> gradient(kElements, 1.0f), weights(kElements);
      PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
      PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
      ready.arrive_and_wait();
      if (index == 1) return absl::OkStatus();
      OperationOptions options;
      options.done = [&ended](const absl::StatusOr<OperationResult>& result) {
        EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
        ++ended;
      };
      PACELINE_RETURN_IF_ERROR(session->PushPull(tensor, gradient, weights, options).status());
      session.reset();
      EXPECT_EQ(ended, 1) << "the callback comes exactly once, before the session is gone";
      return absl::OkStatus();
    });
  }
}

// A new incarnation under the same name takes the place of one that ended without a word, while
// the other worker trains: each sends the survivor fences, prepares, commits and plans.
TEST(LifeTest, ComesBackUnderItsNameAgainAndAgain) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("crowd", 2, "one");
  std::atomic<bool> over{false};
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    if (index == 0) {
      PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
      PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
      while (!over) PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 1));
      return session->Leave("done");
    }
    for (int round = 0; round < 6; ++round) {
      PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
      PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
      PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 2));
      if (round == 5) {
        PACELINE_RETURN_IF_ERROR(session->Leave("done"));
      }
    }
    over = true;
    return absl::OkStatus();
  });
}

TEST(LifeTest, LosesTheSchedulerWhileLeaving) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("away", 2, "one");
  std::barrier trained(3);
  std::thread scheduler([&] {
    trained.arrive_and_wait();
    cluster.StopScheduler();
    cluster.StartScheduler();
  });
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 3));
    trained.arrive_and_wait();
    if (index == 1) PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 20));
    return session->Leave("done");
  });
  scheduler.join();
}

}  // namespace
}  // namespace paceline
