// The references of kernels.h, one element at a time and without any instruction set of its own:
// what the vectorised kernels are tested against, and what they finish an array's tail with.
// Thread rule: no state; any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

namespace paceline::kernels::scalar {

inline float F16ToF32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude < 0x0400u) {  // zero or subnormal: magnitude x 2^-24, exact
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  uint32_t bits = (magnitude << 13) + kRebias;
  if (magnitude >= 0x7c00u) bits += kRebias;      // infinity and NaN: exponent 255
  if (magnitude > 0x7c00u) bits |= 0x0040'0000u;  // NaN becomes quiet
  return std::bit_cast<float>(bits | sign);
}

inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fff'ffffu;
  if (magnitude > 0x7f80'0000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x03ffu));
  }
  if (magnitude >= 0x4780'0000u) return sign | 0x7c00u;  // 65536 and more
  if (magnitude < 0x3880'0000u) {                        // below 2^-14: subnormal or zero
    // Adding 0.5 leaves one unit of the last place of the half in the float's last place, so the
    // addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f00'0000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t rounded = magnitude - ((127u - 15u) << 23) + 0x0fffu + odd;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

inline float Bf16ToF32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

inline uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fff'ffffu) > 0x7f80'0000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline bool IsFinite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7f80'0000u) != 0x7f80'0000u;
}
inline bool IsFiniteF16(uint16_t value) { return (value & 0x7c00u) != 0x7c00u; }
inline bool IsFiniteBf16(uint16_t value) { return (value & 0x7f80u) != 0x7f80u; }

inline void Add(std::span<float> dst, std::span<const float> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = dst[i] + src[i];
}
inline void Subtract(std::span<float> dst, std::span<const float> a, std::span<const float> b) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = a[i] - b[i];
}
inline void Scale(std::span<float> x, float factor) {
  for (float& v : x) v = v * factor;
}
inline void Divide(std::span<float> x, float divisor) {
  for (float& v : x) v = v / divisor;
}
inline void Axpy(std::span<float> y, float a, std::span<const float> x) {
  for (size_t i = 0; i < y.size(); ++i) {
    const float product = a * x[i];
    y[i] = y[i] + product;
  }
}
inline bool AllFinite(std::span<const float> x) {
  for (float v : x) {
    if (!IsFinite(v)) return false;
  }
  return true;
}

inline void Add(std::span<double> dst, std::span<const double> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = dst[i] + src[i];
}
inline void Axpy(std::span<double> y, double a, std::span<const double> x) {
  for (size_t i = 0; i < y.size(); ++i) {
    const double product = a * x[i];
    y[i] = y[i] + product;
  }
}
inline bool AllFinite(std::span<const double> x) {
  constexpr uint64_t kExponent = 0x7ff0'0000'0000'0000;
  for (double v : x) {
    if ((std::bit_cast<uint64_t>(v) & kExponent) == kExponent) return false;
  }
  return true;
}

inline bool CopyChecked(std::span<float> dst, std::span<const float> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = src[i];
  return AllFinite(src);
}
inline bool AddChecked(std::span<float> dst, std::span<const float> src) {
  Add(dst, src);
  return AllFinite(src);
}

// Modulo 2^bits: an overflow of ours must not be undefined.
template <typename Wide, typename Narrow>
void AddModulo(std::span<Wide> dst, std::span<const Narrow> src) {
  using Unsigned = std::make_unsigned_t<Wide>;
  for (size_t i = 0; i < dst.size(); ++i) {
    const auto value = static_cast<Unsigned>(static_cast<Wide>(src[i]));
    dst[i] = static_cast<Wide>(static_cast<Unsigned>(dst[i]) + value);
  }
}
inline void Add(std::span<int32_t> dst, std::span<const int8_t> src) { AddModulo(dst, src); }
inline void Add(std::span<int32_t> dst, std::span<const uint8_t> src) { AddModulo(dst, src); }
inline void Add(std::span<int64_t> dst, std::span<const int32_t> src) { AddModulo(dst, src); }
inline bool Add(std::span<int64_t> dst, std::span<const int64_t> src) {
  bool fits = true;
  for (size_t i = 0; i < dst.size(); ++i) {
    const int64_t a = dst[i];
    const int64_t b = src[i];
    const auto sum = static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    fits = fits && ((a ^ sum) & (b ^ sum)) >= 0;
    dst[i] = sum;
  }
  return fits;
}

template <typename To, typename From>
bool Narrow(std::span<To> dst, std::span<const From> src) {
  constexpr From kLowest = std::numeric_limits<To>::min();
  constexpr From kHighest = std::numeric_limits<To>::max();
  bool fits = true;
  for (size_t i = 0; i < dst.size(); ++i) {
    const From value = src[i] < kLowest ? kLowest : src[i] > kHighest ? kHighest : src[i];
    fits = fits & (value == src[i]);
    dst[i] = static_cast<To>(value);
  }
  return fits;
}

inline void F16ToF32(std::span<float> dst, std::span<const uint16_t> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = F16ToF32(src[i]);
}
inline void F32ToF16(std::span<uint16_t> dst, std::span<const float> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = F32ToF16(src[i]);
}
inline void AddF16(std::span<float> dst, std::span<const uint16_t> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = dst[i] + F16ToF32(src[i]);
}
inline bool AllFiniteF16(std::span<const uint16_t> x) {
  for (uint16_t v : x) {
    if (!IsFiniteF16(v)) return false;
  }
  return true;
}
inline bool AddF16Checked(std::span<float> dst, std::span<const uint16_t> src) {
  AddF16(dst, src);
  return AllFiniteF16(src);
}

inline void Bf16ToF32(std::span<float> dst, std::span<const uint16_t> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = Bf16ToF32(src[i]);
}
inline void F32ToBf16(std::span<uint16_t> dst, std::span<const float> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = F32ToBf16(src[i]);
}
inline void AddBf16(std::span<float> dst, std::span<const uint16_t> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = dst[i] + Bf16ToF32(src[i]);
}
inline bool AllFiniteBf16(std::span<const uint16_t> x) {
  for (uint16_t v : x) {
    if (!IsFiniteBf16(v)) return false;
  }
  return true;
}
inline bool AddBf16Checked(std::span<float> dst, std::span<const uint16_t> src) {
  AddBf16(dst, src);
  return AllFiniteBf16(src);
}

}  // namespace paceline::kernels::scalar
