// What a cut takes of a chunk, and what a checkpoint gives back.
// Thread rule: values; arrays are shared with the shard, which copies them before it writes, so
// that taking a snapshot holds nobody up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/types.h"
#include "parameter/shared_floats.h"
#include "parameter/state_codec.h"
#include "plan/report.h"

namespace paceline {

// A chunk's state whose arrays the shard still uses.
struct ShardSnapshot {
  Version version;
  uint64_t updates = 0;  // Adam's t
  Samples samples;
  std::vector<std::pair<std::string, SharedFloats>> arrays;  // "weights", then optimizer slots
};

// One chunk of a cut, handed to the writer of checkpoint parts.
struct ChunkSnapshot {
  ChunkKey key;
  std::string tensor;  // name
  ShardSnapshot state;
  std::optional<std::vector<WorkerStaleness>> workers{};  // of the lead chunk: counts by the cut
};

// What a checkpoint holds of one chunk.
struct RestoredChunk {
  ChunkKey key;
  ChunkState state;
};

}  // namespace paceline
