// Chunks between owners as their shard threads see it: plans and pieces in any order.
#include "parameter/job_shards.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/job_shards_test_util.h"

namespace paceline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr ChunkKey kFirst{TensorId(0), ChunkIndex(0)};

class MovedChunk : public testing::Test {
 protected:
  MovedChunk() {
    a_.Apply(PlanOfOwners({kA}, 1));
    b_.Apply(PlanOfOwners({kA}, 1));
  }

  // One update of both members: weights -1, momentum 1.
  void Update(Owner& owner, uint64_t step) {
    const std::vector<float> ones(kMovedElements, 1.0f);
    for (uint32_t member : {0, 1}) {
      Operation op =
          OperationOf(OperationKind::kPush, member, step, ++sequence_, ones.size() * sizeof(float));
      op.base.count = owner.shards.shard(kFirst)->version().count;
      owner.Send(op, std::as_bytes(std::span(ones)));
    }
    EXPECT_THAT(owner.Statuses(), ElementsAre(OperationStatus::kOk, OperationStatus::kOk));
  }

  static Plan Moved() { return PlanOfMove({kB}, 2, 7, {{kFirst, kA, kB}}); }

  Owner a_{kA};
  Owner b_{kB};
  uint64_t sequence_ = 0;
};

TEST_F(MovedChunk, APlanInTheMiddleOfAMessageLosesNoPiece) {
  Update(a_, 0);
  const Plan moved = PlanOfMove({kB}, 2, 7, {{kFirst, kA, kB}});
  a_.Apply(moved);
  ASSERT_THAT(a_.given, SizeIs(1));
  const std::vector<std::byte> bytes = Encode(a_.given[0].state);
  const std::vector<Piece> pieces = PiecesOf(bytes);
  ASSERT_THAT(pieces, SizeIs(9));
  Operation op = MoveOperation(a_.given[0], kA, bytes);
  for (size_t i = 0; i < 4; ++i) b_.Send(op, pieces[i]);
  b_.Apply(moved);
  for (size_t i = 4; i < 9; ++i) b_.Send(op, pieces[i]);
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kNotYet)) << "four pieces are not in";
  EXPECT_EQ(b_.shards.shard(kFirst), nullptr);
  op.route = 2;
  b_.Send(op, bytes);
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kOk));
  ASSERT_NE(b_.shards.shard(kFirst), nullptr);
  EXPECT_THAT(b_.shards.shard(kFirst)->weights(), Each(-1.0f));
}

TEST_F(MovedChunk, APartIsAnsweredForItsOwnPieces) {
  const Plan moved = PlanOfMove({kB}, 2, 7, {{kFirst, kA, kB}});
  a_.Apply(moved);
  b_.Apply(moved);
  const std::vector<std::byte> bytes = Encode(a_.given.at(0).state);
  // Two messages: pieces 0 to 3, and the rest.
  Operation first = MoveOperation(a_.given[0], kA, bytes);
  first.total_bytes = 4 * kPieceBytes;
  Operation second = first;
  second.sequence = Sequence(2);
  second.step = Step(4 * kPieceBytes);
  second.total_bytes = bytes.size() - 4 * kPieceBytes;
  const std::span<const std::byte> all(bytes);
  b_.Send(second, all.subspan(4 * kPieceBytes));
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kNotYet)) << "the first is not here";
  // Of the first only the end, as if the channel before had brought the rest.
  for (size_t i : {2, 3}) b_.Send(first, PiecesOf(all.first(4 * kPieceBytes))[i]);
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kNotYet));
  b_.Send(first, all.first(4 * kPieceBytes));
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kOk));
  b_.Send(second, all.subspan(4 * kPieceBytes));
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kOk));
  ASSERT_NE(b_.shards.shard(kFirst), nullptr);
  b_.Send(first, all.first(4 * kPieceBytes));
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kOk)) << "what has arrived comes again";
}

TEST_F(MovedChunk, WhatAnOlderMoveLeftBehindIsNotTakenForANewerOne) {
  const Plan there = PlanOfMove({kB}, 2, 7, {{kFirst, kA, kB}});
  a_.Apply(there);
  b_.Apply(there);
  const OutgoingChunk older = a_.given.at(0);
  const std::vector<std::byte> old_bytes = Encode(older.state);
  b_.Send(MoveOperation(older, kA, old_bytes), old_bytes);
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kOk));
  Update(b_, 0);
  const Plan back = PlanOfMove({kA}, 4, 8, {{kFirst, kB, kA}});
  a_.Apply(back);
  b_.Apply(back);
  const std::vector<std::byte> back_bytes = Encode(b_.given.at(0).state);
  a_.Send(MoveOperation(b_.given[0], kB, back_bytes), back_bytes);
  EXPECT_THAT(a_.Statuses(), ElementsAre(OperationStatus::kOk));
  const Plan again = PlanOfMove({kB}, 6, 9, {{kFirst, kA, kB}});
  a_.Apply(again);
  b_.Apply(again);
  // The answer to the first message was lost, so the sender repeats it.
  b_.Send(MoveOperation(older, kA, old_bytes), old_bytes);
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kOldGeneration));
  EXPECT_EQ(b_.shards.shard(kFirst), nullptr);
  const std::vector<std::byte> bytes = Encode(a_.given.at(1).state);
  b_.Send(MoveOperation(a_.given[1], kA, bytes), bytes);
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kOk));
  ASSERT_NE(b_.shards.shard(kFirst), nullptr);
  EXPECT_THAT(b_.shards.shard(kFirst)->weights(), Each(-1.0f)) << "the update at b";
}

// ---- Samples that reach no update, while the lead chunk moves ---------------------------------

class UnusedOfALead : public MovedChunk {
 protected:
  static Operation Boundary(uint64_t step, uint64_t unused) {
    Operation op = OperationOf(OperationKind::kBoundary, 0, step, 100 + step, 0);
    op.samples = Samples(unused);
    return op;
  }
  static uint64_t Discarded(Owner& owner) {
    uint64_t samples = 0;
    for (const WorkerStaleness& worker : owner.shards.Report().workers) {
      samples += worker.discarded.value();
    }
    return samples;
  }
  void Deliver() {
    const std::vector<std::byte> bytes = Encode(a_.given.at(0).state);
    b_.Send(MoveOperation(a_.given[0], kA, bytes), bytes);
    ASSERT_NE(b_.shards.shard(kFirst), nullptr);
  }
  const Plan moved_ = PlanOfMove({kB}, 2, 7, {{kFirst, kA, kB}});
};

TEST_F(UnusedOfALead, ABoundaryThatMeetsNoLeadAnywhereIsCounted) {
  b_.SendBoundary(Boundary(5, 8));  // before it comes
  a_.Apply(moved_);
  a_.SendBoundary(Boundary(5, 8));  // after it went
  b_.Apply(moved_);
  Deliver();
  EXPECT_EQ(Discarded(b_), 8u);
}

TEST_F(UnusedOfALead, ABoundaryThatMeetsBothIsCountedOnce) {
  a_.SendBoundary(Boundary(5, 8));
  b_.SendBoundary(Boundary(5, 8));
  EXPECT_EQ(Discarded(a_), 8u);
  a_.Apply(moved_);
  b_.Apply(moved_);
  Deliver();
  b_.SendBoundary(Boundary(5, 8));
  EXPECT_EQ(Discarded(b_), 8u);
  b_.SendBoundary(Boundary(6, 3));
  EXPECT_EQ(Discarded(b_), 11u);
}

TEST_F(UnusedOfALead, AStepThatIsKnownFromAnotherChunkIsCounted) {
  constexpr ChunkKey kSecond{TensorId(0), ChunkIndex(1)};
  Owner a(kA), b(kB);
  a.Apply(PlanOfOwners({kB, kA}, 1));
  b.Apply(PlanOfOwners({kB, kA}, 1));
  a.SendBoundary(Boundary(5, 8));
  const Plan moved = PlanOfMove({kB, kB}, 2, 7, {{kSecond, kA, kB}});
  a.Apply(moved);
  b.Apply(moved);
  const std::vector<std::byte> bytes = Encode(a.given.at(0).state);
  b.Send(MoveOperation(a.given[0], kA, bytes), bytes);
  ASSERT_NE(b.shards.shard(kSecond), nullptr);
  b.SendBoundary(Boundary(5, 8));
  EXPECT_EQ(Discarded(b), 8u);
}

TEST_F(MovedChunk, WhatIsOnItsWayIsInTheReport) {
  a_.Apply(Moved());
  b_.Apply(Moved());
  const std::vector<std::byte> bytes = Encode(a_.given.at(0).state);
  const Operation op = MoveOperation(a_.given[0], kA, bytes);
  EXPECT_EQ(b_.shards.Report().memory, Bytes(0));
  for (size_t i = 0; i < 3; ++i) b_.Send(op, PiecesOf(bytes)[i]);
  EXPECT_EQ(b_.shards.Report().memory, Bytes(3 * kPieceBytes));
}

// Members 0 and 1 pushed and pulled, and both hold their replies.
class KeptReplies : public testing::Test {
 protected:
  KeptReplies() {
    owner_.Apply(PlanOfOwners({kA}, 1));
    for (uint32_t member : {0, 1}) owner_.Send(PushPull(member, 0, 1, 0), Ones());
    EXPECT_THAT(owner_.Statuses(), ElementsAre(OperationStatus::kOk, OperationStatus::kOk));
    EXPECT_EQ(owner_.shards.Report().memory, kState) << "they are the weights themselves";
  }

  static Operation PushPull(uint32_t member, uint64_t step, uint64_t sequence, uint64_t base) {
    Operation op = OperationOf(OperationKind::kPushPull, member, step, sequence,
                               kMovedElements * sizeof(float));
    op.base.count = base;
    return op;
  }
  static std::span<const std::byte> Ones() {
    static const std::vector<float> ones(kMovedElements, 1.0f);
    return std::as_bytes(std::span(ones));
  }
  // Member 1 has no more to say, and has had the replies up to `acknowledged`.
  void LastBoundary(uint64_t acknowledged) {
    Operation op = OperationOf(OperationKind::kBoundary, 1, 1, 2, 0);
    op.origin_step = Step(1000);
    op.acknowledged = Sequence(acknowledged);
    owner_.SendBoundary(op);
    Operation next = PushPull(0, 1, 2, 1);
    next.acknowledged = Sequence(1);
    owner_.Send(next, Ones());
    EXPECT_THAT(owner_.Statuses(), ElementsAre(OperationStatus::kOk, OperationStatus::kOk));
  }

  static constexpr Bytes kArray{kMovedElements * sizeof(float)};
  static constexpr Bytes kState{2 * kMovedElements * sizeof(float)};  // weights and momentum
  Owner owner_{kA};
};

TEST_F(KeptReplies, TheLastOfALeaverGoWithItsLastBoundary) {
  LastBoundary(1);
  EXPECT_EQ(owner_.shards.Report().memory, kState);
}

TEST_F(KeptReplies, OfOneThatLeftWithoutAWordNoWeightsStay) {
  LastBoundary(0);
  EXPECT_EQ(owner_.shards.Report().memory, Bytes(kState.value() + kArray.value()));
  for (uint64_t generation = 2; generation < 20; ++generation) {
    Plan plan = PlanOfOwners({kA}, generation);
    plan.groups = {GroupOf(0, {0}, generation, generation)};
    owner_.Apply(plan);
    Operation past = OperationOf(OperationKind::kBoundary, 0, generation - 1, generation + 10, 0);
    past.acknowledged = Sequence(generation + 9);
    owner_.SendBoundary(past);
  }
  EXPECT_EQ(owner_.shards.Report().memory, kState);
  owner_.Statuses();
  owner_.Send(PushPull(1, 0, 3, 0), Ones());
  ASSERT_THAT(owner_.replies, SizeIs(1)) << "asked for again all the same";
  EXPECT_EQ(owner_.replies[0].status, OperationStatus::kOk);
  EXPECT_EQ(owner_.replies[0].version.count, 2u);
}

TEST_F(MovedChunk, MoreThanTheChunkCanHaveIsRefused) {
  a_.Apply(Moved());
  b_.Apply(Moved());
  const std::vector<std::byte> bytes = Encode(a_.given.at(0).state);
  Operation op = MoveOperation(a_.given[0], kA, bytes);
  op.samples = Samples(1ull << 40);
  op.total_bytes = kPieceBytes;
  b_.Send(op, PiecesOf(bytes)[0]);
  EXPECT_THAT(b_.Statuses(), ElementsAre(OperationStatus::kBadRequest));
}

TEST_F(MovedChunk, AChunkThatIsGivenBackGoesOnWhereItWas) {
  Update(a_, 0);
  a_.Apply(Moved());
  const std::vector<std::byte> bytes = Encode(a_.given.at(0).state);
  int arrived = 0;
  a_.Apply(PlanOfMove({kA}, 3, 8, {{kFirst, kA, kA}}));
  a_.shards.WhenAllArrived([&arrived] { ++arrived; });
  EXPECT_THAT(a_.given, SizeIs(1)) << "it gave nothing to itself";
  a_.shards.TakeBack(kFirst, 7, bytes, Seconds(1), &a_.replies);
  EXPECT_EQ(a_.shards.shard(kFirst), nullptr) << "of another move";
  a_.shards.TakeBack(kFirst, 8, bytes, Seconds(1), &a_.replies);
  EXPECT_EQ(arrived, 1);
  ASSERT_NE(a_.shards.shard(kFirst), nullptr);
  EXPECT_THAT(a_.shards.shard(kFirst)->weights(), Each(-1.0f));
  Update(a_, 1);
}

TEST(ParkedFrames, ARefusedPieceIsARefusalOfItsMessage) {
  // Room for six pieces of a quarter of a MiB.
  Owner b(kB, 6 * (kPieceBytes + 1024));
  const std::vector<float> ones(kMovedElements, 1.0f);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(ones));
  const std::vector<Piece> pieces = PiecesOf(bytes);
  ASSERT_THAT(pieces, SizeIs(4));
  Plan plan = PlanOfOwners({kB}, 1);
  plan.tensors[0].sealed = false;
  b.Apply(plan);
  const Operation first = OperationOf(OperationKind::kPush, 0, 0, 1, bytes.size());
  const Operation second = OperationOf(OperationKind::kPush, 1, 0, 1, bytes.size());
  for (const Piece& piece : pieces) b.Send(first, piece);
  for (size_t i = 0; i < 3; ++i) b.Send(second, pieces[i]);  // two fit, one does not
  EXPECT_THAT(b.replies, IsEmpty());
  b.shards.Seal({TensorId(0)}, Seconds(1), &b.replies);  // frees the room
  b.Send(second, pieces[3]);
  EXPECT_THAT(b.Statuses(), ElementsAre(OperationStatus::kNotYet))
      << "or its sender waits for ever";
  b.Send(second, bytes);
  EXPECT_THAT(b.Statuses(), ElementsAre(OperationStatus::kOk, OperationStatus::kOk));
}

TEST(ParkedFrames, WhatAShardRefusesInTheMiddleStaysRefused) {
  Owner b(kB);
  const std::vector<float> ones(kMovedElements, 1.0f);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(ones));
  const std::vector<Piece> pieces = PiecesOf(bytes);
  Plan plan = PlanOfOwners({kB}, 1);
  plan.groups = {GroupOf(0, {0})};
  const NamedSpec optimizer = std::exchange(plan.spec.optimizer, {});
  b.Apply(plan);
  Operation op = OperationOf(OperationKind::kPush, 0, 0, 1, bytes.size());
  b.Send(op, pieces[0]);
  plan.spec.optimizer = optimizer;
  plan.generation = JobGeneration(2);
  b.Apply(plan);
  for (size_t i = 1; i < 4; ++i) b.Send(op, pieces[i]);
  EXPECT_THAT(b.Statuses(), ElementsAre(OperationStatus::kNoOptimizer));
  // The end of the channel ends what was remembered of it.
  b.Apply(PlanOfOwners({kA}, 3));
  b.Send(op, pieces[0]);
  b.shards.CloseRoute(op.route);
  b.Apply(PlanOfOwners({kB}, 4));
  b.Send(op, pieces[3]);
  EXPECT_THAT(b.replies, IsEmpty()) << "three pieces are still to come";
}

}  // namespace
}  // namespace paceline
