// Sums in double, of integers and with the finiteness check; and for every element-wise kernel the
// same bits whatever the cut.
#include <bit>
#include <functional>
#include <limits>
#include <vector>

#include "common/kernels/kernels_test_util.h"
#include "common/kernels/scalar.h"

namespace paceline::kernels {
namespace {

class SumsTest : public InstructionSetTest {};

std::vector<double> Doubles(size_t count, uint64_t seed, bool nans) {
  std::vector<double> out(count);
  for (double& v : out) {
    uint64_t bits = Next(seed);
    if (bits % 8 == 0) bits &= 0x800f'ffff'ffff'ffff;  // subnormal or zero
    if (bits % 8 == 1) bits = (bits & (uint64_t{1} << 63)) | 0x7ff0'0000'0000'0000;
    if (!nans && (bits & 0x7fff'ffff'ffff'ffff) > 0x7ff0'0000'0000'0000)
      bits &= ~(uint64_t{1} << 62);
    v = std::bit_cast<double>(bits);
  }
  return out;
}

TEST_P(SumsTest, Doubles) {
  const auto src = Doubles(kMaxLength + kPad, 1, true);
  const auto initial = Doubles(kMaxLength + kPad, 2, false);
  ForEachLength([&](size_t length, size_t start) {
    auto got = initial, want = initial;
    const auto from = std::span(src).subspan(start + 1, length);
    Add(std::span(got).subspan(start, length), from);
    scalar::Add(std::span(want).subspan(start, length), from);
    EXPECT_TRUE(SameBits(got, want)) << length;
    got = want = initial;
    Axpy(std::span(got).subspan(start, length), -0.1, from);
    scalar::Axpy(std::span(want).subspan(start, length), -0.1, from);
    EXPECT_TRUE(SameBits(got, want)) << length;
    EXPECT_EQ(AllFinite(from), scalar::AllFinite(from));
  });
}

TEST_P(SumsTest, DoubleAxpyIsNotContracted) {
  // (1 + 2^-27)^2 = 1 + 2^-26 + 2^-54, which rounds to 1 + 2^-26.
  const double a = 1.0 + 0x1p-27;
  std::vector<double> x(17, a), y(17, -(1.0 + 0x1p-26));
  Axpy(y, a, x);
  for (double v : y) EXPECT_EQ(v, 0.0);
}

TEST_P(SumsTest, TheDoubleThatIsNotFiniteIsFound) {
  for (size_t length = 1; length <= 35; ++length) {
    std::vector<double> x(length, std::numeric_limits<double>::max());
    ASSERT_TRUE(AllFinite(x));
    for (double& v : x) {
      v = -std::numeric_limits<double>::infinity();
      EXPECT_FALSE(AllFinite(x));
      v = std::numeric_limits<double>::quiet_NaN();
      EXPECT_FALSE(AllFinite(x));
      v = -std::numeric_limits<double>::denorm_min();
    }
  }
}

template <typename Wide, typename Narrowed>
void CompareIntegerSums(size_t length, size_t start) {
  const auto src = Integers<Narrowed>(kMaxLength + kPad, 3);
  const auto initial = Integers<Wide>(kMaxLength + kPad, 4);
  auto got = initial, want = initial;
  const auto from = std::span(src).subspan(start + 1, length);
  Add(std::span(got).subspan(start, length), from);
  scalar::Add(std::span(want).subspan(start, length), from);
  EXPECT_TRUE(SameBits(got, want)) << length;
}

TEST_P(SumsTest, Integers) {
  ForEachLength([&](size_t length, size_t start) {
    CompareIntegerSums<int32_t, int8_t>(length, start);
    CompareIntegerSums<int32_t, uint8_t>(length, start);
    CompareIntegerSums<int64_t, int32_t>(length, start);
    CompareIntegerSums<int64_t, int64_t>(length, start);
  });
}

TEST_P(SumsTest, IntegersPassTheRangeOfTheirOwnType) {
  const std::vector<int8_t> bytes(37, -128);
  const std::vector<uint8_t> unsigned_bytes(37, 255);
  const std::vector<int32_t> words(37, std::numeric_limits<int32_t>::max());
  std::vector<int32_t> sum(37), unsigned_sum(37);
  std::vector<int64_t> word_sum(37);
  for (int i = 0; i < 1000; ++i) {
    Add(sum, bytes);
    Add(unsigned_sum, unsigned_bytes);
    Add(word_sum, words);
  }
  EXPECT_EQ(sum, std::vector<int32_t>(37, -128'000));
  EXPECT_EQ(unsigned_sum, std::vector<int32_t>(37, 255'000));
  EXPECT_EQ(word_sum, std::vector<int64_t>(37, 2'147'483'647'000));
}

TEST_P(SumsTest, AnInt64SumThatDoesNotFitIsSaid) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (size_t length = 1; length <= 19; ++length) {
    for (size_t at = 0; at < length; ++at) {
      std::vector<int64_t> sum(length, 5), src(length, 7);
      sum[at] = kMax - 1;
      src[at] = 1;
      EXPECT_TRUE(Add(sum, src));
      EXPECT_EQ(sum[at], kMax);
      EXPECT_FALSE(Add(sum, src)) << length << " " << at;
      EXPECT_EQ(sum[at], kMin);
      src[at] = -1;
      EXPECT_FALSE(Add(sum, src));
      EXPECT_EQ(sum[at], kMax);
    }
  }
}

TEST(NarrowTest, TakesTheNearestValueAndSaysSo) {
  std::vector<int8_t> bytes(3);
  EXPECT_TRUE(Narrow(bytes, std::vector<int32_t>{-128, 0, 127}));
  EXPECT_EQ(bytes, (std::vector<int8_t>{-128, 0, 127}));
  EXPECT_FALSE(Narrow(bytes, std::vector<int32_t>{-129, 1, 128}));
  EXPECT_EQ(bytes, (std::vector<int8_t>{-128, 1, 127}));
  std::vector<uint8_t> unsigned_bytes(2);
  EXPECT_TRUE(Narrow(unsigned_bytes, std::vector<int32_t>{0, 255}));
  EXPECT_FALSE(Narrow(unsigned_bytes, std::vector<int32_t>{-1, 256}));
  EXPECT_EQ(unsigned_bytes, (std::vector<uint8_t>{0, 255}));
  std::vector<int32_t> words(2);
  EXPECT_TRUE(Narrow(words, std::vector<int64_t>{-2'147'483'648, 2'147'483'647}));
  EXPECT_FALSE(Narrow(words, std::vector<int64_t>{-2'147'483'649, 2'147'483'648}));
  EXPECT_EQ(words, (std::vector<int32_t>{-2'147'483'647 - 1, 2'147'483'647}));
}

TEST_P(SumsTest, CheckedSumsFindTheOneThatIsNotFinite) {
  for (size_t length = 0; length <= 40; ++length) {
    const std::vector<float> ones(length, 1);
    std::vector<float> src(length, std::numeric_limits<float>::max()), sum;
    std::vector<uint16_t> f16(length, 0x7bff), bf16(length, 0x7f7f);
    sum = ones;
    EXPECT_TRUE(CopyChecked(sum, src) && SameBits(sum, src));
    EXPECT_TRUE(AddChecked(sum = ones, src));
    EXPECT_TRUE(AddF16Checked(sum = ones, f16));
    EXPECT_EQ(sum, std::vector<float>(length, 65505));
    EXPECT_TRUE(AddBf16Checked(sum = ones, bf16));
    for (size_t at = 0; at < length; ++at) {
      src[at] = at % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                            : -std::numeric_limits<float>::infinity();
      f16[at] = at % 2 == 0 ? 0x7c01 : 0xfc00;
      bf16[at] = at % 2 == 0 ? 0xff81 : 0x7f80;
      EXPECT_FALSE(CopyChecked(sum, src)) << length << " " << at;
      EXPECT_FALSE(AddChecked(sum = ones, src)) << length << " " << at;
      EXPECT_FALSE(AddF16Checked(sum = ones, f16)) << length << " " << at;
      EXPECT_FALSE(AddBf16Checked(sum = ones, bf16)) << length << " " << at;
      src[at] = 0;
      f16[at] = bf16[at] = 0;
    }
  }
}

// A sum that overflows is not what AddChecked asks about: the values it took are finite.
TEST_P(SumsTest, CheckedSumsLookAtWhatIsAdded) {
  std::vector<float> sum(9, std::numeric_limits<float>::max());
  EXPECT_TRUE(AddChecked(sum, std::vector<float>(9, std::numeric_limits<float>::max())));
  EXPECT_EQ(sum[0], std::numeric_limits<float>::infinity());
}

// One kernel that adds `src` to, or otherwise makes, `dst`.
template <typename To, typename From>
using Kernel = std::function<void(std::span<To>, std::span<const From>)>;

template <typename To, typename From>
void ExpectSameBitsWhateverTheCut(const char* name, const std::vector<To>& initial,
                                  const std::vector<From>& src, const Kernel<To, From>& kernel,
                                  const Kernel<To, From>& reference) {
  auto want = initial;
  reference(want, src);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    auto got = initial;
    ForEachPiece(src.size(), seed, [&](size_t begin, size_t size) {
      kernel(std::span(got).subspan(begin, size), std::span(src).subspan(begin, size));
    });
    ASSERT_TRUE(SameBits(got, want)) << name << ", seed " << seed;
  }
}

#define PACELINE_EXPECT_CUTS(To, From, call, initial, src)                              \
  ExpectSameBitsWhateverTheCut<To, From>(                                               \
      #call, initial, src, [](std::span<To> dst, std::span<const From> from) { call; }, \
      [](std::span<To> dst, std::span<const From> from) { scalar::call; })

TEST_P(SumsTest, SameBitsWhateverTheCut) {
  constexpr size_t kSize = 1500;
  const auto floats = Floats(kSize, 5, false), more = Floats(kSize, 6, true);
  PACELINE_EXPECT_CUTS(float, float, Add(dst, from), floats, more);
  PACELINE_EXPECT_CUTS(float, float, Axpy(dst, 0.7f, from), floats, more);
  PACELINE_EXPECT_CUTS(float, float, AddChecked(dst, from), floats, more);
  PACELINE_EXPECT_CUTS(float, float, CopyChecked(dst, from), floats, more);
  PACELINE_EXPECT_CUTS(float, float, Subtract(dst, dst, from), floats, more);
  PACELINE_EXPECT_CUTS(float, float, Scale(dst, 0.3f), floats, more);
  PACELINE_EXPECT_CUTS(float, float, Divide(dst, 3.0f), floats, more);
  const auto halves = Halves(kSize, 7);
  PACELINE_EXPECT_CUTS(float, uint16_t, AddF16(dst, from), floats, halves);
  PACELINE_EXPECT_CUTS(float, uint16_t, AddBf16(dst, from), floats, halves);
  PACELINE_EXPECT_CUTS(float, uint16_t, AddF16Checked(dst, from), floats, halves);
  PACELINE_EXPECT_CUTS(float, uint16_t, AddBf16Checked(dst, from), floats, halves);
  PACELINE_EXPECT_CUTS(float, uint16_t, F16ToF32(dst, from), floats, halves);
  PACELINE_EXPECT_CUTS(float, uint16_t, Bf16ToF32(dst, from), floats, halves);
  PACELINE_EXPECT_CUTS(uint16_t, float, F32ToF16(dst, from), halves, more);
  PACELINE_EXPECT_CUTS(uint16_t, float, F32ToBf16(dst, from), halves, more);
  const auto doubles = Doubles(kSize, 8, false), more_doubles = Doubles(kSize, 9, true);
  PACELINE_EXPECT_CUTS(double, double, Add(dst, from), doubles, more_doubles);
  PACELINE_EXPECT_CUTS(double, double, Axpy(dst, 0.7, from), doubles, more_doubles);
  const auto i32 = kernels::Integers<int32_t>(kSize, 10);
  const auto i64 = kernels::Integers<int64_t>(kSize, 11);
  PACELINE_EXPECT_CUTS(int32_t, int8_t, Add(dst, from), i32, kernels::Integers<int8_t>(kSize, 12));
  PACELINE_EXPECT_CUTS(int32_t, uint8_t, Add(dst, from), i32,
                       kernels::Integers<uint8_t>(kSize, 13));
  PACELINE_EXPECT_CUTS(int64_t, int32_t, Add(dst, from), i64, i32);
  PACELINE_EXPECT_CUTS(int64_t, int64_t, Add(dst, from), i64,
                       kernels::Integers<int64_t>(kSize, 14));
}

PACELINE_FOR_EACH_INSTRUCTION_SET(SumsTest);

}  // namespace
}  // namespace paceline::kernels
