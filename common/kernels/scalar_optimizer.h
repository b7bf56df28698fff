// The references of optimizer_kernels.h, as scalar.h is of kernels.h.
// Thread rule: no state; any thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "common/kernels/optimizer_kernels.h"

namespace paceline::kernels::scalar {

inline void SgdUpdate(std::span<float> w, std::span<const float> g, float rate, float decay) {
  for (size_t i = 0; i < w.size(); ++i) {
    const float gradient = decay == 0 ? g[i] : g[i] + decay * w[i];
    w[i] -= rate * gradient;
  }
}

inline void MomentumUpdate(std::span<float> w, std::span<float> m, std::span<const float> g,
                           const MomentumStep& step) {
  for (size_t i = 0; i < w.size(); ++i) {
    const float gradient = step.decay == 0 ? g[i] : g[i] + step.decay * w[i];
    m[i] = step.momentum * m[i] + gradient;
    w[i] -= step.rate * (step.nesterov ? gradient + step.momentum * m[i] : m[i]);
  }
}

inline void AdamUpdate(std::span<float> w, std::span<float> m, std::span<float> v,
                       std::span<const float> g, const AdamStep& step) {
  for (size_t i = 0; i < w.size(); ++i) {
    const float gradient = step.decay == 0 ? g[i] : g[i] + step.decay * w[i];
    m[i] = step.beta1 * m[i] + step.rest1 * gradient;
    v[i] = step.beta2 * v[i] + step.rest2 * (gradient * gradient);
    w[i] -= step.rate * (m[i] / (std::sqrt(v[i]) / step.root_scale + step.epsilon));
  }
}

}  // namespace paceline::kernels::scalar
