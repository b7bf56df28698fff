// What a session notices about its own pushes: weights that a checkpoint has replaced, gradients
// that are not finite.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker_client/session_impl.h"

namespace paceline {

bool SessionImpl::IsCurrent(const Tensor& tensor) const {
  const uint32_t lineage = plan_.lineage;
  return std::all_of(tensor.bases.begin(), tensor.bases.end(),
                     [lineage](const Version& base) { return base.lineage >= lineage; });
}

// Until it has adopted a new lineage a worker's pushes carry nothing: part of the weights they were
// computed on is gone.
bool SessionImpl::Lapses(const Tensor& tensor) const {
  return (lineage_ && plan_.lineage > *lineage_) || !IsCurrent(tensor);
}

// Once all weights that this step exchanged are of a new lineage, or no more are asked for, the
// scheduler is told what is left of the samples drawn: the rest trained what is gone.
absl::Status SessionImpl::Adopt(bool leaving) {
  {
    MutexLock lock(&mutex_);
    if (!lineage_ || plan_.lineage <= *lineage_) return absl::OkStatus();
  }
  AdoptedRequest adopted;
  // A draw between what is held and the answer would be taken for lost.
  MutexLock no_draw(&draw_mutex_);
  {
    MutexLock lock(&mutex_);
    bool everywhere = true;
    for (const Tensor& t : tensors_) {
      everywhere = everywhere && (t.next_ordinal == Ordinal() || IsCurrent(t));
    }
    if (!leaving && !(pushed_this_step_ && everywhere)) return absl::OkStatus();
    // What is given back is no longer held, and must not be taken for lost.
    PACELINE_RETURN_IF_ERROR(AwaitReturns());
    adopted.lineage = plan_.lineage;
    if (lease_) adopted.held = lease_->Peek();
    adopted.held.insert(adopted.held.end(), in_hand_.begin(), in_hand_.end());
  }
  PACELINE_RETURN_IF_ERROR(CallScheduler(adopted).status());
  MutexLock lock(&mutex_);
  lineage_ = adopted.lineage;
  passed_unused_ = Samples(0);  // is settled
  return absl::OkStatus();
}

// A push that held NaN or infinity is told once; three in a row are more than an accident.
absl::Status SessionImpl::CheckFinite() {
  constexpr uint32_t kMaxInARow = 3;
  MutexLock lock(&mutex_);
  if (not_finite_.empty()) {
    if (pushed_this_step_) not_finite_in_a_row_ = 0;
    return absl::OkStatus();
  }
  NotFiniteRequest request{std::exchange(not_finite_, ""), group_->step(), ++not_finite_in_a_row_};
  const std::string tensor = request.tensor;
  outbox_.push_back(std::move(request));
  control_wake_.Signal();
  if (not_finite_in_a_row_ < kMaxInARow) return absl::OkStatus();
  Fail(absl::FailedPreconditionError(absl::StrCat(
      "worker '", options_.worker_name, "': ", kMaxInARow,
      " pushes in a row held NaN or infinity, the last in tensor '", tensor, "' in step ",
      group_->step().value(), "; lower the learning rate or look at its data")));
  return failed_;
}

}  // namespace paceline
