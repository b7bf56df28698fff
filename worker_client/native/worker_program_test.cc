#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "common/config/config.h"
#include "common/runtime/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/optimizer.h"
#include "plan/permutation.h"
#include "trainer/standalone.h"
#include "worker_client/native/options.h"
#include "worker_client/native/pacing.h"
#include "worker_client/native/training_loop.h"

namespace paceline {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// ---- Options -----------------------------------------------------------------------------------

// The message of loading and completing these flags, or empty.
std::string ErrorOf(const std::vector<const char*>& flags, ProgramOptions* out = nullptr,
                    JobSpec* job = nullptr) {
  std::vector<const char*> argv = {"paceline-worker"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  ProgramOptions options;
  KeyTable keys;
  AddProgramKeys(keys, options);
  Environment env;
  env.Set("PACELINE_JOB", "j");
  auto parsed = LoadWorkerConfig(static_cast<int>(argv.size()), argv.data(), env, &keys);
  if (!parsed.ok()) return std::string(parsed.status().message());
  const absl::Status status = Complete(options, parsed->config.job, 55'000);
  if (!status.ok()) return std::string(status.message());
  if (out != nullptr) *out = options;
  if (job != nullptr) *job = parsed->config.job;
  return "";
}

TEST(OptionsTest, DefaultsTrainTheMlpForFiveEpochs) {
  ProgramOptions options;
  JobSpec job;
  ASSERT_EQ(ErrorOf({}, &options, &job), "");
  EXPECT_EQ(options.model, "mlp");
  EXPECT_EQ(job.epochs, 5u);
  EXPECT_EQ(job.batch_size, 64u);
  EXPECT_EQ(job.sample_count, 55'000u);
  EXPECT_EQ(job.optimizer, (NamedSpec{"nesterov", {{"learning_rate", 0.03}}}));
  EXPECT_EQ(options.schedule.base, 0.03f);
  EXPECT_EQ(options.schedule.decay, Decay::kLinear);
}

TEST(OptionsTest, FlagsReachTheJob) {
  ProgramOptions options;
  JobSpec job;
  ASSERT_EQ(
      ErrorOf({"--optimizer",     "sgd",    "--momentum",   "0.5", "--weight-decay", "0.001",
               "--learning-rate", "0.25",   "--warmup",     "10",  "--slowdown",     "1,1,1,3",
               "--epochs",        "2",      "--batch-size", "32",  "--seed",         "9",
               "--model",         "softmax"},
              &options, &job),
      "");
  EXPECT_EQ(
      job.optimizer,
      (NamedSpec{"sgd", {{"learning_rate", 0.25}, {"momentum", 0.5}, {"weight_decay", 0.001}}}));
  EXPECT_EQ(job.epochs, 2u);
  EXPECT_EQ(job.seed, 9u);
  EXPECT_EQ(options.schedule.warmup_steps, 10u);
  EXPECT_EQ(options.slowdown, (std::vector<double>{1, 1, 1, 3}));
  ASSERT_EQ(ErrorOf({"--optimizer", "sgd"}, &options, &job), "");
  EXPECT_EQ(options.schedule.base, 0.1f);
  ASSERT_EQ(ErrorOf({"--momentum", "0"}, &options, &job), "");
  EXPECT_EQ(job.optimizer, (NamedSpec{"sgd", {{"learning_rate", 0.1}, {"momentum", 0}}}));
  ASSERT_EQ(ErrorOf({"--max-steps", "7"}, &options, &job), "");
  EXPECT_EQ(job.epochs, 0u);  // the steps say when to stop
}

TEST(OptionsTest, EachWrongFlagIsNamedWithItsValue) {
  struct Case {
    std::vector<const char*> flags;
    const char* names;
    const char* value;
  };
  const Case cases[] = {
      {{"--model", "resnet"}, "model", "resnet"},
      {{"--learning-rate", "0"}, "learning_rate", "0"},
      {{"--learning-rate", "fast"}, "learning_rate", "fast"},
      {{"--learning-rate", "nan"}, "learning_rate", "nan"},
      {{"--momentum", "1"}, "momentum", "1"},
      {{"--weight-decay", "-1"}, "weight_decay", "-1"},
      {{"--warmup", "-1"}, "warmup", "-1"},
      {{"--slowdown", "1,0.5"}, "slowdown", "0.5"},
      {{"--slowdown", "1,,2"}, "slowdown", "1,,2"},
      {{"--batch-size", "60000"}, "batch_size", "60000"},
      {{"--sample-count", "7"}, "sample_count", "7"},
      {{"--optimizer", "magic"}, "optimizer", "magic"},
      {{"--optimizer", "adam", "--momentum", "0.9"}, "adam", "momentum"},
      {{"--standalone", "9999"}, "standalone", "9999"},
      {{"--step-time-ms", "x"}, "step_time_ms", "x"},
      {{"--lerning-rate", "1"}, "--lerning-rate", "--learning-rate"},
  };
  for (const Case& c : cases) {
    const std::string error = ErrorOf(c.flags);
    EXPECT_THAT(error, HasSubstr(c.names));
    EXPECT_THAT(error, HasSubstr(c.value));
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(OptionsTest, WhereTheResultCannotBeSavedIsSaidBeforeTraining) {
  const std::string root = testing::TempDir() + "/save-" + std::to_string(getpid());
  fs::create_directories(root);
  EXPECT_TRUE(CheckCanSave("").ok());
  EXPECT_TRUE(CheckCanSave("weights").ok());
  EXPECT_TRUE(CheckCanSave(root + "/weights").ok());
  EXPECT_THAT(CheckCanSave(root).message(), HasSubstr(root + ": is a directory"));
  ASSERT_EQ(mkfifo((root + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(CheckCanSave(root + "/pipe").message(), HasSubstr("pipe: is not a regular file"));
  std::ofstream(root + "/old") << "weights of an earlier run";
  EXPECT_TRUE(CheckCanSave(root + "/old").ok());
  EXPECT_THAT(CheckCanSave(root + "/a/weights").message(),
              HasSubstr("there is no directory " + root + "/a"));
  fs::remove_all(root);
}

TEST(PacingTest, AStepTakesItsFactorOfTheComputationOrOfTheFloor) {
  EXPECT_EQ(PacingWait(Milliseconds(10), Milliseconds(0), 1), Ticks(0));
  EXPECT_EQ(PacingWait(Milliseconds(10), Milliseconds(0), 3), Milliseconds(20));
  EXPECT_EQ(PacingWait(Milliseconds(10), Milliseconds(25), 1), Milliseconds(15));
  EXPECT_EQ(PacingWait(Milliseconds(10), Milliseconds(25), 2), Milliseconds(40));
  EXPECT_EQ(PacingWait(Milliseconds(30), Milliseconds(25), 1), Ticks(0));
  EXPECT_EQ(SlowdownOf({1, 3}, 1), 3.0);
  EXPECT_EQ(SlowdownOf({1, 3}, 2), 1.0);
}

// ---- Training loop -----------------------------------------------------------------------------

// A job of one worker whose owners are in this object: applies the mean of each push at once.
class LocalSession final : public Session {
 public:
  LocalSession(JobSpec spec, uint32_t group_size) : spec_(std::move(spec)), group_(group_size) {
    optimizer_ = Optimizer::Create(spec_.optimizer).value();
  }

  absl::Status SetOptimizer(const NamedSpec&) override { return absl::OkStatus(); }
  absl::StatusOr<TensorId> RegisterTensor(const TensorSpec& spec) override {
    weights_.emplace_back(spec.elements());
    slots_.emplace_back(optimizer_->slots().size(), weights_.back());
    return TensorId(static_cast<uint32_t>(weights_.size()) - 1);
  }
  absl::Status Init(TensorId tensor, std::span<const float> values) override {
    weights_[tensor.value()].assign(values.begin(), values.end());
    return absl::OkStatus();
  }
  absl::Status WaitReady() override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<float[]>> AllocateTensor(TensorId tensor) override {
    return std::shared_ptr<float[]>(new float[weights_[tensor.value()].size()]);
  }
  absl::StatusOr<OperationHandle> PushPull(TensorId tensor, std::span<const float> gradient,
                                           std::span<float> weights,
                                           const OperationOptions& options) override {
    if (fail_at == step_ && fail_from <= tensor) {
      return absl::AbortedError("the job was stopped: by the test");
    }
    std::vector<float>& mine = weights_[tensor.value()];
    if (options.samples > Samples(0)) {
      std::vector<float> mean(gradient.begin(), gradient.end());
      for (float& v : mean) v /= static_cast<float>(options.samples.value());
      std::vector<std::span<float>> slots(slots_[tensor.value()].begin(),
                                          slots_[tensor.value()].end());
      optimizer_->Apply(mine, slots, mean, options.learning_rate, step_.value());
    } else {
      ++empty_pushes;
    }
    std::copy(mine.begin(), mine.end(), weights.begin());
    priorities.push_back(options.priority);
    rates.push_back(options.learning_rate);
    return Begin();
  }
  absl::StatusOr<OperationHandle> Push(TensorId, std::span<const float>,
                                       const OperationOptions&) override {
    return absl::UnimplementedError("not used");
  }
  absl::StatusOr<OperationHandle> Reduce(TensorId, std::span<const float>, std::span<float>,
                                         const OperationOptions&) override {
    return absl::UnimplementedError("not used");
  }
  absl::StatusOr<OperationHandle> Pull(TensorId tensor, std::span<float> weights,
                                       const OperationOptions&) override {
    std::copy(weights_[tensor.value()].begin(), weights_[tensor.value()].end(), weights.begin());
    return Begin();
  }
  absl::StatusOr<OperationResult> Wait(OperationHandle) override {
    --outstanding;
    return OperationResult{};
  }
  absl::Status WaitAll() override { return absl::OkStatus(); }
  absl::Status AtStepBoundary() override {
    ++step_;
    return absl::OkStatus();
  }
  // Like a job whose other members need two more rounds before they have finished.
  absl::Status Barrier(const std::string& name) override {
    barrier = name;
    while (group_ > 1 && empty_pushes.load() < 2 * weights_.size()) usleep(1000);
    return absl::OkStatus();
  }
  absl::StatusOr<SampleBatch> DrawSamples(uint32_t count) override {
    const uint64_t n = spec_.sample_count;
    if (position_ == n) {
      position_ = 0;
      ++epoch_;
    }
    if (epoch_.value() == spec_.epochs) return SampleBatch{epoch_, {}, true};
    const auto order = EpochPermutation(spec_.seed, epoch_, static_cast<uint32_t>(n));
    const uint64_t end = std::min<uint64_t>(position_ + count, n);
    SampleBatch batch{epoch_, {}, false, ProgressAt({epoch_, position_, end}, n, spec_.epochs)};
    while (position_ < end) batch.indices.push_back(order[position_++]);
    return batch;
  }
  absl::StatusOr<TensorState> ReadState(TensorId) override { return TensorState{}; }
  absl::Status WriteState(TensorId, const TensorState&) override { return absl::OkStatus(); }
  absl::StatusOr<std::string> Checkpoint(const std::string&) override { return std::string(); }
  void ReportProgress(const std::map<std::string, double>& metrics) override {
    for (const auto& [name, value] : metrics) reported[name] = value;
  }
  absl::Status Leave(const std::string& reason) override {
    left = reason;
    return absl::OkStatus();
  }
  std::optional<std::string> asked_to_leave() const override { return std::nullopt; }
  bool declared_dead() override { return false; }

  JobId job() const override { return JobId(1); }
  JobRank rank() const override { return JobRank(0); }
  NodeId node() const override { return NodeId(1); }
  Step step() const override { return step_; }
  JobSpec spec() const override { return spec_; }
  uint32_t group_size() const override { return group_; }
  bool alone() const override { return group_ <= 1; }
  GroupId group() const override { return GroupId(0); }
  SessionCounters counters() const override { return {}; }

  std::map<std::string, double> reported;
  std::vector<int32_t> priorities;
  std::vector<float> rates;
  std::string barrier, left;
  std::optional<Step> fail_at;
  TensorId fail_from;  // of the step's tensors, this one and those after it
  int outstanding = 0;
  std::atomic<uint64_t> empty_pushes{0};

 private:
  OperationHandle Begin() {
    ++outstanding;
    return OperationHandle(++operations_);
  }

  const JobSpec spec_;
  const uint32_t group_;
  std::unique_ptr<const Optimizer> optimizer_;
  std::vector<std::vector<float>> weights_;
  std::vector<std::vector<std::vector<float>>> slots_;
  Step step_{1};  // after the round that members start from
  Epoch epoch_;
  uint64_t position_ = 0;
  uint64_t operations_ = 0;
};

class TrainingLoopTest : public ::testing::Test {
 protected:
  TrainingLoopTest() {
    data_.train = Synthetic(100);
    data_.validation = Synthetic(20);
    data_.test = Synthetic(30);
    job_.name = "j";
    job_.sample_count = 100;
    job_.batch_size = 16;  // 7 steps an epoch, the last of 4 samples
    job_.epochs = 3;
    job_.seed = 5;
    job_.optimizer = {"nesterov", {{"learning_rate", 0.1}}};
    options_.schedule = {0.1f, 5, Decay::kLinear};
  }

  static Dataset Synthetic(uint32_t samples) {
    Dataset data;
    data.features = 12;
    data.classes = 3;
    uint64_t state = samples;
    for (uint32_t i = 0; i < samples * 12; ++i) {
      data.images.push_back(static_cast<uint8_t>(SplitMix64(state)));
    }
    for (uint32_t i = 0; i < samples; ++i) {
      data.labels.push_back(static_cast<uint8_t>(SplitMix64(state) % 3));
    }
    return data;
  }
  absl::StatusOr<TrainingResult> Run(LocalSession& session) {
    TrainingLoop loop(session, model_, data_, options_, 0, Clock::Real(), stop_);
    return loop.Run();
  }

  Model model_{{12, 6, 3}};
  DatasetSplit data_;
  JobSpec job_;
  ProgramOptions options_;
  std::atomic<bool> stop_{false};
};

TEST_F(TrainingLoopTest, OneWorkerArrivesAtTheReferenceBitForBit) {
  LocalSession session(job_, 1);
  const auto got = Run(session);
  ASSERT_TRUE(got.ok()) << got.status();
  StandaloneOptions reference;
  reference.batch_size = 16;
  reference.epochs = 3;
  reference.seed = 5;
  reference.optimizer = job_.optimizer;
  reference.learning_rate = options_.schedule;
  EXPECT_EQ(got->parameters, TrainStandalone(model_, data_.train, reference, nullptr).value());
  EXPECT_EQ(got->steps, 21u);
  EXPECT_EQ(got->samples, Samples(300));
  EXPECT_EQ(session.barrier, "trained");
  EXPECT_EQ(session.left, "finished");
  EXPECT_EQ(session.reported.at("test_accuracy"), got->test.accuracy());
  EXPECT_TRUE(session.reported.contains("loss"));
  EXPECT_EQ(session.priorities[0], 0);
  EXPECT_EQ(session.priorities[3], -3);  // later layers after earlier ones
}

TEST_F(TrainingLoopTest, AMemberWithoutSamplesTakesPartWithNothingUntilAllHaveFinished) {
  job_.workers = 4;
  LocalSession session(job_, 4);
  const auto got = Run(session);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_GE(session.empty_pushes.load(), 2u * 4);
  job_.workers = 1;
  LocalSession alone(job_, 1);
  EXPECT_EQ(got->parameters, Run(alone)->parameters);
  EXPECT_EQ(alone.empty_pushes.load(), 0u);
}

TEST_F(TrainingLoopTest, ASampleWeighsTheSameInEveryGroup) {
  job_.workers = 4;
  options_.schedule = {0.1f, 0};
  LocalSession one_of_four(job_, 1);
  ASSERT_TRUE(Run(one_of_four).ok());
  EXPECT_EQ(one_of_four.rates[0], 0.1f / 4);  // Σg/n of a quarter of the samples
  job_.normalization = Normalization::kSum;
  LocalSession summed(job_, 1);
  ASSERT_TRUE(Run(summed).ok());
  EXPECT_EQ(summed.rates[0], 0.1f);  // Σg is a quarter by itself
}

TEST_F(TrainingLoopTest, AGroupOfAllWorkersTakesTheScheduleToTheBit) {
  for (const uint32_t workers : {3u, 5u, 7u, 9u, 10u}) {
    for (const float rate : {0.03f, 0.017f, 0.0271f, 0.09999f}) {
      job_.workers = workers;
      options_.schedule = {rate, 0, Decay::kNone};
      LocalSession session(job_, workers);
      ASSERT_TRUE(Run(session).ok());
      EXPECT_EQ(session.rates.front(), rate) << workers;
    }
  }
}

TEST_F(TrainingLoopTest, StopsAfterMaxSteps) {
  options_.max_steps = 4;
  LocalSession session(job_, 1);
  EXPECT_EQ(Run(session)->steps, 4u);
  EXPECT_EQ(session.left, "finished");
}

TEST_F(TrainingLoopTest, ASignalMakesItLeaveTheJob) {
  stop_ = true;
  LocalSession session(job_, 1);
  EXPECT_EQ(Run(session).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(session.left, "stopped by a signal");
}

TEST_F(TrainingLoopTest, AnErrorOfTheSessionEndsIt) {
  LocalSession session(job_, 1);
  session.fail_at = Step(3);
  const auto status = Run(session).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(session.left, "");
}

// The session may write into the loop's memory until it has been waited for.
TEST_F(TrainingLoopTest, AnErrorInTheMiddleOfAStepLeavesNoOperationUnderWay) {
  LocalSession session(job_, 1);
  session.fail_at = Step(3);
  session.fail_from = TensorId(2);
  EXPECT_EQ(Run(session).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(session.outstanding, 0);
}

TEST_F(TrainingLoopTest, SavesTheFinalWeights) {
  std::string pattern = (fs::temp_directory_path() / "paceline-worker-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  options_.save = pattern + "/w.safetensors";
  options_.eval_every = 7;
  LocalSession session(job_, 1);
  const auto got = Run(session);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(LoadParameters(options_.save, model_).value(), got->parameters);
  EXPECT_TRUE(session.reported.contains("validation_accuracy"));
  fs::remove_all(pattern);
}

}  // namespace
}  // namespace paceline
