// Drives parameter shards with real messages: receives frames, takes each to the one thread that
// owns its chunk, sends the replies. Lives in servers, and in workers in allreduce mode.
//
// What each operation means at an owner (docs/wire_format.md has the bytes):
//  Init      From plan.init_writer only. Writes initial values; answered when all pieces are in.
//            Until a tensor is sealed the values may be overwritten.
//  Pull      Answered with weights and version. Parked until the tensor is sealed.
//  PushPull  Joins the round (group, step, ordinal) of the chunk. When every member of the group
//            generation that holds for `step` has contributed (a PushPull/Push with samples 0 and
//            no payload, or a Boundary covering the step, counts as zero samples), the sum is
//            divided (normalization), the optimizer applies it, version + 1, and every contributor
//            gets the same reply: weights and version.
//  Push      The same; the reply carries no weights.
//  Reduce    The sum comes back (samples = total); nothing is applied.
//  Boundary  The member contributes nothing more to steps step..origin_step; answered with kOk.
//  Verdict   Between owners: asks the lead owner of a job under a quorum who is in a push;
//            answered when it is decided (parameter/verdicts.h).
//  ReadState / WriteState  Weights, optimizer slots, version of one chunk (layout in
//            docs/wire_format.md); WriteState from the init writer only.
// Replies to Pull carry the samples in all updates so far, those to Push, PushPull and Reduce the
// samples in the sum. A round without any samples applies nothing and leaves the version. A
// gradient that is not finite counts as no samples: its sender gets the weights with kNotFinite. A
// push on a version of another lineage, or after the member's own Boundary for that step:
// kDiscarded. Both count as discarded samples, of the lead chunk. Pieces begin at multiples of
// kMaxPieceBytes and are full but the last; a refusal is sent once per message, at its last piece.
// Payloads may be f32, f16 or bf16; sums are f32. Learning rate of a round: of the member with
// samples that has the lowest rank; 0 takes the optimizer's own. A frame of a group generation that
// is newer than known, or for a step before its activation, is parked (bounded) until the plan
// comes; of one that no longer holds for its step it is answered kOldGeneration. job_generation:
// newer is parked, older is accepted while this owner still owns the chunk, else kNotOwner. A
// repeated operation (same incarnation, group, origin step, ordinal, kind, chunk) is never applied
// twice: it gets the kept reply, or waits for the round it is part of.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "parameter/chunk_snapshot.h"
#include "plan/messages.h"
#include "plan/plan.h"
#include "plan/report.h"
#include "transport/channel.h"

namespace paceline {

struct RouterOptions {
  NodeId self;  // the owner this router is
  // With which it gives chunks to other owners; without a transport it cannot.
  Incarnation incarnation;
  SecretKey key{};
  Transport* transport = nullptr;  // outlives StopMoving
  // Every chunk that the plan's moves bring here has come, but for those that are `missing` because
  // the moves were withdrawn. Called from a shard thread.
  std::function<void(JobId, uint64_t move, std::vector<ChunkKey> missing)> on_arrived;
  // A chunk cannot be given to `peer` since so long.
  std::function<void(NodeId peer, Ticks since, const std::string& cause)> on_link_down;
  uint32_t threads = 2;                   // shard threads; a chunk belongs to one of them
  uint64_t job_memory_quota = 0;          // bytes per job; 0 = no limit
  uint64_t max_parked_bytes = 64u << 20;  // per job
};

// Thread rule: every method may be called from any thread. Directives are applied in call order;
// `done` is called once: from a shard thread when all have it in force, or at once with an error.
class Router : public FrameSink, public KeyStore {
 public:
  using Done = std::function<void(absl::Status)>;
  ~Router() override = default;

  virtual void ApplyPlan(const Plan& plan, Done done) = 0;
  virtual void Prepare(const PrepareDirective& directive, Done done) = 0;
  virtual void Commit(const CommitDirective& directive, Done done) = 0;
  virtual void Abort(const AbortDirective& directive, Done done) = 0;
  virtual void Fence(const FenceDirective& directive, Done done) = 0;
  virtual void Seal(const SealedDirective& directive, Done done) = 0;
  virtual void EndJob(const EndJobDirective& directive, Done done) = 0;

  // Phase 1 of a cut: holds every step of the job above what is applied or decided, answers per
  // group that has applied any. Phase 2: lets each group run to `steps`, copies each chunk when its
  // group's members, or under a quorum as many as close a round, have sent the Boundary of that
  // step (until then more of it may come), releases, hands the copies over. Aborted by a fence, a
  // shard that moves, another cut.
  virtual void CutCollect(JobId job, std::function<void(std::map<GroupId, Step>)> done) = 0;
  virtual void CutAt(JobId job, const std::map<GroupId, Step>& steps,
                     std::function<void(absl::StatusOr<std::vector<ChunkSnapshot>>)> done) = 0;
  virtual void CutAbort(JobId job) = 0;

  // Gives no further chunks away, asks for no further verdicts, and ends the channels for both.
  virtual void StopMoving() = 0;
  // A plan that names a checkpoint to restore from: which of the chunks here wait to be loaded...
  virtual void FindAwaitingRestore(JobId job, std::function<void(std::vector<ChunkKey>)> done) = 0;
  // ...and their states. `done` when they are in force; what was parked goes on.
  virtual void Restore(JobId job, uint32_t lineage, std::vector<RestoredChunk> chunks,
                       Done done) = 0;

  // What the scheduler is told: staleness and counts per job; bytes and connections. Waits for the
  // shard threads, so never called from a `done`.
  virtual ServerReport Report() = 0;
  // Blocks until each shard thread has answered.
  virtual void AwaitThreads() = 0;
};

std::unique_ptr<Router> NewRouter(const RouterOptions& options);

}  // namespace paceline
