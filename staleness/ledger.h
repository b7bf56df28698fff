// Figures over reported staleness: sums of distributions, quantiles, and the exact formula that a
// distribution must agree with.
// Thread rule: values; no shared state.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "plan/report.h"

namespace paceline {

inline void AddCounts(const StalenessCounts& from, StalenessCounts& to) {
  to.count += from.count;
  to.sum += from.sum;
  to.max = std::max(to.max, from.max);
  if (to.buckets.size() < from.buckets.size()) to.buckets.resize(from.buckets.size());
  for (size_t i = 0; i < from.buckets.size(); ++i) to.buckets[i] += from.buckets[i];
}

inline double MeanOf(const StalenessCounts& counts) {
  if (counts.count == 0) return 0;
  return static_cast<double>(counts.sum) / static_cast<double>(counts.count);
}

// Nearest rank: the smallest tau that at least q x count values do not exceed. Values beyond the
// exact buckets are reported as the maximum.
inline double QuantileOf(const StalenessCounts& counts, double q) {
  if (counts.count == 0) return 0;
  const double wanted = std::max(1.0, std::ceil(q * static_cast<double>(counts.count)));
  uint64_t seen = 0;
  for (size_t tau = 0; tau < counts.buckets.size() && tau < StalenessCounts::kExact; ++tau) {
    seen += counts.buckets[tau];
    if (static_cast<double>(seen) >= wanted) return static_cast<double>(tau);
  }
  return static_cast<double>(counts.max);
}

// Sum of tau over the m applied pushes of a group: v_m - b_1 - m - sum of base gaps.
inline int64_t FormulaSum(const GroupStaleness& group) {
  if (group.tau.count == 0) return 0;
  return static_cast<int64_t>(group.last) - static_cast<int64_t>(group.first_base) -
         static_cast<int64_t>(group.tau.count) - group.base_gaps;
}

}  // namespace paceline
