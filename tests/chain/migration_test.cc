// Workers that go over to another group while all train.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <map>
#include <thread>

#include "common/base/status.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

constexpr uint32_t kElements = 2500;  // chunks of 1024: two and a part
constexpr auto kPause = std::chrono::milliseconds(2);

void Await(const std::function<bool()>& holds) {
  const Ticks deadline = Clock::Real().Now() + kPatience;
  while (!holds() && Clock::Real().Now() < deadline) std::this_thread::sleep_for(kPause);
  EXPECT_TRUE(holds());
}

// Every gradient is 1 and the rate 1/2: each update takes exactly 1/2 from every weight.
absl::Status CheckExact(const OperationResult& result, const std::vector<float>& weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const float expected = -0.5f * static_cast<float>(result.versions[i / 1024].count);
    if (weights[i] == expected) continue;
    return absl::DataLossError(
        absl::StrCat("weight ", i, " is ", weights[i], ", expected ", expected));
  }
  return absl::OkStatus();
}

absl::Status ExactStep(Session& session, TensorId tensor, float value) {
  std::vector<float> weights(kElements);
  PACELINE_ASSIGN_OR_RETURN(const OperationResult result,
                            PushPullAll(session, tensor, value, weights, Samples(1)));
  PACELINE_RETURN_IF_ERROR(CheckExact(result, weights));
  return session.AtStepBoundary();
}

// The program need not know of it: what it pushes first is on the weights of its old group.
TEST(MigrationTest, ItTakesNoPartInItsFirstRoundAndGoesOnFromItsWeights) {
  ChainCluster cluster(2);
  const JobSpec job = JobOf("migrates", 3, "2,1");
  std::atomic<uint32_t> before{0}, after{0}, alone{0}, together{0};
  std::atomic<bool> over{false};
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    if (index == 3) {  // the operator
      Await([&] { return before > 5; });
      const absl::Status moved =
          cluster.Operate(MoveWorkerRequest{"migrates", "w1", GroupId(1), "a test"});
      Await([&] { return after > 10 && alone > 10 && together > 10; });
      over = true;
      return moved;
    }
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    while (!over) {
      const GroupId group = session->group();
      PACELINE_RETURN_IF_ERROR(ExactStep(*session, tensor, 1.0f));
      if (index == 0) alone += session->group_size() == 1;
      if (index == 2) together += session->group_size() == 2;
      if (index != 1) continue;
      ++(session->group() == GroupId(0) ? before : after);
      if (session->group() == group) continue;
      const Samples applied = session->counters().applied;
      PACELINE_RETURN_IF_ERROR(ExactStep(*session, tensor, 1000.0f));
      EXPECT_EQ(session->counters().applied, applied);
      EXPECT_EQ(session->counters().discarded, Samples(0));
      PACELINE_RETURN_IF_ERROR(ExactStep(*session, tensor, 1.0f));
      EXPECT_EQ(session->counters().applied, applied + Samples(1));
    }
    return session->Leave("done");
  });
}

// One that fetches the weights loses no step.
TEST(MigrationTest, OneThatPullsCountsAtOnce) {
  ChainCluster cluster(2);
  const JobSpec job = JobOf("pulls", 2, "per-worker");
  std::atomic<bool> over{false};
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    if (index == 0) {
      while (!over) PACELINE_RETURN_IF_ERROR(ExactStep(*session, tensor, 1.0f));
      return session->Leave("done");
    }
    const GroupId own = session->group();
    std::thread operator_thread([&] {
      const absl::Status moved =
          cluster.Operate(MoveWorkerRequest{"pulls", "w1", GroupId(1 - own.value()), "a test"});
      EXPECT_TRUE(moved.ok()) << moved;
    });
    absl::Status status;
    while (status.ok() && session->group() == own) status = ExactStep(*session, tensor, 1.0f);
    operator_thread.join();
    PACELINE_RETURN_IF_ERROR(status);
    std::vector<float> weights(kElements);
    PACELINE_ASSIGN_OR_RETURN(OperationHandle pull, session->Pull(tensor, weights, {}));
    PACELINE_ASSIGN_OR_RETURN(const OperationResult pulled, session->Wait(pull));
    PACELINE_RETURN_IF_ERROR(CheckExact(pulled, weights));
    const Samples applied = session->counters().applied;
    PACELINE_RETURN_IF_ERROR(ExactStep(*session, tensor, 1.0f));
    EXPECT_EQ(session->counters().applied, applied + Samples(1));
    over = true;
    return session->Leave("done");
  });
}

absl::Status WaitForOthers(Session& session, TensorId tensor) {
  auto all = std::async(std::launch::async, [&session] { return session.Barrier("trained"); });
  std::vector<float> weights(kElements);
  while (all.wait_for(kPause) != std::future_status::ready) {
    if (session.alone()) continue;
    PACELINE_RETURN_IF_ERROR(PushPullAll(session, tensor, 0.0f, weights, Samples(0)).status());
    PACELINE_RETURN_IF_ERROR(session.AtStepBoundary());
  }
  return all.get();
}

TEST(MigrationTest, NoSampleIsLostOrCountedTwice) {
  ChainCluster cluster(2);
  JobSpec job = JobOf("ledger", 4, "2,2");
  job.sample_count = 9001;
  job.epochs = 2;
  job.batch_size = 8;
  std::atomic<bool> over{false};
  uint32_t moves = 0;
  RunWorkers(5, [&](uint32_t index) -> absl::Status {
    if (index == 4) {  // the operator: there and back, and to groups of its own
      for (uint32_t turn = 0; !over; ++turn) {
        MoveWorkerRequest move{"ledger", "w" + std::to_string(turn % 3), std::nullopt, ""};
        if (turn % 5 != 4) move.group = GroupId(turn % 2);
        moves += cluster.Operate(move).ok();
        std::this_thread::sleep_for(kPause);
      }
      return absl::OkStatus();
    }
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements);
    while (true) {
      PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session->DrawSamples(8));
      if (batch.finished) break;
      PACELINE_RETURN_IF_ERROR(
          PushPullAll(*session, tensor, 1.0f, weights, Samples(batch.indices.size())).status());
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    }
    over = true;
    PACELINE_RETURN_IF_ERROR(WaitForOthers(*session, tensor));
    EXPECT_EQ(session->counters().discarded, Samples(0));
    return session->Leave("done");
  });
  EXPECT_GT(moves, 3u);
  JobView view;
  ASSERT_TRUE(cluster.Await(
      "ledger",
      [](const JobView& v) {
        return v.state == JobState::kFinished && v.drawn == v.applied + v.discarded + v.returned;
      },
      &view))
      << view.drawn << " drawn, " << view.applied << " applied, " << view.discarded
      << " discarded, " << view.returned << " returned";
  EXPECT_EQ(view.applied, Samples(2 * 9001));
  for (const WorkerStalenessView& worker : view.worker_staleness) {
    EXPECT_EQ(worker.drawn, worker.applied + worker.discarded + worker.returned) << worker.name;
    EXPECT_EQ(worker.applied_by_worker, worker.applied) << worker.name;
  }
}

// Both groups wait for it: the old one in a step before it goes, the new one in the step from which
// it counts.
TEST(MigrationTest, WhenItDiesOnItsWayBothGroupsGoOn) {
  ChainCluster cluster(2);
  const JobSpec job = JobOf("dies", 3, "2,1");
  std::atomic<uint32_t> steps[3] = {};
  std::atomic<bool> moved{false}, over{false};
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    if (index == 3) {
      Await([&] { return steps[1] > 5; });
      const absl::Status status =
          cluster.Operate(MoveWorkerRequest{"dies", "w1", GroupId(1), "a test"});
      moved = true;
      return status;
    }
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    const auto until = [&](std::atomic<bool>& end) -> absl::Status {
      while (!end) {
        PACELINE_RETURN_IF_ERROR(ExactStep(*session, tensor, 1.0f));
        ++steps[index];
        // The one that dies computes while it is agreed.
        if (index == 1 && steps[1] == 6) Await([&] { return moved.load(); });
      }
      return absl::OkStatus();
    };
    if (index != 1) {
      PACELINE_RETURN_IF_ERROR(until(over));
      return session->Leave("done");
    }
    PACELINE_RETURN_IF_ERROR(until(moved));
    EXPECT_EQ(session->group(), GroupId(0));
    session.reset();
    const absl::Status ended = cluster.Operate(
        ProcessEndedRequest{"dies", "w1", static_cast<uint64_t>(getpid()), "killed"});
    const uint32_t first = steps[0], second = steps[2];
    Await([&] { return steps[0] > first + 10 && steps[2] > second + 10; });
    over = true;
    return ended;
  });
}

TEST(MigrationTest, TheSchedulerIsRestartedWhileItIsOnItsWay) {
  ChainCluster cluster(2);
  const JobSpec job = JobOf("restart", 3, "2,1");
  std::atomic<uint32_t> steps[3] = {};
  std::atomic<bool> restarted{false}, over{false};
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    if (index == 3) {
      Await([&] { return steps[1] > 5; });
      const absl::Status status =
          cluster.Operate(MoveWorkerRequest{"restart", "w1", GroupId(1), "a test"});
      cluster.StopScheduler();
      cluster.StartScheduler();
      restarted = true;
      return status;
    }
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    while (!over) {
      PACELINE_RETURN_IF_ERROR(ExactStep(*session, tensor, 1.0f));
      ++steps[index];
      if (index != 1) continue;
      if (steps[1] == 6) Await([&] { return restarted.load(); });
      static std::atomic<uint32_t> there{0};
      over = session->group() == GroupId(1) && ++there > 10;
    }
    return session->Leave("done");
  });
}

}  // namespace
}  // namespace paceline
