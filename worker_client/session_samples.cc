// The samples of a session: drawn ahead of use, so that it trains on while the scheduler is away.
#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "worker_client/session_impl.h"

namespace paceline {
namespace {

constexpr uint64_t kLeastBatchesAhead = 16;
constexpr uint64_t kAheadUs = 60'000'000;  // of work; the scheduler gives no more than two minutes
constexpr Ticks kStockInterval = Seconds(1);
constexpr Ticks kAheadTimeout = Seconds(5);
constexpr Ticks kNoSamplesPause = Milliseconds(10);

Ticks Now() { return Clock::Real().Now(); }

}  // namespace

uint32_t SessionImpl::StepTimeUs() const {
  if (step_times_us_.empty()) return 0;
  std::vector<uint32_t> times(step_times_us_.begin(), step_times_us_.end());
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// What a minute of work takes, in batches of `count`.
Samples SessionImpl::WantedAhead(uint32_t count) const {
  const uint32_t step_us = StepTimeUs();
  const uint64_t batches =
      step_us == 0 ? kLeastBatchesAhead : std::max(kLeastBatchesAhead, kAheadUs / step_us);
  return Samples(std::max<uint64_t>(1, std::min(count * batches, options_.max_lease_samples)));
}

// Before the last batch is used: the scheduler may be away then.
void SessionImpl::StockUp(uint32_t count) {
  const Ticks now = Now();
  if (samples_finished_ || draws_over_ || now < next_stock_) return;
  if (lease_->available() >= WantedAhead(count).value() / 4 * 3) return;
  next_stock_ = now + kStockInterval;
  draw_ahead_ = count;
  draws_wake_.Signal();
}

void SessionImpl::RunDraws() {
  while (true) {
    uint32_t count = 0;
    {
      MutexLock lock(&mutex_);
      while (!closing_ && draw_ahead_ == 0) draws_wake_.Wait(&mutex_);
      if (closing_) return;
      count = std::exchange(draw_ahead_, 0);
    }
    MutexLock one_draw(&draw_mutex_);
    // Without an answer there is another try a second later, or when the last batch is used.
    (void)Refill(count, true);
  }
}

bool SessionImpl::ReturnsQueued() const {
  return std::any_of(outbox_.begin(), outbox_.end(), [](const NodeRequest& request) {
    return std::holds_alternative<ReturnSamplesRequest>(request);
  });
}

absl::Status SessionImpl::AwaitReturns() {
  const Ticks deadline = Deadline();
  while (failed_.ok() && ReturnsQueued() && Now() < deadline) {
    changed_.WaitFor(&mutex_, deadline - Now());
  }
  return failed_;
}

absl::Status SessionImpl::Refill(uint32_t count, bool ahead) {
  DrawSamplesRequest request;
  {
    MutexLock lock(&mutex_);
    if (ahead && (draws_over_ || ReturnsQueued())) return absl::OkStatus();
    // What is given back may come again with this draw. The scheduler has to know of it first: told
    // a second time, after a lost answer, it would take the samples away again.
    PACELINE_RETURN_IF_ERROR(AwaitReturns());
    const uint64_t wanted = WantedAhead(count).value();
    const uint64_t held = std::min(lease_->available(), wanted - 1);
    request.wanted = Samples(plan_.spec.deterministic ? count : wanted - held);
    // Step 0 of a group is its start step, which draws nothing.
    request.step = group_->step() - Step(1);
    request.received = counters_.drawn;
    request.ahead = ahead;
  }
  PACELINE_ASSIGN_OR_RETURN(
      NodeReply reply,
      ahead ? control_->Call(joined_.self, request, kAheadTimeout) : CallScheduler(request));
  const auto* drawn = std::get_if<DrawSamplesReply>(&reply);
  if (drawn == nullptr) return absl::InternalError("the scheduler answered DrawSamples oddly");
  MutexLock lock(&mutex_);
  for (const SampleRange& range : drawn->ranges) {
    if (range.end < range.begin || range.end > plan_.spec.sample_count) {
      return absl::InternalError(absl::StrCat("the scheduler leased samples ", range.begin, "..",
                                              range.end, " of ", plan_.spec.sample_count));
    }
    counters_.drawn += Samples(range.end - range.begin);
  }
  lease_->Add(drawn->ranges);
  if (!ahead) samples_finished_ = drawn->finished;
  return absl::OkStatus();
}

absl::Status SessionImpl::CheckDraw() {
  if (!failed_.ok()) return failed_;
  if (plan_.spec.sample_count == 0) {
    return absl::FailedPreconditionError(
        "DrawSamples: the job has no training set; set job.sample_count");
  }
  if (!lease_) {
    lease_.emplace(plan_.spec.seed, plan_.spec.sample_count);
    if (!plan_.spec.deterministic) draw_thread_ = std::thread([this] { RunDraws(); });
  }
  return absl::OkStatus();
}

// The next batch of what is leased; empty when nothing is.
SampleBatch SessionImpl::TakeBatch(uint32_t count) {
  SampleLease::Batch batch = lease_->Take(count);
  const bool finished = batch.indices.empty() && samples_finished_;
  if (!batch.indices.empty()) {
    epoch_ = batch.epoch;
    progress_ = ProgressAt(batch.ranges.front(), plan_.spec.sample_count, plan_.spec.epochs);
    in_hand_.insert(in_hand_.end(), batch.ranges.begin(), batch.ranges.end());
  }
  return SampleBatch{epoch_, std::move(batch.indices), finished, progress_};
}

absl::StatusOr<SampleBatch> SessionImpl::DrawSamples(uint32_t count) {
  if (count == 0) return absl::InvalidArgumentError("DrawSamples: count is 0; ask for at least 1");
  PACELINE_RETURN_IF_ERROR(WaitReady());
  const Ticks deadline = Deadline();
  while (true) {
    {
      MutexLock lock(&mutex_);
      PACELINE_RETURN_IF_ERROR(CheckDraw());
      const bool any = lease_->available() > 0;
      if (!any && samples_finished_) return SampleBatch{epoch_, {}, true, progress_};
      if (any && !plan_.spec.deterministic) {
        StockUp(count);
        return TakeBatch(count);
      }
    }
    MutexLock one_draw(&draw_mutex_);
    {
      MutexLock lock(&mutex_);
      if (lease_->available() > 0 && !plan_.spec.deterministic) continue;  // they came meanwhile
    }
    PACELINE_RETURN_IF_ERROR(Refill(count, false));
    MutexLock lock(&mutex_);
    const SampleBatch batch = TakeBatch(count);
    // A member with an empty part still takes part in its group's step.
    if (!batch.indices.empty() || batch.finished || plan_.spec.deterministic || !group_->alone()) {
      return batch;
    }
    // All that is left is leased to others, who may return it.
    if (Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "worker '", options_.worker_name, "' waited for samples from ", control_->Peer()));
    }
    changed_.WaitFor(&mutex_, kNoSamplesPause);
  }
}

}  // namespace paceline
