// Counts the staleness of updates of one chunk, where they are applied (docs/staleness.md).
//
// For every group it keeps the terms of the exact formula: over its m applied pushes, push i on
// base b_i making version v_i, tau_i = v_i - 1 - b_i and so
//   sum(tau) = v_m - b_1 - m - sum_{i<m}(b_{i+1} - v_i), signed.
// The identity is algebraic: a restore that starts a new lineage adds one gap and leaves it exact.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "common/base/types.h"
#include "plan/report.h"

namespace paceline {

// Adds one value to a distribution.
void Count(StalenessCounts& counts, uint64_t tau);

class StalenessRecorder {
 public:
  struct Contribution {
    NodeId worker;
    Samples samples;       // 0: took part without samples; not counted for the worker
    bool carried = false;  // from an earlier step, which went on without it
  };

  // One applied push. `before` and `base` are of one lineage and base.count <= before.count;
  // `groups` is G, the live groups of the job; `now` is the owner's clock.
  struct Application {
    GroupId group;
    uint32_t groups = 1;
    Version base;
    Version before;
    Step step;
    Ticks now;
  };
  void Applied(const Application& application, std::span<const Contribution> contributions);

  // Samples of `worker` that the owner refused or dropped.
  void Discarded(GroupId group, NodeId worker, Samples samples);
  // The same, of a push that was late and is not carried.
  void Dropped(GroupId group, NodeId worker, Samples samples);

  // Goes on where another owner's recorder stopped.
  void TakeOver(uint64_t updates, const std::vector<GroupStaleness>& groups,
                const std::vector<WorkerStaleness>& workers);

  uint64_t updates() const { return updates_; }
  std::vector<GroupStaleness> groups() const;    // by group
  std::vector<WorkerStaleness> workers() const;  // by worker, then group

 private:
  WorkerStaleness& Worker(GroupId group, NodeId worker);

  uint64_t updates_ = 0;
  std::map<GroupId, GroupStaleness> groups_;
  std::map<std::pair<NodeId, GroupId>, WorkerStaleness> workers_;
};

}  // namespace paceline
