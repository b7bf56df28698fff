// Checkpoints with real files: what is written is what the owners held, and another cluster goes on
// from it to the bit and to the sample.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/manifest.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kSamples = 600;
constexpr uint32_t kBatch = 10;

const std::vector<TensorSpec>& Tensors() {
  static const std::vector<TensorSpec> tensors = {
      {"layer/1", {3000}}, {"layer/2", {7, 11}}, {"scale", {}}};
  return tensors;
}

using States = std::map<std::string, TensorState>;

class CheckpointChainTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "chain-checkpoint-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    base_ = name;
  }
  void TearDown() override { fs::remove_all(base_); }

  JobSpec Job(uint32_t workers, const std::string& groups) const {
    JobSpec job = JobOf("job", workers, groups, {"adam", {{"learning_rate", 0.01}}});
    job.sample_count = kSamples;
    job.epochs = 2;
    job.batch_size = kBatch;
    job.checkpoint_dir = base_;
    return job;
  }

  std::string base_;
};

// One worker's model: registered, with values of its own that only a job without a checkpoint uses.
class Trainee {
 public:
  explicit Trainee(Session& session) : session_(session) {}

  absl::Status Prepare() {
    for (const TensorSpec& spec : Tensors()) {
      PACELINE_ASSIGN_OR_RETURN(tensors_.emplace_back(), session_.RegisterTensor(spec));
      weights_.emplace_back(spec.elements(), 0.5f);
      PACELINE_RETURN_IF_ERROR(session_.Init(tensors_.back(), weights_.back()));
    }
    return session_.WaitReady();
  }

  // A step on the next samples, which go into `seen`; false when none are left. The gradient is
  // different in every element and step.
  absl::StatusOr<bool> Step(std::multiset<std::pair<uint64_t, uint32_t>>* seen) {
    PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session_.DrawSamples(kBatch));
    if (batch.finished) return false;
    for (uint32_t index : batch.indices) seen->emplace(batch.epoch.value(), index);
    OperationOptions options;
    options.samples = Samples(batch.indices.size());
    for (size_t t = 0; t < tensors_.size(); ++t) {
      std::vector<float> gradient(weights_[t].size());
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(i % 17) - 8 + weights_[t][i] + static_cast<float>(t);
      }
      PACELINE_ASSIGN_OR_RETURN(const OperationHandle operation,
                                session_.PushPull(tensors_[t], gradient, weights_[t], options));
      PACELINE_RETURN_IF_ERROR(session_.Wait(operation).status());
    }
    PACELINE_RETURN_IF_ERROR(session_.AtStepBoundary());
    return true;
  }

  absl::StatusOr<States> Read() {
    States states;
    for (size_t t = 0; t < tensors_.size(); ++t) {
      PACELINE_ASSIGN_OR_RETURN(states[Tensors()[t].name], session_.ReadState(tensors_[t]));
    }
    return states;
  }

 private:
  Session& session_;
  std::vector<TensorId> tensors_;
  std::vector<std::vector<float>> weights_;
};

void ExpectSame(const States& before, const States& after, uint32_t lineage) {
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, was] : before) {
    SCOPED_TRACE(name);
    const TensorState& is = after.at(name);
    EXPECT_EQ(was.applied_steps, is.applied_steps);
    ASSERT_EQ(was.slots.size(), 3u);  // weights, m, v
    EXPECT_TRUE(was.slots == is.slots);
    ASSERT_EQ(was.versions.size(), is.versions.size());
    for (size_t c = 0; c < was.versions.size(); ++c) {
      EXPECT_EQ(was.versions[c].count, is.versions[c].count);
      EXPECT_EQ(is.versions[c].lineage, lineage);
    }
  }
}

using Seen = std::multiset<std::pair<uint64_t, uint32_t>>;

TEST_F(CheckpointChainTest, AnotherClusterGoesOnToTheBitAndToTheSample) {
  constexpr int kSteps = 12;
  States before;
  Seen seen;
  std::string path;
  {
    ChainCluster cluster(2);
    const JobSpec job = Job(2, "per-worker");
    std::vector<Seen> parts(2);
    RunWorkers(2, [&](uint32_t index) -> absl::Status {
      PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
      Trainee trainee(*session);
      PACELINE_RETURN_IF_ERROR(trainee.Prepare());
      // The groups are at different steps.
      for (int i = 0; i < kSteps - 5 * static_cast<int>(index); ++i) {
        PACELINE_RETURN_IF_ERROR(trainee.Step(&parts[index]).status());
      }
      PACELINE_RETURN_IF_ERROR(session->Barrier("trained"));
      if (index == 0) {
        PACELINE_ASSIGN_OR_RETURN(path, session->Checkpoint(""));
        PACELINE_ASSIGN_OR_RETURN(before, trainee.Read());
      }
      PACELINE_RETURN_IF_ERROR(session->Barrier("read"));
      return session->Leave("done");
    });
    for (const Seen& part : parts) seen.insert(part.begin(), part.end());
  }
  ASSERT_GT(seen.size(), 0u);  // a batch may be less than was asked for
  const auto found = NewestCheckpoint(base_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->path, path);
  EXPECT_EQ(found->manifest->parts.size(), 2u);
  EXPECT_EQ(found->manifest->applied, Samples(seen.size()));
  EXPECT_EQ(found->manifest->updates, 2u * kSteps - 5);

  ChainCluster cluster(3);
  ASSERT_TRUE(cluster.NewControl()
                  ->Operate(ResumeJobRequest{"job", path, *found->manifest}, kPatience)
                  .ok());
  const JobSpec job = Job(3, "2,1");
  std::vector<Seen> parts(3);
  States after;
  RunWorkers(3, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    Trainee trainee(*session);
    PACELINE_RETURN_IF_ERROR(trainee.Prepare());
    EXPECT_EQ(session->step(), Step(kSteps + 1));
    if (index == 0) {
      PACELINE_ASSIGN_OR_RETURN(after, trainee.Read());
    }
    PACELINE_RETURN_IF_ERROR(session->Barrier("read"));
    bool more = true;
    while (more) {
      PACELINE_ASSIGN_OR_RETURN(more, trainee.Step(&parts[index]));
    }
    return session->Leave("done");
  });
  ExpectSame(before, after, 1);
  for (const Seen& part : parts) seen.insert(part.begin(), part.end());
  // Both runs together saw every sample of both epochs once.
  EXPECT_EQ(seen.size(), 2 * kSamples);
  EXPECT_EQ(Seen(seen).size(), std::set(seen.begin(), seen.end()).size());
  JobView view;
  const uint64_t rest = 2 * kSamples - found->manifest->applied.value();
  ASSERT_TRUE(cluster.Await(
      "job",
      [rest](const JobView& v) {
        return v.state == JobState::kFinished && v.applied == Samples(rest);
      },
      &view));
  EXPECT_EQ(view.resumed_from, path);
  EXPECT_EQ(view.drawn, view.applied + view.discarded + view.returned);
}

TEST_F(CheckpointChainTest, PeriodicOnesAreKeptToANumber) {
  ChainCluster cluster(2);
  JobSpec job = Job(1, "one");
  job.checkpoint_every_steps = 10;
  job.checkpoint_keep = 2;
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    Trainee trainee(*session);
    PACELINE_RETURN_IF_ERROR(trainee.Prepare());
    Seen seen;
    // Goes on until four have been taken, at most to the end of the samples.
    bool more = true;
    while (more && (cluster.View("job").checkpoints.empty() ||
                    cluster.View("job").checkpoints.back().number < 4)) {
      PACELINE_ASSIGN_OR_RETURN(more, trainee.Step(&seen));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // steps are reported by time
    }
    EXPECT_EQ(cluster.View("job").checkpoints.size(), 2u);
    return session->Leave("done");
  });
  const auto found = ListCheckpoints(base_);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 2u);
  for (const FoundCheckpoint& f : *found) {
    ASSERT_TRUE(f.manifest.ok()) << f.manifest.status();
    EXPECT_TRUE(VerifyCheckpoint(f.path, *f.manifest).ok());
  }
}

// The owners hold what is beyond the cut, and the one who would tell them to go on is gone.
TEST_F(CheckpointChainTest, ASchedulerThatDiesDuringACutHoldsNobody) {
  constexpr uint64_t kElements = 3000;
  // Asked by servers up to the end of the cluster.
  std::atomic<bool> held{false};
  std::atomic<bool> deaf{true};
  ChainCluster cluster(2);
  JobSpec job = JobOf("job", 1, "one");
  job.checkpoint_dir = base_;
  cluster.port().SetInterceptor([&](const NodeRequest& request) {
    const auto* const ack = std::get_if<AckRequest>(&request);
    if (!deaf || ack == nullptr || ack->applied.empty()) return absl::OkStatus();
    held = true;
    return absl::UnavailableError("lost on the way");
  });
  RunWorkers(1, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(const TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 2));
    std::thread asks([&] {
      cluster.NewControl()->Operate(CheckpointJobRequest{"job", ""}, kPatience).IgnoreError();
    });
    while (!held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    cluster.StopScheduler();
    asks.join();
    // Goes on while there is no scheduler.
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 5));
    deaf = false;
    cluster.StartScheduler();
    PACELINE_ASSIGN_OR_RETURN(const std::string path, session->Checkpoint(""));
    PACELINE_ASSIGN_OR_RETURN(const CheckpointManifest manifest, ReadManifest(path));
    EXPECT_EQ(LastStep(manifest.steps), Step(7));
    EXPECT_TRUE(VerifyCheckpoint(path, manifest).ok());
    return session->Leave("done");
  });
}

// Worker 0 skipped tensor "v" and is a step ahead when the only server dies. The one that takes its
// place under its name has to hear of it, or each worker waits there for the other.
TEST_F(CheckpointChainTest, AServerStartedAgainUnderItsNameHearsWhoIsDoneWithWhat) {
  constexpr uint64_t kElements = 100;
  ChainCluster cluster(1);
  JobSpec job = JobOf("job", 2, "one");
  job.checkpoint_dir = base_;
  std::barrier together(2);
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    std::map<std::string, TensorId> tensors;
    for (const char* name : {"w", "v"}) {
      PACELINE_ASSIGN_OR_RETURN(tensors[name], session->RegisterTensor({name, {kElements}}));
      PACELINE_RETURN_IF_ERROR(session->Init(tensors[name], std::vector<float>(kElements)));
    }
    PACELINE_RETURN_IF_ERROR(session->WaitReady());
    std::vector<float> weights(kElements);
    const auto push = [&](const char* name) {
      return PushPullAll(*session, tensors[name], 1.0f, weights, Samples(1)).status();
    };
    together.arrive_and_wait();
    if (index == 0) PACELINE_RETURN_IF_ERROR(session->Checkpoint("").status());
    together.arrive_and_wait();
    PACELINE_RETURN_IF_ERROR(push("w"));
    if (index == 0) PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    together.arrive_and_wait();
    if (index == 0) cluster.ReplaceServer(0);
    EXPECT_TRUE(cluster.Await("job", [](const JobView& view) { return view.lineage == 1; }));
    together.arrive_and_wait();
    if (index == 1) {
      PACELINE_RETURN_IF_ERROR(push("v"));
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    }
    for (const char* name : {"w", "v"}) PACELINE_RETURN_IF_ERROR(push(name));
    return session->Leave("done");
  });
}

TEST_F(CheckpointChainTest, ResumingWithAnotherModelNamesTheTensor) {
  std::string path;
  {
    ChainCluster cluster(1);
    RunWorkers(1, [&](uint32_t index) -> absl::Status {
      PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(Job(1, "one"), index));
      Trainee trainee(*session);
      PACELINE_RETURN_IF_ERROR(trainee.Prepare());
      PACELINE_ASSIGN_OR_RETURN(path, session->Checkpoint(""));
      return session->Leave("done");
    });
  }
  ChainCluster cluster(1);
  const auto manifest = ReadManifest(path);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_TRUE(
      cluster.NewControl()->Operate(ResumeJobRequest{"job", path, *manifest}, kPatience).ok());
  auto session = cluster.Connect(Job(1, "one"), 0);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->RegisterTensor({"layer/1", {3001}}).ok());
  const absl::Status status = (*session)->WaitReady();
  EXPECT_FALSE(status.ok());
  JobView view;
  ASSERT_TRUE(cluster.Await(
      "job", [](const JobView& v) { return v.state == JobState::kStopped; }, &view));
  EXPECT_NE(view.reason.find("tensor layer/1 was f32[3000] when it was taken and is f32[3001]"),
            std::string::npos)
      << view.reason;
}

}  // namespace
}  // namespace paceline
