// The arithmetic of the topk codec (parameter/codec.h): the k values of largest magnitude, of equal
// ones those that come first, so that one input has one payload on every machine. Integer work with
// data-dependent places: there is nothing for vectors in it, and its reference is a sort (in the
// test). Thread rule: no state; any thread.
//
// Payload of k of n values, little-endian: which ones, then the values as fp32, both in the order
// of the array. Which ones is the shorter of an ascending list of uint32 indices (4k bytes) and a
// bitmap (ceil(n/8) bytes, value i at bit i%8 of byte i/8), the list when they are equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace paceline::kernels {

// n and k as of EncodeTopK.
constexpr bool TopKHasBitmap(uint64_t n, uint64_t k) {
  return n / 8 + (n % 8 != 0) < k * sizeof(uint32_t);
}
constexpr uint64_t TopKBytes(uint64_t n, uint64_t k) {
  const uint64_t which = TopKHasBitmap(n, k) ? n / 8 + (n % 8 != 0) : k * sizeof(uint32_t);
  return which + k * sizeof(float);
}

// k <= x.size() < 2^32, `out` has TopKBytes(x.size(), k) bytes (checked); values must be finite.
void EncodeTopK(std::span<std::byte> out, std::span<const float> x, uint64_t k);
// The values at their places and 0 elsewhere. False when `in`, of TopKBytes(x.size(), k) bytes
// (checked), is not k ascending indices below x.size(), or not a bitmap of k of them.
bool DecodeTopK(std::span<float> x, std::span<const std::byte> in, uint64_t k);
// Sets to 0 what `encoded`, made by EncodeTopK of x, carries: what is left is the error.
void ClearTopK(std::span<float> x, std::span<const std::byte> encoded, uint64_t k);

}  // namespace paceline::kernels
