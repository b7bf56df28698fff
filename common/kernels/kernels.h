// Element-wise loops over arrays of a model: sums, scaling, half precision. Each picks the widest
// instruction set of the machine at its first call and gives the same bits as its reference in
// scalar.h, on every instruction set and wherever an array is cut: every element is computed on its
// own, each operation is rounded once, nothing is contracted. The one exception: where both
// operands of a sum are NaN, which payload survives is not specified.
// Thread rule: no state; any thread. Arrays of one call may be the same array or must not overlap.
// Lengths must be equal (checked). No alignment beyond the element type's is needed.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace paceline::kernels {

// dst[i] = dst[i] + src[i].
void Add(std::span<float> dst, std::span<const float> src);
// dst[i] = a[i] - b[i].
void Subtract(std::span<float> dst, std::span<const float> a, std::span<const float> b);
// x[i] = x[i] * factor.
void Scale(std::span<float> x, float factor);
// x[i] = x[i] / divisor. Not Scale(x, 1 / divisor): that rounds twice.
void Divide(std::span<float> x, float divisor);
// y[i] = y[i] + a * x[i], the product rounded before the sum.
void Axpy(std::span<float> y, float a, std::span<const float> x);
// Neither infinity nor NaN anywhere. An empty array is finite.
bool AllFinite(std::span<const float> x);

// IEEE 754 binary16 in the bits of uint16_t. To half: nearest, ties to even; beyond 65519 becomes
// infinity; a NaN keeps its sign and upper payload and becomes quiet.
void F16ToF32(std::span<float> dst, std::span<const uint16_t> src);
void F32ToF16(std::span<uint16_t> dst, std::span<const float> src);
// dst[i] = dst[i] + float(src[i]): sums of halves are kept in float.
void AddF16(std::span<float> dst, std::span<const uint16_t> src);
bool AllFiniteF16(std::span<const uint16_t> x);

// bfloat16, the upper half of a float, in the bits of uint16_t. Rounding and NaN as above.
void Bf16ToF32(std::span<float> dst, std::span<const uint16_t> src);
void F32ToBf16(std::span<uint16_t> dst, std::span<const float> src);
void AddBf16(std::span<float> dst, std::span<const uint16_t> src);
bool AllFiniteBf16(std::span<const uint16_t> x);

// The instruction set in use, as Highway names it ("AVX2"), for logs.
std::string InstructionSet();

}  // namespace paceline::kernels
