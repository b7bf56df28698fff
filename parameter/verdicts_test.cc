// Verdicts on pushes: a quorum closes a round, late contributions are carried or dropped, an owner
// asks the lead.
#include "parameter/verdicts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/shard_test_util.h"

namespace paceline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const NamedSpec kSgd{"sgd", {{"learning_rate", 1}}};
constexpr GroupId kGroup(0);

NodeRef Ref(uint32_t number) { return RefOf(MemberNumber(number)); }
PushKey Push(uint64_t step) { return {kGroup, Step(step)}; }

// ---- At the lead chunk --------------------------------------------------------------------------

class QuorumTest : public testing::Test {
 protected:
  QuorumTest() { lead_.UseQuorum(3); }

  // The gradient `value` of one sample of member `number`, computed in step `origin`.
  std::vector<Reply> Push(uint32_t number, uint64_t step, float value, uint64_t origin = 0) {
    return lead_.Send({.member = number,
                       .step = step,
                       .values = {value, value},
                       .base = lead_.shard().version().count,
                       .origin = origin == 0 ? step : origin});
  }
  const WorkerStaleness& CountsOf(uint32_t number) {
    counts_ = lead_.shard().staleness().workers();
    return *std::find_if(counts_.begin(), counts_.end(), [number](const WorkerStaleness& w) {
      return w.worker == NodeId(100 + number);
    });
  }

  ShardHarness lead_{2, kSgd, {GroupOf(0, {0, 1, 2, 3})}};
  std::vector<WorkerStaleness> counts_;
};

TEST_F(QuorumTest, ThreeOfFourCloseTheRoundAndDivideByTheirSamples) {
  EXPECT_THAT(Push(0, 1, 6), IsEmpty());
  EXPECT_THAT(Push(3, 1, 2), IsEmpty());
  const std::vector<Reply> replies = Push(1, 1, 4);
  ASSERT_THAT(replies, SizeIs(3));
  for (const Reply& reply : replies) {
    EXPECT_EQ(reply.status, OperationStatus::kOk);
    EXPECT_EQ(reply.samples, Samples(3));
    EXPECT_THAT(ValuesOf(reply), ElementsAre(-4.0f, -4.0f));  // (6 + 2 + 4) / 3
  }
  EXPECT_EQ(lead_.verdicts().Find({kGroup, Step(1)})->reason, "quorum: the first 3 of 4 members");
}

TEST_F(QuorumTest, WithNormalizationSumTheMembersInTheSumScaleIt) {
  ShardHarness lead(1, kSgd, {GroupOf(0, {0, 1, 2, 3})}, Normalization::kSum);
  lead.UseQuorum(3);
  for (uint32_t number = 0; number < 3; ++number) {
    lead.Send({.member = number, .step = 1, .values = {3}});
  }
  EXPECT_THAT(lead.weights(), ElementsAre(-12.0f));  // 9 x 4 / 3
}

TEST_F(QuorumTest, ALateGradientIsInTheNextRound) {
  for (uint32_t number = 0; number < 3; ++number) Push(number, 1, 3);  // weights -3
  const std::vector<Reply> late = Push(3, 1, 12);
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].status, OperationStatus::kLate);
  EXPECT_EQ(late[0].open_step, Step(2));
  EXPECT_EQ(late[0].values.size(), 0u);
  EXPECT_THAT(Push(3, 2, 12, 1), IsEmpty());
  EXPECT_THAT(Push(0, 2, 3), IsEmpty());
  EXPECT_THAT(Push(1, 2, 3), SizeIs(3));
  EXPECT_THAT(lead_.weights(), Each(-9.0f));  // -3 - (12 + 3 + 3) / 3
  EXPECT_EQ(CountsOf(3).carried, 1u);
  EXPECT_EQ(CountsOf(3).applied, Samples(1));
  EXPECT_EQ(CountsOf(3).discarded, Samples(0));
  EXPECT_EQ(CountsOf(0).carried, 0u);
}

TEST_F(QuorumTest, WhatWasAppliedOnceIsNeverAppliedAgain) {
  for (uint32_t number = 0; number < 3; ++number) Push(number, 1, 3);
  Push(3, 1, 12);
  for (uint32_t number : {3, 0, 1}) Push(number, 2, 3, number == 3 ? 1 : 2);
  const std::vector<float> weights = lead_.weights();
  const auto again = [&](uint64_t step, uint64_t sequence, uint64_t acknowledged) {
    return lead_.Send({.member = 3,
                       .step = step,
                       .values = {12, 12},
                       .base = 1,
                       .sequence = sequence,
                       .acknowledged = acknowledged,
                       .origin = 1});
  };
  const std::vector<Reply> kept = again(2, 8, 0);
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(kept[0].status, OperationStatus::kOk);
  EXPECT_THAT(again(1, 1, 0), IsEmpty()) << "an attempt that it has given up";
  const std::vector<Reply> anew = again(3, 9, 8);
  ASSERT_THAT(anew, SizeIs(1));
  EXPECT_EQ(anew[0].status, OperationStatus::kDiscarded);
  EXPECT_EQ(lead_.weights(), weights);
  EXPECT_EQ(CountsOf(3).applied, Samples(1));
}

TEST_F(QuorumTest, DroppedItIsCountedOnce) {
  lead_.UseQuorum(3, Late::kDrop);
  for (uint32_t number = 0; number < 3; ++number) Push(number, 1, 3);
  for (uint64_t sequence : {1, 2}) {
    const std::vector<Reply> late = lead_.Send(
        {.member = 3, .step = 1, .values = {12, 12}, .samples = 5, .sequence = sequence});
    ASSERT_THAT(late, SizeIs(1));
    EXPECT_EQ(late[0].status, OperationStatus::kDiscarded);
    EXPECT_EQ(late[0].open_step, Step(2));
  }
  EXPECT_EQ(CountsOf(3).discarded, Samples(5));
  EXPECT_EQ(CountsOf(3).dropped, 1u);
  EXPECT_THAT(lead_.weights(), Each(-3.0f));
}

// Carried alone it would be all that its sender brings to that step.
TEST_F(QuorumTest, WhereGradientsAreDroppedALateReduceIsTooAndCountsNothing) {
  lead_.UseQuorum(3, Late::kDrop);
  const auto reduce = [&](uint32_t number) {
    return lead_.Send(
        {.kind = OperationKind::kReduce, .member = number, .step = 1, .values = {1, 1}});
  };
  for (uint32_t number = 0; number < 2; ++number) EXPECT_THAT(reduce(number), IsEmpty());
  ASSERT_THAT(reduce(2), SizeIs(3));
  const std::vector<Reply> late = reduce(3);
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].status, OperationStatus::kDiscarded);
  EXPECT_EQ(late[0].open_step, Step(2));
  EXPECT_THAT(lead_.shard().staleness().workers(), IsEmpty());
}

TEST_F(QuorumTest, APartThatIsStillComingIsLeftOut) {
  const std::vector<float> ones(100'000, 1.0f);  // two pieces
  ShardHarness lead(ones.size(), kSgd, {GroupOf(0, {0, 1, 2, 3})});
  lead.UseQuorum(3);
  EXPECT_THAT(lead.Send({.member = 3, .step = 1, .values = ones}, {0}), IsEmpty());
  for (uint32_t number = 0; number < 2; ++number) {
    lead.Send({.member = number, .step = 1, .values = ones});
  }
  ASSERT_THAT(lead.Send({.member = 2, .step = 1, .values = ones}), SizeIs(3));
  EXPECT_THAT(lead.weights(), Each(-1.0f));
  const std::vector<Reply> late =
      lead.Send({.member = 3, .step = 1, .values = ones, .sequence = 1}, {1});
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].status, OperationStatus::kLate);
  EXPECT_EQ(lead.shard().open_rounds(), 0u);
}

TEST_F(QuorumTest, ASmallerGroupNeedsAllOfIt) {
  lead_.groups().Fence({NodeId(103), Incarnation(1)}, {GroupOf(0, {0, 1}, 2)});
  const auto push = [&](uint32_t number) {
    return lead_.Send({.member = number, .step = 1, .values = {2, 2}, .generation = 2});
  };
  EXPECT_THAT(push(0), IsEmpty());
  EXPECT_THAT(push(1), SizeIs(2));
}

TEST_F(QuorumTest, WhatWasNotDecidedBeforeALaterPushIsOver) {
  EXPECT_THAT(Push(3, 1, 1), IsEmpty());
  for (uint32_t number = 0; number < 2; ++number) Push(number, 2, 1);
  const std::vector<Reply> replies = Push(2, 2, 1);
  EXPECT_THAT(replies, SizeIs(3));
  std::vector<Reply> late;
  lead_.shard().OnCovered(kGroup, Seconds(1), &late);
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].status, OperationStatus::kLate);
  EXPECT_EQ(late[0].open_step, Step(3));
}

// ---- Another owner is first ---------------------------------------------------------------------

TEST_F(QuorumTest, AVerdictThatAnotherOwnerAskedForBinds) {
  Push(3, 1, 100);
  ASSERT_TRUE(lead_.verdicts().Ask({{kGroup, Step(1)}, {Ref(0), Ref(1), Ref(2)}, Samples(3)}, {}));
  ASSERT_THAT(lead_.verdicts().TakeAnswers(), SizeIs(1));
  std::vector<Reply> late;
  lead_.shard().OnCovered(kGroup, Seconds(1), &late);
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].status, OperationStatus::kLate);
  EXPECT_THAT(Push(0, 1, 3), IsEmpty());
  EXPECT_THAT(Push(1, 1, 3), IsEmpty());
  EXPECT_THAT(Push(2, 1, 3), SizeIs(3));
  EXPECT_THAT(lead_.weights(), Each(-3.0f));
}

TEST_F(QuorumTest, ADeathUnderADecisionIsRedoneUnderIt) {
  ASSERT_TRUE(lead_.verdicts().Ask({{kGroup, Step(1)}, {Ref(0), Ref(1), Ref(2)}, Samples(3)}, {}));
  EXPECT_THAT(Push(0, 1, 5), IsEmpty());
  lead_.groups().Fence({NodeId(102), Incarnation(1)}, {GroupOf(0, {0, 1, 3}, 2)});
  std::vector<Reply> replies;
  lead_.shard().VoidOutdated(&replies);
  lead_.verdicts().OnGroupsChanged();
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].status, OperationStatus::kOldGeneration);
  const auto push = [&](uint32_t number, float value) {
    return lead_.Send({.member = number, .step = 1, .values = {value, value}, .generation = 2});
  };
  const std::vector<Reply> late = push(3, 100);
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].status, OperationStatus::kLate);
  EXPECT_THAT(push(0, 5), IsEmpty());
  EXPECT_THAT(push(1, 7), SizeIs(2));
  EXPECT_THAT(lead_.weights(), Each(-6.0f));  // (5 + 7) / 2
}

TEST_F(QuorumTest, TheNextLeadKnowsWhatWasDecided) {
  for (uint32_t number = 0; number < 3; ++number) Push(number, 1, 3);
  ShardHarness next(2, kSgd, {GroupOf(0, {0, 1, 2, 3})});
  next.UseQuorum(3);
  std::vector<Reply> replies;
  Handover handover = lead_.shard().HandOver(&replies);
  handover.verdicts = lead_.verdicts().HandOver();
  absl::StatusOr<Handover> state = DecodeHandover(Encode(handover), 2);
  ASSERT_TRUE(state.ok()) << state.status();
  next.verdicts().TakeOver(state->verdicts);
  ASSERT_TRUE(next.shard().TakeOver(*std::move(state)).ok());
  const std::vector<Reply> late = next.Send({.member = 3, .step = 1, .values = {9, 9}, .base = 0});
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].status, OperationStatus::kLate);
  EXPECT_EQ(late[0].open_step, Step(2));
}

// ---- Elsewhere ----------------------------------------------------------------------------------

class AskerTest : public testing::Test {
 protected:
  AskerTest() {
    groups_.ApplyPlan({GroupOf(0, {0, 1, 2, 3})});
    spec_.quorum = 3;
    asker_.Configure(spec_, false);
  }
  GroupTable groups_;
  JobSpec spec_;
  Verdicts asker_{&groups_};
};

TEST_F(AskerTest, AsksOnceAndAgainWhenMoreAreDoneOrTheLeadIsAnother) {
  const std::vector<NodeRef> three{Ref(0), Ref(1), Ref(2)};
  asker_.Offer(Push(4), three, Samples(3));
  EXPECT_THAT(asker_.TakeQuestions(), ElementsAre(VerdictQuestion{Push(4), three, Samples(3)}));
  asker_.Offer(Push(4), three, Samples(3));
  EXPECT_THAT(asker_.TakeQuestions(), IsEmpty());
  asker_.Offer(Push(4), {Ref(0), Ref(1), Ref(2), Ref(3)}, Samples(4));
  EXPECT_THAT(asker_.TakeQuestions(), SizeIs(1));
  asker_.OnLeadChanged();
  EXPECT_THAT(asker_.TakeQuestions(), SizeIs(1));
  asker_.Learn({Push(4), false, {three, Samples(3), 1.0, "quorum"}, {{Ref(3), Step(9)}}});
  EXPECT_THAT(asker_.TakeNews(), ElementsAre(kGroup));
  EXPECT_EQ(asker_.FateOf(Push(4), Ref(0)), Fate::kIn);
  EXPECT_EQ(asker_.FateOf(Push(4), Ref(3)), Fate::kOut);
  EXPECT_EQ(asker_.NextFor(Push(4), Ref(3)), Step(9)) << "as the lead said";
  asker_.OnLeadChanged();
  EXPECT_THAT(asker_.TakeQuestions(), IsEmpty());
}

// A push may have been decided with one that is dead by now: two of three are all of it.
TEST_F(AskerTest, AsksBeforeAQuorumOnceAndAgainWithOne) {
  asker_.Offer(Push(4), {Ref(0)}, Samples(1));
  EXPECT_THAT(asker_.TakeQuestions(), SizeIs(1));
  asker_.Offer(Push(4), {Ref(0), Ref(1)}, Samples(2));
  EXPECT_THAT(asker_.TakeQuestions(), IsEmpty());
  asker_.Offer(Push(4), {Ref(0), Ref(1), Ref(2)}, Samples(3));
  EXPECT_THAT(asker_.TakeQuestions(), SizeIs(1));
  // At the lead the same is no decision yet.
  asker_.Configure(spec_, true);
  asker_.Offer(Push(5), {Ref(0), Ref(1)}, Samples(2));
  EXPECT_EQ(asker_.Find(Push(5)), nullptr);
}

TEST_F(AskerTest, WhenItsMembersArePastItNobodyElseIsInIt) {
  asker_.Learn({Push(4), false, {{Ref(0), Ref(1)}, Samples(3), 1.0, "quorum"}, {}});
  for (uint32_t number = 0; number < 2; ++number) {
    EXPECT_FALSE(asker_.IsOver(Push(4)));
    groups_.Cover(kGroup, NodeId(100 + number), Incarnation(1), Step(4));
    asker_.Prune(kGroup);
  }
  EXPECT_TRUE(asker_.IsOver(Push(4)));
  EXPECT_EQ(asker_.FateOf(Push(4), Ref(3)), Fate::kOut);
  EXPECT_EQ(asker_.FateOf(Push(5), Ref(3)), Fate::kUndecided);
}

TEST_F(AskerTest, BecomesTheLeadAndDecidesWhatItHadAskedFor) {
  asker_.Offer(Push(4), {Ref(0), Ref(1), Ref(2)}, Samples(3));
  asker_.Configure(spec_, true);
  asker_.OnLeadChanged();
  EXPECT_EQ(asker_.FateOf(Push(4), Ref(3)), Fate::kOut);
}

TEST_F(AskerTest, AVerdictIsKeptUntilItsMembersArePastTheStep) {
  asker_.Configure(spec_, true);
  asker_.Offer(Push(4), {Ref(0), Ref(1), Ref(2)}, Samples(3));
  for (uint32_t number = 0; number < 3; ++number) {
    EXPECT_NE(asker_.Find(Push(4)), nullptr);
    groups_.Cover(kGroup, NodeId(100 + number), Incarnation(1), Step(4));
    asker_.Prune(kGroup);
  }
  EXPECT_EQ(asker_.Find(Push(4)), nullptr);
  EXPECT_TRUE(asker_.IsOver(Push(4)));
  EXPECT_EQ(asker_.NextFor(Push(2), Ref(3)), Step(5));
  // Who asks now learns that it is over, and where to go on.
  ASSERT_TRUE(asker_.Ask({Push(2), {Ref(0), Ref(1), Ref(3)}, Samples(3)}, {}));
  const std::vector<Verdicts::Answer> answers = asker_.TakeAnswers();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_TRUE(answers[0].answer.over);
  EXPECT_THAT(answers[0].answer.open, ElementsAre(std::pair(Ref(3), Step(5))));
}

TEST_F(AskerTest, AQuestionWaitsForAGroupThatTheLeadKnowsLater) {
  asker_.Configure(spec_, true);
  // The asker knows that 2 and 3 are dead: two are all.
  ASSERT_TRUE(asker_.Ask({Push(4), {Ref(0), Ref(1)}, Samples(2)}, {}));
  EXPECT_THAT(asker_.TakeAnswers(), IsEmpty());
  groups_.Fence(Ref(3), {GroupOf(0, {0, 1}, 2)});
  asker_.OnGroupsChanged();
  const std::vector<Verdicts::Answer> answers = asker_.TakeAnswers();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_THAT(answers[0].answer.verdict.members, ElementsAre(Ref(0), Ref(1)));
  EXPECT_EQ(answers[0].answer.verdict.reason, "all members");
}

// ---- Bytes --------------------------------------------------------------------------------------

TEST(VerdictTest, QuestionsAndAnswersComeThroughTheirBytes) {
  const VerdictQuestion question{Push(7), {Ref(0), Ref(3)}, Samples(64)};
  const absl::StatusOr<VerdictQuestion> asked = DecodeQuestion(Encode(question));
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(*asked, question);
  const VerdictAnswer answer{
      Push(7), false, {{Ref(0), Ref(3)}, Samples(64), 0.5, "why"}, {{Ref(1), Step(12)}}};
  const absl::StatusOr<VerdictAnswer> told = DecodeAnswer(Encode(answer));
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(*told, answer);
}

TEST(VerdictTest, DamagedBytesAreRefusedEverywhere) {
  const std::vector<std::byte> question = Encode(VerdictQuestion{Push(7), {Ref(0)}, Samples(64)});
  for (size_t size = 0; size < question.size(); ++size) {
    EXPECT_FALSE(DecodeQuestion(std::span(question).first(size)).ok()) << size;
  }
  const std::vector<std::byte> answer =
      Encode(VerdictAnswer{Push(7), false, {{Ref(0)}, Samples(1), 1.0, "why"}, {}});
  for (size_t size = 0; size < answer.size(); ++size) {
    EXPECT_FALSE(DecodeAnswer(std::span(answer).first(size)).ok()) << size;
  }
  EXPECT_FALSE(DecodeQuestion(Encode(VerdictQuestion{Push(7), {Ref(3), Ref(0)}, {}})).ok())
      << "members out of order";
}

}  // namespace
}  // namespace paceline
