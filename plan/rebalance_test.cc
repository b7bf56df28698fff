#include "plan/rebalance.h"

#include <numeric>

#include "gtest/gtest.h"
#include "plan/permutation.h"

namespace paceline {
namespace {

OwnedChunk Chunk(uint32_t number, uint64_t bytes, uint32_t owner) {
  return {{TensorId(number), ChunkIndex(0)}, Bytes(bytes), NodeId(owner)};
}

std::map<NodeId, uint64_t> LoadsAfter(std::vector<OwnedChunk> chunks,
                                      const std::vector<ChunkMove>& moves) {
  std::map<NodeId, uint64_t> loads;
  for (OwnedChunk& chunk : chunks) {
    for (const ChunkMove& move : moves) {
      if (move.chunk != chunk.key) continue;
      EXPECT_EQ(move.from, chunk.owner) << "a chunk moves once, from where it is";
      chunk.owner = move.to;
    }
    loads[chunk.owner] += chunk.bytes.value();
  }
  return loads;
}

TEST(RebalanceTest, NothingMovesWhereNobodyComesOrGoes) {
  EXPECT_TRUE(Rebalance({Chunk(0, 100, 1), Chunk(1, 90, 2)}, {NodeId(1), NodeId(2)}).empty());
  EXPECT_TRUE(Rebalance({}, {NodeId(1)}).empty());
  EXPECT_TRUE(Rebalance({Chunk(0, 100, 1)}, {NodeId(1), NodeId(2)}).empty()) << "it would not help";
}

TEST(RebalanceTest, WhatNobodyMayOwnGoesToTheLeastLoaded) {
  const std::vector<OwnedChunk> chunks = {Chunk(0, 60, 9), Chunk(1, 50, 9), Chunk(2, 40, 9),
                                          Chunk(3, 20, 1)};
  const std::vector<ChunkMove> moves = Rebalance(chunks, {NodeId(1), NodeId(2)});
  ASSERT_EQ(moves.size(), 3u);
  EXPECT_EQ(moves[0].chunk.tensor, TensorId(0)) << "the largest first";
  // 60 to the empty one, 50 to the other, which has 70 then, and 40 to the first again.
  EXPECT_EQ(LoadsAfter(chunks, moves),
            (std::map<NodeId, uint64_t>{{NodeId(1), 70}, {NodeId(2), 100}}));
}

TEST(RebalanceTest, ANewOwnerGetsItsShareAndNoMoreMovesThanThatTakes) {
  std::vector<OwnedChunk> chunks;
  for (uint32_t i = 0; i < 90; ++i) chunks.push_back(Chunk(i, 1000, 1 + i % 2));
  const std::set<NodeId> owners = {NodeId(1), NodeId(2), NodeId(3)};
  const std::vector<ChunkMove> moves = Rebalance(chunks, owners);
  for (const auto& [owner, bytes] : LoadsAfter(chunks, moves)) {
    EXPECT_LE(bytes, 31'500u) << owner;  // the mean and 5 %
  }
  EXPECT_LE(moves.size(), 30u);
  for (const ChunkMove& move : moves) EXPECT_EQ(move.to, NodeId(3));
}

TEST(RebalanceTest, RandomCasesEndWithinFivePercentOrOneChunkOfTheMean) {
  uint64_t state = 7;
  for (int run = 0; run < 200; ++run) {
    std::vector<OwnedChunk> chunks;
    std::set<NodeId> owners;
    const uint32_t servers = 1 + SplitMix64(state) % 6;
    for (uint32_t i = 1; i <= servers; ++i) owners.insert(NodeId(i));
    const uint32_t count = 1 + SplitMix64(state) % 60;
    uint64_t total = 0, largest = 0;
    for (uint32_t i = 0; i < count; ++i) {
      chunks.push_back(Chunk(i, 1 + SplitMix64(state) % 1000, 1 + SplitMix64(state) % 8));
      total += chunks.back().bytes.value();
      largest = std::max(largest, chunks.back().bytes.value());
    }
    const std::vector<ChunkMove> moves = Rebalance(chunks, owners);
    const std::map<NodeId, uint64_t> loads = LoadsAfter(chunks, moves);
    uint64_t least = loads.size() < servers ? 0 : ~uint64_t{0};
    for (const auto& [owner, bytes] : loads) {
      EXPECT_TRUE(owners.count(owner)) << owner;
      least = std::min(least, bytes);
    }
    const uint64_t mean = total / servers;
    for (const auto& [owner, bytes] : loads) {
      EXPECT_LE(bytes, std::max({mean + mean / 20, least + largest, mean * 5 / 4}));
    }
  }
}

}  // namespace
}  // namespace paceline
