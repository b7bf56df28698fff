// The job-wide order of samples of an epoch. Pure, specified, the same on every platform.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/types.h"

namespace paceline {

// One step of SplitMix64 (Steele, Lea, Flood 2014): advances `state`, returns 64 mixed bits.
uint64_t SplitMix64(uint64_t& state);

// Fisher-Yates over 0..count-1 driven by SplitMix64 from (seed, epoch), unbiased by rejection.
std::vector<uint32_t> EpochPermutation(uint64_t seed, Epoch epoch, uint32_t count);

// Positions [begin, end) of the permutation of one epoch.
struct SampleRange {
  Epoch epoch;
  uint64_t begin = 0;
  uint64_t end = 0;

  bool operator==(const SampleRange&) const = default;
};

// The part of a job's samples that come before `first`, 0 up to below 1; 0 in a job without end
// (epochs 0).
double ProgressAt(const SampleRange& first, uint64_t sample_count, uint64_t epochs);

}  // namespace paceline
