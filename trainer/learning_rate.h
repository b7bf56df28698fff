// The learning rate of a step: linear warm-up, then constant.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>

#include "common/base/types.h"

namespace paceline {

struct LearningRate {
  float base = 0.1f;
  uint64_t warmup_steps = 0;  // Goyal et al. 2017: 1/warmup, 2/warmup, ... of the base

  // Never 0 for a base above 0, which an optimizer would read as "your own".
  float At(Step step) const {
    if (step.value() >= warmup_steps) return base;
    return base * static_cast<float>(static_cast<double>(step.value() + 1) /
                                     static_cast<double>(warmup_steps));
  }
};

}  // namespace paceline
