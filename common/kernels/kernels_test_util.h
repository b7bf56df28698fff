// Inputs, comparisons and the fixture that the tests of this folder share.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "common/kernels/kernels.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace paceline::kernels {

inline constexpr size_t kMaxLength = 1000;
inline constexpr size_t kPad = 8;  // arrays start 0..3 elements off, and a guard follows

inline uint64_t Next(uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Ordinary values with every kind of special one among them. At most one operand of a sum is a NaN:
// with `nans` false there are none.
inline std::vector<float> Floats(size_t count, uint64_t seed, bool nans) {
  std::vector<float> out(count);
  uint64_t state = seed;
  for (float& v : out) {
    const uint64_t r = Next(state);
    uint32_t bits = static_cast<uint32_t>(r >> 32);  // any pattern: subnormals, NaN, infinity
    switch (r % 8) {
      case 0:
        bits &= 0x807f'ffffu;  // subnormal or zero
        break;
      case 1:
        bits = (bits & 0x8000'0000u) | 0x7f80'0000u;  // infinity
        break;
      case 2:  // the range of binary16 and its edges
        bits = (bits & 0x80ff'ffffu) | ((102u + (r >> 8) % 44u) << 23);
        break;
      case 3:
        bits = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(bits) % 1000));
        break;
      default:
        break;
    }
    if (!nans && (bits & 0x7fff'ffffu) > 0x7f80'0000u) bits &= 0xbfff'ffffu;
    v = std::bit_cast<float>(bits);
  }
  return out;
}

inline std::vector<uint16_t> Halves(size_t count, uint64_t seed) {
  std::vector<uint16_t> out(count);
  uint64_t state = seed;
  for (uint16_t& v : out) v = static_cast<uint16_t>(Next(state));
  return out;
}

template <typename T>
::testing::AssertionResult SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " != " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// Any bits, as an integer type has them.
template <typename T>
std::vector<T> Integers(size_t count, uint64_t seed) {
  std::vector<T> out(count);
  for (T& v : out) v = static_cast<T>(Next(seed));
  return out;
}

// Calls `part(begin, size)` for the pieces of [0, size) cut at random places, which may be empty.
template <typename Part>
void ForEachPiece(size_t size, uint64_t seed, Part part) {
  for (size_t begin = 0; begin < size;) {
    const size_t piece = std::min<size_t>(Next(seed) % 97, size - begin);
    part(begin, piece);
    begin += piece;
  }
}

// Runs each test once per instruction set that the machine has.
class InstructionSetTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ASSERT_EQ(InstructionSet(), hwy::TargetName(GetParam()));
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  // Calls `test(length, start)` for every length, at starts that are not aligned.
  static void ForEachLength(const std::function<void(size_t, size_t)>& test) {
    for (size_t length = 0; length <= kMaxLength && !HasFailure(); ++length) {
      test(length, length % 4);
    }
  }
};

#define PACELINE_FOR_EACH_INSTRUCTION_SET(Fixture)                                   \
  INSTANTIATE_TEST_SUITE_P(InstructionSets, Fixture,                                 \
                           ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), \
                           [](const auto& info) { return hwy::TargetName(info.param); })

}  // namespace paceline::kernels
