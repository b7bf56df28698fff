#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/dataset.h"
#include "trainer/learning_rate.h"
#include "trainer/model.h"
#include "trainer/standalone.h"

namespace paceline {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// ---- Data set ----------------------------------------------------------------------------------

class IdxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "paceline-trainer-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string WriteRaw(const std::string& bytes) const {
    const std::string path = (directory_ / "labels.gz").string();
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }
  std::string WriteGzip(const std::string& content) const {
    const std::string path = (directory_ / "labels.gz").string();
    gzFile file = gzopen(path.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, content.data(), static_cast<unsigned>(content.size())),
              static_cast<int>(content.size()));
    gzclose(file);
    return path;
  }
  static std::string Contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path directory_;
};

// magic 0x00000801, three labels
const std::string kThreeLabels("\0\0\x08\x01\0\0\0\x03\x07\x00\x09", 11);

TEST_F(IdxTest, ReadsWhatTheFormatSays) {
  const auto labels = ReadIdx(WriteGzip(kThreeLabels), {3});
  ASSERT_TRUE(labels.ok()) << labels.status();
  EXPECT_EQ(*labels, (std::vector<uint8_t>{7, 0, 9}));
}

TEST_F(IdxTest, EveryTruncationOfTheContentOrOfTheGzipFileIsDataLoss) {
  for (size_t length = 0; length < kThreeLabels.size(); ++length) {
    const auto status = ReadIdx(WriteGzip(kThreeLabels.substr(0, length)), {3}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << length;
    EXPECT_THAT(std::string(status.message()), HasSubstr("dataset-fashion-mnist"));
  }
  const std::string gzip = Contents(WriteGzip(kThreeLabels));
  for (size_t length = 0; length < gzip.size(); ++length) {
    EXPECT_EQ(ReadIdx(WriteRaw(gzip.substr(0, length)), {3}).status().code(),
              absl::StatusCode::kDataLoss)
        << length;
  }
}

TEST_F(IdxTest, ACorruptByteOfTheContentIsFoundByTheChecksum) {
  const std::string gzip = Contents(WriteGzip(kThreeLabels));
  const std::string good = (directory_ / "good.gz").string();
  fs::copy_file(directory_ / "labels.gz", good);
  for (size_t at = 10; at < gzip.size(); ++at) {  // after gzip's own header
    std::string bad = gzip;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    const auto labels = ReadIdx(WriteRaw(bad), {3});
    // The bits that fill the last byte of the compressed data mean nothing.
    EXPECT_TRUE(!labels.ok() || (at == gzip.size() - 9 && *labels == ReadIdx(good, {3}).value()))
        << at;
  }
}

TEST_F(IdxTest, WhatIsNotTheExpectedFileSaysWhy) {
  struct Case {
    std::string content;
    const char* message;
  };
  const Case cases[] = {
      {std::string("\0\0\x09\x01\0\0\0\x03\x07\x00\x09", 11), "not an idx file of bytes"},
      {std::string("\0\0\x08\x03\0\0\0\x03\x07\x00\x09", 11), "not an idx file of bytes"},
      {std::string("\0\0\x08\x01\0\0\0\x04\x07\x00\x09\x01", 12), "dimension 0 is 4, expected 3"},
      {kThreeLabels + "x", "longer than its header says"},
  };
  for (const Case& c : cases) {
    const auto status = ReadIdx(WriteGzip(c.content), {3}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("labels.gz"));
  }
  EXPECT_THAT(std::string(ReadIdx(WriteRaw(kThreeLabels), {3}).status().message()),
              HasSubstr("not a gzip file"));
}

TEST_F(IdxTest, AMissingFileNamesThePackageAndThePath) {
  const auto status = LoadFashionMnist(directory_.string()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("train-images-idx3-ubyte.gz"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("package dataset-fashion-mnist"));
}

const DatasetSplit& FashionMnist() {
  static const DatasetSplit split = [] {
    auto loaded = LoadFashionMnist(std::string(kFashionMnistDirectory));
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : DatasetSplit{};
  }();
  return split;
}

TEST(FashionMnistTest, IsSplitAsPublished) {
  const DatasetSplit& split = FashionMnist();
  ASSERT_EQ(split.train.size(), 55'000u);
  ASSERT_EQ(split.validation.size(), 5'000u);
  ASSERT_EQ(split.test.size(), 10'000u);
  EXPECT_EQ(split.train.images.size(), 55'000u * 784);
  // The files hold 6,000 and 1,000 samples of each class.
  for (uint8_t label = 0; label < 10; ++label) {
    const auto count = [&](const Dataset& d) {
      return std::count(d.labels.begin(), d.labels.end(), label);
    };
    EXPECT_EQ(count(split.train) + count(split.validation), 6000);
    EXPECT_EQ(count(split.test), 1000);
  }
  // The constants that inputs are scaled with are those of the training file.
  double sum = 0, squares = 0;
  for (uint8_t pixel : split.train.images) {
    sum += pixel / 255.0;
    squares += pixel / 255.0 * pixel / 255.0;
  }
  const double n = static_cast<double>(split.train.images.size());
  EXPECT_NEAR(split.train.mean, sum / n, 1e-3);
  EXPECT_NEAR(split.test.deviation, std::sqrt(squares / n - sum / n * sum / n), 1e-3);
  EXPECT_EQ(split.train.labels[0], 9);  // an ankle boot is the first sample of the training file
}

// ---- Model -------------------------------------------------------------------------------------

Dataset Synthetic(uint32_t samples, uint32_t features, uint32_t classes) {
  Dataset data;
  data.features = features;
  data.classes = classes;
  data.mean = 0.5f;
  data.deviation = 0.25f;
  uint64_t state = 42;
  for (uint32_t i = 0; i < samples * features; ++i) {
    data.images.push_back(static_cast<uint8_t>(SplitMix64(state)));
  }
  for (uint32_t i = 0; i < samples; ++i) {
    data.labels.push_back(static_cast<uint8_t>(SplitMix64(state) % classes));
  }
  return data;
}

using Doubles = std::vector<std::vector<double>>;

// The loss sum in float64, written down from the definition.
double ReferenceLoss(const std::vector<uint32_t>& widths, const Doubles& parameters,
                     const Dataset& data, const std::vector<uint32_t>& indices) {
  double total = 0;
  for (uint32_t index : indices) {
    std::vector<double> x;
    for (uint8_t pixel : data.image(index))
      x.push_back((pixel / 255.0 - double{data.mean}) / double{data.deviation});
    for (size_t layer = 0; layer + 1 < widths.size(); ++layer) {
      std::vector<double> y = parameters[2 * layer + 1];
      for (size_t i = 0; i < x.size(); ++i) {
        for (size_t j = 0; j < y.size(); ++j) {
          y[j] += x[i] * parameters[2 * layer][i * y.size() + j];
        }
      }
      if (layer + 2 < widths.size()) {
        for (double& v : y) v = std::max(v, 0.0);
      }
      x = y;
    }
    double sum = 0;
    for (double v : x) sum += std::exp(v);
    total += std::log(sum) - x[data.labels[index]];
  }
  return total;
}

void ExpectGradientMatchesFiniteDifferences(const std::vector<uint32_t>& widths) {
  const Dataset data = Synthetic(20, widths.front(), widths.back());
  Model model(widths);
  Parameters parameters = model.InitialValues(7);
  for (size_t t = 1; t < parameters.size(); t += 2) {
    for (float& v : parameters[t]) v = 0.1f;  // biases that matter
  }
  const std::vector<uint32_t> indices = {3, 0, 19, 3, 7, 11, 12};
  Parameters gradients;
  const BatchResult result = model.Gradient(parameters, data, indices, gradients);

  Doubles wide;
  for (const auto& tensor : parameters) wide.emplace_back(tensor.begin(), tensor.end());
  EXPECT_NEAR(result.loss_sum, ReferenceLoss(widths, wide, data, indices), 1e-5);
  EXPECT_EQ(result.samples, 7u);
  constexpr double kStep = 1e-6;
  for (size_t t = 0; t < wide.size(); ++t) {
    for (size_t i = 0; i < wide[t].size(); ++i) {
      const double at = wide[t][i];
      wide[t][i] = at + kStep;
      const double above = ReferenceLoss(widths, wide, data, indices);
      wide[t][i] = at - kStep;
      const double below = ReferenceLoss(widths, wide, data, indices);
      wide[t][i] = at;
      const double want = (above - below) / (2 * kStep);
      ASSERT_NEAR(gradients[t][i], want, 2e-5 * std::max(1.0, std::abs(want))) << t << " " << i;
    }
  }
}

TEST(ModelTest, SoftmaxGradientMatchesFloat64FiniteDifferences) {
  ExpectGradientMatchesFiniteDifferences({13, 4});
}

TEST(ModelTest, MlpGradientMatchesFloat64FiniteDifferences) {
  ExpectGradientMatchesFiniteDifferences({17, 9, 6, 5});
}

TEST(ModelTest, TheGradientIsASumOverSamples) {
  const Dataset data = Synthetic(4, 13, 4);
  Model model({13, 8, 4});
  const Parameters parameters = model.InitialValues(1);
  Parameters once, thrice, none;
  const std::vector<uint32_t> one = {2}, three = {2, 2, 2};
  model.Gradient(parameters, data, one, once);
  model.Gradient(parameters, data, three, thrice);
  for (size_t t = 0; t < once.size(); ++t) {
    for (size_t i = 0; i < once[t].size(); ++i) {
      EXPECT_NEAR(thrice[t][i], 3 * once[t][i], 1e-5);
    }
  }
  EXPECT_EQ(model.Gradient(parameters, data, {}, none).samples, 0u);
  for (const auto& tensor : none) {
    EXPECT_TRUE(std::all_of(tensor.begin(), tensor.end(), [](float v) { return v == 0; }));
  }
}

TEST(ModelTest, TheSameBatchGivesTheSameBitsWhereverItsArraysAre) {
  const Dataset data = Synthetic(300, 784, 10);
  const auto model = Model::Create("mlp").value();
  const Parameters parameters = model->InitialValues(3);
  for (uint32_t size : {1u, 2u, 3u, 24u, 64u, 217u}) {
    std::vector<uint32_t> indices(size);
    std::iota(indices.begin(), indices.end(), 5u);
    Parameters first, second;
    const double loss = model->Gradient(parameters, data, indices, first).loss_sum;
    // Another object, after other work, with its heap somewhere else.
    const std::vector<char> shift(size * 12 + 4);
    const auto other = Model::Create("mlp").value();
    other->Evaluate(parameters, data);
    EXPECT_EQ(other->Gradient(parameters, data, indices, second).loss_sum, loss);
    EXPECT_EQ(first, second) << size;
  }
}

TEST(ModelTest, InitialValuesAreNormalWithTheVarianceOfHe) {
  const auto model = Model::Create("mlp").value();
  const Parameters values = model->InitialValues(1);
  ASSERT_EQ(values.size(), 6u);
  EXPECT_EQ(ToString(model->tensors()[0]), "f32[784,128]");
  EXPECT_EQ(model->tensors()[5].name, "dense2.bias");
  double sum = 0, squares = 0, beyond = 0;
  for (float v : values[0]) {
    sum += v;
    squares += double{v} * v;
    if (std::abs(v) > 2 * std::sqrt(2.0 / 784)) ++beyond;
  }
  const double n = static_cast<double>(values[0].size());  // 100,352
  EXPECT_NEAR(sum / n, 0, 5 * std::sqrt(2.0 / 784 / n));
  EXPECT_NEAR(squares / n, 2.0 / 784, 2.0 / 784 * 5 * std::sqrt(2 / n));
  EXPECT_NEAR(beyond / n, 0.0455, 5 * std::sqrt(0.0455 / n));  // outside two standard deviations
  EXPECT_EQ(values[1], std::vector<float>(128, 0.0f));
  EXPECT_EQ(model->InitialValues(1), values);
  EXPECT_NE(model->InitialValues(2)[0], values[0]);
  EXPECT_THAT(std::string(Model::Create("resnet").status().message()), HasSubstr("softmax, mlp"));
}

TEST_F(IdxTest, ParametersSurviveTheFile) {
  const auto model = Model::Create("mlp").value();
  const Parameters values = model->InitialValues(5);
  const std::string path = (directory_ / "w.safetensors").string();
  ASSERT_TRUE(SaveParameters(path, *model, values, {{"seed", "5"}}).ok());
  const auto loaded = LoadParameters(path, *model);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, values);
  EXPECT_FALSE(LoadParameters(path, *Model::Create("softmax").value()).ok());
}

// ---- Training ----------------------------------------------------------------------------------

TEST(LearningRateTest, WarmsUpLinearlyAndIsNeverZero) {
  const LearningRate rate{0.5f, 4};
  EXPECT_EQ(rate.At(Step(0), 0.5), 0.125f);
  EXPECT_EQ(rate.At(Step(2), 0.5), 0.375f);
  EXPECT_EQ(rate.At(Step(3), 0.5), 0.5f);
  EXPECT_EQ(rate.At(Step(1000), 0.5), 0.5f);
  EXPECT_EQ((LearningRate{0.5f, 0}.At(Step(0), 0)), 0.5f);
  const LearningRate falling{0.5f, 4, Decay::kLinear};
  EXPECT_EQ(falling.At(Step(0), 0), 0.125f);
  EXPECT_EQ(falling.At(Step(9), 0.25), 0.375f);
  EXPECT_GT(falling.At(Step(9), 1), 0.0f);
}

TEST(StandaloneTest, PartsCoverAnEpochOnceWithShortAndEmptyLastBatches) {
  StandaloneOptions options;
  options.workers = 4;
  options.batch_size = 8;
  // 75 = 2 steps of 32, then 11: 8, 3, nothing, nothing.
  ASSERT_EQ(StepsPerEpoch(75, 4, 8), 3u);
  EXPECT_EQ(StandalonePart(options, 75, Epoch(2), 1, 3), (SampleRange{Epoch(2), 56, 64}));
  EXPECT_EQ(StandalonePart(options, 75, Epoch(2), 2, 0), (SampleRange{Epoch(2), 64, 72}));
  EXPECT_EQ(StandalonePart(options, 75, Epoch(2), 2, 1), (SampleRange{Epoch(2), 72, 75}));
  EXPECT_EQ(StandalonePart(options, 75, Epoch(2), 2, 2), (SampleRange{Epoch(2), 75, 75}));
  EXPECT_EQ(StepsPerEpoch(64, 4, 8), 2u);
}

TEST(StandaloneTest, AppliesTheMeanOfAllWorkersSamples) {
  const Dataset data = Synthetic(11, 13, 4);
  Model model({13, 4});
  StandaloneOptions options;
  options.workers = 4;
  options.batch_size = 4;  // parts of 4, 4, 3 and 0
  options.seed = 9;
  options.optimizer = {"sgd", {}};
  options.learning_rate = {0.5f, 0};
  const auto got = TrainStandalone(model, data, options, nullptr);
  ASSERT_TRUE(got.ok()) << got.status();

  std::vector<uint32_t> all(11);
  std::iota(all.begin(), all.end(), 0u);
  const Parameters initial = model.InitialValues(9);
  Parameters sum;
  model.Gradient(initial, data, all, sum);
  for (size_t t = 0; t < initial.size(); ++t) {
    for (size_t i = 0; i < initial[t].size(); ++i) {
      const double want = initial[t][i] - 0.5 * static_cast<double>(sum[t][i]) / 11;
      EXPECT_NEAR((*got)[t][i], want, 1e-6);
    }
  }
}

TEST(StandaloneTest, RefusesOptionsThatCannotTrain) {
  const Dataset data = Synthetic(4, 13, 4);
  Model model({13, 4});
  StandaloneOptions options;
  options.workers = 0;
  EXPECT_FALSE(TrainStandalone(model, data, options, nullptr).ok());
  options = {};
  options.batch_size = 0;
  EXPECT_FALSE(TrainStandalone(model, data, options, nullptr).ok());
  options = {};
  options.optimizer.name = "magic";
  EXPECT_THAT(std::string(TrainStandalone(model, data, options, nullptr).status().message()),
              HasSubstr("magic"));
  EXPECT_FALSE(TrainStandalone(model, Dataset{}, {}, nullptr).ok());
}

StandaloneOptions SoftmaxOptions() {
  StandaloneOptions options;
  options.workers = 2;
  options.batch_size = 32;
  options.epochs = 3;
  options.learning_rate = {0.01f, 0};
  return options;
}

TEST(StandaloneTest, SoftmaxLearnsFromASubset) {
  const Dataset train = Slice(FashionMnist().train, 0, 5000);
  const auto model = Model::Create("softmax").value();
  const auto got = TrainStandalone(*model, train, SoftmaxOptions(), nullptr);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_GT(model->Evaluate(*got, FashionMnist().validation).accuracy(), 0.75);
  EXPECT_EQ(TrainStandalone(*model, train, SoftmaxOptions(), nullptr).value(), *got);
}

TEST(StandaloneTest, ShuffledLabelsTeachNothing) {
  // Were labels to leak into the features or into the evaluation, this would be above chance.
  Dataset train = Slice(FashionMnist().train, 0, 5000);
  const std::vector<uint32_t> order = EpochPermutation(77, Epoch(0), train.size());
  const std::vector<uint8_t> labels = train.labels;
  for (uint32_t i = 0; i < train.size(); ++i) train.labels[i] = labels[order[i]];
  const auto model = Model::Create("softmax").value();
  const auto got = TrainStandalone(*model, train, SoftmaxOptions(), nullptr);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_NEAR(model->Evaluate(*got, FashionMnist().validation).accuracy(), 0.10, 0.05);
}

TEST(StandaloneTest, StopsAfterMaxSteps) {
  const Dataset data = Synthetic(100, 13, 4);
  Model model({13, 4});
  StandaloneOptions options;
  options.workers = 3;
  options.batch_size = 10;  // 4 steps an epoch
  options.epochs = 5;
  options.max_steps = 6;
  std::vector<uint64_t> steps, epoch_ends, samples;
  ASSERT_TRUE(TrainStandalone(model, data, options, [&](const StandaloneStep& s) {
                steps.push_back(s.step.value());
                samples.push_back(s.batch.samples);
                if (s.epoch_ends) epoch_ends.push_back(s.epoch.value());
              }).ok());
  EXPECT_EQ(steps, (std::vector<uint64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(samples, (std::vector<uint64_t>{30, 30, 30, 10, 30, 30}));
  EXPECT_EQ(epoch_ends, (std::vector<uint64_t>{0}));
}

}  // namespace
}  // namespace paceline
