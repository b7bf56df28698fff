#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/shard_test_util.h"

namespace paceline {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

const NamedSpec kSgd{"sgd", {{"learning_rate", 1}}};

std::vector<float> RandomValues(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random) * std::ldexp(1.0f, static_cast<int>(random() % 20));
  return out;
}

// ---- Sums -----------------------------------------------------------------------------------

TEST(Round, MeanDividesTheSumOnceBySamples) {
  ShardHarness h(2, kSgd, {GroupOf(0, {0, 1})});
  EXPECT_THAT(h.Send({.member = 0, .values = {6, 0}, .samples = 2}), SizeIs(0));
  const auto replies = h.Send({.member = 1, .values = {4, 5}, .samples = 3});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_THAT(h.weights(), ElementsAre(-2, -1));
  for (const Reply& reply : replies) {
    EXPECT_EQ(reply.status, OperationStatus::kOk);
    EXPECT_EQ(reply.version.count, 1u);
    EXPECT_EQ(reply.samples, Samples(5));
    EXPECT_THAT(ValuesOf(reply), ElementsAre(-2, -1));
  }
}

TEST(Round, SumScalesByPlannedMembersOverMembersInTheSum) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1, 2})}, Normalization::kSum);
  h.Send({.member = 0, .values = {1}, .samples = 8});
  h.Send({.member = 1, .values = {2}, .samples = 8});
  h.Send({.member = 2, .values = {3}, .samples = 8});
  EXPECT_THAT(h.weights(), ElementsAre(-6));
  // A member that skips counts as in the sum: no factor.
  h.Send({.member = 0, .step = 1, .values = {1}, .base = 1});
  h.Send({.member = 1, .step = 1, .values = {2}, .base = 1});
  h.Send({.member = 2, .step = 1, .samples = 0, .base = 1});
  EXPECT_THAT(h.weights(), ElementsAre(-9));
  // A death keeps the numerator: two of three, times 3/2.
  std::vector<Reply> replies;
  GroupPlan survivors = GroupOf(0, {0, 1}, 2);
  survivors.planned_members = 3;
  h.groups().Fence({NodeId(102), Incarnation(1)}, {survivors});
  h.shard().VoidOutdated(&replies);
  h.Send({.member = 0, .step = 2, .values = {1}, .generation = 2, .base = 2});
  h.Send({.member = 1, .step = 2, .values = {3}, .generation = 2, .base = 2});
  EXPECT_THAT(h.weights(), ElementsAre(-15));
  // An ordered change resets it.
  h.groups().Commit({GroupOf(0, {0, 1}, 3, 3)});
  h.Send({.member = 0, .step = 3, .values = {1}, .generation = 3, .base = 3});
  h.Send({.member = 1, .step = 3, .values = {3}, .generation = 3, .base = 3});
  EXPECT_THAT(h.weights(), ElementsAre(-19));
}

TEST(Round, OneToFourMembersInAnyOrder) {
  for (uint32_t members = 1; members <= 4; ++members) {
    std::vector<uint32_t> order(members);
    std::iota(order.begin(), order.end(), 0);
    do {
      std::vector<uint32_t> ranks = order;
      std::sort(ranks.begin(), ranks.end());
      ShardHarness h(1, kSgd, {GroupOf(0, ranks)});
      size_t answered = 0;
      for (const uint32_t m : order) {
        answered += h.Send({.member = m, .values = {static_cast<float>(m + 1)}}).size();
      }
      EXPECT_EQ(answered, members);
      EXPECT_EQ(h.weights()[0], -static_cast<float>(members * (members + 1) / 2.0 / members));
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(Round, DeterministicSumsHaveTheBitsOfRankOrderWhateverTheArrival) {
  const size_t n = 1000;
  const uint32_t members = 4;
  std::vector<std::vector<float>> g;
  for (uint32_t m = 0; m < members; ++m) g.push_back(RandomValues(n, m + 1));
  std::vector<float> expected(n);
  for (size_t i = 0; i < n; ++i) {
    float sum = g[0][i];
    for (uint32_t m = 1; m < members; ++m) sum = sum + g[m][i];
    expected[i] = 0.0f - 1.0f * (sum / 20.0f);
  }
  std::vector<uint32_t> order = {0, 1, 2, 3};
  do {
    ShardHarness h(n, kSgd, {GroupOf(0, {0, 1, 2, 3})}, Normalization::kMean, true);
    for (const uint32_t m : order) h.Send({.member = m, .values = g[m], .samples = 5});
    ASSERT_EQ(h.weights(), expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Round, ADeterministicSumLeavesMembersWithoutSamplesOut) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1, 2})}, Normalization::kMean, true);
  h.Send({.member = 2, .values = {4}, .samples = 2});
  h.Send({.member = 0, .samples = 0});
  EXPECT_THAT(h.Send({.member = 1, .values = {2}, .samples = 1}), SizeIs(3));
  EXPECT_THAT(h.weights(), ElementsAre(-2));
}

// A peer may name the same round with another origin step; what it began stays what it was.
TEST(Round, AnotherOperationOfAMemberInTheSameRoundIsRefused) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.member = 0, .step = 5, .values = {2}});
  Operation second = h.Header({.member = 0, .step = 5, .values = {4}});
  second.origin_step = Step(4);
  const std::vector<float> values = {4};
  const std::vector<Reply> replies = h.SendBytes(second, std::as_bytes(std::span(values)));
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].status, OperationStatus::kBadRequest);
  EXPECT_THAT(h.Send({.member = 1, .step = 5, .values = {6}}), SizeIs(2));
  EXPECT_THAT(h.weights(), ElementsAre(-4));
}

TEST(Round, HalvesAreSummedInFp32) {
  // 2049 ones: an fp16 sum would stick at 2048.
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})}, Normalization::kSum);
  const std::vector<uint16_t> big = {0x6800};  // 2048 as binary16
  const std::vector<uint16_t> one = {0x3c00};
  Operation op = h.Header({.member = 0});
  op.dtype = DType::kF16;
  op.total_bytes = 2;
  h.SendBytes(op, std::as_bytes(std::span(big)));
  op = h.Header({.member = 1});
  op.dtype = DType::kF16;
  op.total_bytes = 2;
  h.SendBytes(op, std::as_bytes(std::span(one)));
  EXPECT_THAT(h.weights(), ElementsAre(-2049));
  EXPECT_EQ(ToHalves(h.weights(), DType::kF16)[0], 0xe800);  // -2048: rounded to even on return
}

TEST(Round, ReduceReturnsTheSumAndAppliesNothing) {
  ShardHarness h(2, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.kind = OperationKind::kReduce, .member = 0, .values = {1, 2}, .samples = 3});
  const auto replies =
      h.Send({.kind = OperationKind::kReduce, .member = 1, .values = {10, 20}, .samples = 4});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_THAT(ValuesOf(replies[0]), ElementsAre(11, 22));
  EXPECT_EQ(replies[1].samples, Samples(7));
  EXPECT_THAT(h.weights(), ElementsAre(0, 0));
  EXPECT_EQ(h.shard().version().count, 0u);
}

TEST(Round, PushIsAnsweredWithoutWeights) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.kind = OperationKind::kPush, .member = 0, .values = {2}});
  const auto replies = h.Send({.member = 1, .values = {2}});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_FALSE(replies[0].values);
  EXPECT_TRUE(replies[1].values);
  EXPECT_THAT(h.weights(), ElementsAre(-2));
}

TEST(Round, TheRateIsOfTheLowestRankWithSamples) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1, 2})});
  h.Send({.member = 2, .values = {3}, .samples = 1, .learning_rate = 9});
  h.Send({.member = 0, .samples = 0, .learning_rate = 7});
  h.Send({.member = 1, .values = {3}, .samples = 1, .learning_rate = 0.5});
  EXPECT_THAT(h.weights(), ElementsAre(-1.5));
}

TEST(Round, WithoutAnySamplesNothingIsApplied) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.member = 0, .samples = 0});
  const auto replies = h.Send({.member = 1, .samples = 0});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_EQ(replies[0].version.count, 0u);
  EXPECT_THAT(ValuesOf(replies[0]), ElementsAre(0));
  EXPECT_EQ(h.shard().staleness().updates(), 0u);
}

// ---- Boundaries, ordinals, orders -----------------------------------------------------------

TEST(Round, ABoundaryCountsAsNoSamplesForWhatWasNotPushed) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  EXPECT_THAT(h.Send({.member = 0, .step = 4, .values = {2}}), SizeIs(0));
  EXPECT_THAT(h.Cover(1, 3), SizeIs(0));
  EXPECT_THAT(h.Cover(1, 4), SizeIs(1));
  EXPECT_THAT(h.weights(), ElementsAre(-2));
  // Before the push as well as after it, and for every step up to the last it covers.
  h.Cover(1, 1000);
  EXPECT_THAT(h.Send({.member = 0, .step = 5, .values = {2}, .base = 1}), SizeIs(1));
  EXPECT_THAT(h.weights(), ElementsAre(-4));
  // What a member sends after its own Boundary is late.
  const auto late = h.Send({.member = 1, .step = 5, .values = {9}, .samples = 6, .base = 1});
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].status, OperationStatus::kDiscarded);
  EXPECT_THAT(h.weights(), ElementsAre(-4));
  const auto workers = h.shard().staleness().workers();
  EXPECT_EQ(workers[1].discarded, Samples(6));
}

TEST(Round, TwoOperationsOnOneTensorInOneStepAreTwoRounds) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.member = 0, .values = {1}, .ordinal = 0});
  h.Send({.member = 0, .values = {10}, .ordinal = 1});
  EXPECT_THAT(h.Send({.member = 1, .values = {30}, .ordinal = 1}), SizeIs(2));
  EXPECT_THAT(h.weights(), ElementsAre(-20));
  EXPECT_THAT(h.Send({.member = 1, .values = {3}, .ordinal = 0}), SizeIs(2));
  EXPECT_THAT(h.weights(), ElementsAre(-22));
}

TEST(Round, MembersThatDisagreeAboutTheOperationAreToldSo) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.member = 0, .values = {1}});
  const auto replies = h.Send({.kind = OperationKind::kReduce, .member = 1, .values = {1}});
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].status, OperationStatus::kBadRequest);
}

TEST(Round, AnEmptyTensorHasRoundsToo) {
  ShardHarness h(0, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.member = 0});
  EXPECT_THAT(h.Send({.member = 1}), SizeIs(2));
  EXPECT_EQ(h.shard().version().count, 1u);
}

// ---- Exactly once ---------------------------------------------------------------------------

TEST(Once, ARetryGetsTheKeptReplyAndIsNotAppliedAgain) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0})});
  Sent push{.values = {2}};
  push.sequence = 5;
  ASSERT_THAT(h.Send(push), SizeIs(1));
  push.sequence = 6;  // sent anew after the reply was lost
  const auto again = h.Send(push);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].to.sequence, Sequence(6));
  EXPECT_EQ(again[0].version.count, 1u);
  EXPECT_THAT(ValuesOf(again[0]), ElementsAre(-2));
  EXPECT_THAT(h.weights(), ElementsAre(-2));
  // Acknowledged: a stray repetition is neither applied nor answered, one sent anew is discarded.
  h.Send({.step = 1, .values = {2}, .base = 1, .sequence = 7, .acknowledged = 6});
  EXPECT_THAT(h.Send(push), SizeIs(0));
  push.sequence = 8;
  const auto anew = h.Send(push);
  ASSERT_THAT(anew, SizeIs(1));
  EXPECT_EQ(anew[0].status, OperationStatus::kDiscarded);
  EXPECT_THAT(h.weights(), ElementsAre(-4));
}

TEST(Once, AKeptReplyHasTheWeightsOfItsTimeWhateverCameAfter) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0}), GroupOf(1, {1})});
  Sent push{.values = {2}};
  push.sequence = 1;
  const auto first = h.Send(push);
  h.Send({.member = 1, .values = {8}, .group = 1, .base = 1});
  EXPECT_THAT(h.weights(), ElementsAre(-10));
  EXPECT_THAT(ValuesOf(first[0]), ElementsAre(-2));
  const auto again = h.Send(push);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_THAT(ValuesOf(again[0]), ElementsAre(-2));
  EXPECT_EQ(again[0].version.count, 1u);
}

// What is kept for its old group holds weights of the past.
TEST(Once, OneThatComesFromAnotherGroupHasHadTheRepliesOfThatOne) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0}), GroupOf(1, {0, 1})});
  Sent push{.values = {2}};
  push.sequence = 5;
  ASSERT_THAT(h.Send(push), SizeIs(1));
  ASSERT_THAT(h.Send(push), SizeIs(1)) << "answered again";
  h.Send({.values = {2}, .group = 1, .sequence = 6, .acknowledged = 5});
  EXPECT_THAT(h.Send(push), SizeIs(0)) << "a stray repetition";
  EXPECT_THAT(h.weights(), ElementsAre(-2));
}

TEST(Once, TheReplyGoesToTheNewestChannelWhicheverFrameComesLast) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.member = 0, .values = {2}, .sequence = 7, .route = 1});
  h.Send({.member = 0, .values = {2}, .sequence = 7, .route = 2});
  // What was read late from the channel that its sender has given up.
  h.Send({.member = 0, .values = {2}, .sequence = 7, .route = 1});
  const auto replies = h.Send({.member = 1, .values = {4}, .route = 3});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_EQ(replies[0].to.route, 2u);
  EXPECT_EQ(replies[1].to.route, 3u);
}

TEST(Once, ACutMessageSentAgainSumsEveryPieceOnce) {
  const size_t n = 16 * kPieceBytes / sizeof(float) - 13;
  ShardHarness h(n, kSgd, {GroupOf(0, {0})});
  Sent push{.values = RandomValues(n, 9)};
  push.sequence = 1;
  EXPECT_THAT(h.Send(push, {0, 1, 2, 3, 4, 5, 6}), SizeIs(0));
  const auto replies = h.Send(push);
  ASSERT_THAT(replies, SizeIs(1));
  const std::vector<float> weights = h.weights();
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(weights[i], 0.0f - push.values[i]);
}

TEST(Once, APieceOutOfPlaceIsRefused) {
  const size_t n = 2 * kPieceBytes / sizeof(float);
  ShardHarness h(n, kSgd, {GroupOf(0, {0})});
  const std::vector<float> values(n, 1);
  const Operation op = h.Header({.values = values});
  const auto bytes = std::as_bytes(std::span(values));
  std::vector<Reply> replies;
  const auto generation = h.groups().InForce(GroupId(0), Step(0));
  h.shard().Contribute(op, {4, bytes.subspan(4, kPieceBytes)}, *generation, 0, {}, &replies);
  h.shard().Contribute(op, {kPieceBytes, bytes.subspan(kPieceBytes, 8)}, *generation, 0, {},
                       &replies);
  EXPECT_THAT(h.weights()[0], 0);
  EXPECT_EQ(h.shard().version().count, 0u);
}

TEST(Once, OperationsThatAreNeverAcknowledgedAreBounded) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0})});
  for (uint64_t step = 0; step < MemberOperations::kMaxOperations; ++step) {
    ASSERT_EQ(h.Send({.step = step, .values = {0}, .base = step})[0].status, OperationStatus::kOk);
  }
  EXPECT_EQ(h.Send({.step = 99, .values = {0}})[0].status, OperationStatus::kNotYet);
}

// ---- What is refused ------------------------------------------------------------------------

TEST(Refused, ANonFiniteGradientCountsAsNoSamples) {
  ShardHarness h(2, kSgd, {GroupOf(0, {0, 1})});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  h.Send({.member = 0, .values = {1, nan}, .samples = 4});
  const auto replies = h.Send({.member = 1, .values = {6, 6}, .samples = 3});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_EQ(replies[0].status, OperationStatus::kNotFinite);
  EXPECT_EQ(replies[1].status, OperationStatus::kOk);
  EXPECT_THAT(ValuesOf(replies[0]), ElementsAre(-2, -2));
  EXPECT_THAT(h.weights(), ElementsAre(-2, -2));
  const auto workers = h.shard().staleness().workers();
  ASSERT_THAT(workers, SizeIs(2));
  EXPECT_EQ(workers[0].discarded, Samples(4));
  EXPECT_EQ(workers[0].applied, Samples(0));
  EXPECT_EQ(workers[1].applied, Samples(3));
}

TEST(Refused, ANonFiniteGradientOfAVoidRoundIsCountedOnceWithTheRedo) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1, 2})});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  h.Send({.member = 0, .values = {nan}, .samples = 4});
  h.groups().Fence({NodeId(102), Incarnation(1)}, {GroupOf(0, {0, 1}, 2)});
  std::vector<Reply> voided;
  h.shard().VoidOutdated(&voided);
  ASSERT_THAT(voided, SizeIs(1));
  h.Send({.member = 0, .values = {nan}, .samples = 4, .generation = 2});
  h.Send({.member = 1, .values = {6}, .samples = 3, .generation = 2});
  const auto workers = h.shard().staleness().workers();
  ASSERT_THAT(workers, SizeIs(2));
  EXPECT_EQ(workers[0].discarded, Samples(4));
  EXPECT_EQ(workers[1].applied, Samples(3));
}

TEST(Refused, WhatDoesNotFitIsABadRequest) {
  ShardHarness h(2, kSgd, {GroupOf(0, {0, 1})});
  const auto status = [&h](const Sent& sent) {
    const auto replies = h.Send(sent);
    return replies.size() == 1 ? replies[0].status : OperationStatus::kOk;
  };
  EXPECT_EQ(status({.values = {1}}), OperationStatus::kBadRequest);        // too short
  EXPECT_EQ(status({.values = {1, 2, 3}}), OperationStatus::kBadRequest);  // too long
  EXPECT_EQ(status({.values = {}}), OperationStatus::kBadRequest);         // samples without bytes
  EXPECT_EQ(status({.values = {1, 2}, .base = 5}), OperationStatus::kBadRequest);  // no such base
  for (const float rate :
       {-0.1f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(status({.values = {1, 2}, .learning_rate = rate}), OperationStatus::kBadRequest);
  }
  EXPECT_EQ(h.shard().open_rounds(), 0u);
}

TEST(Refused, APushBeforeTheOptimizer) {
  ShardHarness h(1, NamedSpec{}, {GroupOf(0, {0})});
  EXPECT_EQ(h.Send({.values = {1}})[0].status, OperationStatus::kNoOptimizer);
  EXPECT_EQ(h.Send({.kind = OperationKind::kReduce, .values = {1}})[0].status,
            OperationStatus::kOk);
}

TEST(Refused, APieceThatNamesAnotherStepThanTheOperationItContinues) {
  // In the next generation, from step 6 on, the sender has another position.
  ShardHarness h(2 * kPieceBytes / sizeof(float), kSgd, {GroupOf(0, {0, 1})});
  h.groups().Commit({GroupOf(0, {1}, 2, 6)});
  const std::vector<float> values(2 * kPieceBytes / sizeof(float), 1);
  Operation op = h.Header({.member = 1, .step = 5, .values = values});
  const auto bytes = std::as_bytes(std::span(values));
  EXPECT_THAT(h.SendBytes(op, bytes, {0}), SizeIs(0));
  op.step = Step(6);
  op.group_generation = GroupGeneration(2);
  const auto refused = h.SendBytes(op, bytes, {1});
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].status, OperationStatus::kBadRequest);
  // What it began is still there to be finished.
  op.step = Step(5);
  op.group_generation = GroupGeneration(1);
  EXPECT_THAT(h.SendBytes(op, bytes, {1}), SizeIs(0));
  EXPECT_THAT(h.Cover(0, 5), SizeIs(1));
  EXPECT_EQ(h.weights()[0], -1.0f);
}

// ---- Groups ---------------------------------------------------------------------------------

TEST(Groups, StalenessIsWhatTheOtherGroupsApplied) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0}), GroupOf(1, {1})});
  h.Send({.member = 0, .values = {1}, .group = 0, .base = 0});
  h.Send({.member = 1, .values = {1}, .group = 1, .base = 0});             // tau 1
  h.Send({.member = 0, .step = 1, .values = {1}, .group = 0, .base = 1});  // tau 1
  h.Send({.member = 0, .step = 2, .values = {1}, .group = 0, .base = 3});  // tau 0
  const auto groups = h.shard().staleness().groups();
  ASSERT_THAT(groups, SizeIs(2));
  EXPECT_THAT(groups[0].tau.buckets, ElementsAre(2, 1));
  EXPECT_EQ(groups[0].excess_sum, -2.0);
  EXPECT_EQ(groups[1].tau.sum, 1u);
}

TEST(Groups, AFenceVoidsOpenRoundsAndSurvivorsPushAgain) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1, 2})});
  h.Send({.member = 2, .values = {100}});  // dies after its contribution came
  EXPECT_THAT(h.Send({.member = 0, .values = {2}}), SizeIs(0));
  std::vector<Reply> replies;
  const NodeRef dead{NodeId(102), Incarnation(1)};
  h.groups().Fence(dead, {GroupOf(0, {0, 1}, 2)});
  h.shard().VoidOutdated(&replies);
  h.shard().Forget(dead);
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_EQ(replies[0].to.sender, NodeId(100));
  EXPECT_EQ(replies[0].status, OperationStatus::kOldGeneration);
  EXPECT_EQ(h.groups()
                .Admit(GroupId(0), GroupGeneration(1), Step(0), NodeId(102), Incarnation(1))
                .admission,
            Admission::kFenced);
  h.Send({.member = 0, .values = {2}, .generation = 2});
  EXPECT_THAT(h.Send({.member = 1, .values = {4}, .generation = 2}), SizeIs(2));
  EXPECT_THAT(h.weights(), ElementsAre(-3));
}

TEST(Groups, ALateCommitVoidsWhatWasBegunPastIt) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.member = 0, .step = 5, .values = {1}});
  h.groups().Commit({GroupOf(0, {0, 1, 2}, 2, 5)});
  std::vector<Reply> replies;
  h.shard().VoidOutdated(&replies);
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].status, OperationStatus::kOldGeneration);
  EXPECT_EQ(h.shard().open_rounds(), 0u);
}

TEST(Cut, HoldsLaterStepsUntilTheCopyIsMade) {
  ShardHarness h(1, kSgd, {GroupOf(0, {0, 1})});
  h.Send({.member = 0, .values = {2}});
  h.Send({.member = 1, .values = {2}});
  h.shard().Hold({{GroupId(0), Step(0)}});
  EXPECT_FALSE(h.shard().IsAtHold());  // members may push more in step 0
  h.Cover(0, 0);
  h.Cover(1, 0);
  EXPECT_TRUE(h.shard().IsAtHold());
  h.Send({.member = 0, .step = 1, .values = {4}, .base = 1});
  EXPECT_THAT(h.Send({.member = 1, .step = 1, .values = {4}, .base = 1}), SizeIs(0));
  EXPECT_EQ(h.shard().Copy().arrays[0].second, std::vector<float>{-2});
  std::vector<Reply> replies;
  h.shard().Release({}, &replies);
  EXPECT_THAT(replies, SizeIs(2));
  EXPECT_THAT(h.weights(), ElementsAre(-6));
}

TEST(SharedFloats, OnlyTheSoleOwnerWrites) {
  SharedFloats a(3);
  EXPECT_TRUE(a.unique());
  SharedFloats b = a;
  EXPECT_FALSE(a.unique());
  b = {};
  EXPECT_TRUE(a.unique());
  FloatPool pool(1 << 20);
  const float* const data = a.values().data();
  SharedFloats reader = a;
  pool.Give(std::move(a));
  EXPECT_NE(pool.Take(3).values().data(), data);  // someone still reads it
  reader = {};
  EXPECT_EQ(pool.Take(3).values().data(), data);
}

}  // namespace
}  // namespace paceline
