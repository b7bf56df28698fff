// How a session leaves its job.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "worker_client/session_impl.h"

namespace paceline {
namespace {

constexpr Ticks kLastBoundaryPatience = Seconds(5);
constexpr Ticks kStopPatience = Seconds(3);
constexpr Ticks kStandingTimeout = Seconds(1);
constexpr Step kForGood(uint64_t{1} << 40);     // further than a group gets
constexpr Ticks kForGoodPatience = Seconds(1);  // nobody is lost without it

Ticks Now() { return Clock::Real().Now(); }

}  // namespace

void SessionImpl::ReturnUnused() {
  MutexLock no_draw(&draw_mutex_);
  MutexLock lock(&mutex_);
  draws_over_ = true;
  ReturnSamplesRequest unused{lease_ ? lease_->TakeAll() : std::vector<SampleRange>()};
  for (const SampleRange& range : unused.ranges) {
    counters_.returned += Samples(range.end - range.begin);
  }
  const std::vector<SampleRange> of_step = TakeUnused();
  unused.ranges.insert(unused.ranges.end(), of_step.begin(), of_step.end());
  if (!unused.ranges.empty()) outbox_.push_back(std::move(unused));
}

// Should it end before it hears from which step the others do without it, nobody waits for it; nor
// does a checkpoint.
absl::Status SessionImpl::CoverForGood() {
  Step now;
  {
    MutexLock lock(&mutex_);
    if (!group_->in_group()) return absl::OkStatus();
    now = group_->step();
  }
  return SendBoundary(now, now + kForGood, Samples(0), kForGoodPatience);
}

// The others still count on this worker up to the step in which they do without it; those of the
// group that it was on its way to as well.
absl::Status SessionImpl::CoverUntilGone() {
  while (true) {
    std::optional<Step> from;
    Step now;
    Step through;
    bool owes = true;
    bool goes_over = false;
    {
      MutexLock lock(&mutex_);
      const Ticks deadline = IsToEnd() ? Now() + kStopPatience : Deadline();
      const bool alone = group_->alone();
      while (failed_.ok() && !alone && !gone_ && !group_->leaves_at() && Now() < deadline) {
        changed_.WaitFor(&mutex_, deadline - Now());
      }
      if (!failed_.ok()) return absl::OkStatus();  // the job has ended, or it was fenced meanwhile
      from = group_->leaves_at();
      now = group_->step();
      through = from ? group_->PassesThrough(*from) : group_->counted_on_through();
      owes = from ? through >= now : !alone || pushed_this_step_;
      goes_over = group_->goes_over();
    }
    // Where the word was lost with a stream no answer is expected: the job may have ended.
    const Ticks patience = from ? options_.deadline : kLastBoundaryPatience;
    if (owes) {
      const absl::Status told = SendBoundary(now, through, Samples(0), patience);
      // Those who would have waited for it have left too, and the job is over.
      if (from && !goes_over) return absl::IsAborted(told) ? absl::OkStatus() : told;
    }
    if (!goes_over) return absl::OkStatus();
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return absl::OkStatus();
    BeginStep(std::max(*from, now + Step(1)));
  }
}

absl::Status SessionImpl::Leave(const std::string& reason) {
  {
    MutexLock lock(&mutex_);
    if (left_) return absl::OkStatus();
    if (!failed_.ok()) return failed_;
  }
  PACELINE_RETURN_IF_ERROR(Adopt(true));
  ReturnUnused();
  SendQueued();
  if (const absl::Status told = CoverForGood(); !told.ok()) {
    LogInfo("worker", options_.worker_name,
            ": leaves although an owner has not heard of it: ", std::string(told.message()));
  }
  LeaveRequest request;
  request.reason = reason;
  request.last = MakeReport();
  {
    MutexLock lock(&mutex_);
    leaving_ = true;
  }
  const bool in_a_hurry = IsToEnd();
  const absl::Status told =
      CallScheduler(request, in_a_hurry ? kStopPatience : options_.deadline).status();
  if (told.ok()) {
    PACELINE_RETURN_IF_ERROR(CoverUntilGone());
  } else if (in_a_hurry && IsWorthRetrying(told)) {
    LogWarning("worker", options_.worker_name,
               ": ends without a word from the scheduler, for which ",
               "it will have died; its unused samples are then handed out again: ",
               std::string(told.message()));
  } else {
    return told;
  }
  MutexLock lock(&mutex_);
  left_ = true;
  control_wake_.Signal();
  return absl::OkStatus();
}

void SessionImpl::Block() {
  if (blocked_++ == 0) blocked_since_ = Now();
}

bool SessionImpl::IsToEnd() const { return options_.stop && options_.stop(); }

// A program that was told to end and waits for what does not come would wait for as long as any
// operation may take.
void SessionImpl::EndIfStuck(Ticks now) {
  if (!failed_.ok() || leaving_ || !IsToEnd()) return;
  if (stop_seen_ == Ticks()) stop_seen_ = now;
  if (blocked_ == 0 || now - std::max(stop_seen_, blocked_since_) < kStopPatience) return;
  std::string what = absl::StrCat("worker '", options_.worker_name, "' waited");
  for (const auto& [id, pending] : pending_) {
    if (!pending->done) what = DescribeOp(*pending, *pending->ops.front());
  }
  Fail(absl::CancelledError(absl::StrCat(what, " for ", kStopPatience.value() / 1'000'000'000,
                                         " s after it was told to end")));
}

std::optional<std::string> SessionImpl::asked_to_leave() const {
  MutexLock lock(&mutex_);
  return asked_to_leave_;
}

bool SessionImpl::declared_dead() {
  {
    MutexLock lock(&mutex_);
    if (standing_ != Standing::kFenced) return standing_ == Standing::kDeclaredDead;
  }
  // Fenced, but why: to join again under a name that another has taken would displace that one.
  const absl::Status status = control_->Call(joined_.self, Heartbeat{}, kStandingTimeout).status();
  return !absl::IsAlreadyExists(status);
}

}  // namespace paceline
