// Which chunks move when servers come or go: an already placed job is spread over those that may
// own chunks now, moving as little as that takes.
// Thread rule: pure functions.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "common/base/types.h"
#include "plan/placement.h"
#include "plan/plan.h"

namespace paceline {

struct OwnedChunk {
  ChunkKey key;
  Bytes bytes;
  NodeId owner;
};

// Moves in the order in which they are to be made. First what belongs to nobody of `owners`, to the
// least loaded. Then, if one has less than 4/5 of the mean (it is new) or more than 5/4 of it, from
// the most to the least loaded, largest first, until the most is within 5 % of the mean or no move
// would even them out.
std::vector<ChunkMove> Rebalance(const std::vector<OwnedChunk>& chunks,
                                 const std::set<NodeId>& owners);

}  // namespace paceline
