#include "bench/kernels_bench_scalar.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "common/kernels/scalar.h"
#include "common/kernels/scalar_codec.h"
#include "common/kernels/scalar_optimizer.h"

namespace paceline::bench_scalar {

namespace scalar = kernels::scalar;

void AddF16(std::span<float> dst, std::span<const uint16_t> src) { scalar::AddF16(dst, src); }
void AddBf16(std::span<float> dst, std::span<const uint16_t> src) { scalar::AddBf16(dst, src); }
void F32ToF16(std::span<uint16_t> dst, std::span<const float> src) { scalar::F32ToF16(dst, src); }

void MomentumUpdate(std::span<float> w, std::span<float> m, std::span<const float> g,
                    const kernels::MomentumStep& step) {
  scalar::MomentumUpdate(w, m, g, step);
}

void AdamUpdate(std::span<float> w, std::span<float> m, std::span<float> v,
                std::span<const float> g, const kernels::AdamStep& step) {
  scalar::AdamUpdate(w, m, v, g, step);
}

void EncodeInt8(std::span<std::byte> out, std::span<const float> x) { scalar::EncodeInt8(out, x); }

bool DecodeInt8(std::span<float> x, std::span<const std::byte> in) {
  return scalar::DecodeInt8(x, in);
}

void EncodeTwoBit(std::span<std::byte> out, std::span<const float> x, float threshold) {
  scalar::EncodeTwoBit(out, x, threshold);
}

bool DecodeTwoBit(std::span<float> x, std::span<const std::byte> in, float threshold) {
  return scalar::DecodeTwoBit(x, in, threshold);
}

float KthMagnitude(std::span<const float> x, size_t k) {
  std::vector<float> magnitudes(x.size());
  std::transform(x.begin(), x.end(), magnitudes.begin(), [](float v) { return std::fabs(v); });
  const auto kth = magnitudes.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(magnitudes.begin(), kth, magnitudes.end(), std::greater<>());
  return *kth;
}

}  // namespace paceline::bench_scalar
