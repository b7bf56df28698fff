// Verdicts as the shard threads of owners come to them: plans, contributions and cuts in any order.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/job_shards_test_util.h"

namespace paceline {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr ChunkKey kFirst{TensorId(0), ChunkIndex(0)};  // the lead chunk
constexpr GroupId kGroup(0);

// Rounds of members 0 to 3 that three of them close.
Plan QuorumPlan(std::vector<NodeId> owners, uint64_t generation = 1) {
  Plan plan = PlanOfOwners(std::move(owners), generation);
  plan.spec.quorum = 3;
  plan.groups = {GroupOf(0, {0, 1, 2, 3})};
  return plan;
}

class QuorumOwner : public testing::Test {
 protected:
  // The replies that it gave rise to, to the numbers of their members.
  std::vector<std::pair<uint32_t, OperationStatus>> Push(Owner& owner, uint32_t member,
                                                         uint64_t step, uint64_t origin = 0) {
    Operation op =
        OperationOf(OperationKind::kPush, member, step, ++sequence_, ones_.size() * sizeof(float));
    op.origin_step = Step(origin == 0 ? step : origin);
    op.base = owner.shards.shard(kFirst)->version();
    op.lineage = owner.shards.plan()->lineage;
    owner.Send(op, std::as_bytes(std::span(ones_)));
    std::vector<std::pair<uint32_t, OperationStatus>> answers;
    for (const Reply& reply : std::exchange(owner.replies, {})) {
      answers.emplace_back(reply.to.sender.value() - 100, reply.status);
    }
    return answers;
  }
  void End(Owner& owner, uint32_t member, uint64_t step) {
    owner.SendBoundary(OperationOf(OperationKind::kBoundary, member, step, ++sequence_, 0));
    std::erase_if(owner.replies,
                  [](const Reply& r) { return r.to.kind == OperationKind::kBoundary; });
  }
  // Begins a cut at what is applied; `copies_` are set when it is made.
  void Cut(Owner& owner) {
    const std::map<GroupId, Step> steps = owner.shards.CutCollect(Seconds(1), &owner.replies);
    owner.shards.CutAt(
        steps, [this](absl::StatusOr<std::vector<ChunkSnapshot>> copies) { copies_ = copies; },
        Seconds(1), &owner.replies);
  }

  const std::vector<float> ones_ = std::vector<float>(kMovedElements, 1.0f);
  std::optional<absl::StatusOr<std::vector<ChunkSnapshot>>> copies_;
  uint64_t sequence_ = 0;
};

// ---- Cuts ---------------------------------------------------------------------------------------

class QuorumCut : public QuorumOwner {
 protected:
  QuorumCut() {
    a_.Apply(QuorumPlan({kA}));
    for (uint32_t member : {0, 1}) Push(a_, member, 1);
    EXPECT_THAT(Push(a_, 2, 1), SizeIs(3));
  }
  Owner a_{kA};
};

// It is in the push of step 1, and stops before it says that its step is over.
TEST_F(QuorumCut, ThreeThatArePastTheStepAreEnough) {
  for (uint32_t member : {0, 1}) End(a_, member, 1);
  Cut(a_);
  EXPECT_FALSE(copies_.has_value()) << "two can do nothing without a third";
  for (uint32_t member : {0, 1}) EXPECT_THAT(Push(a_, member, 2), IsEmpty());
  EXPECT_FALSE(copies_.has_value());
  End(a_, 3, 1);
  ASSERT_TRUE(copies_.has_value());
  ASSERT_TRUE(copies_->ok());
  ASSERT_THAT(**copies_, SizeIs(1));
  EXPECT_EQ((**copies_)[0].state.version.count, 1u);
  EXPECT_THAT(Push(a_, 3, 2),
              UnorderedElementsAre(Pair(0, OperationStatus::kOk), Pair(1, OperationStatus::kOk),
                                   Pair(3, OperationStatus::kOk)));
}

TEST_F(QuorumCut, OneThatIsLateAndCarriedIntoAHeldStepIsPastThoseBefore) {
  for (uint32_t member : {0, 1}) End(a_, member, 1);
  Cut(a_);
  for (uint32_t member : {0, 1}) EXPECT_THAT(Push(a_, member, 2), IsEmpty());
  EXPECT_THAT(Push(a_, 3, 2, 1),
              UnorderedElementsAre(Pair(0, OperationStatus::kOk), Pair(1, OperationStatus::kOk),
                                   Pair(3, OperationStatus::kOk)));
  ASSERT_TRUE(copies_.has_value());
  ASSERT_TRUE(copies_->ok());
  EXPECT_EQ((**copies_)[0].state.version.count, 1u) << "before the step that it was carried into";
}

// More of the step may come from each of them.
TEST_F(QuorumCut, WhoIsLeftOutIsNoneOfThose) {
  End(a_, 0, 1);
  Cut(a_);
  EXPECT_FALSE(copies_.has_value());
  End(a_, 1, 1);
  EXPECT_FALSE(copies_.has_value());
  End(a_, 2, 1);
  ASSERT_TRUE(copies_.has_value());
  EXPECT_TRUE(copies_->ok());
}

// ---- Leads --------------------------------------------------------------------------------------

class QuorumAsker : public QuorumOwner {
 protected:
  QuorumAsker() {
    b_.shards.OnQuestion([this](OutgoingQuestion question) { asked_.push_back(question); });
  }
  // The lead chunk is at `lead`, the second one here.
  static Plan PlanWithLead(NodeId lead, uint64_t generation) {
    return QuorumPlan({lead, kB}, generation);
  }
  void PushHere(uint32_t member, uint64_t step) {
    Operation op =
        OperationOf(OperationKind::kPush, member, step, ++sequence_, ones_.size() * sizeof(float));
    op.chunk = kSecond;
    op.base = b_.shards.shard(kSecond)->version();
    op.lineage = b_.shards.plan()->lineage;
    b_.Send(op, std::as_bytes(std::span(ones_)));
  }
  static std::vector<std::byte> VerdictOn(uint64_t step, const std::vector<uint32_t>& members) {
    VerdictAnswer answer{{kGroup, Step(step)}, false, {{}, Samples(3), 1.0, "quorum"}, {}};
    for (uint32_t member : members) answer.verdict.members.push_back(RefOf(MemberNumber(member)));
    return Encode(answer);
  }

  static constexpr ChunkKey kSecond{TensorId(0), ChunkIndex(1)};
  Owner b_{kB};
  std::vector<OutgoingQuestion> asked_;
};

TEST_F(QuorumAsker, ALeadThatStartedAgainElsewhereIsAskedAgain) {
  Plan plan = PlanWithLead(kA, 1);
  plan.servers[0].data_address = "host:1";
  plan.servers[0].incarnation = Incarnation(1);
  b_.Apply(plan);
  for (uint32_t member : {0, 1, 2}) PushHere(member, 1);
  ASSERT_THAT(asked_, SizeIs(1));
  EXPECT_EQ(asked_[0].lead.owner.data_address, "host:1");
  plan.generation = JobGeneration(2);
  b_.Apply(plan);
  EXPECT_THAT(asked_, SizeIs(1)) << "it waits for its answer";
  plan.generation = JobGeneration(3);
  plan.servers[0].data_address = "host:2";
  plan.servers[0].incarnation = Incarnation(2);
  b_.Apply(plan);
  ASSERT_THAT(asked_, SizeIs(2));
  EXPECT_EQ(asked_[1].lead.owner.data_address, "host:2");
  EXPECT_EQ(asked_[1].push, asked_[0].push);
}

// ---- A return to a checkpoint -------------------------------------------------------------------

Plan ReturnedTo(Plan plan, uint64_t generation) {
  plan.generation = JobGeneration(generation);
  plan.lineage = 1;
  plan.restore_from = "/checkpoint";
  return plan;
}

void Load(Owner& owner, ChunkKey key) {
  RestoredChunk chunk{key, owner.shards.shard(key)->Copy()};
  owner.shards.Restore(1, {chunk}, Seconds(1), &owner.replies);
}

class QuorumLead : public QuorumOwner {
 protected:
  QuorumLead() { a_.Apply(QuorumPlan({kA})); }
  // Another owner asks about step 1, of which it has what `members` contribute.
  void Ask(uint64_t generation, uint32_t lineage, const std::vector<uint32_t>& members) {
    VerdictQuestion question{{kGroup, Step(1)}, {}, Samples(members.size())};
    for (uint32_t member : members) question.done.push_back(RefOf(MemberNumber(member)));
    const std::vector<std::byte> bytes = Encode(question);
    Operation ask = OperationOf(OperationKind::kVerdict, 0, 1, ++sequence_, bytes.size());
    ask.job_generation = JobGeneration(generation);
    ask.base.lineage = lineage;
    a_.Send(ask, bytes);
  }
  Owner a_{kA};
};

TEST_F(QuorumLead, AfterAReturnItDecidesAnew) {
  Ask(1, 0, {0, 1, 2});
  EXPECT_EQ(a_.Statuses(), std::vector{OperationStatus::kOk});
  a_.Apply(ReturnedTo(QuorumPlan({kA}), 2));
  Load(a_, kFirst);
  for (uint32_t member : {3, 1}) EXPECT_THAT(Push(a_, member, 1), IsEmpty());
  EXPECT_THAT(Push(a_, 0, 1), SizeIs(3)) << "other three, as if nothing had been";
}

TEST_F(QuorumLead, AfterAReturnItAnswersNoQuestionOfBefore) {
  Ask(1, 0, {0});
  EXPECT_THAT(a_.replies, IsEmpty()) << "one is no quorum";
  a_.Apply(ReturnedTo(QuorumPlan({kA}), 2));
  EXPECT_EQ(a_.Statuses(), std::vector{OperationStatus::kNotOwner});
  Ask(1, 0, {0});
  EXPECT_EQ(a_.Statuses(), std::vector{OperationStatus::kNotOwner}) << "it was on its way";
  Ask(2, 1, {0});
  EXPECT_THAT(a_.replies, IsEmpty());
}

TEST_F(QuorumAsker, AnAskerThatReturnsForgetsWhatItHeard) {
  b_.Apply(PlanWithLead(kA, 1));
  for (uint32_t member : {0, 1, 2}) PushHere(member, 1);
  b_.shards.OnVerdict(0, VerdictOn(1, {0, 1, 3}), Seconds(1), &b_.replies);
  EXPECT_NE(b_.shards.verdicts().Find({kGroup, Step(1)}), nullptr);
  // The owner of the lead chunk is lost; another has it now.
  b_.Apply(ReturnedTo(PlanWithLead(kC, 1), 2));
  EXPECT_EQ(b_.shards.verdicts().Find({kGroup, Step(1)}), nullptr);
  b_.shards.OnVerdict(0, VerdictOn(1, {0, 1, 3}), Seconds(1), &b_.replies);
  EXPECT_EQ(b_.shards.verdicts().Find({kGroup, Step(1)}), nullptr) << "it was on its way";
  Load(b_, kSecond);
  b_.replies.clear();
  asked_.clear();
  for (uint32_t member : {0, 1, 2}) PushHere(member, 1);
  ASSERT_THAT(asked_, SizeIs(1));
  EXPECT_EQ(asked_[0].lead.owner.node, kC);
  EXPECT_EQ(asked_[0].lead.lineage, 1u);
  b_.shards.OnVerdict(1, VerdictOn(1, {0, 1, 2}), Seconds(1), &b_.replies);
  EXPECT_THAT(b_.replies, SizeIs(3));
}

}  // namespace
}  // namespace paceline
