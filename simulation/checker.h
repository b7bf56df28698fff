// What must hold in every run, checked while it goes on. The checker does not look into the core or
// the shards: it hears what they say (replies, directives, reports, durable entries) and works out
// for itself what must follow.
//
// Invariants:
//  incarnation     the scheduler gives no incarnation twice
//  generation      a generation of a group has one set of members and one activation step
//  one lease       no sample is handed to a worker while another live one holds it
//  exactly once    no operation, no sample and no step of a group is applied twice to a chunk
//  sum             the samples in a reply are those of the operations it answers
//  weights         a chunk's weights are what its updates, applied in their order by scalar code,
//                  make of the initial values of one writer
//  one verdict     a push is decided once: the same members are in it at every chunk
//  one fate        all that a member pushed in a step is applied in one round, or none of it
//  same bits       every reply to a round carries the same version and bits, also when it is
//                  repeated and when it arrives
//  version         grows by one per update, never goes back
//  checkpoint      holds each chunk once, with exactly the rounds up to the cut's steps (under a
//                  quorum perhaps without what one member sent to it alone)
//  restore         a chunk that returns to a checkpoint goes on from just what is in it; gradients
//                  of weights that are gone change nothing
//  staleness       owners report the staleness that their updates had; it agrees with the formula
//  understood      no owner refuses what a worker sends in good order (checked by the workers)
//  ledger          drawn = applied + discarded + returned, at scheduler, owners and workers
//
// Thread rule: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parameter/chunk_snapshot.h"
#include "parameter/operation.h"
#include "parameter/verdict.h"
#include "plan/events.h"
#include "scheduler/core/journal_entry.h"
#include "simulation/scenario.h"
#include "simulation/world.h"

namespace paceline::simulation {

// The gradient of an operation: small whole numbers, so that every order gives the same sum.
class Gradient {
 public:
  Gradient(Incarnation incarnation, Step origin_step, Ordinal ordinal, ChunkKey chunk);

  int32_t At(uint64_t i) const { return pattern_[i % pattern_.size()]; }
  std::vector<float> Values(uint64_t elements) const;

 private:
  std::array<int32_t, 21> pattern_;
};

// The initial value that a worker would write.
float InitialAt(NodeId writer, ChunkKey chunk, uint64_t i);

// What a worker counted of its samples.
struct WorkerLedger {
  uint64_t drawn = 0;
  uint64_t applied = 0;
  uint64_t discarded = 0;
  uint64_t returned = 0;
};

class Checker {
 public:
  Checker(World* world, const Scenario* scenario) : world_(world), scenario_(scenario) {}

  // ---- The scheduler
  void OnDurable(const JournalEntry& entry);
  // `who`: the process and its life; asked again it may get the same answer again.
  void OnJoined(NodeRef self, const std::string& who);
  void OnDrawn(NodeRef to, const std::vector<SampleRange>& ranges,
               const std::function<bool(NodeRef)>& live);
  // A directive is delivered.
  void OnDirective(NodeRef to, const Directive& directive);

  // ---- Owners
  // Replies of one shard thread, in order, before they are sent.
  void OnReplies(const std::string& owner, const std::vector<Reply>& replies);
  // It gives a chunk to another owner.
  void OnGivenAway(ChunkKey chunk) { ++chunks_[chunk].moves; }
  // By which a shard thread goes; told before the replies that follow from it.
  void OnVerdict(uint32_t lineage, PushKey push, const Verdict& verdict);
  // A manifest is written: `cut` says what it says, and these are the chunks of its parts.
  void OnCheckpoint(const CutDirective& cut, const std::vector<RestoredChunk>& chunks);
  // What the owner of the lead chunk counted by now.
  void OnLeadReport(const JobAtServer& report);

  // ---- Workers
  void OnPush(NodeRef from, GroupId group, Step step, const std::vector<SampleRange>& ranges);
  // What it was to push there was computed on weights that a checkpoint has replaced.
  void OnLapsed(NodeRef from, GroupId group, Step step);
  void OnGivenBack(NodeRef from, const std::vector<SampleRange>& ranges);
  void OnReplyArrived(const Reply& reply);
  // It has left in good order.
  void OnLeft(NodeRef self, const WorkerLedger& ledger);

  // ---- The end, when the job is finished.
  struct Circumstances {
    bool counts_lost = false;  // the last ones, with their server
    bool nobody_stayed =
        false;  // who left before the samples were used up was asked to, the rest died
  };
  void OnFinished(const JobView& job, const Circumstances& circumstances);

  // When a group last had a round decided, and how many updates there were.
  std::map<GroupId, Ticks> progress() const { return progress_; }
  uint64_t updates() const { return updates_; }
  uint64_t rounds() const { return rounds_; }
  uint64_t checkpoints() const { return checkpoints_; }
  // That the scheduler knows of, and would return to.
  uint64_t recorded_checkpoints() const { return recorded_; }
  uint64_t rollbacks() const { return rollbacks_.size(); }
  Ticks rolled_back_at() const { return rolled_back_at_; }

 private:
  void OnLastSamples(const scheduler::Entry& entry);
  // A worker that changes its group comes to the same step in both.
  using PushOf = std::tuple<Incarnation, GroupId, Step>;
  using OperationKey = std::tuple<ChunkKey, PushOf, Ordinal, OperationKind>;
  using RoundKey = std::tuple<ChunkKey, GroupId, Step, Ordinal, OperationKind>;
  using SampleKey = std::pair<Epoch, uint64_t>;

  struct Answered {
    OperationStatus status;
    Version version;
    Samples samples;
    std::vector<uint64_t> checksums;  // the newest last
    uint64_t moves = 0;               // of the chunk by then
  };
  struct Generation {
    std::vector<std::pair<NodeId, Incarnation>> members;
    Step activation;
    uint32_t planned = 0;
  };
  struct Past {
    std::vector<float> weights;
    std::vector<float> momentum;
  };
  struct Chunk {
    bool known = false;
    std::vector<float> weights;
    std::vector<float> momentum;
    Version version;
    std::map<Version, Past> past;  // from the newest checkpoint on; only where there are any
    std::map<Version, uint64_t> checksums;
    uint64_t moves = 0;
  };
  struct Count {
    uint64_t updates = 0;
    uint64_t tau = 0;
    uint64_t first_base = 0;
    uint64_t last = 0;
    int64_t gaps = 0;
  };
  struct Sample {
    NodeRef holder;
    bool held = false;
    bool over = false;  // applied or discarded
    bool discarded = false;
    Version at;         // of the lead chunk by then
    bool lost = false;  // to a return to a checkpoint: it may be used again, or never
  };

  static PushOf PushOfOperation(const Operation& op) {
    return {op.incarnation, op.group, op.origin_step};
  }
  static OperationKey KeyOf(const Operation& op) {
    return {op.chunk, PushOfOperation(op), op.ordinal, op.kind};
  }
  void OnRound(const std::string& owner, const RoundKey& key,
               const std::vector<const Reply*>& replies);
  void OnDiscarded(const Reply& reply);
  void CheckAgain(const std::string& owner, const Reply& reply, Answered& before);
  bool IsOfNow(const Reply& reply, const Answered& before) const;
  std::vector<const Reply*> InSum(const std::string& round,
                                  const std::vector<const Reply*>& replies);
  // checker_checkpoints.cc
  bool CheckChunk(const CutDirective& cut, const RestoredChunk& restored);
  void OnReturns(const scheduler::Entry& entry);
  void OnRolledBack(const scheduler::RolledBack& back);
  void FollowRestore(ChunkKey key, uint32_t lineage);
  // Of the newest return to a checkpoint.
  uint32_t lineage() const { return rollbacks_.empty() ? 0 : rollbacks_.rbegin()->first; }
  void Remember(Chunk& chunk) const;
  void RememberApplied(Version version);
  void CheckWeights(const std::string& round, const Reply& reply, Chunk& chunk);
  void CheckReduce(const std::vector<const Reply*>& replies);
  bool Begin(Chunk& chunk, const Reply& reply);
  void Apply(Chunk& chunk, const std::vector<const Reply*>& in_sum, const Generation* generation,
             size_t members, Samples samples);
  void CountLead(GroupId group, const std::vector<const Reply*>& in_sum, Version version);
  void Use(const Reply& reply);
  void CheckFate(const Reply& reply);
  size_t MembersOf(const Generation& generation, uint32_t lineage, PushKey push) const;
  void Learn(const std::vector<GroupPlan>& groups, const std::string& how);
  template <typename... Pieces>
  void Fail(const char* invariant, const Pieces&... pieces) {
    world_->Fail(invariant, absl::StrCat(pieces...));
  }

  World* const world_;
  const Scenario* const scenario_;

  std::map<NodeRef, std::string> joined_;
  std::map<std::pair<GroupId, GroupGeneration>, std::pair<std::string, std::string>> told_;
  std::map<std::pair<GroupId, GroupGeneration>, Generation> generations_;
  std::map<OperationKey, Answered> answered_;
  std::set<OperationKey> discarded_;
  std::map<std::pair<uint32_t, PushKey>, std::vector<NodeRef>> verdicts_;  // by lineage
  std::map<PushOf, std::optional<Step>> fates_;                            // none: discarded
  std::map<RoundKey, Version> applied_rounds_;
  std::map<ChunkKey, Chunk> chunks_;
  std::optional<NodeId> writer_;
  std::map<std::pair<uint32_t, GroupId>, Count> lead_;              // by lineage
  using Counted = std::map<NodeId, std::pair<uint64_t, uint64_t>>;  // applied, discarded
  std::map<uint32_t, Counted> owner_counts_;                        // by lineage
  std::map<PushOf, std::vector<SampleRange>> pushed_;
  std::map<SampleKey, Sample> samples_;
  std::map<NodeId, std::vector<std::pair<Incarnation, WorkerLedger>>> left_;
  std::map<NodeId, uint32_t> incarnations_;
  std::map<GroupId, Ticks> progress_;
  uint64_t updates_ = 0;
  uint64_t rounds_ = 0;
  uint64_t checkpoints_ = 0;

  // What a return to a checkpoint leads to.
  std::map<uint32_t, std::string> rollbacks_;                       // by lineage: to where
  std::map<std::string, std::map<ChunkKey, RestoredChunk>> saved_;  // by where
  std::map<Version, std::map<NodeId, uint64_t>> applied_at_;        // of the lead chunk
  Counted settled_;                                                 // as the scheduler decided
  uint64_t recorded_ = 0;
  Ticks rolled_back_at_;

  std::set<NodeRef> dead_;
  bool finished_ = false;           // the job
  std::set<SampleKey> never_used_;  // returned since the end
};

}  // namespace paceline::simulation
