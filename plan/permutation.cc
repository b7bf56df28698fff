#include "plan/permutation.h"

#include <numeric>
#include <utility>

namespace paceline {
namespace {

// A number in [0, bound), each equally likely: draws from the incomplete last stretch of 2^64 are
// thrown away.
uint64_t Below(uint64_t bound, uint64_t& state) {
  const uint64_t unusable = (0 - bound) % bound;  // 2^64 mod bound
  uint64_t bits = SplitMix64(state);
  while (bits < unusable) bits = SplitMix64(state);
  return bits % bound;
}

}  // namespace

uint64_t SplitMix64(uint64_t& state) {
  state += 0x9E3779B97F4A7C15u;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::vector<uint32_t> EpochPermutation(uint64_t seed, Epoch epoch, uint32_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  // The epoch is mixed first, so that (seed, epoch + 1) and (seed + 1, epoch) have nothing in
  // common.
  uint64_t epoch_state = epoch.value();
  uint64_t state = seed ^ SplitMix64(epoch_state);
  for (uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[Below(i, state)]);
  return order;
}

double ProgressAt(const SampleRange& first, uint64_t sample_count, uint64_t epochs) {
  const double total = static_cast<double>(sample_count) * static_cast<double>(epochs);
  if (total == 0) return 0;
  const double before =
      static_cast<double>(first.epoch.value()) * static_cast<double>(sample_count) +
      static_cast<double>(first.begin);
  return before / total;
}

}  // namespace paceline
