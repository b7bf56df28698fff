// The scalar references of common/kernels as functions of their own, in a file that is compiled
// without automatic vectorisation: one element at a time, as they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/kernels/optimizer_kernels.h"

namespace paceline::bench_scalar {

void AddF16(std::span<float> dst, std::span<const uint16_t> src);
void AddBf16(std::span<float> dst, std::span<const uint16_t> src);
void F32ToF16(std::span<uint16_t> dst, std::span<const float> src);
void MomentumUpdate(std::span<float> w, std::span<float> m, std::span<const float> g,
                    const kernels::MomentumStep& step);
void AdamUpdate(std::span<float> w, std::span<float> m, std::span<float> v,
                std::span<const float> g, const kernels::AdamStep& step);
void EncodeInt8(std::span<std::byte> out, std::span<const float> x);
bool DecodeInt8(std::span<float> x, std::span<const std::byte> in);
void EncodeTwoBit(std::span<std::byte> out, std::span<const float> x, float threshold);
bool DecodeTwoBit(std::span<float> x, std::span<const std::byte> in, float threshold);
// The k-th largest magnitude by std::nth_element on a copy: the least that a selection does.
float KthMagnitude(std::span<const float> x, size_t k);

}  // namespace paceline::bench_scalar
