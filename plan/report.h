// What nodes tell the scheduler about themselves. Every count is cumulative since the node's
// incarnation joined (a lost or repeated report changes nothing).
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/types.h"

namespace paceline {

// A distribution of staleness. buckets[t] counts tau = t for t < kExact; the last bucket (index
// kExact) counts all beyond.
struct StalenessCounts {
  static constexpr uint32_t kExact = 128;

  uint64_t count = 0;
  uint64_t sum = 0;
  uint64_t max = 0;
  std::vector<uint64_t> buckets;  // as long as needed, at most kExact + 1

  bool operator==(const StalenessCounts&) const = default;
};

// Staleness of the pushes (lead chunk) of one group at its lead owner, with the terms of the exact
// formula: sum(tau) = last - first_base - count - base_gaps.
struct GroupStaleness {
  GroupId group;
  StalenessCounts tau;
  double excess_sum = 0;    // sum of tau - (G - 1)
  uint64_t first_base = 0;  // b_1: version count the first push was computed on
  uint64_t last = 0;        // v_m: version count the last push made
  int64_t base_gaps = 0;    // sum over i < m of (b_{i+1} - v_i), signed
  Step last_step;           // of the last applied push
  Ticks last_applied;       // owner's clock
  bool operator==(const GroupStaleness&) const = default;
};

struct WorkerStaleness {
  NodeId worker;
  GroupId group;
  StalenessCounts tau;
  double excess_sum = 0;
  Samples applied;       // samples in applied pushes: the owners' count
  Samples discarded;     // samples refused or dropped by the owner
  uint64_t carried = 0;  // pushes applied in a later round than that of their step
  uint64_t dropped = 0;  // pushes discarded because their round went on without them
  Step last_step;
  Ticks last_applied;
  bool operator==(const WorkerStaleness&) const = default;
};

// From the lead owner of a job: push-level facts. From other owners: `updates` and bytes only.
struct JobAtServer {
  JobId job;
  bool lead = false;
  uint64_t updates = 0;         // pushes applied (lead) or chunk updates (not lead)
  uint64_t refused_frames = 0;  // all reasons
  uint32_t lineage = 0;         // which the counts below belong to
  Bytes memory;                 // weights + optimizer state + open rounds
  std::vector<GroupStaleness> groups;
  std::vector<WorkerStaleness> workers;
  bool operator==(const JobAtServer&) const = default;
};

struct ServerReport {
  Bytes bytes_in;
  Bytes bytes_out;
  uint64_t connections = 0;
  uint32_t busy_permille = 0;  // of the shard threads, since the last report
  std::vector<JobAtServer> jobs;
  bool operator==(const ServerReport&) const = default;
};

struct Metric {
  std::string name;
  double value = 0;
  Step step;
  bool operator==(const Metric&) const = default;
};

struct WorkerReport {
  GroupId group;  // whose step it is in: after a move, once it has arrived, the new one
  Step step;
  Epoch epoch;
  uint32_t step_time_us = 0;   // running median
  uint32_t wait_permille = 0;  // share of the step spent waiting for replies
  Samples drawn;               // the worker's own counts
  Samples applied;             // in pushes whose reply came
  Samples discarded;
  Samples returned;  // drawn and not used
  Bytes bytes_in;
  Bytes bytes_out;
  std::vector<Metric> metrics;     // newest value per name
  std::vector<std::string> links;  // "server-0: tcp" and why, one line a peer
  bool operator==(const WorkerReport&) const = default;
};

}  // namespace paceline
