#include "scheduler/core/sample_ledger.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace paceline::scheduler {
namespace {

constexpr double kLeaseSeconds = 120;
// Floor of a grant when the job does not say its batch size.
constexpr uint64_t kUnknownBatch = 64;

bool Before(const SampleRange& a, const SampleRange& b) {
  return a.epoch != b.epoch ? a.epoch < b.epoch : a.begin < b.begin;
}

// Adds `range` to sorted disjoint `ranges`, joined with its neighbours.
void Insert(std::vector<SampleRange>& ranges, const SampleRange& range) {
  auto it = ranges.insert(std::lower_bound(ranges.begin(), ranges.end(), range, Before), range);
  const auto touches = [](const SampleRange& a, const SampleRange& b) {
    return a.epoch == b.epoch && a.end >= b.begin;
  };
  if (it + 1 != ranges.end() && touches(*it, *(it + 1))) {
    it->end = std::max(it->end, (it + 1)->end);
    it = ranges.erase(it + 1) - 1;
  }
  if (it != ranges.begin() && touches(*(it - 1), *it)) {
    (it - 1)->end = std::max((it - 1)->end, it->end);
    ranges.erase(it);
  }
}

// Removes `range` from each of `ranges` it overlaps; what is left keeps its order.
void Remove(std::vector<SampleRange>& ranges, const SampleRange& range) {
  std::vector<SampleRange> left;
  for (const SampleRange& r : ranges) {
    if (r.epoch != range.epoch || r.end <= range.begin || range.end <= r.begin) {
      left.push_back(r);
      continue;
    }
    if (r.begin < range.begin) left.push_back({r.epoch, r.begin, range.begin});
    if (range.end < r.end) left.push_back({r.epoch, range.end, r.end});
  }
  ranges = std::move(left);
}

}  // namespace

uint64_t CountOf(const std::vector<SampleRange>& ranges) {
  uint64_t count = 0;
  for (const SampleRange& range : ranges) count += range.end - range.begin;
  return count;
}

SampleLedger::SampleLedger(const JobSpec& spec)
    : sample_count_(spec.sample_count),
      epochs_(spec.epochs),
      batch_size_(spec.batch_size),
      workers_(spec.workers),
      deterministic_(spec.deterministic && spec.groups.kind == GroupSpec::Kind::kOne) {}

uint64_t SampleLedger::Remaining() const {
  const uint64_t epoch = returned_.empty() ? epoch_ : returned_.front().epoch.value();
  uint64_t remaining = epoch == epoch_ ? sample_count_ - position_ : 0;
  for (const SampleRange& range : returned_) {
    if (range.epoch.value() == epoch) remaining += range.end - range.begin;
  }
  return remaining;
}

bool SampleLedger::Exhausted() const {
  if (!returned_.empty()) return false;
  return sample_count_ == 0 || (epochs_ != 0 && epoch_ >= epochs_);
}

std::vector<SampleRange> SampleLedger::Choose(NodeId worker, uint64_t wanted,
                                              const DrawLimits& limits) const {
  if (Exhausted()) return {};
  const uint64_t floor = batch_size_ > 0 ? batch_size_ : kUnknownBatch;
  uint64_t most = Remaining() / (2 * std::max<uint64_t>(1, limits.live_workers));
  if (limits.samples_per_s > 0) {
    const auto two_minutes =
        static_cast<uint64_t>(std::min(std::ceil(limits.samples_per_s * kLeaseSeconds), 9.0e15));
    const uint64_t held = Outstanding(worker);
    most = std::min(most, two_minutes > held ? two_minutes - held : 0);
  }
  uint64_t grant = std::min(wanted, std::max(floor, most));
  // What came back first, then what was never handed out, of the same epoch.
  std::vector<SampleRange> ranges;
  const uint64_t epoch = returned_.empty() ? epoch_ : returned_.front().epoch.value();
  for (const SampleRange& range : returned_) {
    if (range.epoch.value() != epoch || grant == 0) break;
    const uint64_t end = std::min(range.end, range.begin + grant);
    ranges.push_back({range.epoch, range.begin, end});
    grant -= end - range.begin;
  }
  if (epoch == epoch_ && grant > 0 && position_ < sample_count_) {
    ranges.push_back(
        {Epoch(epoch_), position_, position_ + std::min(grant, sample_count_ - position_)});
  }
  return ranges;
}

uint64_t SampleLedger::steps_per_epoch() const {
  const uint64_t per_step = workers_ * std::max<uint64_t>(1, batch_size_);
  return (sample_count_ + per_step - 1) / per_step;
}

SampleLedger::Place SampleLedger::PlaceOf(uint64_t step) const {
  const uint64_t per_step = workers_ * std::max<uint64_t>(1, batch_size_);
  uint64_t steps = step > first_step_ ? step - first_step_ : 0;
  // The first epoch may have begun before the first step.
  const uint64_t in_first = (sample_count_ - first_position_ + per_step - 1) / per_step;
  if (steps < in_first) return {first_epoch_, first_position_ + steps * per_step};
  steps -= in_first;
  return {first_epoch_ + 1 + steps / steps_per_epoch(), steps % steps_per_epoch() * per_step};
}

bool SampleLedger::FinishedAt(uint64_t step) const {
  if (sample_count_ == 0) return true;
  return epochs_ != 0 && PlaceOf(step).epoch >= epochs_;
}

SamplePosition SampleLedger::Position() const {
  SamplePosition position{returned_, Epoch(epoch_), position_};
  for (const auto& [worker, account] : accounts_) {
    for (const SampleRange& range : account.outstanding) {
      if (range.begin < range.end) Insert(position.left, range);
    }
  }
  return position;
}

SamplePosition SampleLedger::PositionAfter(uint64_t step) const {
  const Place next = PlaceOf(step);
  return {{}, Epoch(next.epoch), next.begin};
}

void SampleLedger::StartAt(const SamplePosition& position, uint64_t step) {
  epoch_ = first_epoch_ = position.epoch.value();
  position_ = first_position_ = position.position;
  first_step_ = step;
  returned_ = position.left;
}

std::vector<SampleRange> SampleLedger::ChooseFor(uint64_t step, JobRank rank) const {
  if (FinishedAt(step) || rank.value() >= workers_) return {};
  const Place place = PlaceOf(step);
  const uint64_t begin = std::min(sample_count_, place.begin + rank.value() * batch_size_);
  const uint64_t end = std::min(sample_count_, begin + batch_size_);
  if (begin == end) return {};
  return {{Epoch(place.epoch), begin, end}};
}

uint64_t SampleLedger::Outstanding(NodeId worker) const {
  auto it = accounts_.find(worker);
  return it == accounts_.end() ? 0 : CountOf(it->second.outstanding);
}

uint64_t SampleLedger::next_step() const {
  uint64_t next = 0;
  for (const auto& [worker, account] : accounts_) next = std::max(next, account.next_step);
  return next;
}

std::vector<SampleRange> SampleLedger::NotReceived(const NodeRef& worker, uint64_t received) const {
  auto it = accounts_.find(worker.node);
  if (it == accounts_.end() || it->second.holder != worker.incarnation) return {};
  const SampleAccount& account = it->second;
  const uint64_t handed_out = account.drawn - account.drawn_before;
  uint64_t missing = handed_out > received ? handed_out - received : 0;
  std::vector<SampleRange> ranges;
  // Whoever does not know of a sample can neither use nor return it: it is the newest outstanding.
  for (auto range = account.outstanding.rbegin();
       range != account.outstanding.rend() && missing > 0; ++range) {
    const uint64_t taken = std::min(missing, range->end - range->begin);
    ranges.push_back({range->epoch, range->end - taken, range->end});
    missing -= taken;
  }
  std::reverse(ranges.begin(), ranges.end());
  return ranges;
}

std::vector<SampleRange> SampleLedger::Held(NodeId worker,
                                            const std::vector<SampleRange>& ranges) const {
  auto it = accounts_.find(worker);
  if (it == accounts_.end()) return {};
  std::vector<SampleRange> held;
  // A range named twice counts once: what was found is taken out before the next is looked up.
  std::vector<SampleRange> outstanding = it->second.outstanding;
  for (const SampleRange& range : ranges) {
    for (const SampleRange& mine : outstanding) {
      const uint64_t begin = std::max(range.begin, mine.begin);
      const uint64_t end = std::min(range.end, mine.end);
      if (range.epoch == mine.epoch && begin < end) held.push_back({range.epoch, begin, end});
    }
    Remove(outstanding, range);
  }
  return held;
}

std::vector<SampleRange> SampleLedger::Missing(NodeId worker, uint64_t used,
                                               const std::vector<SampleRange>& held) const {
  SampleLedger counted = *this;
  counted.ApplyUsed(worker, used);
  std::vector<SampleRange> missing = counted.accounts_[worker].outstanding;
  for (const SampleRange& range : held) Remove(missing, range);
  return missing;
}

bool SampleLedger::Valid(const std::vector<SampleRange>& ranges) const {
  return std::all_of(ranges.begin(), ranges.end(), [this](const SampleRange& range) {
    return range.begin <= range.end && range.end <= sample_count_ &&
           (epochs_ == 0 || range.epoch.value() < epochs_);
  });
}

void SampleLedger::TakeReturned(const SampleRange& range) { Remove(returned_, range); }

void SampleLedger::ApplyHolder(const NodeRef& worker) {
  SampleAccount& account = accounts_[worker.node];
  if (account.holder == worker.incarnation) return;
  account.holder = worker.incarnation;
  account.drawn_before = account.drawn;
}

void SampleLedger::ApplyDraw(NodeId worker, const std::vector<SampleRange>& ranges) {
  SampleAccount& account = accounts_[worker];
  for (const SampleRange& range : ranges) {
    if (range.epoch.value() == epoch_ && range.begin == position_) {
      position_ = range.end;
    } else {
      TakeReturned(range);
    }
    account.outstanding.push_back(range);
    account.drawn += range.end - range.begin;
  }
  if (position_ == sample_count_ && sample_count_ > 0) {
    ++epoch_;
    position_ = 0;
  }
}

void SampleLedger::ApplyDrawFor(NodeId worker, uint64_t step,
                                const std::vector<SampleRange>& ranges) {
  SampleAccount& account = accounts_[worker];
  if (sample_count_ > 0) epoch_ = std::max(epoch_, PlaceOf(step).epoch);
  std::vector<SampleRange> counted;
  if (step >= account.next_step) {
    account.next_step = step + 1;
    counted = ranges;
  } else {
    // Drawn before: only what came back meanwhile counts again.
    for (const SampleRange& range : ranges) {
      for (const SampleRange& back : returned_) {
        const uint64_t begin = std::max(range.begin, back.begin);
        const uint64_t end = std::min(range.end, back.end);
        if (range.epoch == back.epoch && begin < end) counted.push_back({range.epoch, begin, end});
      }
    }
  }
  for (const SampleRange& range : counted) {
    TakeReturned(range);
    account.outstanding.push_back(range);
    account.drawn += range.end - range.begin;
  }
}

void SampleLedger::ApplyReturn(NodeId worker, const std::vector<SampleRange>& ranges) {
  SampleAccount& account = accounts_[worker];
  for (const SampleRange& range : ranges) {
    Remove(account.outstanding, range);
    account.returned += range.end - range.begin;
    Insert(returned_, range);
  }
}

void SampleLedger::ApplyLost(NodeId worker, const std::vector<SampleRange>& ranges) {
  SampleAccount& account = accounts_[worker];
  for (const SampleRange& range : ranges) Remove(account.outstanding, range);
  account.used += CountOf(ranges);
}

void SampleLedger::ApplyUsed(NodeId worker, uint64_t used) {
  SampleAccount& account = accounts_[worker];
  uint64_t more = used > account.used ? used - account.used : 0;
  auto it = account.outstanding.begin();
  while (it != account.outstanding.end() && more > 0) {
    const uint64_t taken = std::min(more, it->end - it->begin);
    it->begin += taken;
    more -= taken;
    account.used += taken;
    if (it->begin == it->end) ++it;
  }
  account.outstanding.erase(account.outstanding.begin(), it);
}

}  // namespace paceline::scheduler
