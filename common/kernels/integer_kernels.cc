// The integer sums of kernels.h.
#include "common/base/check.h"
#include "common/kernels/kernels.h"
#include "common/kernels/scalar.h"

// Highway compiles the rest of this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/integer_kernels.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace paceline::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <typename D>
HWY_INLINE size_t Whole(D d, size_t size) {
  return size - size % hn::Lanes(d);
}

// Integers into a wider accumulator.
template <typename Wide, typename Narrow>
void AddWidened(std::span<Wide> dst, std::span<const Narrow> src) {
  const hn::ScalableTag<Wide> d;
  const hn::Rebind<Narrow, hn::ScalableTag<Wide>> narrow;
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto value = hn::PromoteTo(d, hn::LoadU(narrow, &src[i]));
    hn::StoreU(hn::Add(hn::LoadU(d, &dst[i]), value), d, &dst[i]);
  }
  scalar::Add(dst.subspan(whole), src.subspan(whole));
}

void AddI8(std::span<int32_t> dst, std::span<const int8_t> src) { AddWidened(dst, src); }
void AddU8(std::span<int32_t> dst, std::span<const uint8_t> src) { AddWidened(dst, src); }
void AddI32(std::span<int64_t> dst, std::span<const int32_t> src) { AddWidened(dst, src); }

bool AddI64(std::span<int64_t> dst, std::span<const int64_t> src) {
  const hn::ScalableTag<int64_t> d;
  auto overflow = hn::Zero(d);  // a lane is negative once a sum of it did not fit
  const size_t whole = Whole(d, dst.size());
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto a = hn::LoadU(d, &dst[i]);
    const auto b = hn::LoadU(d, &src[i]);
    const auto sum = hn::Add(a, b);
    overflow = hn::Or(overflow, hn::And(hn::Xor(a, sum), hn::Xor(b, sum)));
    hn::StoreU(sum, d, &dst[i]);
  }
  const bool fits = hn::AllFalse(d, hn::Lt(overflow, hn::Zero(d)));
  return scalar::Add(dst.subspan(whole), src.subspan(whole)) && fits;
}

}  // namespace
}  // namespace paceline::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace paceline::kernels {

HWY_EXPORT(AddI8);
HWY_EXPORT(AddU8);
HWY_EXPORT(AddI32);
HWY_EXPORT(AddI64);

void Add(std::span<int32_t> dst, std::span<const int8_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(AddI8)(dst, src);
}

void Add(std::span<int32_t> dst, std::span<const uint8_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(AddU8)(dst, src);
}

void Add(std::span<int64_t> dst, std::span<const int32_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  HWY_DYNAMIC_DISPATCH(AddI32)(dst, src);
}

bool Add(std::span<int64_t> dst, std::span<const int64_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  return HWY_DYNAMIC_DISPATCH(AddI64)(dst, src);
}

bool Narrow(std::span<int8_t> dst, std::span<const int32_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  return scalar::Narrow(dst, src);
}

bool Narrow(std::span<uint8_t> dst, std::span<const int32_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  return scalar::Narrow(dst, src);
}

bool Narrow(std::span<int32_t> dst, std::span<const int64_t> src) {
  PACELINE_CHECK(dst.size() == src.size());
  return scalar::Narrow(dst, src);
}

}  // namespace paceline::kernels
#endif  // HWY_ONCE
