// Cuts, and returning to a checkpoint, as a shard thread sees them.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/job_shards.h"
#include "parameter/job_shards_test_util.h"

namespace paceline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr ChunkKey kFirst{TensorId(0), ChunkIndex(0)};
constexpr uint64_t kBytes = kMovedElements * sizeof(float);

class CutOfAnOwner : public testing::Test {
 protected:
  CutOfAnOwner() { owner_.Apply(PlanOfOwners({kA}, 1)); }

  Operation Of(OperationKind kind, uint32_t member, uint64_t step) {
    Operation op = OperationOf(kind, member, step, ++sequence_, kBytes);
    op.base = owner_.shards.shard(kFirst)->version();
    op.lineage = owner_.shards.plan()->lineage;
    return op;
  }
  std::span<const std::byte> Ones() { return std::as_bytes(std::span(ones_)); }
  void Update(uint64_t step) {
    for (uint32_t member : {0, 1}) owner_.Send(Of(OperationKind::kPush, member, step), Ones());
  }
  void Boundary(uint32_t member, uint64_t step, uint64_t unused) {
    Operation op = OperationOf(OperationKind::kBoundary, member, step, ++sequence_, 0);
    op.samples = Samples(unused);
    owner_.SendBoundary(op);
  }
  uint64_t Discarded(const std::vector<WorkerStaleness>& workers) {
    uint64_t samples = 0;
    for (const WorkerStaleness& worker : workers) samples += worker.discarded.value();
    return samples;
  }
  // What the scheduler sends an owner of a job that is to return to a checkpoint.
  static Plan Restoring(uint64_t generation, uint32_t lineage) {
    Plan plan = PlanOfOwners({kA}, generation);
    plan.restore_from = "/ckpt/one";
    plan.lineage = lineage;
    return plan;
  }
  void Load(uint32_t lineage, uint64_t count) {
    RestoredChunk chunk;
    chunk.key = kFirst;
    chunk.state.version = {0, count};
    chunk.state.updates = count;
    chunk.state.arrays.emplace_back("weights", std::vector<float>(kMovedElements, 5.0f));
    owner_.shards.Restore(lineage, {chunk}, Seconds(2), &owner_.replies);
  }

  Owner owner_{kA};
  const std::vector<float> ones_ = std::vector<float>(kMovedElements, 1.0f);
  uint64_t sequence_ = 0;
};

// Its hold was released meanwhile, and the chunk went on.
TEST_F(CutOfAnOwner, AChunkBeyondTheCutFailsIt) {
  Update(0);
  owner_.shards.CutCollect(Seconds(1), &owner_.replies);
  owner_.shards.CutAbort(absl::AbortedError("stream lost"), Seconds(1), &owner_.replies);
  Update(1);
  owner_.shards.CutCollect(Seconds(1), &owner_.replies);
  absl::Status status;
  owner_.shards.CutAt(
      {{GroupId(0), Step(0)}}, [&](auto copies) { status = copies.status(); }, Seconds(1),
      &owner_.replies);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "chunk 0 of tensor 0 has step 1 of group 0, which is beyond the cut; try again");
  owner_.replies.clear();
  Update(2);
  EXPECT_THAT(owner_.Statuses(), SizeIs(2)) << "nothing is held";
}

TEST_F(CutOfAnOwner, UnusedSamplesBeyondTheCutAreNotInIt) {
  Update(0);
  Boundary(0, 0, 0);
  Boundary(1, 0, 2);
  owner_.shards.CutCollect(Seconds(1), &owner_.replies);
  Boundary(0, 1, 7);  // it had nothing to push in step 1
  std::vector<WorkerStaleness> in_it;
  owner_.shards.CutAt(
      {{GroupId(0), Step(0)}}, [&](auto copies) { in_it = *copies->at(0).workers; }, Seconds(1),
      &owner_.replies);
  EXPECT_EQ(Discarded(in_it), 2u);
  EXPECT_EQ(Discarded(owner_.shards.Report().workers), 9u);
}

// All of its members go over to another group after step 1, whose round waits for the cut.
TEST_F(CutOfAnOwner, TheLastStepOfAGroupThatEndsGoesOnAfterTheCut) {
  Update(0);
  Boundary(0, 0, 0);
  Boundary(1, 0, 0);
  owner_.shards.CutCollect(Seconds(1), &owner_.replies);
  Update(1);
  owner_.replies.clear();
  GroupPlan ended = PlanOfOwners({kA}, 1).groups.front();
  ended.generation = ended.generation + GroupGeneration(1);
  ended.activation_step = Step(2);
  ended.members.clear();
  CommitDirective commit;
  commit.groups = {ended};
  owner_.shards.Commit(commit, Seconds(1), &owner_.replies);
  EXPECT_THAT(owner_.Statuses(), IsEmpty()) << "it is held";
  absl::Status copied = absl::UnknownError("not yet");
  owner_.shards.CutAt(
      {{GroupId(0), Step(0)}}, [&](auto copies) { copied = copies.status(); }, Seconds(1),
      &owner_.replies);
  EXPECT_TRUE(copied.ok()) << copied;
  EXPECT_THAT(owner_.Statuses(), SizeIs(2));
}

// Its members are gone, and what one of them would have said last was lost.
TEST_F(CutOfAnOwner, OfAGroupThatEndedNobodyIsAwaited) {
  Update(0);
  Boundary(0, 0, 0);
  GroupPlan ended = PlanOfOwners({kA}, 1).groups.front();
  ended.generation = ended.generation + GroupGeneration(1);
  ended.activation_step = Step(1);
  ended.members.clear();
  CommitDirective commit;
  commit.groups = {ended};
  owner_.shards.Commit(commit, Seconds(1), &owner_.replies);
  owner_.shards.CutCollect(Seconds(1), &owner_.replies);
  absl::Status copied = absl::UnknownError("not yet");
  owner_.shards.CutAt(
      {{GroupId(0), Step(uint64_t{1} << 40)}}, [&](auto copies) { copied = copies.status(); },
      Seconds(1), &owner_.replies);
  EXPECT_TRUE(copied.ok()) << copied;
}

// A Reduce has no version that tells its pieces from those of a push of the lineage before.
TEST_F(CutOfAnOwner, AReduceThatHasComeInPartWhenTheJobReturnsIsAnswered) {
  const Operation op = Of(OperationKind::kReduce, 0, 0);
  const std::vector<Piece> pieces = PiecesOf(Ones());
  ASSERT_THAT(pieces, SizeIs(4));
  owner_.Send(op, pieces[0]);
  owner_.Send(op, pieces[1]);
  owner_.Apply(Restoring(2, 1));
  owner_.Send(op, pieces[2]);
  EXPECT_THAT(owner_.Statuses(), IsEmpty());
  owner_.Send(op, pieces[3]);
  EXPECT_THAT(owner_.Statuses(), ElementsAre(OperationStatus::kOldGeneration));
  Load(1, 4);
  Operation again = Of(OperationKind::kReduce, 0, 0);
  owner_.Send(again, Ones());
  owner_.Send(Of(OperationKind::kReduce, 1, 0), Ones());
  EXPECT_THAT(owner_.Statuses(), ElementsAre(OperationStatus::kOk, OperationStatus::kOk));
}

// The other member may have had its answers before, and wait in another round of this step.
TEST_F(CutOfAnOwner, OneThatHasNotAdoptedTheNewLineageWaitsForNobody) {
  Update(0);
  owner_.Apply(Restoring(2, 1));
  Load(1, 4);
  owner_.replies.clear();
  Operation nothing = Of(OperationKind::kPushPull, 0, 1);
  nothing.samples = Samples(0);
  nothing.total_bytes = 0;
  Operation sum = Of(OperationKind::kReduce, 0, 1);
  sum.ordinal = Ordinal(1);
  // It has fetched these weights already, but not all.
  Operation push = Of(OperationKind::kPush, 0, 1);
  push.ordinal = Ordinal(2);
  nothing.lineage = sum.lineage = push.lineage = 0;
  owner_.Send(nothing, Piece{});
  owner_.Send(sum, Ones());
  owner_.Send(push, Ones());
  EXPECT_THAT(owner_.Statuses(),
              ElementsAre(OperationStatus::kDiscarded, OperationStatus::kDiscarded,
                          OperationStatus::kDiscarded));
  Operation end = OperationOf(OperationKind::kBoundary, 0, 1, ++sequence_, 0);
  end.samples = Samples(3);
  owner_.SendBoundary(end);
  EXPECT_EQ(Discarded(owner_.shards.Report().workers), 0u) << "the scheduler counts it";
  owner_.replies.clear();
  nothing.lineage = 1;
  nothing.step = nothing.origin_step = Step(2);
  nothing.sequence = Sequence(++sequence_);
  owner_.Send(nothing, Piece{});
  EXPECT_THAT(owner_.Statuses(), IsEmpty()) << "of the new one it takes part in the round";
}

TEST_F(CutOfAnOwner, CountsOfTheLineageBeforeAreNotReportedAsOfTheNew) {
  Update(0);
  ASSERT_EQ(owner_.shards.Report().updates, 1u);
  owner_.Apply(Restoring(2, 1));
  EXPECT_EQ(owner_.shards.Report().lineage, 1u);
  EXPECT_EQ(owner_.shards.Report().updates, 0u);
  EXPECT_THAT(owner_.shards.Report().workers, IsEmpty());
}

// A job that resumed registers more tensors, after one of its chunks has moved.
TEST_F(CutOfAnOwner, AChunkThatWasLoadedBeforeItMovedIsNotLoadedAgain) {
  owner_.Apply(Restoring(2, 1));
  Load(1, 4);
  Update(0);
  Owner b(kB);
  Plan moved = PlanOfMove({kB}, 3, 7, {{kFirst, kA, kB}});
  moved.lineage = 1;
  owner_.Apply(moved);
  b.Apply(moved);
  const std::vector<std::byte> bytes = Encode(owner_.given.at(0).state);
  b.Send(MoveOperation(owner_.given[0], kA, bytes), bytes);
  ASSERT_NE(b.shards.shard(kFirst), nullptr);
  Plan more = Restoring(4, 1);
  more.tensors[0].owners = {kB};
  b.Apply(more);
  EXPECT_THAT(b.shards.AwaitingRestore(), IsEmpty());
  EXPECT_THAT(b.shards.shard(kFirst)->weights(), Each(4.0f)) << "one update since";
}

}  // namespace
}  // namespace paceline
