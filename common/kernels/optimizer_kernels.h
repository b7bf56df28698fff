// One update of weights by an optimizer, as parameter/optimizer.h specifies it. Bits, threads and
// arrays as in kernels.h: element-wise, every operation rounded once, nothing contracted, division
// and square root as IEEE 754 rounds them; the references are in scalar_optimizer.h.
#pragma once

#include <span>

namespace paceline::kernels {

// g' = g + decay*w, or g where decay is 0 (0*w would be NaN for an infinite w); w = w - rate*g'.
void SgdUpdate(std::span<float> w, std::span<const float> g, float rate, float decay);

struct MomentumStep {
  float rate = 0;
  float momentum = 0;
  bool nesterov = false;
  float decay = 0;
};
// g' as above; m = momentum*m + g'; w = w - rate*(nesterov ? g' + momentum*m : m).
void MomentumUpdate(std::span<float> w, std::span<float> m, std::span<const float> g,
                    const MomentumStep& step);

struct AdamStep {
  float rate = 0;        // learning rate / (1 - beta1^t)
  float root_scale = 1;  // sqrt(1 - beta2^t)
  float beta1 = 0;
  float rest1 = 1;  // 1 - beta1, rounded once
  float beta2 = 0;
  float rest2 = 1;
  float epsilon = 0;
  float decay = 0;
};
// g' as above; m = beta1*m + rest1*g'; v = beta2*v + rest2*(g'*g');
// w = w - rate*(m / (sqrt(v)/root_scale + epsilon)).
void AdamUpdate(std::span<float> w, std::span<float> m, std::span<float> v,
                std::span<const float> g, const AdamStep& step);

}  // namespace paceline::kernels
