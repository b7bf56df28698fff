#include "common/kernels/codec_kernels.h"

#include "common/base/check.h"
#include "common/kernels/scalar_codec.h"

// Highway compiles the rest of this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/codec_kernels.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace paceline::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using I8 = hn::Rebind<int8_t, F32>;

HWY_INLINE size_t Whole(size_t size) { return size - size % hn::Lanes(F32()); }

float MaxMagnitude(std::span<const float> x) {
  const F32 d;
  auto largest = hn::Zero(d);
  const size_t whole = Whole(x.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, &x[i])));
  }
  const float rest = scalar::MaxMagnitude(x.subspan(whole));
  return std::max(hn::GetLane(hn::MaxOfLanes(d, largest)), rest);
}

void QuantizeInt8(std::byte* out, std::span<const float> x, float scale) {
  const F32 d;
  auto* const to = reinterpret_cast<int8_t*>(out);
  const auto limit = hn::Set(d, 127.0f);
  const size_t whole = scale == 0 ? 0 : Whole(x.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto quotient = hn::Div(hn::LoadU(d, &x[i]), hn::Set(d, scale));
    const auto clamped = hn::Max(hn::Neg(limit), hn::Min(quotient, limit));
    hn::StoreU(hn::DemoteTo(I8(), hn::NearestInt(clamped)), I8(), to + i);
  }
  scalar::QuantizeInt8(out + whole, x.subspan(whole), scale);
}

bool DequantizeInt8(std::span<float> x, const std::byte* in, float scale) {
  const F32 d;
  const I32 di;
  const auto* const from = reinterpret_cast<const int8_t*>(in);
  auto smallest = hn::Zero(di);
  const size_t whole = Whole(x.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto q = hn::PromoteTo(di, hn::LoadU(I8(), from + i));
    smallest = hn::Min(smallest, q);
    hn::StoreU(hn::Mul(hn::ConvertTo(d, q), hn::Set(d, scale)), d, &x[i]);
  }
  const bool valid = hn::AllFalse(di, hn::Eq(smallest, hn::Set(di, -128)));
  return scalar::DequantizeInt8(x.subspan(whole), in + whole, scale) && valid;
}

void EncodeInt8(std::span<std::byte> out, std::span<const float> x) {
  std::byte* to = out.data();
  for (size_t i = 0; i < x.size(); i += kInt8Block) {
    const auto block = x.subspan(i, std::min(kInt8Block, x.size() - i));
    const float scale = scalar::Int8Scale(MaxMagnitude(block));
    std::memcpy(to, &scale, sizeof(scale));
    QuantizeInt8(to + sizeof(scale), block, scale);
    to += sizeof(scale) + block.size();
  }
}

bool DecodeInt8(std::span<float> x, std::span<const std::byte> in) {
  const std::byte* from = in.data();
  for (size_t i = 0; i < x.size(); i += kInt8Block) {
    const auto block = x.subspan(i, std::min(kInt8Block, x.size() - i));
    float scale;
    std::memcpy(&scale, from, sizeof(scale));
    if (!scalar::IsInt8Scale(scale)) return false;
    if (!DequantizeInt8(block, from + sizeof(scale), scale)) return false;
    from += sizeof(scale) + block.size();
  }
  return true;
}

// Bit i of four, one per value, at the lower bit of value i's place in a byte of codes.
constexpr uint8_t kPlaces[16] = {0x00, 0x40, 0x10, 0x50, 0x04, 0x44, 0x14, 0x54,
                                 0x01, 0x41, 0x11, 0x51, 0x05, 0x45, 0x15, 0x55};

// Vectors that fill whole bytes of codes.
HWY_INLINE size_t WholeCodes(size_t size) { return hn::Lanes(F32()) < 4 ? 0 : Whole(size); }

void EncodeTwoBit(std::span<std::byte> out, std::span<const float> x, float threshold) {
  const F32 d;
  const auto upper = hn::Set(d, threshold);
  const auto lower = hn::Set(d, -threshold);
  const size_t whole = WholeCodes(x.size());
  uint8_t above[8] = {}, beyond[8] = {};  // a bit per lane
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, &x[i]);
    const auto is_above = hn::Ge(value, upper);
    hn::StoreMaskBits(d, is_above, above);
    hn::StoreMaskBits(d, hn::Or(is_above, hn::Le(value, lower)), beyond);
    for (size_t j = 0; j < hn::Lanes(d) / 4; ++j) {
      const size_t shift = 4 * (j % 2);
      const uint8_t high = kPlaces[beyond[j / 2] >> shift & 15];
      const uint8_t low = kPlaces[above[j / 2] >> shift & 15];
      out[i / 4 + j] = static_cast<std::byte>(high << 1 | low);
    }
  }
  scalar::EncodeTwoBit(out.subspan(whole / 4), x.subspan(whole), threshold);
}

bool DecodeTwoBit(std::span<float> x, std::span<const std::byte> in, float threshold) {
  const F32 d;
  const U32 du;
  const auto magnitude = hn::BitCast(du, hn::Set(d, threshold));
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  const auto shifts = hn::Sub(hn::Set(du, 2 * lanes - 2), hn::ShiftLeft<1>(hn::Iota(du, 0)));
  uint32_t invalid = 0;
  const size_t whole = WholeCodes(x.size());
  for (size_t i = 0; i < whole; i += lanes) {
    uint32_t word = 0;  // the first code in the highest bits
    for (size_t j = 0; j < lanes / 4; ++j) word = word << 8 | static_cast<uint32_t>(in[i / 4 + j]);
    invalid |= word & ~(word >> 1) & 0x5555'5555;
    const auto code = hn::Shr(hn::Set(du, word), shifts);
    const auto sign = hn::ShiftLeft<31>(hn::Not(code));
    const auto beyond = hn::TestBit(code, hn::Set(du, 2));
    const auto bits = hn::IfThenElseZero(beyond, hn::Or(magnitude, sign));
    hn::StoreU(hn::BitCast(d, bits), d, &x[i]);
  }
  return scalar::DecodeTwoBit(x.subspan(whole), in.subspan(whole / 4), threshold) && invalid == 0;
}

}  // namespace
}  // namespace paceline::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace paceline::kernels {

HWY_EXPORT(EncodeInt8);
HWY_EXPORT(DecodeInt8);
HWY_EXPORT(EncodeTwoBit);
HWY_EXPORT(DecodeTwoBit);

void EncodeInt8(std::span<std::byte> out, std::span<const float> x) {
  PACELINE_CHECK(out.size() == Int8Bytes(x.size()));
  HWY_DYNAMIC_DISPATCH(EncodeInt8)(out, x);
}

bool DecodeInt8(std::span<float> x, std::span<const std::byte> in) {
  PACELINE_CHECK(in.size() == Int8Bytes(x.size()));
  return HWY_DYNAMIC_DISPATCH(DecodeInt8)(x, in);
}

void EncodeTwoBit(std::span<std::byte> out, std::span<const float> x, float threshold) {
  PACELINE_CHECK(out.size() == TwoBitBytes(x.size()) && threshold > 0);
  HWY_DYNAMIC_DISPATCH(EncodeTwoBit)(out, x, threshold);
}

bool DecodeTwoBit(std::span<float> x, std::span<const std::byte> in, float threshold) {
  PACELINE_CHECK(in.size() == TwoBitBytes(x.size()) && threshold > 0);
  return HWY_DYNAMIC_DISPATCH(DecodeTwoBit)(x, in, threshold);
}

}  // namespace paceline::kernels
#endif  // HWY_ONCE
