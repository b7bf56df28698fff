#include "common/kernels/kernels.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/kernels/scalar.h"

// Highway compiles the rest of this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/kernels.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace paceline::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;  // as many halves as a vector has floats

HWY_INLINE hn::Vec<F32> LoadF16(const uint16_t* from) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::Rebind<hwy::float16_t, F32> d16;
  return hn::PromoteTo(F32(), hn::BitCast(d16, hn::LoadU(U16(), from)));
#else
  const I32 di;
  const F32 df;
  const auto half = hn::PromoteTo(di, hn::LoadU(U16(), from));
  const auto magnitude = hn::And(half, hn::Set(di, 0x7fff));
  const auto sign = hn::BitCast(df, hn::ShiftLeft<16>(hn::And(half, hn::Set(di, 0x8000))));
  const auto rebias = hn::Set(di, (127 - 15) << 23);
  const auto special = hn::Gt(magnitude, hn::Set(di, 0x7bff));
  const auto nan = hn::Gt(magnitude, hn::Set(di, 0x7c00));
  auto bits = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
  bits = hn::Add(bits, hn::IfThenElseZero(special, rebias));
  bits = hn::Or(bits, hn::IfThenElseZero(nan, hn::Set(di, 0x0040'0000)));
  const auto subnormal = hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, 0x1p-24f));
  const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, 0x0400));
  const auto value =
      hn::IfThenElse(hn::RebindMask(df, is_subnormal), subnormal, hn::BitCast(df, bits));
  return hn::Or(value, sign);
#endif
}

HWY_INLINE void StoreF16(hn::Vec<F32> value, uint16_t* to) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::Rebind<hwy::float16_t, F32> d16;
  hn::StoreU(hn::BitCast(U16(), hn::DemoteTo(d16, value)), U16(), to);
#else
  const U32 du;
  const I32 di;
  const F32 df;
  const auto bits = hn::BitCast(di, value);
  const auto sign =
      hn::And(hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(du, bits))), hn::Set(di, 0x8000));
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7fff'ffff));

  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto rebiased = hn::Sub(magnitude, hn::Set(di, (127 - 15) << 23));
  auto half = hn::ShiftRight<13>(hn::Add(rebiased, hn::Add(hn::Set(di, 0x0fff), odd)));

  const auto shifted = hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x3f00'0000));
  half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x3880'0000)), subnormal, half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x477f'ffff)), hn::Set(di, 0x7c00), half);
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 0x03ff));
  const auto nan = hn::Or(payload, hn::Set(di, 0x7e00));
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7f80'0000)), nan, half);
  hn::StoreU(hn::TruncateTo(U16(), hn::BitCast(du, hn::Or(half, sign))), U16(), to);
#endif
}

HWY_INLINE hn::Vec<F32> LoadBf16(const uint16_t* from) {
  const auto wide = hn::PromoteTo(U32(), hn::LoadU(U16(), from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(wide));
}

HWY_INLINE void StoreBf16(hn::Vec<F32> value, uint16_t* to) {
  const U32 du;
  const I32 di;
  const auto bits = hn::BitCast(du, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(du, 0x7fff), odd)));
  const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fff'ffff)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, 0x7f80'0000)));
  const auto quiet = hn::Or(upper, hn::Set(du, 0x0040));
  hn::StoreU(hn::TruncateTo(U16(), hn::IfThenElse(is_nan, quiet, rounded)), U16(), to);
}

HWY_INLINE hn::Vec<F32> LoadF32(const float* from) { return hn::LoadU(F32(), from); }

// Elements that whole vectors cover.
template <typename D>
HWY_INLINE size_t Whole(D d, size_t size) {
  return size - size % hn::Lanes(d);
}

void Add(std::span<float> dst, std::span<const float> src) {
  const F32 d;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, &dst[i]), hn::LoadU(d, &src[i])), d, &dst[i]);
  }
  scalar::Add(dst.subspan(whole), src.subspan(whole));
}

void Subtract(std::span<float> dst, std::span<const float> a, std::span<const float> b) {
  const F32 d;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    hn::StoreU(hn::Sub(hn::LoadU(d, &a[i]), hn::LoadU(d, &b[i])), d, &dst[i]);
  }
  scalar::Subtract(dst.subspan(whole), a.subspan(whole), b.subspan(whole));
}

void Scale(std::span<float> x, float factor) {
  const F32 d;
  const size_t whole = Whole(d, x.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, &x[i]), hn::Set(d, factor)), d, &x[i]);
  }
  scalar::Scale(x.subspan(whole), factor);
}

void Divide(std::span<float> x, float divisor) {
  const F32 d;
  const size_t whole = Whole(d, x.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    hn::StoreU(hn::Div(hn::LoadU(d, &x[i]), hn::Set(d, divisor)), d, &x[i]);
  }
  scalar::Divide(x.subspan(whole), divisor);
}

void Axpy(std::span<float> y, float a, std::span<const float> x) {
  const F32 d;
  const size_t whole = Whole(d, y.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto product = hn::Mul(hn::Set(d, a), hn::LoadU(d, &x[i]));
    hn::StoreU(hn::Add(hn::LoadU(d, &y[i]), product), d, &y[i]);
  }
  scalar::Axpy(y.subspan(whole), a, x.subspan(whole));
}

bool AllFinite(std::span<const float> x) {
  const I32 d;
  const auto exponent = hn::Set(d, 0x7f80'0000);
  const size_t whole = Whole(d, x.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto bits = hn::And(hn::BitCast(d, hn::LoadU(F32(), &x[i])), exponent);
    if (!hn::AllFalse(d, hn::Eq(bits, exponent))) return false;
  }
  return scalar::AllFinite(x.subspan(whole));
}

void F16ToF32(std::span<float> dst, std::span<const uint16_t> src) {
  const F32 d;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) hn::StoreU(LoadF16(&src[i]), d, &dst[i]);
  scalar::F16ToF32(dst.subspan(whole), src.subspan(whole));
}

void F32ToF16(std::span<uint16_t> dst, std::span<const float> src) {
  const F32 d;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) StoreF16(hn::LoadU(d, &src[i]), &dst[i]);
  scalar::F32ToF16(dst.subspan(whole), src.subspan(whole));
}

void AddF16(std::span<float> dst, std::span<const uint16_t> src) {
  const F32 d;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, &dst[i]), LoadF16(&src[i])), d, &dst[i]);
  }
  scalar::AddF16(dst.subspan(whole), src.subspan(whole));
}

void Bf16ToF32(std::span<float> dst, std::span<const uint16_t> src) {
  const F32 d;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) hn::StoreU(LoadBf16(&src[i]), d, &dst[i]);
  scalar::Bf16ToF32(dst.subspan(whole), src.subspan(whole));
}

void F32ToBf16(std::span<uint16_t> dst, std::span<const float> src) {
  const F32 d;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) StoreBf16(hn::LoadU(d, &src[i]), &dst[i]);
  scalar::F32ToBf16(dst.subspan(whole), src.subspan(whole));
}

void AddBf16(std::span<float> dst, std::span<const uint16_t> src) {
  const F32 d;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, &dst[i]), LoadBf16(&src[i])), d, &dst[i]);
  }
  scalar::AddBf16(dst.subspan(whole), src.subspan(whole));
}

// dst[i] + src[i] or, without `kSum`, src[i]; whether every src[i] is finite.
template <bool kSum, typename T, hn::Vec<F32> (*kLoad)(const T*)>
bool Checked(std::span<float> dst, std::span<const T> src) {
  const F32 d;
  const I32 di;
  const auto exponent = hn::Set(di, 0x7f80'0000);
  auto largest = hn::Zero(di);
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto value = kLoad(&src[i]);
    largest = hn::Max(largest, hn::And(hn::BitCast(di, value), exponent));
    hn::StoreU(kSum ? hn::Add(hn::LoadU(d, &dst[i]), value) : value, d, &dst[i]);
  }
  return hn::AllFalse(di, hn::Eq(largest, exponent));
}

bool CopyChecked(std::span<float> dst, std::span<const float> src) {
  const size_t whole = Whole(F32(), dst.size());
  const bool finite = Checked<false, float, LoadF32>(dst, src);
  return scalar::CopyChecked(dst.subspan(whole), src.subspan(whole)) && finite;
}

bool AddChecked(std::span<float> dst, std::span<const float> src) {
  const size_t whole = Whole(F32(), dst.size());
  const bool finite = Checked<true, float, LoadF32>(dst, src);
  return scalar::AddChecked(dst.subspan(whole), src.subspan(whole)) && finite;
}

bool AddF16Checked(std::span<float> dst, std::span<const uint16_t> src) {
  const size_t whole = Whole(F32(), dst.size());
  const bool finite = Checked<true, uint16_t, LoadF16>(dst, src);
  return scalar::AddF16Checked(dst.subspan(whole), src.subspan(whole)) && finite;
}

bool AddBf16Checked(std::span<float> dst, std::span<const uint16_t> src) {
  const size_t whole = Whole(F32(), dst.size());
  const bool finite = Checked<true, uint16_t, LoadBf16>(dst, src);
  return scalar::AddBf16Checked(dst.subspan(whole), src.subspan(whole)) && finite;
}

void AddF64(std::span<double> dst, std::span<const double> src) {
  const hn::ScalableTag<double> d;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, &dst[i]), hn::LoadU(d, &src[i])), d, &dst[i]);
  }
  scalar::Add(dst.subspan(whole), src.subspan(whole));
}

void AxpyF64(std::span<double> y, double a, std::span<const double> x) {
  const hn::ScalableTag<double> d;
  const size_t whole = Whole(d, y.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto product = hn::Mul(hn::Set(d, a), hn::LoadU(d, &x[i]));
    hn::StoreU(hn::Add(hn::LoadU(d, &y[i]), product), d, &y[i]);
  }
  scalar::Axpy(y.subspan(whole), a, x.subspan(whole));
}

bool AllFiniteF64(std::span<const double> x) {
  const hn::ScalableTag<double> df;
  const hn::ScalableTag<int64_t> d;
  const auto exponent = hn::Set(d, 0x7ff0'0000'0000'0000);
  const size_t whole = Whole(d, x.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto bits = hn::And(hn::BitCast(d, hn::LoadU(df, &x[i])), exponent);
    if (!hn::AllFalse(d, hn::Eq(bits, exponent))) return false;
  }
  return scalar::AllFinite(x.subspan(whole));
}

// Of halves whose exponent bits are `exponent`: binary16 and bfloat16 differ in nothing else here.
bool NoneHasExponent(std::span<const uint16_t> x, uint16_t exponent) {
  const hn::ScalableTag<uint16_t> d;
  const auto mask = hn::Set(d, exponent);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= x.size(); i += hn::Lanes(d)) {
    const auto bits = hn::And(hn::LoadU(d, &x[i]), mask);
    if (!hn::AllFalse(d, hn::Eq(bits, mask))) return false;
  }
  for (; i < x.size(); ++i) {
    if ((x[i] & exponent) == exponent) return false;
  }
  return true;
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace paceline::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace paceline::kernels {

HWY_EXPORT(Add);
HWY_EXPORT(Subtract);
HWY_EXPORT(Scale);
HWY_EXPORT(Divide);
HWY_EXPORT(Axpy);
HWY_EXPORT(AllFinite);
HWY_EXPORT(F16ToF32);
HWY_EXPORT(F32ToF16);
HWY_EXPORT(AddF16);
HWY_EXPORT(Bf16ToF32);
HWY_EXPORT(F32ToBf16);
HWY_EXPORT(AddBf16);
HWY_EXPORT(NoneHasExponent);
HWY_EXPORT(CopyChecked);
HWY_EXPORT(AddChecked);
HWY_EXPORT(AddF16Checked);
HWY_EXPORT(AddBf16Checked);
HWY_EXPORT(AddF64);
HWY_EXPORT(AxpyF64);
HWY_EXPORT(AllFiniteF64);
HWY_EXPORT(TargetName);

void Add(std::span<float> dst, std::span<const float> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(Add)(dst, src);
}

void Subtract(std::span<float> dst, std::span<const float> a, std::span<const float> b) {
  PACELINE_CHECK(dst.size() == a.size() && dst.size() == b.size());
  HWY_DYNAMIC_DISPATCH(Subtract)(dst, a, b);
}

void Scale(std::span<float> x, float factor) { HWY_DYNAMIC_DISPATCH(Scale)(x, factor); }

void Divide(std::span<float> x, float divisor) { HWY_DYNAMIC_DISPATCH(Divide)(x, divisor); }

void Axpy(std::span<float> y, float a, std::span<const float> x) {
  PACELINE_CHECK(y.size() == x.size());
  HWY_DYNAMIC_DISPATCH(Axpy)(y, a, x);
}

bool AllFinite(std::span<const float> x) { return HWY_DYNAMIC_DISPATCH(AllFinite)(x); }

void F16ToF32(std::span<float> dst, std::span<const uint16_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(F16ToF32)(dst, src);
}

void F32ToF16(std::span<uint16_t> dst, std::span<const float> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(F32ToF16)(dst, src);
}

void AddF16(std::span<float> dst, std::span<const uint16_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(AddF16)(dst, src);
}

bool AllFiniteF16(std::span<const uint16_t> x) {
  return HWY_DYNAMIC_DISPATCH(NoneHasExponent)(x, 0x7c00);
}

void Bf16ToF32(std::span<float> dst, std::span<const uint16_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(Bf16ToF32)(dst, src);
}

void F32ToBf16(std::span<uint16_t> dst, std::span<const float> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(F32ToBf16)(dst, src);
}

void AddBf16(std::span<float> dst, std::span<const uint16_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(AddBf16)(dst, src);
}

bool AllFiniteBf16(std::span<const uint16_t> x) {
  return HWY_DYNAMIC_DISPATCH(NoneHasExponent)(x, 0x7f80);
}

bool CopyChecked(std::span<float> dst, std::span<const float> src) {
  PACELINE_CHECK(dst.size() == src.size());
  return HWY_DYNAMIC_DISPATCH(CopyChecked)(dst, src);
}

bool AddChecked(std::span<float> dst, std::span<const float> src) {
  PACELINE_CHECK(dst.size() == src.size());
  return HWY_DYNAMIC_DISPATCH(AddChecked)(dst, src);
}

bool AddF16Checked(std::span<float> dst, std::span<const uint16_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  return HWY_DYNAMIC_DISPATCH(AddF16Checked)(dst, src);
}

bool AddBf16Checked(std::span<float> dst, std::span<const uint16_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  return HWY_DYNAMIC_DISPATCH(AddBf16Checked)(dst, src);
}

void Add(std::span<double> dst, std::span<const double> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(AddF64)(dst, src);
}

void Axpy(std::span<double> y, double a, std::span<const double> x) {
  PACELINE_CHECK(y.size() == x.size());
  HWY_DYNAMIC_DISPATCH(AxpyF64)(y, a, x);
}

bool AllFinite(std::span<const double> x) { return HWY_DYNAMIC_DISPATCH(AllFiniteF64)(x); }

namespace {

// Bytes of a payload have no alignment; halves are moved through a block that has.
template <typename Convert>
void FromBytes(std::span<float> dst, std::span<const std::byte> src, Convert convert) {
  PACELINE_CHECK(src.size() == dst.size() * sizeof(uint16_t));
  constexpr size_t kBlock = 1024;
  uint16_t block[kBlock];
  for (size_t done = 0; done < dst.size();) {
    const size_t n = std::min(kBlock, dst.size() - done);
    std::memcpy(block, src.data() + done * sizeof(uint16_t), n * sizeof(uint16_t));
    convert(dst.subspan(done, n), std::span<const uint16_t>(block, n));
    done += n;
  }
}

template <typename Convert>
void ToBytes(std::span<std::byte> dst, std::span<const float> src, Convert convert) {
  PACELINE_CHECK(dst.size() == src.size() * sizeof(uint16_t));
  constexpr size_t kBlock = 1024;
  uint16_t block[kBlock];
  for (size_t done = 0; done < src.size();) {
    const size_t n = std::min(kBlock, src.size() - done);
    convert(std::span<uint16_t>(block, n), src.subspan(done, n));
    std::memcpy(dst.data() + done * sizeof(uint16_t), block, n * sizeof(uint16_t));
    done += n;
  }
}

}  // namespace

void F16ToF32(std::span<float> dst, std::span<const std::byte> src) {
  FromBytes(dst, src, HWY_DYNAMIC_DISPATCH(F16ToF32));
}

void F32ToF16(std::span<std::byte> dst, std::span<const float> src) {
  ToBytes(dst, src, HWY_DYNAMIC_DISPATCH(F32ToF16));
}

void Bf16ToF32(std::span<float> dst, std::span<const std::byte> src) {
  FromBytes(dst, src, HWY_DYNAMIC_DISPATCH(Bf16ToF32));
}

void F32ToBf16(std::span<std::byte> dst, std::span<const float> src) {
  ToBytes(dst, src, HWY_DYNAMIC_DISPATCH(F32ToBf16));
}

std::string InstructionSet() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace paceline::kernels
#endif  // HWY_ONCE
