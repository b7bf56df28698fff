// The references of codec_kernels.h, as scalar.h is of kernels.h.
// Thread rule: no state; any thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "common/kernels/codec_kernels.h"

namespace paceline::kernels::scalar {

inline float MaxMagnitude(std::span<const float> x) {
  float largest = 0;
  for (float v : x) largest = std::max(largest, std::fabs(v));
  return largest;
}

inline float Int8Scale(float max_magnitude) {
  const float scale = max_magnitude / 127;
  if (127 * scale <= std::numeric_limits<float>::max()) return scale;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) - 1);
}

inline bool IsInt8Scale(float scale) {  // false for a NaN
  return scale >= 0 && 127 * scale <= std::numeric_limits<float>::max();
}

inline void QuantizeInt8(std::byte* out, std::span<const float> x, float scale) {
  for (size_t i = 0; i < x.size(); ++i) {
    const float quotient = scale == 0 ? 0.0f : std::clamp(x[i] / scale, -127.0f, 127.0f);
    // The sum has no bits after the point, so the addition rounds to nearest even.
    const float rounded = (quotient + 0x1.8p23f) - 0x1.8p23f;
    out[i] = static_cast<std::byte>(static_cast<int8_t>(rounded));
  }
}

inline bool DequantizeInt8(std::span<float> x, const std::byte* in, float scale) {
  bool valid = true;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto q = static_cast<int8_t>(in[i]);
    valid = valid & (q != -128);
    x[i] = static_cast<float>(q) * scale;
  }
  return valid;
}

inline void EncodeInt8(std::span<std::byte> out, std::span<const float> x) {
  std::byte* to = out.data();
  for (size_t i = 0; i < x.size(); i += kInt8Block) {
    const auto block = x.subspan(i, std::min(kInt8Block, x.size() - i));
    const float scale = Int8Scale(MaxMagnitude(block));
    std::memcpy(to, &scale, sizeof(scale));
    QuantizeInt8(to + sizeof(scale), block, scale);
    to += sizeof(scale) + block.size();
  }
}

inline bool DecodeInt8(std::span<float> x, std::span<const std::byte> in) {
  const std::byte* from = in.data();
  for (size_t i = 0; i < x.size(); i += kInt8Block) {
    const auto block = x.subspan(i, std::min(kInt8Block, x.size() - i));
    float scale;
    std::memcpy(&scale, from, sizeof(scale));
    if (!IsInt8Scale(scale)) return false;
    if (!DequantizeInt8(block, from + sizeof(scale), scale)) return false;
    from += sizeof(scale) + block.size();
  }
  return true;
}

inline uint8_t TwoBitCode(float x, float threshold) {
  return x >= threshold ? 3 : x <= -threshold ? 2 : 0;
}

inline void EncodeTwoBit(std::span<std::byte> out, std::span<const float> x, float threshold) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint8_t byte = 0;
    for (size_t j = 0; j < 4; ++j) {
      const size_t k = 4 * i + j;
      const uint8_t code = k < x.size() ? TwoBitCode(x[k], threshold) : 0;
      byte = static_cast<uint8_t>(byte << 2 | code);
    }
    out[i] = static_cast<std::byte>(byte);
  }
}

inline bool DecodeTwoBit(std::span<float> x, std::span<const std::byte> in, float threshold) {
  bool valid = true;
  for (size_t i = 0; i < in.size(); ++i) {
    const auto byte = static_cast<uint8_t>(in[i]);
    for (size_t j = 0; j < 4; ++j) {
      const uint8_t code = byte >> (6 - 2 * j) & 3;
      const size_t k = 4 * i + j;
      if (k < x.size()) {
        x[k] = code == 3 ? threshold : code == 2 ? -threshold : 0;
        valid = valid & (code != 1);
      } else {
        valid = valid & (code == 0);
      }
    }
  }
  return valid;
}

}  // namespace paceline::kernels::scalar
