// Who holds which samples of one job: ranges of one permutation per epoch, leased ahead, returned
// ranges handed out again. Every sample that was drawn is applied, discarded (both as counted by
// the owners) or returned; the ledger never finds a count by subtraction, except for a worker that
// is gone, whose unused rest is offered again (Settle).
//
// Decisions (Choose...) do not change the ledger; Apply... do, and are what the journal replays.
// Thread rule: one thread owns it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/encoding.h"
#include "common/base/types.h"
#include "plan/checkpoint.h"
#include "plan/job_spec.h"
#include "plan/messages.h"
#include "plan/permutation.h"

namespace paceline::scheduler {

// What one worker drew. `outstanding` is in draw order, in which workers consume.
struct SampleAccount {
  std::vector<SampleRange> outstanding;
  uint64_t drawn = 0;
  uint64_t returned = 0;
  uint64_t used = 0;          // applied + discarded, as far as `outstanding` was shortened by it
  uint64_t next_step = 0;     // deterministic: above all steps drawn for
  Incarnation holder;         // of the worker, that drew last
  uint64_t drawn_before = 0;  // by the incarnations before it

  bool operator==(const SampleAccount&) const = default;
};

// What a draw may get at most, beyond what the worker asked for.
struct DrawLimits {
  uint64_t live_workers = 1;
  double samples_per_s = 0;  // measured; 0 = not yet
};

class SampleLedger {
 public:
  SampleLedger() = default;
  explicit SampleLedger(const JobSpec& spec);

  // Ranges for a worker that asks for `wanted` samples: at most two minutes of its measured rate
  // together with what it still holds, and at most its share of what is left in the epoch
  // (remaining / (2 x live workers)), but at least one batch, so that nobody ends early. Ranges of
  // one answer are of one epoch. Empty when nothing is left now.
  std::vector<SampleRange> Choose(NodeId worker, uint64_t wanted, const DrawLimits& limits) const;

  // Deterministic jobs: the part of (step, rank), the same whenever it is asked for. The last batch
  // of an epoch may be short or empty.
  std::vector<SampleRange> ChooseFor(uint64_t step, JobRank rank) const;
  // Whether `step` lies beyond the job's last one.
  bool FinishedAt(uint64_t step) const;
  uint64_t steps_per_epoch() const;

  // No sample is left to hand out, as long as nobody returns any.
  bool Exhausted() const;
  // What was handed out to this incarnation beyond the `received` samples it knows of: the answer
  // was lost. In draw order.
  std::vector<SampleRange> NotReceived(const NodeRef& worker, uint64_t received) const;

  // Samples handed out to `worker` and neither returned nor counted by the owners.
  uint64_t Outstanding(NodeId worker) const;
  // Deterministic: above all steps that anybody drew for.
  uint64_t next_step() const;
  // The part of `ranges` that `worker` holds; what a repeated return names is no longer in it.
  std::vector<SampleRange> Held(NodeId worker, const std::vector<SampleRange>& ranges) const;
  // What `worker` was handed out, beyond the first `used` samples, and does not hold any more.
  std::vector<SampleRange> Missing(NodeId worker, uint64_t used,
                                   const std::vector<SampleRange>& held) const;
  // Whether each range lies within an epoch of the job.
  bool Valid(const std::vector<SampleRange>& ranges) const;
  // What is left to hand out if nothing of what is outstanding reaches an update.
  SamplePosition Position() const;
  // Deterministic jobs: what is left after `step`.
  SamplePosition PositionAfter(uint64_t step) const;
  // A fresh ledger of a job that goes on from there, with `step` as its next.
  void StartAt(const SamplePosition& position, uint64_t step);
  // The epoch that is being handed out.
  Epoch epoch() const { return Epoch(epoch_); }
  uint64_t total() const { return sample_count_ * epochs_; }
  const std::map<NodeId, SampleAccount>& accounts() const { return accounts_; }

  void ApplyDraw(NodeId worker, const std::vector<SampleRange>& ranges);
  // As above, for (step, rank); counts nothing when it was counted for this step before.
  void ApplyDrawFor(NodeId worker, uint64_t step, const std::vector<SampleRange>& ranges);
  void ApplyHolder(const NodeRef& worker);
  void ApplyReturn(NodeId worker, const std::vector<SampleRange>& ranges);
  // Drawn and lost: no longer outstanding, and not handed out again.
  void ApplyLost(NodeId worker, const std::vector<SampleRange>& ranges);
  // The owners count `used` samples of `worker` as applied or discarded so far: the oldest are no
  // longer outstanding.
  void ApplyUsed(NodeId worker, uint64_t used);

  template <typename A>
  friend void Fields(A& a, Is<SampleLedger> auto& v) {
    a(v.sample_count_, v.epochs_, v.batch_size_, v.workers_, v.deterministic_, v.epoch_,
      v.position_, v.returned_, v.accounts_, v.first_step_, v.first_epoch_, v.first_position_);
  }
  bool operator==(const SampleLedger&) const = default;

 private:
  struct Place {
    uint64_t epoch = 0;
    uint64_t begin = 0;  // of the step's first sample
  };
  // Deterministic: where the samples of a step begin.
  Place PlaceOf(uint64_t step) const;
  uint64_t Remaining() const;
  void TakeReturned(const SampleRange& range);

  uint64_t sample_count_ = 0;
  uint64_t epochs_ = 0;  // 0 = no end
  uint64_t batch_size_ = 0;
  uint64_t workers_ = 1;
  bool deterministic_ = false;
  // Next position never handed out.
  uint64_t epoch_ = 0;
  uint64_t position_ = 0;
  std::vector<SampleRange> returned_;  // sorted, disjoint; to be handed out again
  std::map<NodeId, SampleAccount> accounts_;
  // Deterministic: where the first step begins.
  uint64_t first_step_ = 0;
  uint64_t first_epoch_ = 0;
  uint64_t first_position_ = 0;
};

template <typename A>
void Fields(A& a, Is<SampleAccount> auto& v) {
  a(v.outstanding, v.drawn, v.returned, v.used, v.next_step, v.holder, v.drawn_before);
}

// Samples in all ranges.
uint64_t CountOf(const std::vector<SampleRange>& ranges);

}  // namespace paceline::scheduler
