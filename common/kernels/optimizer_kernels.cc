#include "common/kernels/optimizer_kernels.h"

#include "common/base/check.h"
#include "common/kernels/scalar_optimizer.h"

// Highway compiles the rest of this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/optimizer_kernels.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace paceline::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;

HWY_INLINE hn::Vec<F32> Gradient(const float* g, hn::Vec<F32> w, float decay) {
  const auto gradient = hn::LoadU(F32(), g);
  if (decay == 0) return gradient;
  return hn::Add(gradient, hn::Mul(hn::Set(F32(), decay), w));
}

void SgdUpdate(std::span<float> w, std::span<const float> g, float rate, float decay) {
  const F32 d;
  const size_t whole = w.size() - w.size() % hn::Lanes(d);
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto weight = hn::LoadU(d, &w[i]);
    const auto gradient = Gradient(&g[i], weight, decay);
    hn::StoreU(hn::Sub(weight, hn::Mul(hn::Set(d, rate), gradient)), d, &w[i]);
  }
  scalar::SgdUpdate(w.subspan(whole), g.subspan(whole), rate, decay);
}

void MomentumUpdate(std::span<float> w, std::span<float> m, std::span<const float> g,
                    const MomentumStep& step) {
  const F32 d;
  const auto rate = hn::Set(d, step.rate);
  const auto momentum = hn::Set(d, step.momentum);
  const size_t whole = w.size() - w.size() % hn::Lanes(d);
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto weight = hn::LoadU(d, &w[i]);
    const auto gradient = Gradient(&g[i], weight, step.decay);
    const auto mean = hn::Add(hn::Mul(momentum, hn::LoadU(d, &m[i])), gradient);
    const auto update = step.nesterov ? hn::Add(gradient, hn::Mul(momentum, mean)) : mean;
    hn::StoreU(mean, d, &m[i]);
    hn::StoreU(hn::Sub(weight, hn::Mul(rate, update)), d, &w[i]);
  }
  scalar::MomentumUpdate(w.subspan(whole), m.subspan(whole), g.subspan(whole), step);
}

void AdamUpdate(std::span<float> w, std::span<float> m, std::span<float> v,
                std::span<const float> g, const AdamStep& step) {
  const F32 d;
  const auto rate = hn::Set(d, step.rate), root_scale = hn::Set(d, step.root_scale);
  const auto beta1 = hn::Set(d, step.beta1), rest1 = hn::Set(d, step.rest1);
  const auto beta2 = hn::Set(d, step.beta2), rest2 = hn::Set(d, step.rest2);
  const auto epsilon = hn::Set(d, step.epsilon);
  const size_t whole = w.size() - w.size() % hn::Lanes(d);
  for (size_t i = 0; i < whole; i += hn::Lanes(d)) {
    const auto weight = hn::LoadU(d, &w[i]);
    const auto gradient = Gradient(&g[i], weight, step.decay);
    const auto mean = hn::Add(hn::Mul(beta1, hn::LoadU(d, &m[i])), hn::Mul(rest1, gradient));
    const auto square = hn::Mul(gradient, gradient);
    const auto variance = hn::Add(hn::Mul(beta2, hn::LoadU(d, &v[i])), hn::Mul(rest2, square));
    const auto divisor = hn::Add(hn::Div(hn::Sqrt(variance), root_scale), epsilon);
    hn::StoreU(mean, d, &m[i]);
    hn::StoreU(variance, d, &v[i]);
    hn::StoreU(hn::Sub(weight, hn::Mul(rate, hn::Div(mean, divisor))), d, &w[i]);
  }
  scalar::AdamUpdate(w.subspan(whole), m.subspan(whole), v.subspan(whole), g.subspan(whole), step);
}

}  // namespace
}  // namespace paceline::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace paceline::kernels {

HWY_EXPORT(SgdUpdate);
HWY_EXPORT(MomentumUpdate);
HWY_EXPORT(AdamUpdate);

void SgdUpdate(std::span<float> w, std::span<const float> g, float rate, float decay) {
  PACELINE_CHECK(g.size() == w.size());
  HWY_DYNAMIC_DISPATCH(SgdUpdate)(w, g, rate, decay);
}

void MomentumUpdate(std::span<float> w, std::span<float> m, std::span<const float> g,
                    const MomentumStep& step) {
  PACELINE_CHECK(m.size() == w.size() && g.size() == w.size());
  HWY_DYNAMIC_DISPATCH(MomentumUpdate)(w, m, g, step);
}

void AdamUpdate(std::span<float> w, std::span<float> m, std::span<float> v,
                std::span<const float> g, const AdamStep& step) {
  PACELINE_CHECK(m.size() == w.size() && v.size() == w.size() && g.size() == w.size());
  HWY_DYNAMIC_DISPATCH(AdamUpdate)(w, m, v, g, step);
}

}  // namespace paceline::kernels
#endif  // HWY_ONCE
