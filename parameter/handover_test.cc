// A chunk that changes its owner: the new one answers and counts as the old one would have.
#include "parameter/handover.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/shard_test_util.h"
#include "parameter/state_codec.h"

namespace paceline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kElements = 100'000;  // two pieces
const NamedSpec kSgd{"sgd", {{"learning_rate", 1}, {"momentum", 0.5}}};

std::vector<float> Ones() { return std::vector<float>(kElements, 1.0f); }

// Takes the state of one harness to another, through its bytes.
void Move(ShardHarness& from, ShardHarness& to, std::vector<Reply>* replies) {
  const std::vector<std::byte> bytes = Encode(from.shard().HandOver(replies));
  absl::StatusOr<Handover> state = DecodeHandover(bytes, kElements);
  ASSERT_TRUE(state.ok()) << state.status();
  to.groups().Learn(state->covered);
  const absl::Status taken = to.shard().TakeOver(*std::move(state));
  ASSERT_TRUE(taken.ok()) << taken;
}

class HandoverTest : public testing::Test {
 protected:
  ShardHarness old_{kElements, kSgd, {GroupOf(0, {0, 1})}};
  ShardHarness new_{kElements, kSgd, {GroupOf(0, {0, 1})}};
  std::vector<Reply> replies_;
};

TEST_F(HandoverTest, WeightsOptimizerAndCountsGoOnWhereTheyStopped) {
  old_.Send({.member = 0, .step = 1, .values = Ones(), .samples = 3});
  old_.Send({.member = 1, .step = 1, .values = Ones(), .samples = 1});  // mean 0.5, momentum 0.5
  Move(old_, new_, &replies_);
  EXPECT_THAT(replies_, IsEmpty());
  EXPECT_EQ(new_.shard().version().count, 1u);
  EXPECT_THAT(new_.weights(), Each(-0.5f));
  EXPECT_EQ(new_.shard().staleness().updates(), 1u);
  EXPECT_EQ(new_.shard().staleness().workers()[0].applied, Samples(3));
  new_.Send({.member = 0, .step = 2, .values = Ones(), .base = 1});
  new_.Send({.member = 1, .step = 2, .values = Ones(), .base = 1});
  // m = 0.5 * 0.5 + 1 = 1.25.
  EXPECT_THAT(new_.weights(), Each(-1.75f));
  EXPECT_EQ(new_.shard().staleness().groups()[0].tau.count, 2u);
  EXPECT_EQ(new_.shard().staleness().workers()[0].applied, Samples(4));
}

TEST_F(HandoverTest, ALostReplyIsGivenByTheNewOwnerAndNothingIsAppliedTwice) {
  old_.Send({.member = 0, .step = 1, .values = Ones(), .sequence = 70});
  old_.Send({.member = 1, .step = 1, .values = Ones(), .sequence = 80});
  Move(old_, new_, &replies_);
  // Its own numbers begin anew with another owner, and say nothing about the old one's replies.
  const std::vector<Reply> again =
      new_.Send({.member = 0, .step = 1, .values = Ones(), .sequence = 5, .acknowledged = 4});
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].status, OperationStatus::kOk);
  EXPECT_EQ(again[0].to.sequence, Sequence(5));
  EXPECT_EQ(again[0].version.count, 1u);
  EXPECT_THAT(ValuesOf(again[0]), Each(-1.0f));
  EXPECT_EQ(new_.shard().version().count, 1u);
  // Asked for once more before and after it was acknowledged.
  const std::vector<Reply> third =
      new_.Send({.member = 0, .step = 1, .values = Ones(), .sequence = 6});
  ASSERT_THAT(third, SizeIs(1));
  EXPECT_EQ(third[0].status, OperationStatus::kOk);
  EXPECT_EQ(third[0].to.sequence, Sequence(6));
  EXPECT_THAT(ValuesOf(third[0]), Each(-1.0f));
  new_.Send(
      {.member = 0, .step = 2, .values = Ones(), .base = 1, .sequence = 7, .acknowledged = 6});
  const std::vector<Reply> stray =
      new_.Send({.member = 0, .step = 1, .values = Ones(), .sequence = 8, .acknowledged = 6});
  ASSERT_THAT(stray, SizeIs(1));
  EXPECT_EQ(stray[0].status, OperationStatus::kDiscarded);
  EXPECT_EQ(new_.shard().version().count, 1u);
}

TEST_F(HandoverTest, AnOpenRoundIsVoidAndItsMembersPushToTheNewOwner) {
  old_.Send({.member = 0, .step = 1, .values = Ones()});       // whole
  old_.Send({.member = 1, .step = 1, .values = Ones()}, {0});  // half of it
  Move(old_, new_, &replies_);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].status, OperationStatus::kNotOwner);
  EXPECT_EQ(replies_[0].to.sender, NodeId(100));
  EXPECT_EQ(new_.shard().version().count, 0u);
  EXPECT_THAT(new_.Send({.member = 0, .step = 1, .values = Ones()}), IsEmpty());
  EXPECT_THAT(new_.Send({.member = 1, .step = 1, .values = Ones()}), SizeIs(2));
  EXPECT_THAT(new_.weights(), Each(-1.0f));
}

TEST_F(HandoverTest, StepsThatAMemberIsDoneWithAreKnown) {
  old_.Cover(1, 4);
  Move(old_, new_, &replies_);
  // Alone in step 4: the other one skipped it, as the old owner was told.
  EXPECT_THAT(new_.Send({.member = 0, .step = 4, .values = Ones()}), SizeIs(1));
  EXPECT_THAT(new_.Send({.member = 0, .step = 5, .values = Ones(), .base = 1}), IsEmpty());
}

TEST_F(HandoverTest, RepliesNobodyAsksForGoWithTheStep) {
  old_.Send({.member = 0, .step = 1, .values = Ones()});
  old_.Send({.member = 1, .step = 1, .values = Ones()});
  Move(old_, new_, &replies_);
  EXPECT_TRUE(new_.shard().holds_taken_over());
  new_.Cover(0, 1);
  new_.shard().ForgetTakenOver(GroupId(0));
  EXPECT_TRUE(new_.shard().holds_taken_over()) << "of the other member";
  new_.Cover(1, 1);
  new_.shard().ForgetTakenOver(GroupId(0));
  EXPECT_FALSE(new_.shard().holds_taken_over());
}

TEST_F(HandoverTest, TheFencedAreLeftBehind) {
  old_.Send({.member = 0, .step = 1, .values = Ones()});
  old_.Send({.member = 1, .step = 1, .values = Ones()});
  new_.groups().Fence({NodeId(101), Incarnation(1)}, {GroupOf(0, {0}, 2)});
  Move(old_, new_, &replies_);
  new_.Cover(0, 1);
  new_.shard().ForgetTakenOver(GroupId(0));
  EXPECT_FALSE(new_.shard().holds_taken_over());
}

TEST_F(HandoverTest, SharedArraysTravelOnce) {
  old_.Send({.member = 0, .step = 1, .values = Ones()});
  old_.Send({.member = 1, .step = 1, .values = Ones()});
  const size_t bytes = Encode(old_.shard().HandOver(&replies_)).size();
  // Weights and momentum; both replies carry the weights.
  EXPECT_LT(bytes, 2 * kElements * sizeof(float) + 4096);
}

TEST_F(HandoverTest, AnyNumberOfRepliesThatAreKept) {
  constexpr uint32_t kGroups = 1100;  // of two: each keeps its members' reply, of its own version
  std::vector<GroupPlan> groups;
  for (uint32_t g = 0; g < kGroups; ++g) groups.push_back(GroupOf(g, {2 * g, 2 * g + 1}));
  ShardHarness from{1, kSgd, groups}, to{1, kSgd, groups};
  for (uint32_t g = 0; g < kGroups; ++g) {
    for (uint32_t member : {2 * g, 2 * g + 1}) {
      from.Send({.member = member, .step = 1, .values = {1}, .group = g, .base = g});
    }
  }
  const std::vector<std::byte> bytes = Encode(from.shard().HandOver(&replies_));
  absl::StatusOr<Handover> state = DecodeHandover(bytes, 1);
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_TRUE(to.shard().TakeOver(*std::move(state)).ok());
  EXPECT_EQ(to.shard().version().count, kGroups);
}

TEST_F(HandoverTest, OfGroupsOfOneNoOldWeightsAreKept) {
  std::vector<GroupPlan> groups;
  for (uint32_t g = 0; g < 64; ++g) groups.push_back(GroupOf(g, {g}));
  ShardHarness from{kElements, kSgd, groups}, to{kElements, kSgd, groups};
  for (uint32_t g = 0; g < 64; ++g) {
    from.Send({.member = g, .step = 1, .values = Ones(), .group = g, .base = g, .sequence = 1});
  }
  const std::vector<float> weights = from.weights();
  const std::vector<std::byte> bytes = Encode(from.shard().HandOver(&replies_));
  EXPECT_LT(bytes.size(), 2 * kElements * sizeof(float) + 65536);
  absl::StatusOr<Handover> state = DecodeHandover(bytes, kElements);
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_TRUE(to.shard().TakeOver(*std::move(state)).ok());
  // The reply to the first update was lost: the member gets the weights of the 64th.
  const std::vector<Reply> again =
      to.Send({.member = 0, .step = 1, .values = Ones(), .group = 0, .sequence = 9});
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].status, OperationStatus::kOk);
  EXPECT_EQ(again[0].version.count, 64u);
  EXPECT_EQ(ValuesOf(again[0]), weights);
  EXPECT_EQ(to.shard().version().count, 64u) << "applied once";
}

TEST_F(HandoverTest, ArraysAreThoseOfTheOptimizer) {
  const auto taken = [](const NamedSpec& optimizer, std::vector<std::string> names) {
    ShardHarness to{1, optimizer, {GroupOf(0, {0})}};
    Handover state;
    for (std::string& name : names) {
      SharedFloats values(1);
      values.writable()[0] = 2;
      state.arrays.emplace_back(std::move(name), std::move(values));
    }
    return to.shard().TakeOver(std::move(state));
  };
  const NamedSpec adam{"adam", {}};
  EXPECT_TRUE(taken(adam, {"weights", "m", "v"}).ok());
  EXPECT_TRUE(taken(adam, {"weights"}).ok()) << "no optimizer was set there yet";
  EXPECT_THAT(taken(adam, {"weights", "m"}).message(), HasSubstr("'v' is missing"));
  EXPECT_THAT(taken(adam, {"weights", "m", "v", "w"}).message(), HasSubstr("'w' is none"));
  EXPECT_THAT(taken(adam, {"weights", "m", "m", "v"}).message(), HasSubstr("'m' comes twice"));
  EXPECT_THAT(taken(adam, {"weights", "weights"}).message(), HasSubstr("comes twice"));
  EXPECT_THAT(taken(kSgd, {"momentum"}).message(), HasSubstr("'weights' is missing"));
}

TEST_F(HandoverTest, AStateThatWasWrittenIsNotWrittenAgain) {
  ChunkState written{.version = {}, .updates = 0, .samples = {}, .arrays = {}};
  written.arrays.emplace_back("weights", std::vector<float>(3, 5.0f));
  const std::vector<std::byte> bytes = EncodeState(written);
  ShardHarness from{3, kSgd, {GroupOf(0, {0})}}, to{3, kSgd, {GroupOf(0, {0})}};
  Operation op = from.Header({.kind = OperationKind::kWriteState});
  op.origin_step = Step(17);
  op.total_bytes = bytes.size();
  from.shard().WriteState(op, {0, bytes}, &replies_);
  absl::StatusOr<Handover> state = DecodeHandover(Encode(from.shard().HandOver(&replies_)), 3);
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_TRUE(to.shard().TakeOver(*std::move(state)).ok());
  // An update, and then the state again: its reply was lost on the way.
  Sent push{.step = 1, .values = {1, 1, 1}};
  Operation update = to.Header(push);
  update.base = to.shard().version();
  to.SendBytes(update, std::as_bytes(std::span(push.values)));
  EXPECT_THAT(to.weights(), Each(4.0f));
  replies_.clear();
  op.sequence = Sequence(1);  // of another link
  to.shard().WriteState(op, {0, bytes}, &replies_);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].status, OperationStatus::kOk);
  EXPECT_THAT(to.weights(), Each(4.0f)) << "the update since";
  op.origin_step = Step(18);
  op.sequence = Sequence(2);
  to.shard().WriteState(op, {0, bytes}, &replies_);
  EXPECT_THAT(to.weights(), Each(5.0f)) << "another one";
}

TEST_F(HandoverTest, DamagedBytesAreRefusedEverywhere) {
  ShardHarness small{3, kSgd, {GroupOf(0, {0, 1})}};
  small.Send({.member = 0, .step = 1, .values = {1, 2, 3}});
  small.Send({.member = 1, .step = 1, .values = {1, 2, 3}});
  const std::vector<std::byte> whole = Encode(small.shard().HandOver(&replies_));
  ASSERT_TRUE(DecodeHandover(whole, 3).ok());
  EXPECT_FALSE(DecodeHandover(whole, 4).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(DecodeHandover(std::span(whole).first(size), 3).ok()) << size;
  }
  // A flipped bit is either seen or gives another state; never a crash.
  for (size_t i = 0; i < whole.size(); ++i) {
    std::vector<std::byte> flipped = whole;
    flipped[i] ^= std::byte{0x80};
    DecodeHandover(flipped, 3).status().IgnoreError();
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(DecodeHandover(longer, 3).ok());
}

}  // namespace
}  // namespace paceline
