#include "plan/sample_lease.h"

#include <algorithm>

namespace paceline {

void SampleLease::Add(const std::vector<SampleRange>& ranges) {
  for (const SampleRange& range : ranges) {
    if (range.end <= range.begin) continue;
    ranges_.push_back(range);
    available_ += range.end - range.begin;
  }
}

const std::vector<uint32_t>& SampleLease::Order(Epoch epoch) {
  auto it = orders_.find(epoch);
  if (it == orders_.end()) {
    if (orders_.size() >= 2) orders_.erase(orders_.begin());
    it = orders_.emplace(epoch, EpochPermutation(seed_, epoch, count_)).first;
  }
  return it->second;
}

SampleLease::Batch SampleLease::Take(uint32_t count) {
  Batch batch;
  if (ranges_.empty()) return batch;
  batch.epoch = ranges_.front().epoch;
  const std::vector<uint32_t>& order = Order(batch.epoch);
  while (batch.indices.size() < count && !ranges_.empty() && ranges_.front().epoch == batch.epoch) {
    SampleRange& front = ranges_.front();
    const uint64_t take = std::min<uint64_t>(count - batch.indices.size(), front.end - front.begin);
    for (uint64_t i = front.begin; i < front.begin + take; ++i) {
      batch.indices.push_back(order[i]);
    }
    batch.ranges.push_back({front.epoch, front.begin, front.begin + take});
    front.begin += take;
    available_ -= take;
    if (front.begin == front.end) ranges_.pop_front();
  }
  return batch;
}

std::vector<SampleRange> SampleLease::TakeAll() {
  std::vector<SampleRange> all(ranges_.begin(), ranges_.end());
  ranges_.clear();
  available_ = 0;
  return all;
}

}  // namespace paceline
