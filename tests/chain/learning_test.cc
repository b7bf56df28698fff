// Rates of the scale rule on real data: one, two and four groups of the same four workers learn the
// same.
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "tests/chain/chain_cluster.h"
#include "trainer/dataset.h"
#include "trainer/model.h"

namespace paceline {
namespace {

constexpr uint32_t kWorkers = 4;
constexpr uint32_t kBatch = 50;
constexpr float kRateOfOneGroup = 0.04f;

// Test accuracy after two epochs with groups of `members` workers, at the rate times k / W, which
// falls to 0 so that the last steps' noise is not what is compared.
double AccuracyWith(const std::string& groups, uint32_t members, const DatasetSplit& data) {
  ChainCluster cluster(1);
  JobSpec job = JobOf("learning", kWorkers, groups, {"sgd", {{"learning_rate", 0.04}}});
  job.chunk_bytes = 1 << 20;
  job.sample_count = data.train.size();
  job.epochs = 2;
  job.batch_size = kBatch;
  double accuracy = 0;
  RunWorkers(kWorkers, [&](uint32_t index) -> absl::Status {
    SessionOptions session_options = cluster.OptionsFor(job, index);
    session_options.deadline = Seconds(300);  // others may be that much slower
    PACELINE_ASSIGN_OR_RETURN(auto session, Session::Connect(session_options, cluster.NewControl(),
                                                             cluster.NewTransport()));
    PACELINE_ASSIGN_OR_RETURN(auto model, Model::Create("softmax"));
    Parameters parameters = model->InitialValues(1), gradient;
    std::vector<TensorId> tensors;
    for (const TensorSpec& spec : model->tensors()) {
      PACELINE_ASSIGN_OR_RETURN(tensors.emplace_back(), session->RegisterTensor(spec));
    }
    for (size_t t = 0; t < tensors.size(); ++t) {
      PACELINE_RETURN_IF_ERROR(session->Init(tensors[t], parameters[t]));
    }
    const auto pull = [&]() -> absl::Status {
      for (size_t t = 0; t < tensors.size(); ++t) {
        PACELINE_RETURN_IF_ERROR(session->Pull(tensors[t], parameters[t], {}).status());
      }
      return session->WaitAll();
    };
    PACELINE_RETURN_IF_ERROR(pull());
    OperationOptions options;
    const float rate = kRateOfOneGroup * static_cast<float>(members) / kWorkers;
    // The same number of steps in each member of a group.
    const uint32_t steps = 2 * data.train.size() / (kWorkers * kBatch);
    for (uint32_t step = 0; step < steps; ++step) {
      options.learning_rate = rate * static_cast<float>(steps - step) / static_cast<float>(steps);
      PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session->DrawSamples(kBatch));
      model->Gradient(parameters, data.train, batch.indices, gradient);
      options.samples = Samples(batch.indices.size());
      for (size_t t = 0; t < tensors.size(); ++t) {
        PACELINE_RETURN_IF_ERROR(
            session->PushPull(tensors[t], gradient[t], parameters[t], options).status());
      }
      PACELINE_RETURN_IF_ERROR(session->WaitAll());
      PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    }
    PACELINE_RETURN_IF_ERROR(session->Barrier("trained"));
    PACELINE_RETURN_IF_ERROR(pull());
    if (index == 0) accuracy = model->Evaluate(parameters, data.test).accuracy();
    return session->Leave("done");
  });
  return accuracy;
}

TEST(Learning, OneTwoAndFourGroupsAtTheRatesOfTheScaleRuleEndAtTheSameAccuracy) {
  const auto data = LoadFashionMnist(std::string(kFashionMnistDirectory));
  ASSERT_TRUE(data.ok()) << data.status();
  const double one = AccuracyWith("one", 4, *data);
  const double two = AccuracyWith("2,2", 2, *data);
  const double four = AccuracyWith("per-worker", 1, *data);
  EXPECT_GT(one, 0.78);
  EXPECT_NEAR(two, one, 0.01);
  EXPECT_NEAR(four, one, 0.01);
}

}  // namespace
}  // namespace paceline
