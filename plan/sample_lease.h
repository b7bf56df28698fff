// The samples a worker may use: ranges leased from the scheduler, consumed in draw order.
// Thread rule: one thread at a time (the session's mutex).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "common/base/types.h"
#include "plan/permutation.h"

namespace paceline {

class SampleLease {
 public:
  // `count` samples in the training set, permuted by (seed, epoch).
  SampleLease(uint64_t seed, uint32_t count) : seed_(seed), count_(count) {}

  void Add(const std::vector<SampleRange>& ranges);
  uint64_t available() const { return available_; }

  // The next batch of at most `count` samples, of one epoch. Empty when nothing is leased.
  struct Batch {
    Epoch epoch;
    std::vector<uint32_t> indices;
    std::vector<SampleRange> ranges;  // where they came from
  };
  Batch Take(uint32_t count);

  // Everything that is left.
  std::vector<SampleRange> Peek() const { return {ranges_.begin(), ranges_.end()}; }
  // Everything that is left, no longer leased.
  std::vector<SampleRange> TakeAll();

 private:
  const std::vector<uint32_t>& Order(Epoch epoch);

  const uint64_t seed_;
  const uint32_t count_;
  uint64_t available_ = 0;
  std::deque<SampleRange> ranges_;
  std::map<Epoch, std::vector<uint32_t>> orders_;  // of the newest two epochs
};

}  // namespace paceline
