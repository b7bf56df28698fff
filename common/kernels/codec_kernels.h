// The arithmetic of the codecs (parameter/codec.h): floats to the bytes of a payload and back.
// Bits, threads and lengths as in kernels.h; the references are in scalar_codec.h. Payloads are
// little-endian and need no alignment. Encoders take finite values only (what they write for others
// is not specified); decoders take any bytes and return false for what no encoder writes.
//
//  int8   blocks of 256 values, the last one shorter: a scale s as fp32, then a signed byte q per
//         value. s is the largest magnitude of the block divided by 127, one unit of the last place
//         less where 127*s would overflow. q = x/s to the nearest integer, ties to even, within
//         -127..127; 0 where s is 0. Decoded q*s: off by at most s/2 and the rounding.
//  2bit   four values per byte, the first in the two highest bits: 11 for x >= threshold, 10 for
//         x <= -threshold, 00 for what lies between; the bits after the last value are 0. Decoded
//         threshold, -threshold and 0. Values, order and bits are those of MXNet's "2bit"
//         compression, whose payload is padded to a multiple of four bytes and ours is not.
//
// Cut at a multiple of 256 (int8) or 4 (2bit) values, the payloads of the parts are the payload of
// the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace paceline::kernels {

inline constexpr size_t kInt8Block = 256;

constexpr uint64_t Int8Bytes(uint64_t values) {
  return values + sizeof(float) * (values / kInt8Block + (values % kInt8Block != 0));
}
// `out` has Int8Bytes(x.size()) bytes (checked), as `in` of DecodeInt8.
void EncodeInt8(std::span<std::byte> out, std::span<const float> x);
// False for a scale that is negative, not a number or so large that 127*s is infinite, and for
// -128.
bool DecodeInt8(std::span<float> x, std::span<const std::byte> in);

constexpr uint64_t TwoBitBytes(uint64_t values) { return values / 4 + (values % 4 != 0); }
// `out` has TwoBitBytes(x.size()) bytes (checked), as `in` of DecodeTwoBit; threshold above 0.
void EncodeTwoBit(std::span<std::byte> out, std::span<const float> x, float threshold);
// False for the code 01 and for bits set after the last value.
bool DecodeTwoBit(std::span<float> x, std::span<const std::byte> in, float threshold);

}  // namespace paceline::kernels
