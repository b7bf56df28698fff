#include "plan/placement.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/check.h"

namespace paceline {

std::map<ChunkKey, NodeId> Place(std::vector<ChunkSize> chunks, std::map<NodeId, Bytes>& load) {
  PACELINE_CHECK(!load.empty());
  std::sort(chunks.begin(), chunks.end(), [](const ChunkSize& a, const ChunkSize& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.key < b.key;
  });
  std::set<std::pair<Bytes, NodeId>> least_loaded_first;
  for (const auto& [node, bytes] : load) least_loaded_first.emplace(bytes, node);
  std::map<ChunkKey, NodeId> placed;
  for (const ChunkSize& chunk : chunks) {
    auto [bytes, node] = *least_loaded_first.begin();
    least_loaded_first.erase(least_loaded_first.begin());
    bytes += chunk.bytes;
    least_loaded_first.emplace(bytes, node);
    load[node] = bytes;
    placed.emplace(chunk.key, node);
  }
  return placed;
}

}  // namespace paceline
