// Element-wise loops over arrays of a model: sums, scaling, half precision. Each picks the widest
// instruction set of the machine at its first call and gives the same bits as its reference in
// scalar.h, on every instruction set and wherever an array is cut: every element is computed on its
// own, each operation is rounded once, nothing is contracted. The one exception: where both
// operands of a sum are NaN, which payload survives is not specified.
// Thread rule: no state; any thread. Arrays of one call may be the same array or must not overlap.
// Lengths must be equal (checked). No alignment beyond the element type's is needed.
#pragma once

#include <cstddef>
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

// The same in double.
void Add(std::span<double> dst, std::span<const double> src);
void Axpy(std::span<double> y, double a, std::span<const double> x);
bool AllFinite(std::span<const double> x);

// dst[i] = src[i], or dst[i] + float(src[i]): one pass that also says whether every src[i] is
// finite. All of dst is written either way: a sum that took what is not must be thrown away.
bool CopyChecked(std::span<float> dst, std::span<const float> src);
bool AddChecked(std::span<float> dst, std::span<const float> src);
bool AddF16Checked(std::span<float> dst, std::span<const uint16_t> src);
bool AddBf16Checked(std::span<float> dst, std::span<const uint16_t> src);

// Integers are summed in a wider type, which holds 2^24 arrays of int8, 2^23 of uint8 and 2^32 of
// int32. int64 has none: false when a sum did not fit (it is then taken modulo 2^64).
void Add(std::span<int32_t> dst, std::span<const int8_t> src);
void Add(std::span<int32_t> dst, std::span<const uint8_t> src);
void Add(std::span<int64_t> dst, std::span<const int32_t> src);
bool Add(std::span<int64_t> dst, std::span<const int64_t> src);
// A sum back in its elements' type. False when a value did not fit; it becomes the nearest that
// does.
bool Narrow(std::span<int8_t> dst, std::span<const int32_t> src);
bool Narrow(std::span<uint8_t> dst, std::span<const int32_t> src);
bool Narrow(std::span<int32_t> dst, std::span<const int64_t> src);

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

// The same conversions from and to the bytes of a payload: little-endian, no alignment, two bytes
// for each element (checked).
void F16ToF32(std::span<float> dst, std::span<const std::byte> src);
void F32ToF16(std::span<std::byte> dst, std::span<const float> src);
void Bf16ToF32(std::span<float> dst, std::span<const std::byte> src);
void F32ToBf16(std::span<std::byte> dst, std::span<const float> src);

// The instruction set in use, as Highway names it ("AVX2"), for logs.
std::string InstructionSet();

}  // namespace paceline::kernels
