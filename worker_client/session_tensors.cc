#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "worker_client/session_impl.h"

namespace paceline {
namespace {

constexpr Ticks kPlacementLook = Seconds(1);

Ticks Now() { return Clock::Real().Now(); }

}  // namespace

absl::Status SessionImpl::SetOptimizer(const NamedSpec& optimizer) {
  PACELINE_RETURN_IF_ERROR(CallScheduler(SetOptimizerRequest{optimizer}).status());
  MutexLock lock(&mutex_);
  plan_.spec.optimizer = optimizer;
  return absl::OkStatus();
}

absl::StatusOr<TensorId> SessionImpl::RegisterTensor(const TensorSpec& spec) {
  PACELINE_RETURN_IF_ERROR(Validate(spec));
  if (spec.dtype != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", spec.name, "': dtype ", Absl(Name(spec.dtype)), " is not supported; use f32"));
  }
  MutexLock lock(&mutex_);
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].spec.name != spec.name) continue;
    if (tensors_[i].spec == spec) return TensorId(i);
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", spec.name, "' is ", ToString(tensors_[i].spec), ", not ",
                     ToString(spec), "; a tensor keeps its shape and dtype within a job"));
  }
  Tensor tensor;
  tensor.spec = spec;
  tensors_.push_back(std::move(tensor));
  return TensorId(tensors_.size() - 1);
}

absl::Status SessionImpl::Init(TensorId handle, std::span<const float> values) {
  MutexLock lock(&mutex_);
  // The values given before may be on their way.
  PACELINE_RETURN_IF_ERROR(AwaitPrepared());
  if (handle.value() >= tensors_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Init: tensor ", handle.value(), " was never registered"));
  }
  Tensor& tensor = tensors_[handle.value()];
  if (values.size() != tensor.spec.elements()) {
    return absl::InvalidArgumentError(absl::StrCat("Init: tensor '", tensor.spec.name, "' has ",
                                                   tensor.spec.elements(), " elements, got ",
                                                   values.size()));
  }
  if (tensor.ready) return absl::OkStatus();
  tensor.initial.assign(values.begin(), values.end());
  tensor.has_initial = true;
  return absl::OkStatus();
}

absl::Status SessionImpl::AwaitPrepared() {
  const Ticks deadline = Now() + options_.start_deadline;
  while (preparing_) {
    if (Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("worker '", options_.worker_name,
                       "' waited for another thread of it that gets tensors ready"));
    }
    changed_.WaitFor(&mutex_, deadline - Now());
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::WaitReady() {
  std::vector<uint32_t> batch;
  bool first = false;
  {
    MutexLock lock(&mutex_);
    PACELINE_RETURN_IF_ERROR(AwaitPrepared());
    if (!failed_.ok()) return failed_;
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].ready) batch.push_back(i);
    }
    if (batch.empty()) return absl::OkStatus();
    preparing_ = true;
    first = !started_;
  }
  absl::Status status = RegisterBatch(batch);
  if (status.ok()) status = AwaitSealed(batch);
  if (status.ok()) status = StartRound(batch);
  // A member's first step only fetches weights: a joiner takes part in it with nothing.
  if (status.ok() && first) status = AdvanceStep();
  while (status.ok() && first && Arrives()) status = Arrive();
  MutexLock lock(&mutex_);
  if (status.ok()) started_ = true;
  preparing_ = false;
  changed_.SignalAll();
  return status;
}

// Answered once servers own the tensors; until one has joined there is nobody who could.
absl::StatusOr<NodeReply> SessionImpl::AwaitPlacement(const RegisterTensorsRequest& request) {
  const Ticks deadline = Now() + options_.start_deadline;
  bool said = false;
  while (true) {
    const Ticks left = deadline - Now();
    absl::StatusOr<NodeReply> reply = CallScheduler(request, std::min(left, kPlacementLook));
    if (!absl::IsDeadlineExceeded(reply.status()) || left <= kPlacementLook) return reply;
    if (!std::exchange(said, true)) {
      LogInfo("worker", options_.worker_name, ": waiting for the servers to take ",
              request.tensors.size(), " tensors; no server has joined yet, or one is slow");
    }
  }
}

absl::StatusOr<std::shared_ptr<float[]>> SessionImpl::AllocateTensor(TensorId tensor) {
  PACELINE_RETURN_IF_ERROR(WaitReady());
  uint64_t elements = 0;
  {
    MutexLock lock(&mutex_);
    if (tensor.value() >= tensors_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", tensor.value(), " was never registered; call RegisterTensor first"));
    }
    elements = tensors_[tensor.value()].spec.elements();
  }
  const std::shared_ptr<std::byte[]> memory = links_->Allocate(elements * sizeof(float));
  return std::shared_ptr<float[]>(memory, reinterpret_cast<float*>(memory.get()));
}

absl::Status SessionImpl::RegisterBatch(const std::vector<uint32_t>& batch) {
  RegisterTensorsRequest request;
  {
    MutexLock lock(&mutex_);
    for (uint32_t i : batch) request.tensors.push_back(tensors_[i].spec);
  }
  PACELINE_ASSIGN_OR_RETURN(const NodeReply reply, AwaitPlacement(request));
  const auto* placed = std::get_if<RegisterTensorsReply>(&reply);
  if (placed == nullptr || placed->ids.size() != batch.size()) {
    return absl::InternalError("the scheduler answered RegisterTensors oddly");
  }
  MutexLock lock(&mutex_);
  const Ticks deadline = Deadline();
  while (failed_.ok() && plan_.generation < placed->generation) {
    if (Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("worker '", options_.worker_name,
                                                      "' waited for the placement of ",
                                                      batch.size(), " tensors"));
    }
    changed_.WaitFor(&mutex_, deadline - Now());
  }
  if (!failed_.ok()) return failed_;
  for (size_t k = 0; k < batch.size(); ++k) {
    Tensor& tensor = tensors_[batch[k]];
    tensor.id = placed->ids[k];
    PACELINE_ASSIGN_OR_RETURN(tensor.chunks, Partition(plan_, *tensor.id));
    tensor.bases.assign(tensor.chunks.size(), Version());
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::AwaitSealed(const std::vector<uint32_t>& batch) {
  const Ticks deadline = Now() + options_.start_deadline;
  bool written = false;
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (!failed_.ok()) return failed_;
      const auto open =
          std::find_if(batch.begin(), batch.end(), [this](uint32_t i) REQUIRES(mutex_) {
            const TensorPlan* placed = FindTensor(plan_, *tensors_[i].id);
            return placed == nullptr || !placed->sealed;
          });
      if (open == batch.end()) return absl::OkStatus();
      const bool writer = plan_.init_writer == joined_.self.node;
      if (!writer || written) {
        if (Now() >= deadline) {
          return absl::DeadlineExceededError(
              absl::StrCat("worker '", options_.worker_name, "' waited for the initial values of '",
                           tensors_[*open].spec.name, "' from node ", plan_.init_writer.value()));
        }
        changed_.WaitFor(&mutex_, deadline - Now());
        continue;
      }
    }
    PACELINE_RETURN_IF_ERROR(WriteInitial(batch));
    written = true;
  }
}

absl::Status SessionImpl::WriteInitial(const std::vector<uint32_t>& batch) {
  std::vector<OpRequest> requests;
  InitDoneRequest done;
  {
    MutexLock lock(&mutex_);
    for (uint32_t i : batch) {
      const Tensor& tensor = tensors_[i];
      if (!tensor.has_initial) {
        return absl::FailedPreconditionError(
            absl::StrCat("tensor '", tensor.spec.name,
                         "' was given no initial values; call Init on every worker"));
      }
      requests.push_back({FrameKind::kInit, i, tensor.initial, {}, {}});
      done.tensors.push_back(*tensor.id);
    }
  }
  PACELINE_RETURN_IF_ERROR(IssueAndWait(requests));
  return CallScheduler(done).status();
}

absl::Status SessionImpl::StartRound(const std::vector<uint32_t>& batch) {
  // Every member of the group gets the same weights and base from one round without gradients.
  std::vector<OpRequest> requests;
  {
    MutexLock lock(&mutex_);
    for (uint32_t i : batch) {
      tensors_[i].start.assign(tensors_[i].spec.elements(), 0.0f);
      OpRequest request{FrameKind::kPushPull, i, {}, tensors_[i].start, {}};
      request.options.samples = Samples(0);
      request.patience = options_.start_deadline;  // others may start later
      request.start = true;
      requests.push_back(std::move(request));
    }
  }
  PACELINE_RETURN_IF_ERROR(IssueAndWait(requests));
  MutexLock lock(&mutex_);
  for (uint32_t i : batch) {
    tensors_[i].ready = true;
    tensors_[i].initial = {};
  }
  return absl::OkStatus();
}

}  // namespace paceline
