// The arithmetic of the codecs against its references bit for bit, on every instruction set and
// whatever the cut, and against values worked out by hand.
#include "common/kernels/codec_kernels.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "common/kernels/kernels_test_util.h"
#include "common/kernels/scalar_codec.h"
#include "common/kernels/topk.h"

namespace paceline::kernels {
namespace {

using Bytes = std::vector<std::byte>;

Bytes ToBytes(std::initializer_list<int> values) {
  Bytes bytes;
  for (int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

template <typename T>
T At(const Bytes& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// Finite values of every magnitude.
std::vector<float> Finite(size_t count, uint64_t seed) {
  auto values = Floats(count, seed, false);
  for (float& v : values) {
    if (std::isinf(v)) v = std::copysign(std::numeric_limits<float>::max(), v);
  }
  return values;
}

std::vector<float> Normal(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

class CodecKernelsTest : public InstructionSetTest {};

TEST_P(CodecKernelsTest, Int8IsItsReference) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const auto values = seed == 0 ? Normal(kMaxLength + kPad, 1) : Finite(kMaxLength + kPad, seed);
    ForEachLength([&](size_t length, size_t start) {
      const auto x = std::span(values).subspan(start, length);
      Bytes got(Int8Bytes(length)), want(got.size());
      EncodeInt8(got, x);
      scalar::EncodeInt8(want, x);
      ASSERT_EQ(got, want) << length;
      std::vector<float> back(length), want_back(length);
      ASSERT_TRUE(DecodeInt8(back, got));
      ASSERT_TRUE(scalar::DecodeInt8(want_back, got));
      EXPECT_TRUE(SameBits(back, want_back)) << length;
    });
  }
}

TEST_P(CodecKernelsTest, Int8ByHand) {
  // The largest magnitude is 254, so the scale is 2: quotients 127, -127, 0.5, 1.5, -1.5, 0.75.
  const std::vector<float> x{254, -254, 1, 3, -3, 1.5f};
  Bytes out(Int8Bytes(x.size()));
  EncodeInt8(out, x);
  EXPECT_EQ(At<float>(out, 0), 2.0f);
  EXPECT_EQ(Bytes(out.begin() + 4, out.end()), ToBytes({127, -127, 0, 2, -2, 1}));
  std::vector<float> back(x.size());
  EXPECT_TRUE(DecodeInt8(back, out));
  EXPECT_EQ(back, (std::vector<float>{254, -254, 0, 4, -4, 2}));
}

TEST_P(CodecKernelsTest, Int8BytesByHand) {
  EXPECT_EQ(Int8Bytes(0), 0u);
  EXPECT_EQ(Int8Bytes(1), 5u);
  EXPECT_EQ(Int8Bytes(256), 260u);
  EXPECT_EQ(Int8Bytes(257), 265u);
  EXPECT_EQ(Int8Bytes(1'000'000), 1'015'628u);  // 3907 blocks
}

TEST_P(CodecKernelsTest, Int8IsOffByAtMostHalfAScale) {
  const auto x = Normal(10'000, 2);
  Bytes out(Int8Bytes(x.size()));
  std::vector<float> back(x.size());
  EncodeInt8(out, x);
  ASSERT_TRUE(DecodeInt8(back, out));
  for (size_t begin = 0; begin < x.size(); begin += kInt8Block) {
    const size_t end = std::min(begin + kInt8Block, x.size());
    double largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(double{x[i]}));
    for (size_t i = begin; i < end; ++i) {
      EXPECT_LE(std::fabs(double{x[i]} - back[i]), largest / 127 / 2 * (1 + 1e-4)) << i;
    }
  }
}

TEST_P(CodecKernelsTest, Int8AtTheEndsOfTheRange) {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  for (float largest : {kMax, std::nextafter(kMax, 0.0f), 0.0f, kTiny, 63 * kTiny, 64 * kTiny,
                        127 * kTiny, 0x1p-126f}) {
    const std::vector<float> x{largest, -largest, 0, largest / 2};
    Bytes out(Int8Bytes(x.size()));
    std::vector<float> back(x.size());
    EncodeInt8(out, x);
    ASSERT_TRUE(DecodeInt8(back, out)) << largest;
    for (size_t i = 0; i < x.size(); ++i) {
      // Half a step of 1/127, or below the normal numbers at most one of 127 units lost.
      EXPECT_LE(std::fabs(double{x[i]} - back[i]), std::max(largest / 253.9, 64.0 * kTiny)) << i;
    }
  }
}

TEST_P(CodecKernelsTest, Int8RefusesWhatNoEncoderWrites) {
  const auto x = Normal(300, 3);
  Bytes good(Int8Bytes(x.size()));
  std::vector<float> back(x.size());
  EncodeInt8(good, x);
  ASSERT_TRUE(DecodeInt8(back, good));
  for (float scale : {-1.0f, std::numeric_limits<float>::infinity(), 0x1p122f,
                      std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t offset : {size_t{0}, size_t{260}}) {
      Bytes bad = good;
      std::memcpy(&bad[offset], &scale, sizeof(scale));
      EXPECT_FALSE(DecodeInt8(back, bad)) << scale;
      EXPECT_FALSE(scalar::DecodeInt8(back, bad)) << scale;
    }
  }
  for (size_t i = 0; i < good.size(); ++i) {
    if (i < 4 || (i >= 260 && i < 264)) continue;
    Bytes bad = good;
    bad[i] = std::byte{0x80};
    EXPECT_FALSE(DecodeInt8(back, bad)) << i;
  }
}

TEST_P(CodecKernelsTest, TwoBitIsItsReference) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    const auto values = seed == 0 ? Normal(kMaxLength + kPad, 4) : Finite(kMaxLength + kPad, 5);
    ForEachLength([&](size_t length, size_t start) {
      const auto x = std::span(values).subspan(start, length);
      Bytes got(TwoBitBytes(length)), want(got.size());
      EncodeTwoBit(got, x, 0.75f);
      scalar::EncodeTwoBit(want, x, 0.75f);
      ASSERT_EQ(got, want) << length;
      std::vector<float> back(length), want_back(length);
      ASSERT_TRUE(DecodeTwoBit(back, got, 0.75f));
      ASSERT_TRUE(scalar::DecodeTwoBit(want_back, got, 0.75f));
      EXPECT_TRUE(SameBits(back, want_back)) << length;
    });
  }
}

TEST_P(CodecKernelsTest, TwoBitByHand) {
  // Codes 11 10 00 00 | 11 10 11 00 | ... repeated, then a byte that is not full: 10 .. .. ..
  std::vector<float> x, want;
  Bytes payload;
  for (int i = 0; i < 9; ++i) {
    x.insert(x.end(), {0.5f, -0.5f, 0.49f, -0.49f, 7, -7, 0.51f, 0});
    want.insert(want.end(), {0.5f, -0.5f, 0, 0, 0.5f, -0.5f, 0.5f, 0});
    payload.insert(payload.end(), {std::byte{0xe0}, std::byte{0xec}});
  }
  x.push_back(-1);
  want.push_back(-0.5f);
  payload.push_back(std::byte{0x80});
  ASSERT_EQ(TwoBitBytes(x.size()), 19u);
  Bytes out(19);
  EncodeTwoBit(out, x, 0.5f);
  EXPECT_EQ(out, payload);
  std::vector<float> back(x.size());
  EXPECT_TRUE(DecodeTwoBit(back, out, 0.5f));
  EXPECT_EQ(back, want);
}

TEST_P(CodecKernelsTest, TwoBitRefusesWhatNoEncoderWrites) {
  for (size_t length = 1; length <= 67; ++length) {
    const std::vector<float> x(length, 1);
    Bytes good(TwoBitBytes(length));
    std::vector<float> back(length);
    EncodeTwoBit(good, x, 0.5f);
    for (size_t i = 0; i < 4 * good.size(); ++i) {
      Bytes bad = good;
      const int shift = static_cast<int>(6 - 2 * (i % 4));
      bad[i / 4] &= ~(std::byte{3} << shift);
      bad[i / 4] |= std::byte{1} << shift;  // 01, or a bit after the last value
      EXPECT_FALSE(DecodeTwoBit(back, bad, 0.5f)) << length << " " << i;
      EXPECT_FALSE(scalar::DecodeTwoBit(back, bad, 0.5f)) << length << " " << i;
    }
  }
}

TEST_P(CodecKernelsTest, PayloadsOfPartsArePayloadsOfTheWhole) {
  const auto x = Normal(5000, 6);
  Bytes int8(Int8Bytes(x.size())), two_bit(TwoBitBytes(x.size()));
  EncodeInt8(int8, x);
  EncodeTwoBit(two_bit, x, 0.5f);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Bytes int8_parts, two_bit_parts;
    uint64_t state = seed;
    for (size_t begin = 0; begin < x.size();) {
      const size_t n = std::min(kInt8Block * (1 + Next(state) % 5), x.size() - begin);
      Bytes part(Int8Bytes(n));
      EncodeInt8(part, std::span(x).subspan(begin, n));
      int8_parts.insert(int8_parts.end(), part.begin(), part.end());
      begin += n;
    }
    for (size_t begin = 0; begin < x.size();) {
      const size_t n = std::min<size_t>(4 * (1 + Next(state) % 50), x.size() - begin);
      Bytes part(TwoBitBytes(n));
      EncodeTwoBit(part, std::span(x).subspan(begin, n), 0.5f);
      two_bit_parts.insert(two_bit_parts.end(), part.begin(), part.end());
      begin += n;
    }
    ASSERT_EQ(int8_parts, int8) << seed;
    ASSERT_EQ(two_bit_parts, two_bit) << seed;
  }
}

PACELINE_FOR_EACH_INSTRUCTION_SET(CodecKernelsTest);

// The reference: all indices by magnitude, equal ones by place; the first k, in order.
std::vector<float> KeepTopK(const std::vector<float>& x, size_t k) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  std::vector<float> kept(x.size());
  for (size_t i = 0; i < k; ++i) kept[order[i]] = x[order[i]];
  return kept;
}

TEST(TopKTest, KeepsWhatASortKeeps) {
  uint64_t state = 1;
  for (int round = 0; round < 300; ++round) {
    const size_t n = Next(state) % 400;
    auto x = round % 3 == 0 ? Finite(n, Next(state)) : Normal(n, static_cast<uint32_t>(round));
    if (round % 3 == 1) {
      for (float& v : x) v = std::nearbyint(2 * v);  // many that are equal
    }
    const size_t k = n == 0 ? 0 : Next(state) % (n + 1);
    Bytes out(TopKBytes(n, k));
    EncodeTopK(out, x, k);
    std::vector<float> back(n, 77);
    ASSERT_TRUE(DecodeTopK(back, out, k)) << n << " " << k;
    const auto want = KeepTopK(x, k);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(back[i], want[i]) << n << " " << k << " " << i;
    auto rest = x;
    ClearTopK(rest, out, k);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(rest[i], x[i] - want[i]) << n << " " << k << " " << i;
  }
}

TEST(TopKTest, OfEqualOnesTheFirst) {
  const std::vector<float> x{1, -2, 2, -2, 1, 3};
  Bytes out(TopKBytes(6, 3));
  EncodeTopK(out, x, 3);
  // A bitmap is shorter than three indices: values 1, 2 and 5.
  ASSERT_EQ(out.size(), 13u);
  EXPECT_EQ(out[0], std::byte{0b100110});
  EXPECT_EQ(At<float>(out, 1), -2.0f);
  EXPECT_EQ(At<float>(out, 5), 2.0f);
  EXPECT_EQ(At<float>(out, 9), 3.0f);
}

TEST(TopKTest, AFewOfManyAreAList) {
  std::vector<float> x(100);
  x[3] = -1;
  x[99] = 1;
  Bytes out(TopKBytes(100, 2));
  EncodeTopK(out, x, 2);
  ASSERT_EQ(out.size(), 16u);
  EXPECT_EQ(At<uint32_t>(out, 0), 3u);
  EXPECT_EQ(At<uint32_t>(out, 4), 99u);
  EXPECT_EQ(At<float>(out, 8), -1.0f);
  EXPECT_EQ(At<float>(out, 12), 1.0f);
}

TEST(TopKTest, BytesByHand) {
  EXPECT_EQ(TopKBytes(0, 0), 0u);
  EXPECT_EQ(TopKBytes(1, 1), 5u);
  EXPECT_EQ(TopKBytes(64, 2), 16u);  // a list and a bitmap of 8 bytes each: the list
  EXPECT_FALSE(TopKHasBitmap(64, 2));
  EXPECT_EQ(TopKBytes(1'000'000, 100'000), 525'000u);
  EXPECT_EQ(TopKBytes(1'000'000, 10'000), 80'000u);
}

TEST(TopKTest, RefusesWhatNoEncoderWrites) {
  std::vector<float> back(100);
  Bytes list(TopKBytes(100, 2));
  const auto decode = [&](uint32_t first, uint32_t second) {
    std::memcpy(&list[0], &first, 4);
    std::memcpy(&list[4], &second, 4);
    return DecodeTopK(back, list, 2);
  };
  EXPECT_TRUE(decode(0, 99));
  EXPECT_FALSE(decode(0, 100));
  EXPECT_FALSE(decode(7, 7));
  EXPECT_FALSE(decode(8, 7));
  EXPECT_FALSE(decode(0xffff'ffff, 0));
  EXPECT_FALSE(decode(5, 0xffff'ffff));

  Bytes bitmap(TopKBytes(10, 3));
  const auto decode_bitmap = [&](int low, int high) {
    bitmap[0] = static_cast<std::byte>(low);
    bitmap[1] = static_cast<std::byte>(high);
    return DecodeTopK(std::span(back).first(10), bitmap, 3);
  };
  EXPECT_TRUE(decode_bitmap(0b11, 0b10));
  EXPECT_FALSE(decode_bitmap(0b11, 0));
  EXPECT_FALSE(decode_bitmap(0b111, 0b1));
  EXPECT_FALSE(decode_bitmap(0b11, 0b100));  // there is no eleventh value
}

}  // namespace
}  // namespace paceline::kernels
