#include "parameter/optimizer.h"

#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paceline {
namespace {

using ::testing::HasSubstr;

// The update rules written independently, in float64 and one element at a time.
struct Reference {
  NamedSpec spec;
  double m = 0;
  double v = 0;

  double Get(const char* name, double otherwise) const {
    const auto it = spec.parameters.find(name);
    return it == spec.parameters.end() ? otherwise : it->second;
  }

  double Step(double w, double g, double rate, int t) {
    const bool adam = spec.name == "adam" || spec.name == "adamw";
    const bool decoupled = Get("decoupled", spec.name == "adamw" ? 1 : 0) == 1;
    const double decay = Get("weight_decay", spec.name == "adamw" ? 0.01 : 0);
    if (decoupled) {
      w *= 1 - rate * decay;
    } else {
      g += decay * w;
    }
    if (adam) {
      const double b1 = Get("beta1", 0.9);
      const double b2 = Get("beta2", 0.999);
      m = b1 * m + (1 - b1) * g;
      v = b2 * v + (1 - b2) * g * g;
      const double m_hat = m / (1 - std::pow(b1, t));
      const double v_hat = v / (1 - std::pow(b2, t));
      return w - rate * m_hat / (std::sqrt(v_hat) + Get("epsilon", 1e-8));
    }
    const double mu = Get("momentum", spec.name == "sgd" ? 0 : 0.9);
    m = mu * m + g;
    const bool nesterov = Get("nesterov", spec.name == "nesterov" ? 1 : 0) == 1;
    return w - rate * (nesterov ? g + mu * m : m);
  }
};

class OptimizerAgainstReference : public ::testing::TestWithParam<NamedSpec> {};

TEST_P(OptimizerAgainstReference, FiftyUpdatesStayWithinFp32Rounding) {
  const size_t n = 37;
  auto optimizer = Optimizer::Create(GetParam());
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> w(n);
  for (float& x : w) x = normal(random);
  std::vector<double> expected(w.begin(), w.end());
  std::vector<Reference> references(n, Reference{GetParam()});
  std::vector<std::vector<float>> slots((*optimizer)->slots().size(), std::vector<float>(n));
  std::vector<std::span<float>> views(slots.begin(), slots.end());
  for (int t = 1; t <= 50; ++t) {
    std::vector<float> g(n);
    for (float& x : g) x = normal(random);
    const float rate = t % 2 == 0 ? 0.0f : 0.05f;  // 0: the optimizer's own
    (*optimizer)->Apply(w, views, g, rate, t);
    const double used = rate == 0 ? (*optimizer)->learning_rate() : rate;
    for (size_t i = 0; i < n; ++i) expected[i] = references[i].Step(expected[i], g[i], used, t);
  }
  for (size_t i = 0; i < n; ++i) EXPECT_NEAR(w[i], expected[i], 2e-5 * (1 + std::abs(expected[i])));
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerAgainstReference,
    ::testing::Values(
        NamedSpec{"sgd", {{"learning_rate", 0.1}}},
        NamedSpec{"sgd", {{"learning_rate", 0.1}, {"weight_decay", 0.01}}},
        NamedSpec{"sgd", {{"learning_rate", 0.1}, {"momentum", 0.8}, {"weight_decay", 0.01}}},
        NamedSpec{"sgd", {{"weight_decay", 0.1}, {"decoupled", 1}, {"momentum", 0.5}}},
        NamedSpec{"momentum", {{"learning_rate", 0.02}}},
        NamedSpec{"nesterov", {{"learning_rate", 0.02}, {"weight_decay", 0.001}}},
        NamedSpec{"adam", {{"learning_rate", 0.01}}},
        NamedSpec{"adam", {{"weight_decay", 0.1}, {"beta1", 0.8}, {"beta2", 0.99}}},
        NamedSpec{"adamw", {{"learning_rate", 0.01}}}));

// Sum of n equal steps: w = -lr * g * (n + mu*(n-1) + ...), by hand for three steps.
TEST(Optimizer, MomentumByHand) {
  auto optimizer = *Optimizer::Create({"sgd", {{"learning_rate", 1}, {"momentum", 0.5}}});
  std::vector<float> w = {0}, m = {0};
  const std::vector<float> g = {1};
  const std::vector<std::span<float>> slots = {m};
  for (int t = 1; t <= 3; ++t) optimizer->Apply(w, slots, g, 0, t);
  EXPECT_EQ(w[0], -(1.0f + 1.5f + 1.75f));
}

// The first step of Adam is the rate, whatever the size of the gradient.
TEST(Optimizer, AdamsFirstStepIsTheRate) {
  auto optimizer = *Optimizer::Create({"adam", {{"learning_rate", 0.5}}});
  for (const float g : {1e-3f, 1.0f, 1e3f}) {
    std::vector<float> w = {0}, m = {0}, v = {0};
    const std::vector<std::span<float>> slots = {m, v};
    optimizer->Apply(w, slots, std::vector<float>{g}, 0, 1);
    EXPECT_NEAR(w[0], -0.5, 1e-5) << g;
  }
}

TEST(Optimizer, TheCutOfATensorNeverShows) {
  for (const std::string& name : OptimizerNames()) {
    auto optimizer = *Optimizer::Create({name, {{"weight_decay", 0.01}}});
    const size_t n = 1003;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> whole(n), gradient(n);
    for (size_t i = 0; i < n; ++i) whole[i] = normal(random), gradient[i] = normal(random);
    std::vector<float> cut = whole;
    const size_t k = optimizer->slots().size();
    std::vector<std::vector<float>> a(k, std::vector<float>(n)), b = a;
    for (int t = 1; t <= 3; ++t) {
      std::vector<std::span<float>> views(a.begin(), a.end());
      optimizer->Apply(whole, views, gradient, 0, t);
      for (size_t begin = 0; begin < n; begin += 71) {
        const size_t length = std::min<size_t>(71, n - begin);
        std::vector<std::span<float>> parts;
        for (auto& slot : b) parts.push_back(std::span(slot).subspan(begin, length));
        optimizer->Apply(std::span(cut).subspan(begin, length), parts,
                         std::span(gradient).subspan(begin, length), 0, t);
      }
    }
    EXPECT_EQ(whole, cut) << name;
  }
}

TEST(Optimizer, ErrorsNameWhatIsWrongAndWhatIsKnown) {
  const auto message = [](const NamedSpec& spec) {
    const absl::Status status = ValidateOptimizer(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({"lamb", {}}), HasSubstr("use adam, adamw, momentum, nesterov, sgd"));
  EXPECT_THAT(message({"sgd", {{"beta1", 0.9}}}), HasSubstr("\"beta1\" is not known"));
  EXPECT_THAT(message({"sgd", {{"beta1", 0.9}}}), HasSubstr("learning_rate, momentum, nesterov"));
  EXPECT_THAT(message({"sgd", {{"momentum", 1}}}), HasSubstr("momentum = 1"));
  EXPECT_THAT(message({"sgd", {{"nesterov", 1}}}), HasSubstr("needs a momentum"));
  EXPECT_THAT(message({"adam", {{"learning_rate", -1}}}), HasSubstr("above 0"));
  EXPECT_THAT(message({"adam", {{"epsilon", NAN}}}), HasSubstr("epsilon"));
  EXPECT_TRUE(ValidateOptimizer({"sgd", {}}).ok());
}

}  // namespace
}  // namespace paceline
