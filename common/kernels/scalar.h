// The references of kernels.h, one element at a time and without any instruction set of its own:
// what the vectorised kernels are tested against, and what they finish an array's tail with.
// Thread rule: no state; any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

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

}  // namespace paceline::kernels::scalar
