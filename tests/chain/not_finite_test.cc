// NaN and infinity in gradients: left out, named once per push, and not for ever.
#include <gtest/gtest.h>

#include <limits>

#include "common/base/status.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

constexpr uint32_t kElements = 3000;  // chunks of 1024 floats: two and a part
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A push of ones with `bad` in the middle of the second chunk, where it is not 0.
absl::Status PushOnce(Session& session, TensorId tensor, float bad, std::vector<float>& weights) {
  std::vector<float> gradient(kElements, 1.0f);
  if (bad != 0) gradient[1500] = bad;
  PACELINE_ASSIGN_OR_RETURN(const OperationHandle operation,
                            session.PushPull(tensor, gradient, weights, {}));
  PACELINE_RETURN_IF_ERROR(session.Wait(operation).status());
  return session.AtStepBoundary();
}

TEST(NotFiniteTest, IsLeftOutNamedAndCountedOncePerPush) {
  ChainCluster cluster(2);
  const JobSpec job = JobOf("job", 2, "one");  // sgd at rate 0.5, mean over samples
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(const TensorId tensor, session->RegisterTensor({"w", {kElements}}));
    PACELINE_RETURN_IF_ERROR(session->Init(tensor, std::vector<float>(kElements, 0.0f)));
    std::vector<float> weights(kElements);
    // Two in a row, a good one, two more: never three in a row.
    const float bad[] = {kNan, -kInfinity, 0, kInfinity, kNan, 0};
    for (float value : bad) {
      PACELINE_RETURN_IF_ERROR(PushOnce(*session, tensor, index == 1 ? value : 0, weights));
    }
    // The mean over who was finite is 1 in every step.
    for (float weight : weights) EXPECT_EQ(weight, -3.0f);
    return session->Leave("done");
  });
  JobView view;
  ASSERT_TRUE(cluster.Await(
      "job", [](const JobView& v) { return v.not_finite >= 4; }, &view));
  EXPECT_EQ(view.not_finite, 4u);
  std::vector<std::string> named;
  for (const DecisionRecord& event : cluster.Events("job")) {
    if (event.kind == "nan") named.push_back(event.text);
  }
  ASSERT_EQ(named.size(), 4u);
  EXPECT_EQ(named[0],
            "worker w1, tensor w, step 1: the gradient holds NaN or infinity and was left out (1 "
            "push in a row)");
  EXPECT_NE(named[1].find("step 2"), std::string::npos);
  EXPECT_NE(named[1].find("(2 pushes in a row)"), std::string::npos);
  EXPECT_NE(named[2].find("step 4"), std::string::npos);
  EXPECT_NE(named[2].find("(1 push in a row)"), std::string::npos);
}

TEST(NotFiniteTest, IsSummedWhereTheJobAllowsIt) {
  ChainCluster cluster(2);
  JobSpec job = JobOf("job", 2, "one");
  job.nan = NotFinite::kAllow;
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(const TensorId tensor, session->RegisterTensor({"w", {kElements}}));
    PACELINE_RETURN_IF_ERROR(session->Init(tensor, std::vector<float>(kElements, 0.0f)));
    std::vector<float> weights(kElements);
    for (int i = 0; i < 4; ++i) {
      PACELINE_RETURN_IF_ERROR(PushOnce(*session, tensor, index == 1 ? -kInfinity : 0, weights));
    }
    for (uint32_t i = 0; i < kElements; ++i) {
      EXPECT_EQ(weights[i], i == 1500 ? kInfinity : -2.0f) << i;
    }
    return session->Leave("done");
  });
  JobView view;
  ASSERT_TRUE(cluster.Await(
      "job", [](const JobView& v) { return v.state == JobState::kFinished; }, &view));
  EXPECT_EQ(view.not_finite, 0u);
  EXPECT_EQ(view.discarded, Samples(0));
}

TEST(NotFiniteTest, ThreeInARowEndTheWorkerAndTheOtherGoesOn) {
  ChainCluster cluster(1);
  JobSpec job = JobOf("job", 2, "per-worker");
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    PACELINE_ASSIGN_OR_RETURN(const TensorId tensor, session->RegisterTensor({"w", {kElements}}));
    PACELINE_RETURN_IF_ERROR(session->Init(tensor, std::vector<float>(kElements, 0.0f)));
    std::vector<float> weights(kElements);
    for (int i = 0; i < 10; ++i) {
      const absl::Status status = PushOnce(*session, tensor, index == 1 ? kNan : 0, weights);
      if (index == 0 || i < 2) {
        PACELINE_RETURN_IF_ERROR(status);
        continue;
      }
      EXPECT_EQ(i, 2);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(status.message().find("'w1': 3 pushes in a row held NaN or infinity, the last in "
                                      "tensor 'w' in step 3"),
                std::string::npos)
          << status;
      return absl::OkStatus();
    }
    // Of w1 the chunk with NaN has nothing, the others have what was finite: at most three pushes.
    for (uint32_t i = 0; i < kElements; ++i) {
      const bool with_nan = i / 1024 == 1;
      EXPECT_LE(weights[i], -5.0f);
      EXPECT_GE(weights[i], with_nan ? -5.0f : -6.5f);
    }
    return session->Leave("done");
  });
}

}  // namespace
}  // namespace paceline
