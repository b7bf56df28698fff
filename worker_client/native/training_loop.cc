#include "worker_client/native/training_loop.h"

#include <errno.h>
#include <string.h>

#include <chrono>
#include <cinttypes>
#include <future>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker_client/native/pacing.h"

namespace paceline {
namespace {

constexpr uint64_t kReportEverySteps = 20;
// How often a worker without samples looks whether all have finished.
constexpr auto kFinishPoll = std::chrono::milliseconds(20);

}  // namespace

TrainingLoop::TrainingLoop(Session& session, Model& model, const DatasetSplit& data,
                           const ProgramOptions& options, uint32_t index, const Clock& clock,
                           const std::atomic<bool>& stop)
    : session_(session),
      model_(model),
      data_(data),
      options_(options),
      slowdown_(SlowdownOf(options.slowdown, index)),
      clock_(clock),
      stop_(stop) {}

absl::StatusOr<TrainingResult> TrainingLoop::Run() {
  PACELINE_RETURN_IF_ERROR(OpenStepLog());
  PACELINE_RETURN_IF_ERROR(Prepare());
  for (bool more = true; more;) {
    if (stop_.load(std::memory_order_relaxed)) return LeaveEarly("stopped by a signal");
    if (const auto reason = session_.asked_to_leave()) return LeaveEarly(*reason);
    PACELINE_ASSIGN_OR_RETURN(more, TrainStep());
  }
  PACELINE_RETURN_IF_ERROR(WaitForOthers());
  PACELINE_RETURN_IF_ERROR(Finish());
  return std::move(result_);
}

absl::Status TrainingLoop::LeaveEarly(const std::string& reason) {
  PACELINE_RETURN_IF_ERROR(session_.Leave(reason));
  return absl::CancelledError(absl::StrCat(
      reason, "; after ", result_.steps, " steps left the job, which goes on without this worker"));
}

absl::Status TrainingLoop::Prepare() {
  const JobSpec spec = session_.spec();
  batch_size_ = static_cast<uint32_t>(spec.batch_size);
  result_.parameters = model_.InitialValues(spec.seed);
  for (const TensorSpec& tensor : model_.tensors()) {
    PACELINE_ASSIGN_OR_RETURN(tensors_.emplace_back(), session_.RegisterTensor(tensor));
  }
  for (size_t t = 0; t < tensors_.size(); ++t) {
    PACELINE_RETURN_IF_ERROR(session_.Init(tensors_[t], result_.parameters[t]));
  }
  PACELINE_RETURN_IF_ERROR(session_.WaitReady());
  // A worker that joins a running job starts from its weights.
  return PullAll();
}

// A group's step 0 is the round in which its members took their first weights.
Step TrainingLoop::UpdatesSoFar() const { return session_.step() - Step(1); }

absl::StatusOr<bool> TrainingLoop::TrainStep() {
  if (options_.max_steps != 0 && UpdatesSoFar().value() >= options_.max_steps) return false;
  PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session_.DrawSamples(batch_size_));
  if (batch.finished) return false;
  for (const uint32_t index : batch.indices) {
    if (index >= data_.train.size()) {
      return absl::InternalError(absl::StrCat("drew sample ", index, " of ", data_.train.size()));
    }
  }
  progress_ = batch.progress;
  ComputeGradient(batch);
  PACELINE_RETURN_IF_ERROR(Exchange(Samples(batch.indices.size())));
  const Step step = session_.step();
  const GroupId group = session_.group();
  PACELINE_RETURN_IF_ERROR(session_.AtStepBoundary());
  LogStep(step);
  // In another group it goes on from that one's weights.
  if (session_.group() != group) PACELINE_RETURN_IF_ERROR(PullAll());
  ++result_.steps;
  result_.samples += Samples(batch.indices.size());
  Report(last_);
  return true;
}

void TrainingLoop::ComputeGradient(const SampleBatch& batch) {
  const Ticks start = clock_.Now();
  last_ = model_.Gradient(result_.parameters, data_.train, batch.indices, gradients_);
  const Ticks computed = clock_.Now() - start;
  const Ticks wait = PacingWait(computed, Milliseconds(options_.step_time_ms), slowdown_);
  if (wait > Ticks(0)) std::this_thread::sleep_for(std::chrono::nanoseconds(wait.value()));
}

// With normalization mean a push of k workers moves the weights as far as one of all W, from k/W of
// the samples: this gives a sample the same weight in every group. With sum it has it already.
float TrainingLoop::LearningRateOfGroup() const {
  const float rate = options_.schedule.At(UpdatesSoFar(), progress_);
  const JobSpec spec = session_.spec();
  if (spec.normalization != Normalization::kMean) return rate;
  // In double: for a group of all workers it is the rate itself, to the bit.
  return static_cast<float>(double{rate} * session_.group_size() / spec.workers);
}

absl::Status TrainingLoop::Exchange(Samples samples) {
  const float learning_rate = LearningRateOfGroup();
  return OnEveryTensor([&](size_t t) {
    OperationOptions options;
    options.samples = samples;
    options.learning_rate = learning_rate;
    // The next step needs the first layer first.
    options.priority = -static_cast<int32_t>(t);
    return session_.PushPull(tensors_[t], gradients_[t], result_.parameters[t], options);
  });
}

absl::Status TrainingLoop::OnEveryTensor(
    const std::function<absl::StatusOr<OperationHandle>(size_t tensor)>& issue) {
  absl::Status first;
  std::vector<OperationHandle> operations;
  for (size_t t = 0; t < tensors_.size() && first.ok(); ++t) {
    const absl::StatusOr<OperationHandle> operation = issue(t);
    first.Update(operation.status());
    if (operation.ok()) operations.push_back(*operation);
  }
  for (const OperationHandle operation : operations)
    first.Update(session_.Wait(operation).status());
  return first;
}

// Appends: a worker that is started again, or joins again, goes on in the same file.
absl::Status TrainingLoop::OpenStepLog() {
  if (options_.step_log.empty()) return absl::OkStatus();
  step_log_.reset(std::fopen(options_.step_log.c_str(), "ae"));
  if (step_log_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("step_log: cannot open ", options_.step_log, ": ", strerror(errno)));
  }
  setvbuf(step_log_.get(), nullptr, _IOLBF, 0);
  return absl::OkStatus();
}

void TrainingLoop::LogStep(Step step) {
  if (step_log_ == nullptr) return;
  std::fprintf(step_log_.get(), "step=%" PRIu64 " members=%u at_us=%" PRId64 "\n", step.value(),
               session_.group_size(), clock_.Now().value() / 1000);
}

void TrainingLoop::Report(const BatchResult& batch) {
  recent_.loss_sum += batch.loss_sum;
  recent_.correct += batch.correct;
  recent_.samples += batch.samples;
  std::map<std::string, double> metrics;
  if (result_.steps % kReportEverySteps == 0 && recent_.samples > 0) {
    metrics["loss"] = recent_.loss();
    metrics["train_accuracy"] = recent_.accuracy();
    recent_ = {};
  }
  const bool evaluates = options_.eval_every != 0 && session_.rank() == JobRank(0);
  if (evaluates && result_.steps % options_.eval_every == 0) {
    const BatchResult validation = model_.Evaluate(result_.parameters, data_.validation);
    metrics["validation_loss"] = validation.loss();
    metrics["validation_accuracy"] = validation.accuracy();
  }
  if (!metrics.empty()) session_.ReportProgress(metrics);
}

// The weights are final once every live worker has had its last reply. Members of a group may run
// out of samples a step apart: until the last has, the others take part with nothing, so that its
// rounds close. A deterministic job of one group ends at one step.
absl::Status TrainingLoop::WaitForOthers() {
  const JobSpec spec = session_.spec();
  const bool by_step = spec.deterministic && spec.groups.kind == GroupSpec::Kind::kOne;
  auto all_finished =
      std::async(std::launch::async, [this] { return session_.Barrier("trained"); });
  for (auto& tensor : gradients_) tensor.assign(tensor.size(), 0.0f);
  while (all_finished.wait_for(kFinishPoll) != std::future_status::ready) {
    if (by_step || session_.alone() || gradients_.empty()) continue;
    PACELINE_RETURN_IF_ERROR(Exchange(Samples(0)));
    PACELINE_RETURN_IF_ERROR(session_.AtStepBoundary());
  }
  return all_finished.get();
}

absl::Status TrainingLoop::PullAll() {
  return OnEveryTensor(
      [this](size_t t) { return session_.Pull(tensors_[t], result_.parameters[t], {}); });
}

// Whoever is still alive does this, with the same bits, so that the loss of no worker loses the
// result.
absl::Status TrainingLoop::Finish() {
  PACELINE_RETURN_IF_ERROR(PullAll());
  result_.test = model_.Evaluate(result_.parameters, data_.test);
  session_.ReportProgress(
      {{"test_accuracy", result_.test.accuracy()}, {"test_loss", result_.test.loss()}});
  if (!options_.save.empty()) {
    PACELINE_RETURN_IF_ERROR(SaveParameters(options_.save, model_, result_.parameters,
                                            {{"model", options_.model}, {"format", "paceline"}}));
  }
  return session_.Leave("finished");
}

}  // namespace paceline
