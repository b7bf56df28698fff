#include "plan/rebalance.h"

#include <algorithm>
#include <utility>

namespace paceline {
namespace {

class Balancer {
 public:
  Balancer(const std::vector<OwnedChunk>& chunks, const std::set<NodeId>& owners) {
    for (NodeId owner : owners) loads_[owner];
    for (const OwnedChunk& chunk : chunks) {
      total_ += chunk.bytes.value();
      auto load = loads_.find(chunk.owner);
      if (load == loads_.end()) {
        homeless_.push_back(chunk);
      } else {
        load->second.Add(chunk);
      }
    }
    std::sort(homeless_.begin(), homeless_.end(), [](const OwnedChunk& a, const OwnedChunk& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.key < b.key;
    });
  }

  std::vector<ChunkMove> Run() {
    if (loads_.empty()) return {};
    for (const OwnedChunk& chunk : homeless_) Move(chunk, Least());
    const bool uneven =
        Least()->second.bytes < Mean() / 5 * 4 || Most()->second.bytes > Mean() + Mean() / 4;
    while (uneven && MoveOne()) {
    }
    std::erase_if(moves_, [](const ChunkMove& move) { return move.from == move.to; });
    return std::move(moves_);
  }

 private:
  struct Load {
    uint64_t bytes = 0;
    std::set<std::pair<uint64_t, ChunkKey>> chunks;  // by size

    void Add(const OwnedChunk& chunk) {
      bytes += chunk.bytes.value();
      chunks.emplace(chunk.bytes.value(), chunk.key);
    }
  };
  using Loads = std::map<NodeId, Load>;

  Loads::iterator Least() {
    return std::min_element(loads_.begin(), loads_.end(), [](const auto& a, const auto& b) {
      return a.second.bytes < b.second.bytes;
    });
  }
  Loads::iterator Most() {
    return std::max_element(loads_.begin(), loads_.end(), [](const auto& a, const auto& b) {
      return a.second.bytes < b.second.bytes;
    });
  }

  void Move(const OwnedChunk& chunk, Loads::iterator to) {
    to->second.Add(chunk);
    const auto [place, first] = place_.emplace(chunk.key, moves_.size());
    if (first) {
      moves_.push_back({chunk.key, chunk.owner, to->first});
    } else {
      moves_[place->second].to = to->first;
    }
  }

  uint64_t Mean() const { return total_ / loads_.size(); }

  bool MoveOne() {
    const auto most = Most();
    const auto least = Least();
    const uint64_t gap = most->second.bytes - least->second.bytes;
    if (most->second.bytes <= Mean() + Mean() / 20) return false;
    // The largest of at most half the gap, else the smallest that is less than it: every move
    // lowers the sum of squares, so this ends.
    auto& chunks = most->second.chunks;
    auto chunk = chunks.lower_bound({gap / 2 + 1, ChunkKey()});
    if (chunk != chunks.begin()) --chunk;
    if (chunk == chunks.end() || chunk->first == 0 || chunk->first >= gap) return false;
    const OwnedChunk moved{chunk->second, Bytes(chunk->first), most->first};
    chunks.erase(chunk);
    most->second.bytes -= moved.bytes.value();
    Move(moved, least);
    return true;
  }

  Loads loads_;
  std::vector<OwnedChunk> homeless_;
  uint64_t total_ = 0;
  std::vector<ChunkMove> moves_;
  std::map<ChunkKey, size_t> place_;  // in moves_
};

}  // namespace

std::vector<ChunkMove> Rebalance(const std::vector<OwnedChunk>& chunks,
                                 const std::set<NodeId>& owners) {
  return Balancer(chunks, owners).Run();
}

}  // namespace paceline
