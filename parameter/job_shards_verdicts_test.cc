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

constexpr ChunkKey kFirst{TensorId(0), ChunkIndex(0)};
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

}  // namespace
}  // namespace paceline
