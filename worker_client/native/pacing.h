// How long a worker that plays a slower machine waits after computing a step.
// Thread rule: no state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/types.h"

namespace paceline {

// A step takes `factor` times what its computation took, or `floor` when it was faster than that.
inline Ticks PacingWait(Ticks computed, Ticks floor, double factor) {
  const double normal = static_cast<double>(std::max(computed, floor).value());
  return std::max(Ticks(0), Ticks(static_cast<int64_t>(normal * factor)) - computed);
}

// 1 for an index beyond the list.
inline double SlowdownOf(const std::vector<double>& factors, uint32_t index) {
  return index < factors.size() ? factors[index] : 1.0;
}

}  // namespace paceline
