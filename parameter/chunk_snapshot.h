// What a cut takes of a chunk.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/types.h"

namespace paceline {

// One chunk of a cut, handed to the writer of checkpoint parts.
struct ChunkSnapshot {
  ChunkKey key;
  Version version;
  std::map<std::string, std::vector<float>> arrays;  // "weights", optimizer slots by name
  uint64_t applied_steps = 0;                        // Adam's t
};

}  // namespace paceline
