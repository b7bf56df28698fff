// The one source of chance of a simulated run: the same seed gives the same numbers on every
// platform.
// Thread rule: one thread.
#pragma once

#include <cstdint>

#include "common/base/types.h"
#include "plan/permutation.h"

namespace paceline::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return SplitMix64(state_); }
  // 0..bound-1; bound > 0. The bias of the remainder is of no concern here.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  // first..last, both included.
  uint64_t Between(uint64_t first, uint64_t last) { return first + Below(last - first + 1); }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // True in so many of 100 000 cases.
  bool Per100k(uint64_t n) { return Below(100'000) < n; }
  Ticks TimeBetween(Ticks first, Ticks last) {
    return Ticks(static_cast<int64_t>(
        Between(static_cast<uint64_t>(first.value()), static_cast<uint64_t>(last.value()))));
  }

 private:
  uint64_t state_;
};

}  // namespace paceline::simulation
