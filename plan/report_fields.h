// The binary form (common/base/encoding.h) of what owners count: in traces of the scheduler, and in
// chunks that are handed over.
#pragma once

#include "common/base/encoding.h"
#include "plan/report.h"

namespace paceline {

template <typename A>
void Fields(A& a, Is<StalenessCounts> auto& v) {
  a(v.count, v.sum, v.max, v.buckets);
}
template <typename A>
void Fields(A& a, Is<GroupStaleness> auto& v) {
  a(v.group, v.tau, v.excess_sum, v.first_base, v.last, v.base_gaps, v.last_step, v.last_applied);
}
template <typename A>
void Fields(A& a, Is<WorkerStaleness> auto& v) {
  a(v.worker, v.group, v.tau, v.excess_sum, v.applied, v.discarded, v.carried, v.dropped,
    v.last_step, v.last_applied);
}

}  // namespace paceline
