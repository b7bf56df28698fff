// A quorum closes rounds: who is slow holds nobody up, nothing it computed is lost or counted
// twice, and a decision holds through deaths and moves.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <thread>

#include "common/base/status.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

constexpr uint32_t kElements = 2500;  // chunks of 1024 floats: two and a part
constexpr uint32_t kSlow = 3;

// Set once, waited for without a limit of its own: a test that hangs has failed.
class Signal {
 public:
  void Set() { set_.store(true); }
  bool is_set() const { return set_.load(); }
  void Wait() const {
    while (!is_set()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<bool> set_{false};
};

JobSpec QuorumJob(const std::string& name, Late late) {
  JobSpec job = JobOf(name, 4, "one");
  job.quorum = 3;
  job.late = late;
  return job;
}

struct SlowWorker {
  Step before, after;  // its push
  uint64_t samples = 0;
  SessionCounters counters;
};

// Four workers use up 3000 samples. One stops with its first batch in hand until the others have
// made twenty steps without it, and `meanwhile` has happened.
JobView TrainWithOneThatStops(ChainCluster& cluster, const JobSpec& job, SlowWorker* slow,
                              const std::function<void()>& meanwhile = nullptr) {
  Signal drawn, others_far, awake;
  std::atomic<int> far{0};
  std::thread waker([&] {
    others_far.Wait();
    if (meanwhile) meanwhile();
    awake.Set();
  });
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements);
    if (index != kSlow) drawn.Wait();
    for (int step = 0;; ++step) {
      PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session->DrawSamples(8));
      if (batch.finished) break;
      if (index == kSlow && step == 0) {
        slow->before = session->step();
        slow->samples = batch.indices.size();
        drawn.Set();
        awake.Wait();
      }
      PACELINE_RETURN_IF_ERROR(
          PushPullAll(*session, tensor, 1.0f, weights, Samples(batch.indices.size())).status());
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
      if (index == kSlow && step == 0) slow->after = session->step();
      if (index != kSlow && step == 19 && ++far == 3) others_far.Set();
    }
    PACELINE_RETURN_IF_ERROR(session->Leave("done"));
    if (index == kSlow) slow->counters = session->counters();
    return absl::OkStatus();
  });
  waker.join();
  JobView view;
  EXPECT_TRUE(cluster.Await(
      job.name,
      [](const JobView& v) {
        return v.state == JobState::kFinished && v.drawn == v.applied + v.discarded + v.returned;
      },
      &view))
      << view.drawn << " drawn, " << view.applied << " applied, " << view.discarded
      << " discarded, " << view.returned << " returned";
  for (const WorkerStalenessView& worker : view.worker_staleness) {
    EXPECT_EQ(worker.drawn, worker.applied + worker.discarded + worker.returned) << worker.name;
    EXPECT_EQ(worker.applied_by_worker, worker.applied) << worker.name;
    EXPECT_EQ(worker.discarded_by_worker, worker.discarded) << worker.name;
  }
  return view;
}

const WorkerStalenessView& Find(const JobView& view, const std::string& name) {
  for (const WorkerStalenessView& worker : view.worker_staleness) {
    if (worker.name == name) return worker;
  }
  ADD_FAILURE() << "no worker " << name;
  return view.worker_staleness.front();
}

JobSpec SampleJob(const std::string& name, Late late) {
  JobSpec job = QuorumJob(name, late);
  job.sample_count = 3000;
  job.epochs = 1;
  job.batch_size = 8;
  return job;
}

TEST(QuorumTest, OneStopsTheOthersGoOnAndItsGradientIsCarried) {
  ChainCluster cluster(2);
  SlowWorker slow;
  const JobView view = TrainWithOneThatStops(cluster, SampleJob("carried", Late::kCarry), &slow);
  EXPECT_GE(slow.after, slow.before + Step(20)) << "it goes on where its group is";
  EXPECT_EQ(view.applied, Samples(3000));
  EXPECT_EQ(view.discarded, Samples(0));
  EXPECT_GE(Find(view, "w3").carried, 1u);
  EXPECT_EQ(Find(view, "w3").dropped, 0u);
}

TEST(QuorumTest, WhereLateGradientsAreDroppedTheyAreCounted) {
  ChainCluster cluster(2);
  SlowWorker slow;
  const JobView view = TrainWithOneThatStops(cluster, SampleJob("dropped", Late::kDrop), &slow);
  EXPECT_GE(slow.after, slow.before + Step(20));
  EXPECT_EQ(view.applied + view.discarded, Samples(3000));
  EXPECT_GE(Find(view, "w3").dropped, 1u);
  EXPECT_EQ(Find(view, "w3").carried, 0u);
  EXPECT_GE(slow.counters.discarded, Samples(slow.samples));
}

// What is decided about the push that one is late for goes with the lead chunk.
TEST(QuorumTest, TheLeadChunkMovesWhileOneIsLate) {
  ChainCluster cluster(2);
  const JobSpec job = SampleJob("moved", Late::kCarry);
  SlowWorker slow;
  auto control = cluster.NewControl();
  const auto drain = [&] {
    auto reply = control->Operate(StatusQuery{"moved"}, kPatience);
    ASSERT_TRUE(reply.ok()) << reply.status();
    const auto status = std::get<ClusterView>(*reply);
    const NodeId lead = status.jobs.back().tensors.front().owners.front();
    for (const NodeView& node : status.nodes) {
      if (node.node != lead) continue;
      const auto drained = control->Operate(DrainServerRequest{node.name, false}, kPatience);
      ASSERT_TRUE(drained.ok()) << drained.status();
    }
    EXPECT_TRUE(cluster.Await(
        "moved", [lead](const JobView& v) { return v.tensors.front().owners.front() != lead; }));
  };
  const JobView view = TrainWithOneThatStops(cluster, job, &slow, drain);
  EXPECT_GE(slow.after, slow.before + Step(20));
  EXPECT_EQ(view.applied, Samples(3000));
  EXPECT_GE(Find(view, "w3").carried, 1u);
}

// A cut holds the steps after it, and who was left out of the last one before it owes it nothing.
TEST(QuorumTest, ACheckpointDoesNotWaitForOneThatStopped) {
  const std::string directory = testing::TempDir() + "chain-quorum-" + std::to_string(getpid());
  ChainCluster cluster(2);
  const JobSpec job = QuorumJob("cut", Late::kCarry);
  Signal cut;
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    if (index == kSlow) cut.Wait();
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 10));
    if (index == 0) {
      PACELINE_RETURN_IF_ERROR(session->Checkpoint(directory).status());
      cut.Set();
    }
    // Nobody leaves before: three have to be there for a round.
    while (index != kSlow && !cut.is_set()) {
      PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 1));
    }
    return session->Leave("done");
  });
  EXPECT_TRUE(std::filesystem::exists(directory));
  std::filesystem::remove_all(directory);
}

// It is in the last push before the cut, and never says that its step is over.
TEST(QuorumTest, ACheckpointDoesNotWaitForOneThatStoppedInItsStep) {
  const std::string directory = testing::TempDir() + "chain-in-step-" + std::to_string(getpid());
  ChainCluster cluster(2);
  const JobSpec job = QuorumJob("in-step", Late::kCarry);
  Signal cut;
  std::atomic<int> ready{0};
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements);
    if (index == kSlow) {  // the rest wait for what it pushes: three are a quorum
      PACELINE_RETURN_IF_ERROR(PushPullAll(*session, tensor, 1.0f, weights, Samples(1)).status());
      ++ready;
      cut.Wait();
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
      return session->Leave("done");
    }
    if (index == 2) {  // is late for the push, and for nothing else
      while (ready < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 1));
    ++ready;
    if (index == 0) {
      PACELINE_RETURN_IF_ERROR(session->Checkpoint(directory).status());
      cut.Set();
    }
    while (!cut.is_set()) PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 1));
    return session->Leave("done");
  });
  EXPECT_TRUE(std::filesystem::exists(directory));
  std::filesystem::remove_all(directory);
}

absl::StatusOr<OperationHandle> Push(Session& session, TensorId tensor, float value,
                                     std::vector<float>& gradient, std::vector<float>& weights) {
  std::fill(gradient.begin(), gradient.end(), value);
  return session.PushPull(tensor, gradient, weights, {});
}

// It is in the push by what the lead chunk has of it; the other chunks never get theirs. The one
// that is late stays out, and what is applied is divided by who is in it.
TEST(QuorumTest, TheDeathOfOneThatIsInADecidedPush) {
  constexpr uint32_t kOneChunk = 1000;
  ChainCluster cluster(2);
  JobSpec job = QuorumJob("decided", Late::kCarry);
  job.failure_timeout_ms = 500;
  Signal redone;
  std::atomic<int> done{0};
  std::atomic<int> prepared{0};
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId lead,
                              session->RegisterTensor({.name = "a", .shape = {kOneChunk}}));
    PACELINE_ASSIGN_OR_RETURN(TensorId other,
                              session->RegisterTensor({.name = "b", .shape = {kOneChunk}}));
    const std::vector<float> zeros(kOneChunk, 0.0f);
    PACELINE_RETURN_IF_ERROR(session->Init(lead, zeros));
    PACELINE_RETURN_IF_ERROR(session->Init(other, zeros));
    PACELINE_RETURN_IF_ERROR(session->WaitReady());
    ++prepared;
    while (prepared < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::vector<float> g1(kOneChunk), g2(kOneChunk), a(kOneChunk), b(kOneChunk);
    if (index == 2) {
      PACELINE_ASSIGN_OR_RETURN(OperationHandle operation, Push(*session, lead, 9.0f, g1, a));
      PACELINE_RETURN_IF_ERROR(session->Wait(operation).status());
      EXPECT_EQ(a, std::vector<float>(kOneChunk, -3.0f));  // 0.5 x (3 + 6 + 9) / 3
      return absl::OkStatus();                             // without another word
    }
    if (index == kSlow) redone.Wait();
    const float value = index == 0 ? 3.0f : index == 1 ? 6.0f : 100.0f;
    PACELINE_ASSIGN_OR_RETURN(OperationHandle first, Push(*session, lead, value, g1, a));
    PACELINE_ASSIGN_OR_RETURN(OperationHandle second, Push(*session, other, value, g2, b));
    if (index != kSlow) {
      PACELINE_RETURN_IF_ERROR(session->Wait(first).status());
      PACELINE_RETURN_IF_ERROR(session->Wait(second).status());
      EXPECT_EQ(a, std::vector<float>(kOneChunk, -3.0f));
      EXPECT_EQ(b, std::vector<float>(kOneChunk, -2.25f));  // 0.5 x (3 + 6) / 2
      if (++done == 2) redone.Set();
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
      PACELINE_ASSIGN_OR_RETURN(first, Push(*session, lead, 1.0f, g1, a));
      PACELINE_ASSIGN_OR_RETURN(second, Push(*session, other, 1.0f, g2, b));
    }
    PACELINE_RETURN_IF_ERROR(session->Wait(first).status());
    PACELINE_RETURN_IF_ERROR(session->Wait(second).status());
    // Three are left, and all three close the round: 0.5 x (1 + 1 + 100) / 3.
    EXPECT_EQ(a, std::vector<float>(kOneChunk, -20.0f));
    EXPECT_EQ(b, std::vector<float>(kOneChunk, -19.25f));
    PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    return session->Leave("done");
  });
}

// A worker ends without a word in the middle of a step, again and again; the rest train on, and
// leave once it is known to be dead.
TEST(QuorumTest, DeathsWithAQuorumHoldNobodyUp) {
  ChainCluster cluster(2);
  for (int round = 0; round < 4; ++round) {
    JobSpec job = QuorumJob("deaths-" + std::to_string(round), Late::kCarry);
    job.failure_timeout_ms = 300;
    RunWorkers(4, [&](uint32_t index) -> absl::Status {
      std::vector<float> gradient(kElements, 1.0f), weights(kElements);
      PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
      PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
      PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 3 + round));
      if (index == static_cast<uint32_t>(round)) {
        return session->PushPull(tensor, gradient, weights, {}).status();
      }
      PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 30));
      const bool dead =
          cluster.Await(job.name, [](const JobView& v) { return v.workers_live <= 3; });
      if (!dead) return absl::DeadlineExceededError("nobody was declared dead");
      return session->Leave("done");
    });
    JobView last;
    EXPECT_TRUE(cluster.Await(job.name,
                              [&](const JobView& v) {
                                last = v;
                                return v.state == JobState::kFinished;
                              }))
        << Absl(Name(last.state)) << ": " << last.reason;
  }
}

}  // namespace
}  // namespace paceline
