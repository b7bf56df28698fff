// What can go wrong around a step: cuts, states, barriers, leaving, fences.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <limits>
#include <set>
#include <thread>

#include "common/base/status.h"
#include "common/runtime/log.h"
#include "common/safetensors/safetensors.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

constexpr uint32_t kElements = 2500;  // chunks of 1024 floats: two and a part
const NamedSpec kAdam{"adam", {{"learning_rate", 0.01}}};

class FaultTest : public testing::Test {
 protected:
  ~FaultTest() override { std::filesystem::remove_all(directory_); }

  const std::string directory_ = testing::TempDir() + "chain-fault-" + std::to_string(getpid());
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---- Cuts ---------------------------------------------------------------------------------------

TEST_F(FaultTest, ACheckpointInTheMiddleOfAStepIsRefused) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("cut", 1, "one");
  std::string path;
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements);
    PACELINE_RETURN_IF_ERROR(PushPullAll(*session, tensor, 1.0f, weights, Samples(1)).status());
    const absl::Status refused = session->Checkpoint(directory_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_NE(refused.message().find("AtStepBoundary"), std::string::npos) << refused;
    PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    PACELINE_ASSIGN_OR_RETURN(path, session->Checkpoint(directory_));
    return session->Leave("done");
  });
  EXPECT_TRUE(std::filesystem::exists(path + "/part-server-0.safetensors"));
}

// While the others of its group and another group train on.
TEST_F(FaultTest, ACheckpointHoldsTheSameStepsOfEveryChunk) {
  ChainCluster cluster(3);
  const JobSpec job = JobOf("cuts", 3, "2,1");
  std::vector<std::string> cuts;
  RunWorkers(3, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    for (int i = 0; i < 30; ++i) {
      PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 1));
      if (index == 0 && i % 10 == 4) {
        PACELINE_ASSIGN_OR_RETURN(cuts.emplace_back(), session->Checkpoint(directory_));
      }
    }
    return session->Leave("done");
  });
  ASSERT_EQ(cuts.size(), 3u);
  for (const std::string& cut : cuts) {
    std::set<std::string> versions;
    size_t chunks = 0;
    for (int server = 0; server < 3; ++server) {
      const auto part =
          SafetensorsReader::Open(cut + "/part-server-" + std::to_string(server) + ".safetensors");
      ASSERT_TRUE(part.ok()) << part.status();
      for (const auto& [chunk, version] : part->metadata()) versions.insert(version);
      chunks += part->metadata().size();
    }
    EXPECT_EQ(chunks, 3u);
    EXPECT_EQ(versions.size(), 1u) << "of one cut " << cut;
  }
}

// ---- States -------------------------------------------------------------------------------------

std::vector<float> GradientOf(int step) {
  std::vector<float> gradient(kElements);
  for (uint32_t i = 0; i < kElements; ++i) {
    gradient[i] = std::sin(0.1f * static_cast<float>(i) + static_cast<float>(step));
  }
  return gradient;
}

absl::Status Push(Session& session, TensorId tensor, const std::vector<float>& gradient,
                  std::vector<float>& weights) {
  PACELINE_ASSIGN_OR_RETURN(OperationHandle operation,
                            session.PushPull(tensor, gradient, weights, {}));
  PACELINE_RETURN_IF_ERROR(session.Wait(operation).status());
  return session.AtStepBoundary();
}

TEST_F(FaultTest, TrainingFromAWrittenStateHasTheBitsOfTrainingOn) {
  ChainCluster cluster(3);
  const JobSpec job = JobOf("state", 1, "one", kAdam);
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.5f));
    std::vector<float> weights(kElements), again(kElements);
    for (int i = 0; i < 5; ++i) {
      std::vector<float> gradient = GradientOf(i);
      // One chunk misses an update: its t is another one from here on.
      if (i == 3) gradient[1500] = std::numeric_limits<float>::quiet_NaN();
      PACELINE_RETURN_IF_ERROR(Push(*session, tensor, gradient, weights));
    }
    PACELINE_ASSIGN_OR_RETURN(const TensorState saved, session->ReadState(tensor));
    EXPECT_EQ(saved.applied_steps, (std::vector<uint64_t>{5, 4, 5}));
    EXPECT_EQ(saved.versions, (std::vector<Version>{{0, 5}, {0, 4}, {0, 5}}));
    EXPECT_EQ(saved.slots.size(), 3u);
    EXPECT_TRUE(SameBits(saved.slots.at("weights"), weights));
    for (int i = 5; i < 10; ++i) {
      PACELINE_RETURN_IF_ERROR(Push(*session, tensor, GradientOf(i), weights));
    }
    PACELINE_RETURN_IF_ERROR(session->WriteState(tensor, saved));
    PACELINE_ASSIGN_OR_RETURN(TensorState written, session->ReadState(tensor));
    EXPECT_EQ(written.versions, (std::vector<Version>{{1, 5}, {1, 4}, {1, 5}}));
    EXPECT_EQ(written.applied_steps, saved.applied_steps);
    EXPECT_EQ(written.samples, saved.samples);
    for (const auto& [name, values] : saved.slots) {
      EXPECT_TRUE(SameBits(values, written.slots[name])) << name;
    }
    PACELINE_ASSIGN_OR_RETURN(OperationHandle pull, session->Pull(tensor, again, {}));
    PACELINE_RETURN_IF_ERROR(session->Wait(pull).status());
    EXPECT_TRUE(SameBits(again, saved.slots.at("weights")));
    for (int i = 5; i < 10; ++i) {
      PACELINE_RETURN_IF_ERROR(Push(*session, tensor, GradientOf(i), again));
    }
    EXPECT_TRUE(SameBits(again, weights));

    TensorState wrong = saved;
    wrong.applied_steps.pop_back();
    EXPECT_TRUE(absl::IsInvalidArgument(session->WriteState(tensor, wrong)));
    wrong = saved;
    wrong.slots["weights"].pop_back();
    EXPECT_TRUE(absl::IsInvalidArgument(session->WriteState(tensor, wrong)));
    wrong = saved;
    wrong.slots[std::string(32, 'x')].resize(kElements);
    EXPECT_TRUE(absl::IsInvalidArgument(session->WriteState(tensor, wrong)));
    wrong = saved;
    for (char c = 'a'; c < 'i'; ++c) wrong.slots[std::string(1, c)].resize(kElements);
    EXPECT_TRUE(absl::IsInvalidArgument(session->WriteState(tensor, wrong)));
    return session->Leave("done");
  });
}

// A gradient of one member waits for the other's when the other, the writer, writes a state.
TEST_F(FaultTest, AStateWrittenUnderOpenPushesDiscardsThemAndTrainingGoesOn) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("rewrite", 2, "one");
  std::barrier ready(2);
  std::promise<void> pushed;
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements), gradient(kElements, 1.0f);
    ready.arrive_and_wait();
    if (session->rank() == JobRank(0)) {
      pushed.get_future().wait();
      PACELINE_ASSIGN_OR_RETURN(TensorState state, session->ReadState(tensor));
      state.slots["weights"].assign(kElements, 8.0f);
      PACELINE_RETURN_IF_ERROR(session->WriteState(tensor, state));
      PACELINE_ASSIGN_OR_RETURN(OperationHandle pull, session->Pull(tensor, weights, {}));
      PACELINE_RETURN_IF_ERROR(session->Wait(pull).status());
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    } else {
      PACELINE_ASSIGN_OR_RETURN(OperationHandle operation,
                                session->PushPull(tensor, gradient, weights, {}));
      pushed.set_value();
      PACELINE_RETURN_IF_ERROR(session->Wait(operation).status());
      EXPECT_EQ(weights[0], 8.0f);
      EXPECT_EQ(weights[kElements - 1], 8.0f);
      EXPECT_EQ(session->counters().discarded, Samples(1));
      EXPECT_EQ(session->counters().applied, Samples(0));
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    }
    // 8 - 0.5 x (1 + 1) / 2 twice.
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 1));
    PACELINE_RETURN_IF_ERROR(PushPullAll(*session, tensor, 1.0f, weights, Samples(1)).status());
    EXPECT_EQ(weights[0], 7.0f);
    EXPECT_EQ(weights[kElements - 1], 7.0f);
    return session->Leave("done");
  });
}

// ---- Barriers, leaving, fences ------------------------------------------------------------------

TEST_F(FaultTest, ABarrierWaitsForAllThatHaveNotLeft) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("barrier", 3, "per-worker");
  std::atomic<int> arrived{0};
  RunWorkers(3, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    for (int round = 1; round <= 5; ++round) {
      ++arrived;
      PACELINE_RETURN_IF_ERROR(session->Barrier("round"));
      EXPECT_GE(arrived, 3 * round);
    }
    if (index == 2) return session->Leave("first");
    PACELINE_RETURN_IF_ERROR(session->Barrier("without the third"));
    return session->Leave("done");
  });
}

TEST_F(FaultTest, ALearningRateThatIsNoneIsRefused) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("rates", 1, "one");
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> gradient(kElements, 1.0f), weights(kElements);
    for (const float rate :
         {-1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      OperationOptions options;
      options.learning_rate = rate;
      EXPECT_TRUE(
          absl::IsInvalidArgument(session->PushPull(tensor, gradient, weights, options).status()));
    }
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 1));
    return session->Leave("done");
  });
}

// Also that of a pull whose weights are here already.
TEST_F(FaultTest, ACallbackComesFromAThreadOfTheSession) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("callbacks", 1, "one");
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.25f));
    for (int i = 0; i < 2; ++i) {
      std::vector<float> weights(kElements);
      std::promise<std::thread::id> called;
      OperationOptions options;
      options.done = [&](const absl::StatusOr<OperationResult>& result) {
        EXPECT_TRUE(result.ok()) << result.status();
        called.set_value(std::this_thread::get_id());
      };
      PACELINE_RETURN_IF_ERROR(session->Pull(tensor, weights, options).status());
      EXPECT_NE(called.get_future().get(), std::this_thread::get_id());
      EXPECT_EQ(weights[kElements - 1], 0.25f);
    }
    return session->Leave("done");
  });
}

// Samples drawn while a step ends are of the next one: the owners are told of each that is given
// up.
TEST_F(FaultTest, SamplesDrawnWhileAStepEndsAreCountedOnce) {
  ChainCluster cluster(1);
  JobSpec job = JobOf("ahead", 1, "one");
  job.sample_count = 2000;
  job.epochs = 1;
  SessionCounters own;
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::atomic<bool> over{false};
    std::thread ahead([&] {
      while (!over) {
        const absl::StatusOr<SampleBatch> batch = session->DrawSamples(1);
        EXPECT_TRUE(batch.ok()) << batch.status();
        if (!batch.ok() || batch->finished) over = true;
      }
    });
    std::vector<float> weights(kElements);
    absl::Status status;
    while (!over && status.ok()) {
      status = PushPullAll(*session, tensor, 0.0f, weights, Samples(0)).status();
      status.Update(session->AtStepBoundary());
    }
    over = true;
    ahead.join();
    PACELINE_RETURN_IF_ERROR(status);
    PACELINE_RETURN_IF_ERROR(session->Leave("done"));
    own = session->counters();
    return absl::OkStatus();
  });
  JobView view;
  EXPECT_TRUE(cluster.Await(
      job.name,
      [](const JobView& v) {
        return v.state == JobState::kFinished && v.drawn == v.discarded + v.returned;
      },
      &view))
      << view.drawn << " drawn, " << view.discarded << " discarded, " << view.returned
      << " returned";
  EXPECT_EQ(own.drawn, view.drawn);
  EXPECT_EQ(own.discarded, view.discarded);
  EXPECT_GT(own.discarded, Samples(0));
}

TEST_F(FaultTest, AResultBufferOfAnotherSizeIsRefused) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("sizes", 1, "one");
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    const std::vector<float> gradient(kElements);
    std::vector<float> few(kElements - 1);
    for (std::span<float> out : {std::span<float>(), std::span<float>(few)}) {
      EXPECT_TRUE(absl::IsInvalidArgument(session->PushPull(tensor, gradient, out, {}).status()));
      EXPECT_TRUE(absl::IsInvalidArgument(session->Pull(tensor, out, {}).status()));
      EXPECT_TRUE(absl::IsInvalidArgument(session->Reduce(tensor, gradient, out, {}).status()));
    }
    return session->Leave("done");
  });
}

// What a leaver pushed waits in a round when a fence, after the commit of its leave, voids it: it
// is told that the group goes on without it, not left to its deadline.
TEST_F(FaultTest, ALeaversOpenPushEndsWithTheFenceThatVoidsIt) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("leaver", 3, "one");
  std::barrier ready(3);
  std::promise<void> left;
  std::shared_future<void> has_left = left.get_future().share();
  std::unique_ptr<Session> silent;  // the third worker's first incarnation
  RunWorkers(3, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements), gradient(kElements, 1.0f);
    ready.arrive_and_wait();
    if (index == 0) {
      PACELINE_ASSIGN_OR_RETURN(OperationHandle operation,
                                session->PushPull(tensor, gradient, weights, {}));
      PACELINE_RETURN_IF_ERROR(session->Leave("early"));
      left.set_value();
      const Ticks before = Clock::Real().Now();
      const absl::Status status = session->Wait(operation).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_LT(Clock::Real().Now() - before, Seconds(20)) << "its deadline is later";
      EXPECT_EQ(session->counters().returned, Samples(1));
      return absl::OkStatus();
    }
    if (index == 1) {
      // Its push waits for the third until that one is fenced, then for nobody, or for the new one.
      PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 4));
      return session->Leave("done");
    }
    has_left.wait();
    silent = std::move(session);
    PACELINE_ASSIGN_OR_RETURN(auto next, cluster.Connect(job, index));
    PACELINE_RETURN_IF_ERROR(PrepareTensor(*next, kElements, 0.0f).status());
    return next->Leave("done");
  });
}

size_t Count(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(FaultTest, ASchedulerThatIsAwayIsNotAskedInALoop) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("quiet", 1, "one");
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    SetLogLevel(LogLevel::kWarning);
    testing::internal::CaptureStderr();
    cluster.StopScheduler();
    const uint64_t before = cluster.port().calls();
    const Ticks began = Clock::Real().Now();
    while (Clock::Real().Now() - began < Seconds(1)) {
      PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 1));
    }
    // Session and server each open a stream and call once in 100 ms.
    const int64_t tenths = (Clock::Real().Now() - began).value() / 100'000'000 + 1;
    EXPECT_LE(cluster.port().calls() - before, static_cast<uint64_t>(6 * tenths));
    const std::string log = testing::internal::GetCapturedStderr();
    SetLogLevel(LogLevel::kError);
    EXPECT_EQ(Count(log, "watch stream of"), 2u) << log;
    cluster.StartScheduler();
    return session->Leave("done");
  });
}

// A scheduler whose queue is full answers ResourceExhausted: what a node owes it is sent again.
TEST_F(FaultTest, AnswersThatABusySchedulerRefusesAreSentAgain) {
  std::atomic<int> acks{0};
  ChainCluster cluster(2);
  const JobSpec job = JobOf("busy", 2, "one");
  cluster.port().SetInterceptor([&acks](const NodeRequest& request) {
    return std::holds_alternative<AckRequest>(request) && acks++ % 2 == 0
               ? absl::ResourceExhaustedError("busy")
               : absl::OkStatus();
  });
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 2));
    if (index == 0) PACELINE_RETURN_IF_ERROR(session->Checkpoint(directory_).status());
    return session->Leave("done");
  });
  // Both servers' answers to a plan, and to both phases of the cut.
  EXPECT_GE(acks, 6);
}

// The slow one holds much of the last epoch when the others run out: they get it back.
TEST_F(FaultTest, NobodyEndsEarly) {
  ChainCluster cluster(1);
  JobSpec job = JobOf("recall", 3, "per-worker");
  job.sample_count = 3000;
  job.epochs = 2;
  job.batch_size = 10;
  std::atomic<int> finished{0};
  std::atomic<uint64_t> trained{0};
  RunWorkers(3, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    std::vector<float> weights(kElements);
    int after_the_first = 0;
    while (true) {
      PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session->DrawSamples(10));
      if (batch.finished) break;
      if (finished > 0) ++after_the_first;
      // This is how long it computes.
      if (index == 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      PACELINE_RETURN_IF_ERROR(
          PushPullAll(*session, tensor, 1.0f, weights, Samples(batch.indices.size())).status());
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
      trained += batch.indices.size();
    }
    ++finished;
    EXPECT_LE(after_the_first, 3) << "worker " << index;
    return session->Leave("done");
  });
  EXPECT_EQ(trained, 6000u);
}

}  // namespace
}  // namespace paceline
