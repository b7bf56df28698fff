// Sums the whole contributions of a round to one chunk.
//
// The sum begins as a copy of its first contribution and adds the others element-wise in fp32:
// ((g0 + g1) + g2) + ... In order of arrival they are summed as they come, with one array for all.
// Kept apart until the round is whole they are summed in rank order, so that the bits do not depend
// on who was first (deterministic), and each can be taken back (under a quorum). Members without
// samples are left out of both.
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <vector>

#include "parameter/shared_floats.h"

namespace paceline {

class Accumulator {
 public:
  // For the contributions of `members`, by position in rank order.
  Accumulator(size_t members, bool apart, FloatPool* pool)
      : keeps_apart_(apart), pool_(pool), apart_(apart ? members : 0) {}

  // Each position at most once.
  void Take(size_t position, SharedFloats contribution);

  // Takes a contribution back, where there is one; checked: they are kept apart.
  void Drop(size_t position);

  // The sum, unique; an empty handle when there were no contributions. Ends the accumulator.
  SharedFloats Sum();

  size_t bytes() const;

 private:
  void AddTo(SharedFloats contribution);

  const bool keeps_apart_;
  FloatPool* const pool_;
  std::vector<SharedFloats> apart_;
  SharedFloats sum_;
};

}  // namespace paceline
