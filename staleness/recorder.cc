#include "staleness/recorder.h"

#include <algorithm>

#include "common/base/check.h"
#include "staleness/version.h"

namespace paceline {
namespace {

// b - a of counts as a signed number; counts stay far below 2^63.
int64_t Difference(uint64_t b, uint64_t a) {
  return static_cast<int64_t>(b) - static_cast<int64_t>(a);
}

}  // namespace

void Count(StalenessCounts& counts, uint64_t tau) {
  counts.count += 1;
  counts.sum += tau;
  counts.max = std::max(counts.max, tau);
  const size_t bucket = std::min<uint64_t>(tau, StalenessCounts::kExact);
  if (counts.buckets.size() <= bucket) counts.buckets.resize(bucket + 1);
  counts.buckets[bucket] += 1;
}

void StalenessRecorder::Applied(const Application& application,
                                std::span<const Contribution> contributions) {
  const std::optional<uint64_t> tau = Staleness(application.before, application.base);
  PACELINE_CHECK(tau.has_value() && application.groups >= 1);
  const double excess = static_cast<double>(*tau) - (static_cast<double>(application.groups) - 1.0);
  ++updates_;

  GroupStaleness& group = groups_[application.group];
  if (group.tau.count == 0) {
    group.group = application.group;
    group.first_base = application.base.count;
  } else {
    group.base_gaps += Difference(application.base.count, group.last);
  }
  Count(group.tau, *tau);
  group.excess_sum += excess;
  group.last = application.before.count + 1;
  group.last_step = application.step;
  group.last_applied = application.now;

  for (const Contribution& contribution : contributions) {
    if (contribution.samples.value() == 0) continue;
    WorkerStaleness& worker = Worker(application.group, contribution.worker);
    Count(worker.tau, *tau);
    worker.excess_sum += excess;
    worker.applied += contribution.samples;
    if (contribution.carried) ++worker.carried;
    worker.last_step = application.step;
    worker.last_applied = application.now;
  }
}

void StalenessRecorder::Discarded(GroupId group, NodeId worker, Samples samples) {
  Worker(group, worker).discarded += samples;
}

void StalenessRecorder::Dropped(GroupId group, NodeId worker, Samples samples) {
  Discarded(group, worker, samples);
  if (samples.value() > 0) ++Worker(group, worker).dropped;
}

WorkerStaleness& StalenessRecorder::Worker(GroupId group, NodeId worker) {
  WorkerStaleness& record = workers_[{worker, group}];
  record.worker = worker;
  record.group = group;
  return record;
}

void StalenessRecorder::TakeOver(uint64_t updates, const std::vector<GroupStaleness>& groups,
                                 const std::vector<WorkerStaleness>& workers) {
  updates_ = updates;
  groups_.clear();
  workers_.clear();
  for (const GroupStaleness& group : groups) groups_[group.group] = group;
  for (const WorkerStaleness& worker : workers) workers_[{worker.worker, worker.group}] = worker;
}

std::vector<GroupStaleness> StalenessRecorder::groups() const {
  std::vector<GroupStaleness> out;
  for (const auto& [id, group] : groups_) out.push_back(group);
  return out;
}

std::vector<WorkerStaleness> StalenessRecorder::workers() const {
  std::vector<WorkerStaleness> out;
  for (const auto& [key, worker] : workers_) out.push_back(worker);
  return out;
}

}  // namespace paceline
