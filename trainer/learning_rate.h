// The learning rate of a step: linear warm-up, then constant or falling to 0 at the job's end.
// Thread rule: values; no shared state.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/types.h"

namespace paceline {

enum class Decay : uint8_t { kNone, kLinear };

struct LearningRate {
  float base = 0.1f;
  uint64_t warmup_steps = 0;  // Goyal et al. 2017: 1/warmup, 2/warmup, ... of the base
  Decay decay = Decay::kNone;

  // `progress`: part of the job's samples that was handed out before this step, 0 up to below 1.
  // Never 0 for a base above 0, which an optimizer would read as "your own".
  float At(Step step, double progress) const {
    double factor = decay == Decay::kLinear ? std::max(1 - progress, 1e-3) : 1;
    if (step.value() < warmup_steps) {
      factor *= static_cast<double>(step.value() + 1) / static_cast<double>(warmup_steps);
    }
    return base * static_cast<float>(factor);
  }
};

}  // namespace paceline
