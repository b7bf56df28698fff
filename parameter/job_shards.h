// What one shard thread holds of one job: its chunks, its copy of the group table, the frames that
// wait for a plan. Takes frames and directives, gives replies.
// Thread rule: one thread; no lock inside.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parameter/chunk_snapshot.h"
#include "parameter/group_table.h"
#include "parameter/parameter_shard.h"
#include "parameter/refused_messages.h"
#include "parameter/unused_samples.h"
#include "parameter/verdicts.h"
#include "plan/messages.h"
#include "plan/plan.h"
#include "plan/report.h"

namespace paceline {

// A Boundary concerns every shard thread; the last one to take it answers.
struct BoundaryAnswer {
  std::atomic<uint32_t> outstanding;
  std::atomic<OperationStatus> status{OperationStatus::kOk};
};

// A plan with what was made from it once for all threads.
struct PreparedPlan {
  Plan plan;
  std::shared_ptr<const Optimizer> optimizer;
  std::shared_ptr<const StalenessPolicy> policy;
  bool over_quota = false;  // no shard is added
};

// A chunk that this owner gives to the one the plan names now.
struct OutgoingChunk {
  JobId job;
  JobGeneration generation;  // of the plan that moved it
  uint64_t move = 0;         // the number of the move in it
  ChunkKey chunk;
  ServerInfo to;
  Handover state;
};

// Who decides about pushes, as a plan has it.
struct VerdictLead {
  JobGeneration generation;
  uint32_t lineage = 0;
  ServerInfo owner;  // node 0: nobody

  // What was asked of the one is still asked of the other.
  bool IsSame(const VerdictLead& other) const {
    return lineage == other.lineage && owner == other.owner;
  }
};

// A question about a push to the thread that holds the lead chunk.
struct OutgoingQuestion {
  JobId job;
  VerdictLead lead;
  ChunkKey chunk;
  PushKey push;
  std::shared_ptr<const std::vector<std::byte>> bytes;  // Encode(VerdictQuestion)
};

class JobShards {
 public:
  using Replies = ParameterShard::Replies;
  using HandOver = std::function<void(OutgoingChunk)>;
  using Question = std::function<void(OutgoingQuestion)>;
  using CutDone = std::function<void(absl::StatusOr<std::vector<ChunkSnapshot>>)>;

  // Of the chunks that `self` owns, those of thread `index` out of `threads`.
  JobShards(NodeId self, uint32_t index, uint32_t threads, uint64_t max_parked_bytes,
            FloatPool* pool)
      : self_(self),
        index_(index),
        threads_(threads),
        max_parked_bytes_(max_parked_bytes),
        pool_(pool) {}

  static uint32_t ThreadOf(ChunkKey key, uint32_t threads) {
    return (key.tensor.value() + key.chunk.value()) % threads;
  }

  void OnOperation(const Operation& operation, const Piece& piece,
                   std::shared_ptr<BoundaryAnswer> boundary, Ticks now, Replies* replies);

  // Chunks that the plan moves from here go to the function of OnHandOver; those that it moves here
  // are waited for, and what is sent for them is parked until they have come.
  void ApplyPlan(std::shared_ptr<const PreparedPlan> plan, Ticks now, Replies* replies);
  void OnHandOver(HandOver hand_over) { hand_over_ = std::move(hand_over); }
  // `arrived` is called, once, when no chunk of the newest plan is waited for: maybe at once. A
  // later plan's takes its place.
  void WhenAllArrived(std::function<void()> arrived);
  // Who asks the lead owner. Each question is repeated until it is answered, another about the same
  // push takes its place, or the lead says that it is not the lead (a plan with another one is on
  // its way then).
  void OnQuestion(Question question) { question_ = std::move(question); }
  // The lead owner's answer to what was asked in `lineage`; one that cannot be read, or of another
  // lineage, is as none.
  void OnVerdict(uint32_t lineage, std::span<const std::byte> answer, Ticks now, Replies* replies);
  const VerdictLead& verdict_lead() const { return lead_; }
  // What has not come, of a plan whose moves are withdrawn: it does not come any more.
  std::vector<ChunkKey> Missing() const;
  // The bytes of a chunk that was given away and that `move` gives back.
  void TakeBack(ChunkKey key, uint64_t move, std::span<const std::byte> bytes, Ticks now,
                Replies* replies);
  void Commit(const CommitDirective& directive, Ticks now, Replies* replies);
  void Fence(const FenceDirective& directive, Ticks now, Replies* replies);
  void Seal(const std::vector<TensorId>& tensors, Ticks now, Replies* replies);
  // Everything that waits is told kJobEnded.
  void End(Replies* replies);

  std::map<GroupId, Step> CutCollect(Ticks now, Replies* replies);
  void CutAt(const std::map<GroupId, Step>& steps, CutDone done, Ticks now, Replies* replies);
  void CutAbort(const absl::Status& cause, Ticks now, Replies* replies);

  // Null when it is not here.
  ParameterShard* shard(ChunkKey key) {
    const auto it = shards_.find(key);
    return it == shards_.end() ? nullptr : &it->second;
  }
  // The chunks that wait to be loaded from plan()->restore_from.
  std::vector<ChunkKey> AwaitingRestore() const;
  // Chunks that do not wait, or not for this lineage, stay as they are.
  void Restore(uint32_t lineage, std::vector<RestoredChunk> chunks, Ticks now, Replies* replies);

  const Plan* plan() const { return plan_ == nullptr ? nullptr : &plan_->plan; }
  const Verdicts& verdicts() const { return verdicts_; }
  // What a refusal tells the sender to catch up to.
  GroupGeneration GenerationFor(GroupId group, Step step) const;
  // The channel of this route is closed.
  void CloseRoute(uint64_t route) { refused_messages_.CloseRoute(route); }
  void CountRefusal(OperationStatus status) { ++refused_[static_cast<size_t>(status)]; }
  JobAtServer Report() const;

 private:
  struct Parked {
    Operation operation;
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
    std::shared_ptr<BoundaryAnswer> boundary;
  };
  // A chunk whose state is on its way; its parts may come again after a lost connection.
  struct Arrival {
    uint64_t elements = 0;
    uint64_t move = 0;  // that brings it
    std::vector<std::byte> bytes;
  };
  struct Cut {
    std::map<GroupId, Step> steps;
    std::set<ChunkKey> remaining;
    std::vector<ChunkSnapshot> copies;
    CutDone done;  // null in phase 1
  };

  void OnBoundary(const Operation& operation, const std::shared_ptr<BoundaryAnswer>& answer,
                  Ticks now, Replies* replies);
  void AnswerBoundary(const Operation& operation, BoundaryAnswer& answer, OperationStatus status,
                      Replies* replies);
  // The shard, or why there is none; kNotYet means park.
  OperationStatus Locate(const Operation& operation, ParameterShard** shard);
  void OnContribution(ParameterShard& shard, const Operation& operation, const Piece& piece,
                      Ticks now, Replies* replies);
  void Park(const Operation& operation, const Piece& piece,
            std::shared_ptr<BoundaryAnswer> boundary, Replies* replies);
  void Refuse(const Operation& operation, const Piece& piece, OperationStatus status,
              Replies* replies);
  static void Answer(const Operation& operation, OperationStatus status, Replies* replies);
  void ReplayParked(Ticks now, Replies* replies);
  void UpdateShards(Ticks now, Replies* replies);
  ShardSettings SettingsOf(const TensorPlan& tensor, uint32_t chunk) const;
  void AddOwned(const TensorPlan& tensor, uint32_t chunk, uint64_t elements, Ticks now,
                Replies* replies);
  const ChunkMove* MoveOf(ChunkKey key) const;
  void GiveAway(ChunkKey key, ParameterShard& shard, Replies* replies);
  void OnMoveShard(const Operation& operation, const Piece& piece, Ticks now, Replies* replies);
  void Arrived(ChunkKey key, Ticks now, Replies* replies);
  uint64_t MostArrays() const;
  absl::Status Install(ChunkKey key, std::span<const std::byte> bytes);
  ChunkKey LeadChunk() const { return {plan_->plan.lead_tensor, ChunkIndex(0)}; }
  void FollowLead(Replies* replies);
  void OnVerdictAsked(const Operation& operation, const Piece& piece, Replies* replies);
  // Rounds that wait for what has been decided or learned, answers, questions.
  void PursueVerdicts(Ticks now, Replies* replies);
  void AskForCut();
  void VoidOutdated(Replies* replies);
  absl::Status CheckWithin(const std::map<GroupId, Step>& steps) const;
  void AdvanceCut(Ticks now, Replies* replies);
  bool TryCopy(ChunkKey key, Ticks now, Replies* replies);
  void FinishCut();

  const NodeId self_;
  const uint32_t index_;
  const uint32_t threads_;
  const uint64_t max_parked_bytes_;
  FloatPool* const pool_;

  std::shared_ptr<const PreparedPlan> plan_;
  GroupTable groups_;
  Verdicts verdicts_{&groups_};
  VerdictLead lead_;
  Question question_;
  std::map<ChunkKey, ParameterShard> shards_;
  std::map<ChunkKey, Arrival> arriving_;
  HandOver hand_over_;
  std::function<void()> arrived_;
  std::vector<Parked> parked_;
  uint64_t parked_bytes_ = 0;
  RefusedMessages refused_messages_;
  UnusedSamples unused_;
  std::optional<Cut> cut_;
  std::array<uint64_t, kOperationStatuses> refused_{};
};

// Adds what one thread holds of a job to what others do.
void Merge(JobAtServer& into, JobAtServer&& part);

}  // namespace paceline
