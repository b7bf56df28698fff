// Updates against their references bit for bit on every instruction set and whatever the cut, and
// against values worked out by hand. parameter/optimizer_test compares them with float64.
#include "common/kernels/optimizer_kernels.h"

#include <cmath>
#include <limits>
#include <vector>

#include "common/kernels/kernels_test_util.h"
#include "common/kernels/scalar.h"
#include "common/kernels/scalar_optimizer.h"

namespace paceline::kernels {
namespace {

struct Arrays {
  // Of the operands of one operation at most one is a NaN: only the gradient has any.
  explicit Arrays(size_t size, uint64_t seed)
      : w(Floats(size, seed, false)),
        m(Floats(size, seed + 1, false)),
        v(Floats(size, seed + 2, false)),
        g(Floats(size, seed + 3, true)) {
    for (size_t i = 0; i < size; ++i) {
      v[i] = std::fabs(v[i]);
      const bool finite =
          scalar::IsFinite(w[i]) && scalar::IsFinite(m[i]) && scalar::IsFinite(v[i]);
      if (!finite && !scalar::IsFinite(g[i])) g[i] = 1;
    }
  }

  std::vector<float> w, m, v, g;
};

class OptimizerKernelsTest : public InstructionSetTest {};

using Update = void (*)(std::span<float> w, std::span<float> m, std::span<float> v,
                        std::span<const float> g, float decay);

struct Case {
  const char* name;
  Update kernel;
  Update reference;
};

constexpr float kRate = 0.3f;

MomentumStep Momentum(bool nesterov, float decay) { return {kRate, 0.9f, nesterov, decay}; }
AdamStep Adam(float decay) {
  return {kRate / 0.1f, 0.0316f, 0.9f, 0.1f, 0.999f, 0.001f, 1e-8f, decay};
}

#define PACELINE_UPDATE(call)                                                            \
  {                                                                                      \
#call, [](std::span <float> w, std::span <float> m, std::span <float> v,             \
              std::span <const float> g,                                                 \
              float decay) { call; }, [](std::span <float> w, std::span <float> m,       \
                                         std::span <float> v, std::span <const float> g, \
                                         float decay) { scalar::call; }                  \
  }

const Case kCases[] = {
    PACELINE_UPDATE(SgdUpdate(w, g, kRate, decay)),
    PACELINE_UPDATE(MomentumUpdate(w, m, g, Momentum(false, decay))),
    PACELINE_UPDATE(MomentumUpdate(w, m, g, Momentum(true, decay))),
    PACELINE_UPDATE(AdamUpdate(w, m, v, g, Adam(decay))),
};

TEST_P(OptimizerKernelsTest, SameBitsAsTheReferenceWhateverTheCut) {
  constexpr size_t kSize = 1500;
  const Arrays initial(kSize, 1);
  for (const Case& c : kCases) {
    for (float decay : {0.0f, 0.01f}) {
      Arrays want = initial;
      c.reference(want.w, want.m, want.v, want.g, decay);
      for (uint64_t seed = 0; seed < 100; ++seed) {
        Arrays got = initial;
        ForEachPiece(kSize, seed, [&](size_t begin, size_t size) {
          c.kernel(std::span(got.w).subspan(begin, size), std::span(got.m).subspan(begin, size),
                   std::span(got.v).subspan(begin, size), std::span(got.g).subspan(begin, size),
                   decay);
        });
        ASSERT_TRUE(SameBits(got.w, want.w)) << c.name << ", decay " << decay << ", cuts " << seed;
        ASSERT_TRUE(SameBits(got.m, want.m)) << c.name << ", decay " << decay << ", cuts " << seed;
        ASSERT_TRUE(SameBits(got.v, want.v)) << c.name << ", decay " << decay << ", cuts " << seed;
      }
    }
  }
}

TEST_P(OptimizerKernelsTest, ValuesByHand) {
  // Numbers that fp32 holds exactly: g' = 1 + 0.5*2 = 2; w = 2 - 0.25*2 = 1.5.
  std::vector<float> w(21, 2), m(21, 4), v(21, 16);
  const std::vector<float> g(21, 1);
  SgdUpdate(w, g, 0.25f, 0.5f);
  EXPECT_EQ(w, std::vector<float>(21, 1.5f));

  w.assign(21, 2);  // m = 0.5*4 + 2 = 4; w = 2 - 0.25*4 = 1
  MomentumUpdate(w, m, g, {0.25f, 0.5f, false, 0.5f});
  EXPECT_EQ(m, std::vector<float>(21, 4));
  EXPECT_EQ(w, std::vector<float>(21, 1));

  w.assign(21, 2);  // the same m; w = 2 - 0.25*(2 + 0.5*4) = 1
  MomentumUpdate(w, m, g, {0.25f, 0.5f, true, 0.5f});
  EXPECT_EQ(w, std::vector<float>(21, 1));

  w.assign(21, 2);  // m = 3 + 0.5 = 3.5; v = 12 + 4 = 16; w = 2 - 2*3.5/(4/0.5 - 1) = 1
  AdamUpdate(w, m, v, std::vector<float>(21, 2), {2, 0.5f, 0.75f, 0.25f, 0.75f, 1, -1, 0});
  EXPECT_EQ(m, std::vector<float>(21, 3.5f));
  EXPECT_EQ(v, std::vector<float>(21, 16));
  EXPECT_EQ(w, std::vector<float>(21, 1));
}

// 0 * w would make an infinite weight a NaN.
TEST_P(OptimizerKernelsTest, WithoutDecayTheWeightIsNoFactor) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> w(9, infinity);
  SgdUpdate(w, std::vector<float>(9, 1), 0.5f, 0);
  EXPECT_EQ(w, std::vector<float>(9, infinity));
}

PACELINE_FOR_EACH_INSTRUCTION_SET(OptimizerKernelsTest);

}  // namespace
}  // namespace paceline::kernels
