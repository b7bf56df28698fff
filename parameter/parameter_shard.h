// One chunk at its owner: weights, optimizer state, version, and the rounds that change them. A
// pure object stepped by messages: an operation goes in, replies come out. It reads no clock (time
// is an argument) and starts no thread; servers, workers and the simulator hold the same one.
//
// Under a quorum (verdicts.h) a round is whole with those that the lead's verdict on its push
// names. What others send to it is late: taken into a later round when they send it again for that
// step (kLate), or discarded.
//
// What a round does when it is whole (round.h):
//   sum = ((g0 + g1) + g2) ... over members with samples
//   mean: sum / float(samples in it), once        sum: sum x (planned members / members in the sum)
//   policy compensates; optimizer applies at rate x weight; version + 1
// A round without any samples applies nothing and leaves the version as it is; its members still
// get the weights. A gradient that is not finite, unless those are allowed, counts as no samples,
// its sender is told kNotFinite, and its samples are counted as discarded. A gradient on a version
// of another lineage (before a restore) is discarded the same way, with kDiscarded. Whatever a
// member sends before it has adopted the lineage of the restore is kDiscarded at once, and counted
// by the scheduler: what others of its group had answered by then is forgotten, and they would wait
// for each other.
//
// Invariants:
//  1. A reply's arrays never change: weights that someone else holds are copied before an update.
//  2. An operation is answered once per attempt, and applied at most once.
//  3. A round is decided only when it is whole.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "parameter/chunk_snapshot.h"
#include "parameter/contribution.h"
#include "parameter/deduplication.h"
#include "parameter/group_table.h"
#include "parameter/handover.h"
#include "parameter/operation.h"
#include "parameter/optimizer.h"
#include "parameter/round.h"
#include "parameter/shared_floats.h"
#include "parameter/state_codec.h"
#include "parameter/verdicts.h"
#include "plan/job_spec.h"
#include "staleness/policy.h"
#include "staleness/recorder.h"

namespace paceline {

struct ShardSettings {
  std::shared_ptr<const Optimizer> optimizer;  // null: not set yet
  std::shared_ptr<const StalenessPolicy> policy;
  Normalization normalization = Normalization::kMean;
  bool deterministic = false;  // sum in rank order
  NotFinite nan = NotFinite::kRefuse;
  bool lead = false;  // counts samples and staleness per worker

  bool operator==(const ShardSettings&) const = default;
};

class ParameterShard {
 public:
  using Replies = std::vector<Reply>;

  // `groups`, `verdicts` and `pool` outlive the shard. Weights are 0 until Init.
  ParameterShard(ChunkKey key, uint64_t elements, const GroupTable* groups, Verdicts* verdicts,
                 FloatPool* pool, ShardSettings settings);

  // Optimizer slots that the new settings share by name with the old ones stay as they are.
  void Configure(ShardSettings settings);
  void Seal() { sealed_ = !awaits_restore_; }

  // ---- Operations; the host has checked the plan and, but for Init and WriteState, the seal.
  void Init(const Operation& operation, const Piece& piece, Replies* replies);
  void Pull(const Operation& operation, Replies* replies);
  void ReadState(const Operation& operation, Replies* replies);
  void WriteState(const Operation& operation, const Piece& piece, Replies* replies);
  // Whether the operation is a repetition of one that was answered; it is answered once more, under
  // whatever generation it is sent again.
  bool Repeats(const Operation& operation, const Piece& piece, Replies* replies);
  // Push, PushPull, Reduce of the member at `position` of `generation`.
  void Contribute(const Operation& operation, const Piece& piece,
                  const GroupTable::Generation& generation, size_t position, Ticks now,
                  Replies* replies);

  // Set when what was just taken was refused in the middle of its message: the rest of that is not
  // to be offered, and its sender is told at its end.
  std::optional<OperationStatus> TakeRefusal() { return std::exchange(refusal_, std::nullopt); }

  // ---- Changes of the group table.
  // A member of `group` covered steps up to `through`; `unused` of its samples it pushed in none of
  // them. The lead counts them, once.
  void Unused(GroupId group, const NodeRef& member, Step through, Samples unused);
  void OnCovered(GroupId group, Ticks now, Replies* replies);
  // Open rounds of steps whose generation is no longer the one they were begun under are void:
  // members whose contribution was whole are told kOldGeneration and push again.
  void VoidOutdated(Replies* replies);
  void Forget(const NodeRef& dead);
  // The member has had the replies to all of its operations up to the one it says.
  void Acknowledge(const Operation& operation);
  // Of members in no generation any more nothing is kept but what they may still ask for.
  void ForgetGone();
  // The shard goes away: whoever waits for a round is told `status`.
  void Abandon(OperationStatus status, Replies* replies);

  // ---- A change of owner.
  // The shard stops: open rounds are void and their members told kNotOwner. Nothing else may be
  // called afterwards.
  Handover HandOver(Replies* replies);
  // A fresh shard goes on where another stopped. InvalidArgument names an array that is there
  // twice, or that the optimizer does not have or misses; an optimizer that was not set yet where
  // the chunk comes from misses all of its.
  absl::Status TakeOver(Handover handover);
  // A member of `group` passed further steps: replies of the owner before are no longer asked for.
  void ForgetTakenOver(GroupId group);
  bool holds_taken_over() const { return holds_taken_over_; }

  // ---- Cuts. While held, rounds of a group above its step (all, without one) wait whole.
  void Hold(const std::map<GroupId, Step>& through);
  // Every held step is in: no round up to it is open, and its members are past it. Under a quorum
  // those that close a round are enough: what one that is in the push sends to it alone from then
  // on is in no copy, as at its death.
  bool IsAtHold() const;
  void Release(Ticks now, Replies* replies);
  ShardSnapshot Snapshot() const;
  ChunkState Copy() const;

  // ---- Returning to a checkpoint.
  // Takes no part until Load: open rounds are void, their members push again. From then on a push
  // on what was there before is told kDiscarded; its samples are the scheduler's to count, from
  // what workers adopt. Returns operations whose message has come in part: the rest of each is to
  // be refused, and answered kOldGeneration at its end.
  std::vector<Operation> AwaitRestore(uint32_t lineage, Replies* replies);
  void Load(ChunkState state);
  bool awaits_restore() const { return awaits_restore_; }
  uint32_t restored_lineage() const { return restored_lineage_; }  // waited for, or loaded

  // The highest step of each group that this chunk has.
  const std::map<GroupId, Step>& applied_steps() const { return applied_steps_; }

  ChunkKey key() const { return key_; }
  uint64_t elements() const { return elements_; }
  bool sealed() const { return sealed_; }
  Version version() const { return version_; }
  std::span<const float> weights() const { return weights_.values(); }
  const StalenessRecorder& staleness() const { return recorder_; }
  size_t open_rounds() const { return rounds_.size(); }
  bool lead() const { return settings_.lead; }
  Bytes memory() const;

 private:
  using Rounds = std::map<RoundKey, Round>;
  struct MemberKey {
    GroupId group;
    NodeId node;
    auto operator<=>(const MemberKey&) const = default;
  };
  // Of a Boundary beyond a cut.
  struct HeldUnused {
    GroupId group;
    NodeRef member;
    Step through;
    Samples samples;
  };
  // Initial values or a state on their way in.
  struct Transfer {
    Operation operation;
    std::optional<Contribution> values{};
    std::vector<std::byte> bytes{};
    std::vector<bool> in{};
    bool done = false;
  };

  MemberOperations& OperationsOf(const Operation& operation);
  // Why a new contribution cannot be taken, or kOk.
  OperationStatus Check(const Operation& operation) const;
  void Refuse(const Operation& operation, const Piece& piece, OperationStatus status,
              Replies* replies);
  void Again(OpenOperation& open, const Operation& operation, const Piece& piece, Replies* replies);
  void AddPiece(const RoundKey& key, size_t position, OpenOperation& open, const Piece& piece,
                Ticks now, Replies* replies);
  void FinishPart(Round& round, size_t position, OpenOperation& open);
  void Settle(GroupId group, Ticks now, Replies* replies);
  bool IsHeld(const RoundKey& key) const;
  bool IsPast(GroupId group, Step step) const;
  bool IsInLaterStep(GroupId group, Step step, NodeRef member) const;
  // What the verdict on the push leaves out has left its round; false: there is none yet.
  bool TakeVerdict(const RoundKey& key, Round& round, Replies* replies);
  void TellLate(const Operation& operation, Replies* replies);
  // `late`: for lateness; the first step its sender may be in.
  void Discard(const Operation& operation, std::optional<Step> late, Replies* replies);
  void Decided(const RoundKey& key, Round& round, const Verdict* verdict, Ticks now,
               Replies* replies);
  void Apply(const RoundKey& key, Round& round, const Verdict* verdict, Ticks now);
  void CountRefused(GroupId group, const Round& round);
  void Record(const RoundKey& key, const Round& round, Version base, Ticks now);
  void Answer(const RoundKey& key, Round& round, const SharedFloats& values, Samples samples,
              Replies* replies);
  // Returns operations whose message is still coming: they are told at its last piece.
  std::vector<Operation> VoidRound(const Round& round, GroupId group, OperationStatus status,
                                   Replies* replies);
  // Unshared: a copy takes the place of an array that others hold.
  std::span<float> Writable(SharedFloats& array);
  bool SameTransfer(const Operation& operation) const;
  bool WasWritten(const Operation& operation) const;
  bool AddBytes(const Piece& piece);
  void Restore(ChunkState state, uint32_t lineage);
  // They were computed on weights that are gone.
  void DiscardOpenPushes(Replies* replies);
  Reply MakeReply(const Operation& operation, OperationStatus status) const;

  const ChunkKey key_;
  const uint64_t elements_;
  const GroupTable* const groups_;
  Verdicts* const verdicts_;
  FloatPool* const pool_;
  ShardSettings settings_;

  SharedFloats weights_;
  std::vector<std::pair<std::string, SharedFloats>> slots_;  // in the optimizer's order
  Version version_;
  uint64_t updates_ = 0;  // Adam's t
  Samples samples_;       // in all updates so far
  bool sealed_ = false;
  bool awaits_restore_ = false;
  uint32_t restored_lineage_ = 0;
  Transfer transfer_;
  Handover::Written written_;

  Rounds rounds_;
  std::map<MemberKey, MemberOperations> members_;
  std::map<GroupId, Step> applied_steps_;
  // Per group what its members hold, kept where the policy compensates by it.
  std::map<GroupId, std::pair<Version, SharedFloats>> pulled_;
  std::optional<std::map<GroupId, Step>> hold_;
  StalenessRecorder recorder_;
  std::map<MemberKey, CoveredStep> counted_;  // unused samples of the members, at the lead
  std::vector<HeldUnused> held_unused_;
  bool holds_taken_over_ = false;
  std::optional<OperationStatus> refusal_;
};

}  // namespace paceline
