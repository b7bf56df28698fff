// Every kernel against its scalar reference, bit for bit, on every instruction set of the machine,
// over lengths 0..1000, at unaligned starts; and against values worked out by hand.
#include "common/kernels/kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/kernels/kernels_test_util.h"
#include "common/kernels/scalar.h"

namespace paceline::kernels {
namespace {

class KernelsTest : public InstructionSetTest {};

TEST_P(KernelsTest, Add) {
  const auto src = Floats(kMaxLength + kPad, 1, true);
  const auto initial = Floats(kMaxLength + kPad, 2, false);
  ForEachLength([&](size_t length, size_t start) {
    auto got = initial, want = initial;
    Add(std::span(got).subspan(start, length), std::span(src).subspan(start + 1, length));
    scalar::Add(std::span(want).subspan(start, length), std::span(src).subspan(start + 1, length));
    EXPECT_TRUE(SameBits(got, want)) << length;
  });
}

TEST_P(KernelsTest, Subtract) {
  const auto a = Floats(kMaxLength + kPad, 3, true);
  const auto b = Floats(kMaxLength + kPad, 4, false);
  ForEachLength([&](size_t length, size_t start) {
    std::vector<float> got(a.size()), want(a.size());
    const auto x = std::span(a).subspan(start, length), y = std::span(b).subspan(start + 2, length);
    Subtract(std::span(got).subspan(start + 1, length), x, y);
    scalar::Subtract(std::span(want).subspan(start + 1, length), x, y);
    EXPECT_TRUE(SameBits(got, want)) << length;
  });
}

TEST_P(KernelsTest, ScaleAndDivide) {
  const auto initial = Floats(kMaxLength + kPad, 5, true);
  ForEachLength([&](size_t length, size_t start) {
    auto got = initial, want = initial;
    Scale(std::span(got).subspan(start, length), 1.0f / 3);
    Divide(std::span(got).subspan(start, length), 193.0f);
    scalar::Scale(std::span(want).subspan(start, length), 1.0f / 3);
    scalar::Divide(std::span(want).subspan(start, length), 193.0f);
    EXPECT_TRUE(SameBits(got, want)) << length;
  });
}

TEST_P(KernelsTest, Axpy) {
  const auto x = Floats(kMaxLength + kPad, 6, true);
  const auto initial = Floats(kMaxLength + kPad, 7, false);
  ForEachLength([&](size_t length, size_t start) {
    auto got = initial, want = initial;
    Axpy(std::span(got).subspan(start, length), -0.1f, std::span(x).subspan(start + 3, length));
    scalar::Axpy(std::span(want).subspan(start, length), -0.1f,
                 std::span(x).subspan(start + 3, length));
    EXPECT_TRUE(SameBits(got, want)) << length;
  });
}

TEST_P(KernelsTest, AxpyIsNotContracted) {
  // With x = a = 1 + 2^-12 the product is 1 + 2^-11 + 2^-24, which rounds to 1 + 2^-11; a fused
  // multiply-add would leave 2^-24.
  const float a = 1.0f + 0x1p-12f;
  std::vector<float> x(33, a), y(33, -(1.0f + 0x1p-11f));
  Axpy(y, a, x);
  for (float v : y) EXPECT_EQ(v, 0.0f);
}

TEST_P(KernelsTest, ToHalves) {
  const auto src = Floats(kMaxLength + kPad, 8, true);
  ForEachLength([&](size_t length, size_t start) {
    std::vector<uint16_t> got(src.size()), want(src.size());
    const auto from = std::span(src).subspan(start, length);
    F32ToF16(std::span(got).subspan(start + 1, length), from);
    scalar::F32ToF16(std::span(want).subspan(start + 1, length), from);
    EXPECT_TRUE(SameBits(got, want)) << length;
    F32ToBf16(std::span(got).subspan(start + 1, length), from);
    scalar::F32ToBf16(std::span(want).subspan(start + 1, length), from);
    EXPECT_TRUE(SameBits(got, want)) << length;
  });
}

TEST_P(KernelsTest, FromHalves) {
  const auto src = Halves(kMaxLength + kPad, 9);
  ForEachLength([&](size_t length, size_t start) {
    std::vector<float> got(src.size()), want(src.size());
    const auto from = std::span(src).subspan(start + 1, length);
    F16ToF32(std::span(got).subspan(start, length), from);
    scalar::F16ToF32(std::span(want).subspan(start, length), from);
    EXPECT_TRUE(SameBits(got, want)) << length;
    Bf16ToF32(std::span(got).subspan(start, length), from);
    scalar::Bf16ToF32(std::span(want).subspan(start, length), from);
    EXPECT_TRUE(SameBits(got, want)) << length;
  });
}

TEST_P(KernelsTest, AddHalves) {
  const auto src = Halves(kMaxLength + kPad, 10);
  const auto initial = Floats(kMaxLength + kPad, 11, false);
  ForEachLength([&](size_t length, size_t start) {
    auto got = initial, want = initial;
    const auto from = std::span(src).subspan(start + 1, length);
    AddF16(std::span(got).subspan(start, length), from);
    scalar::AddF16(std::span(want).subspan(start, length), from);
    EXPECT_TRUE(SameBits(got, want)) << length;
    got = want = initial;
    AddBf16(std::span(got).subspan(start, length), from);
    scalar::AddBf16(std::span(want).subspan(start, length), from);
    EXPECT_TRUE(SameBits(got, want)) << length;
  });
}

TEST_P(KernelsTest, AllFiniteFindsTheOneThatIsNot) {
  const float bad[] = {std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (size_t length = 0; length <= 70; ++length) {
    std::vector<float> x(length, std::numeric_limits<float>::max());
    std::vector<uint16_t> f16(length, 0x7bff), bf16(length, 0x7f7f);
    ASSERT_TRUE(AllFinite(x) && AllFiniteF16(f16) && AllFiniteBf16(bf16));
    for (size_t i = 0; i < length; ++i) {
      for (float b : bad) {
        x[i] = b;
        EXPECT_FALSE(AllFinite(x)) << length << " " << i;
        EXPECT_FALSE(scalar::AllFinite(x));
      }
      x[i] = std::numeric_limits<float>::denorm_min();
      f16[i] = 0xfc00;
      bf16[i] = 0x7fc0;
      EXPECT_FALSE(AllFiniteF16(f16) || scalar::AllFiniteF16(f16));
      EXPECT_FALSE(AllFiniteBf16(bf16) || scalar::AllFiniteBf16(bf16));
      f16[i] = 0;
      bf16[i] = 0x8001;
    }
  }
}

TEST_P(KernelsTest, EveryHalfSurvivesTheRoundTrip) {
  std::vector<uint16_t> all(65536), f16(65536), bf16(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  F16ToF32(wide, all);
  F32ToF16(f16, wide);
  Bf16ToF32(wide, all);
  F32ToBf16(bf16, wide);
  for (uint32_t i = 0; i < all.size(); ++i) {
    const bool f16_nan = (i & 0x7fff) > 0x7c00, bf16_nan = (i & 0x7fff) > 0x7f80;
    ASSERT_EQ(f16[i], f16_nan ? (i | 0x0200) : i);
    ASSERT_EQ(bf16[i], bf16_nan ? (i | 0x0040) : i);
  }
}

TEST_P(KernelsTest, ASumOf2049OnesInHalfIs2049) {
  const std::vector<uint16_t> ones(33, 0x3c00);
  std::vector<float> sum(ones.size());
  for (int i = 0; i < 2049; ++i) AddF16(sum, ones);
  std::vector<uint16_t> half(ones.size());
  F32ToF16(half, sum);
  for (size_t i = 0; i < ones.size(); ++i) {
    EXPECT_EQ(sum[i], 2049.0f);
    EXPECT_EQ(half[i], 0x6800);  // 2048: 2049 is a tie between it and 2050
  }
}

TEST_P(KernelsTest, HalvesFromAndToBytesThatAreNotAligned) {
  const auto src = Halves(5000, 14);
  for (size_t length : {0, 1, 7, 1023, 1024, 1025, 5000}) {
    std::vector<std::byte> bytes(2 * length + 1), back(2 * length + 1);
    if (length > 0) std::memcpy(&bytes[1], src.data(), 2 * length);
    const auto in = std::span<const std::byte>(bytes).subspan(1);
    const auto from = std::span(src).first(length);
    std::vector<float> got(length), want(length);
    F16ToF32(got, in);
    scalar::F16ToF32(want, from);
    EXPECT_TRUE(SameBits(got, want)) << length;
    F32ToF16(std::span(back).subspan(1), got);
    std::vector<uint16_t> half(length), want_half(length);
    if (length > 0) std::memcpy(half.data(), &back[1], 2 * length);
    scalar::F32ToF16(want_half, want);
    EXPECT_TRUE(SameBits(half, want_half)) << length;
    Bf16ToF32(got, in);
    scalar::Bf16ToF32(want, from);
    EXPECT_TRUE(SameBits(got, want)) << length;
    F32ToBf16(std::span(back).subspan(1), got);
    if (length > 0) std::memcpy(half.data(), &back[1], 2 * length);
    scalar::F32ToBf16(want_half, want);
    EXPECT_TRUE(SameBits(half, want_half)) << length;
  }
}

PACELINE_FOR_EACH_INSTRUCTION_SET(KernelsTest);

TEST(ScalarTest, HalfRoundsToNearestEven) {
  EXPECT_EQ(scalar::F32ToF16(1.0f), 0x3c00);
  EXPECT_EQ(scalar::F32ToF16(-2.0f), 0xc000);
  EXPECT_EQ(scalar::F32ToF16(65504.0f), 0x7bff);
  EXPECT_EQ(scalar::F32ToF16(65519.996f), 0x7bff);
  EXPECT_EQ(scalar::F32ToF16(65520.0f), 0x7c00);             // a tie, to even: infinity
  EXPECT_EQ(scalar::F32ToF16(1.0f + 0x1p-11f), 0x3c00);      // a tie, to even
  EXPECT_EQ(scalar::F32ToF16(1.0f + 3 * 0x1p-11f), 0x3c02);  // a tie, to even
  EXPECT_EQ(scalar::F32ToF16(0x1p-24f), 0x0001);
  EXPECT_EQ(scalar::F32ToF16(0x1p-25f), 0x0000);  // a tie, to even
  EXPECT_EQ(scalar::F32ToF16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(scalar::F32ToF16(0x1p-14f - 0x1p-25f), 0x0400);  // rounds up out of the subnormals
  EXPECT_EQ(scalar::F16ToF32(0x0001), 0x1p-24f);
  EXPECT_EQ(scalar::F16ToF32(0x3555), 0.333251953125f);
  EXPECT_TRUE(std::signbit(scalar::F16ToF32(0x8000)));
}

TEST(ScalarTest, Bfloat16RoundsToNearestEven) {
  EXPECT_EQ(scalar::F32ToBf16(1.0f), 0x3f80);
  EXPECT_EQ(scalar::F32ToBf16(1.0f + 0x1p-8f), 0x3f80);      // a tie, to even
  EXPECT_EQ(scalar::F32ToBf16(1.0f + 3 * 0x1p-8f), 0x3f82);  // a tie, to even
  EXPECT_EQ(scalar::F32ToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(scalar::Bf16ToF32(0xc040), -3.0f);
  // A NaN whose payload is in the lower half only must not become infinity.
  EXPECT_EQ(scalar::F32ToBf16(std::bit_cast<float>(0x7f80'0001u)), 0x7fc0);
}

}  // namespace
}  // namespace paceline::kernels
