// The words of the project as types (docs/architecture.md, "Words"). Start here.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <ostream>

#include "common/base/strong.h"

namespace paceline {

// Who. A node is a process that joined the scheduler: a server, or a worker of one job.
using JobId = Strong<struct JobIdTag, uint32_t>;    // given by the scheduler, from 1; 0 = none
using NodeId = Strong<struct NodeIdTag, uint32_t>;  // given by the scheduler, from 1; kept by name
using Incarnation = Strong<struct IncarnationTag, uint64_t>;  // new at each Join, grows per cluster
using JobRank = Strong<struct JobRankTag, uint32_t>;          // lowest free number at first Join
using WorkerIndex = Strong<struct WorkerIndexTag, uint32_t>;  // the launcher's number; not the rank
using GroupId = Strong<struct GroupIdTag, uint32_t>;          // within a job, from 0

// Which agreed plan.
using JobGeneration = Strong<struct JobGenerationTag, uint64_t>;  // placement, aggregation, mode
using GroupGeneration = Strong<struct GroupGenerationTag, uint64_t>;  // members of one group
using Term = Strong<struct TermTag, uint64_t>;  // which scheduler's word counts

// What.
using TensorId = Strong<struct TensorIdTag, uint32_t>;      // within a job, in registration order
using ChunkIndex = Strong<struct ChunkIndexTag, uint32_t>;  // within a tensor, from 0
using Step = Strong<struct StepTag, uint64_t>;        // a group's completed iterations; first is 0
using Ordinal = Strong<struct OrdinalTag, uint32_t>;  // of operations on one tensor within a step
using Epoch = Strong<struct EpochTag, uint64_t>;      // a pass over the data, and nothing else
using Samples = Strong<struct SamplesTag, uint64_t>;  // a count of training samples
using Bytes = Strong<struct BytesTag, uint64_t>;
using Sequence = Strong<struct SequenceTag, uint64_t>;  // of an operation of one sender; from 1

// Monotonic time in nanoseconds since an arbitrary origin of the process that measured it.
using Ticks = Strong<struct TicksTag, int64_t>;

constexpr Ticks Milliseconds(int64_t ms) { return Ticks(ms * 1'000'000); }
constexpr Ticks Seconds(int64_t s) { return Ticks(s * 1'000'000'000); }

// How often a chunk was updated. A restore from an older state starts a new lineage; versions of
// different lineages are not comparable as counts (design: staleness).
struct Version {
  uint32_t lineage = 0;
  uint64_t count = 0;

  auto operator<=>(const Version&) const = default;
  friend std::ostream& operator<<(std::ostream& os, const Version& v) {
    return os << v.lineage << '.' << v.count;
  }
};

// A chunk of a job: the unit of placement and versioning.
struct ChunkKey {
  TensorId tensor;
  ChunkIndex chunk;

  auto operator<=>(const ChunkKey&) const = default;
  friend std::ostream& operator<<(std::ostream& os, const ChunkKey& k) {
    return os << k.tensor << '/' << k.chunk;
  }
};

}  // namespace paceline
