// The state of a chunk: initial values, optimizer slots, what ReadState and WriteState carry.
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/shard_test_util.h"
#include "parameter/state_codec.h"

namespace paceline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const NamedSpec kSgd{"sgd", {{"learning_rate", 1}}};

TEST(Shard, AdamCountsTheUpdatesOfItsChunk) {
  // Two groups update in turn; t runs over both. With constant g = 1 each bias-corrected step is
  // rate exactly, so t counted per group would show at once.
  ShardHarness h(1, {"adam", {{"learning_rate", 0.25}}}, {GroupOf(0, {0}), GroupOf(1, {1})});
  for (uint64_t i = 0; i < 6; ++i) {
    const auto member = static_cast<uint32_t>(i % 2);
    h.Send({.member = member, .step = i / 2, .values = {1}, .group = member, .base = i});
  }
  EXPECT_NEAR(h.weights()[0], -6 * 0.25, 1e-5);
}

TEST(Shard, InitIsOverwrittenUntilSealed) {
  GroupTable groups;
  Verdicts verdicts(&groups);
  FloatPool pool(1 << 20);
  ParameterShard shard(ChunkKey{}, 2, &groups, &verdicts, &pool,
                       {.optimizer = nullptr, .policy = *StalenessPolicy::Create({"none", {}})});
  const auto init = [&shard](std::vector<float> values, uint32_t sender, uint64_t sequence) {
    Operation op;
    op.kind = OperationKind::kInit;
    op.sender = NodeId(sender);
    op.sequence = Sequence(sequence);
    op.total_bytes = 8;
    std::vector<Reply> replies;
    shard.Init(op, {0, std::as_bytes(std::span(values))}, &replies);
    return replies.at(0).status;
  };
  EXPECT_EQ(init({1, 2}, 1, 1), OperationStatus::kOk);
  EXPECT_EQ(init({1, 2}, 1, 1), OperationStatus::kOk);
  EXPECT_EQ(init({3, 4}, 2, 1), OperationStatus::kOk);
  EXPECT_THAT(shard.weights(), ElementsAre(3, 4));
  shard.Seal();
  EXPECT_EQ(init({5, 6}, 2, 2), OperationStatus::kNotWriter);
  EXPECT_THAT(shard.weights(), ElementsAre(3, 4));
}

TEST(Shard, StateWrittenElsewhereGoesOnWithTheSameBits) {
  const NamedSpec adam{"adam", {{"learning_rate", 0.1}}};
  ShardHarness a(3, adam, {GroupOf(0, {0})});
  ShardHarness b(3, adam, {GroupOf(0, {0})});
  for (uint64_t i = 0; i < 5; ++i) a.Send({.step = i, .values = {1, -2, 0.5f}, .base = i});
  std::vector<Reply> replies;
  Operation op = a.Header({.kind = OperationKind::kReadState});
  a.shard().ReadState(op, &replies);
  const std::vector<std::byte> bytes = *replies[0].state;
  op.kind = OperationKind::kWriteState;
  op.total_bytes = bytes.size();
  replies.clear();
  b.shard().WriteState(op, {0, bytes}, &replies);
  ASSERT_EQ(replies.at(0).status, OperationStatus::kOk);
  EXPECT_EQ(b.shard().version(), (Version{1, 5}));
  a.Send({.step = 5, .values = {3, 3, 3}, .base = 5});
  // Against the lineage that was there before, a gradient is not comparable: discarded.
  EXPECT_EQ(b.Send({.step = 5, .values = {3, 3, 3}})[0].status, OperationStatus::kDiscarded);
  op = b.Header({.step = 6, .values = {3, 3, 3}});
  op.base = {1, 5};
  const std::vector<float> threes(3, 3);
  b.SendBytes(op, std::as_bytes(std::span(threes)));
  EXPECT_EQ(a.weights(), b.weights());
}

TEST(State, WhatIsNotAStateIsRefusedByName) {
  ChunkState state;
  state.arrays = {{"weights", {1, 2}}};
  std::vector<std::byte> bytes = EncodeState(state);
  EXPECT_EQ(bytes.size(), 64u + 32 + 8);
  ASSERT_TRUE(DecodeState(bytes, 2).ok());
  EXPECT_FALSE(DecodeState(bytes, 3).ok());
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodeState(std::span(bytes).first(cut), 2).ok()) << cut;
  }
  bytes[4] = std::byte{9};
  EXPECT_THAT(std::string(DecodeState(bytes, 2).status().message()),
              HasSubstr("number of arrays is 9"));
}

TEST(Shard, AStateWrittenUnderARoundDiscardsItsPushesAndTellsTheirSenders) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  EXPECT_THAT(h.Send({.member = 0, .values = {2}, .samples = 3}), SizeIs(0));
  ChunkState state{.version = {0, 9}, .updates = 9, .samples = Samples(1), .arrays = {}};
  state.arrays.emplace_back("weights", std::vector<float>{5});
  const std::vector<std::byte> bytes = EncodeState(state);
  Operation write = h.Header({.member = 1});
  write.kind = OperationKind::kWriteState;
  write.total_bytes = bytes.size();
  std::vector<Reply> replies;
  h.shard().WriteState(write, {0, bytes}, &replies);
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_EQ(replies[0].status, OperationStatus::kDiscarded);
  EXPECT_EQ(replies[0].to.sender, NodeId(100));
  EXPECT_EQ(replies[1].status, OperationStatus::kOk);
  ASSERT_THAT(h.shard().staleness().workers(), SizeIs(1));
  EXPECT_EQ(h.shard().staleness().workers()[0].discarded, Samples(3));
  // What is pushed on the weights that are gone is discarded too, and harms nothing.
  replies = h.Send({.member = 1, .values = {2}});
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].status, OperationStatus::kDiscarded);
  EXPECT_THAT(h.weights(), ElementsAre(5));
  EXPECT_EQ(h.shard().version(), (Version{1, 9}));
}

// A name of 32 bytes has no end of its own and could not be encoded again.
TEST(State, NamesThatCouldNotBeReadBackAreRefused) {
  ChunkState state;
  state.arrays = {{"weights", {1}}, {"m", {2}}};
  std::vector<std::byte> bytes = EncodeState(state);
  std::byte* const second = bytes.data() + kStateHeaderBytes + kStateNameBytes;
  std::memset(second, 'x', kStateNameBytes);
  EXPECT_THAT(std::string(DecodeState(bytes, 1).status().message()), HasSubstr("name of array 1"));
  std::memset(second, 0, kStateNameBytes);
  EXPECT_THAT(std::string(DecodeState(bytes, 1).status().message()), HasSubstr("name of array 1"));
}

TEST(State, WhatCannotBeEncodedIsNamed) {
  EXPECT_TRUE(CheckArrayNames({"weights", std::string(31, 'x')}).ok());
  EXPECT_THAT(std::string(CheckArrayNames({"weights", std::string(32, 'x')}).message()),
              HasSubstr("32 bytes"));
  EXPECT_THAT(std::string(CheckArrayNames({"weights", ""}).message()), HasSubstr("1..31"));
  const std::vector<std::string> nine(9, "x");
  EXPECT_THAT(std::string(CheckArrayNames(nine).message()), HasSubstr("9 arrays"));
}

}  // namespace
}  // namespace paceline
