// What one update of each group changes, in closed form: docs/architecture.md, section 2, "Scale".
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

constexpr uint32_t kElements = 1500;
constexpr float kStart = 4.0f;
constexpr float kRate = 0.5f;

struct Case {
  std::string groups;
  Normalization normalization;
  float expected;
};

class Scale : public testing::TestWithParam<Case> {};

// Worker r's gradient sum is 2^r over r + 1 samples: g = 1, 2, 4, 8 over 1, 2, 3, 4.
TEST_P(Scale, OneUpdateOfEachGroup) {
  ChainCluster cluster(2);
  JobSpec job = JobOf("scale", 4, GetParam().groups, {"sgd", {{"learning_rate", kRate}}});
  job.normalization = GetParam().normalization;
  RunWorkers(4, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, kStart));
    std::vector<float> weights(kElements);
    PACELINE_RETURN_IF_ERROR(
        PushPullAll(*session, tensor, static_cast<float>(1 << index), weights, Samples(index + 1))
            .status());
    PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    PACELINE_RETURN_IF_ERROR(session->Barrier("updated"));
    PACELINE_ASSIGN_OR_RETURN(OperationHandle pull, session->Pull(tensor, weights, {}));
    PACELINE_RETURN_IF_ERROR(session->Wait(pull).status());
    // Quotients are rounded; sums of a few of them come in any order.
    for (const float w : weights) EXPECT_NEAR(w, GetParam().expected, 4e-6f);
    return session->Leave("done");
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Scale,
                         testing::Values(
                             // mean: a group's sum over its samples.
                             Case{"one", Normalization::kMean, kStart - kRate*(15.0f / 10)},
                             Case{"2,2", Normalization::kMean,
                                  kStart - kRate*(3.0f / 3 + 12.0f / 7)},
                             Case{"per-worker", Normalization::kMean,
                                  kStart - kRate*(1.0f + 2.0f / 2 + 4.0f / 3 + 8.0f / 4)},
                             // sum: the same whatever the groups.
                             Case{"one", Normalization::kSum, kStart - kRate * 15},
                             Case{"2,2", Normalization::kSum, kStart - kRate * 15},
                             Case{"per-worker", Normalization::kSum, kStart - kRate * 15}),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

}  // namespace
}  // namespace paceline
