// Which server owns which chunk: largest first onto the least loaded server, so that bytes balance.
// Pure: the same input gives the same placement on every run and platform.
#pragma once

#include <map>
#include <vector>

#include "common/base/types.h"
#include "plan/chunking.h"

namespace paceline {

struct ChunkSize {
  ChunkKey key;
  Bytes bytes;
};

// `load` holds bytes already placed per server (its keys are the candidates, at least one). Ties:
// lower node id, lower chunk key. Adds what it places to `load`.
std::map<ChunkKey, NodeId> Place(std::vector<ChunkSize> chunks, std::map<NodeId, Bytes>& load);

}  // namespace paceline
