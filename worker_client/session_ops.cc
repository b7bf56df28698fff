#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "parameter/state_codec.h"
#include "worker_client/session_impl.h"

namespace paceline {
namespace {

constexpr Ticks kRetryPause = Milliseconds(5);
constexpr uint32_t kRetryDoublings = 6;  // up to 320 ms; each time the whole payload travels
constexpr Ticks kDeadlineScan = Milliseconds(50);

Ticks Now() { return Clock::Real().Now(); }

// A round is an operation of the whole group; it takes an ordinal and may carry samples.
bool IsRound(FrameKind kind) {
  return kind == FrameKind::kPushPull || kind == FrameKind::kPush || kind == FrameKind::kReduce;
}

bool IsPush(FrameKind kind) { return kind == FrameKind::kPushPull || kind == FrameKind::kPush; }

}  // namespace

FrameHeader SessionImpl::BaseHeader() const {
  FrameHeader header;
  header.job = joined_.job;
  header.job_generation = plan_.generation;
  header.lineage = lineage_.value_or(plan_.lineage);
  header.group = group_->current().id;
  header.group_generation = group_->current().generation;
  header.step = group_->step();
  header.origin_step = group_->step();
  return header;
}

absl::Status SessionImpl::CheckTensor(const OpRequest& request) {
  if (!failed_.ok()) return failed_;
  if (request.tensor >= tensors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", request.tensor, " was never registered; call RegisterTensor first"));
  }
  const Tensor& tensor = tensors_[request.tensor];
  const uint64_t elements = tensor.spec.elements();
  const auto wrong_size = [&](std::string_view what, uint64_t size) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.spec.name, "' has ", elements,
                                                   " elements, ", Absl(what), " has ", size));
  };
  const bool carries = request.options.samples > Samples(0) || !IsRound(request.kind);
  if (request.kind != FrameKind::kPull && carries && request.values.size() != elements &&
      request.kind != FrameKind::kReadState && request.kind != FrameKind::kWriteState) {
    return wrong_size("the gradient given", request.values.size());
  }
  const bool comes_back = request.kind == FrameKind::kPushPull ||
                          request.kind == FrameKind::kPull || request.kind == FrameKind::kReduce;
  if (request.out.size() != elements && (comes_back || !request.out.empty())) {
    return wrong_size("the result buffer", request.out.size());
  }
  const float rate = request.options.learning_rate;
  if (!std::isfinite(rate) || rate < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("push of tensor '", tensor.spec.name, "' with learning rate ", rate,
                     "; use a finite one above 0, or 0 for the optimizer's own"));
  }
  if (IsPush(request.kind) && request.options.samples > Samples(0) &&
      plan_.spec.optimizer.name.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("push of tensor '", tensor.spec.name,
                     "' before an optimizer was set; call SetOptimizer or set job.optimizer"));
  }
  return absl::OkStatus();
}

std::shared_ptr<ChunkOp> SessionImpl::MakeChunkOp(const OpRequest& request, const Tensor& tensor,
                                                  uint32_t index) {
  const PlacedChunk& chunk = tensor.chunks[index];
  auto op = std::make_shared<ChunkOp>();
  op->owner = chunk.owner;
  op->index = index;
  op->priority = request.options.priority;
  if (request.kind == FrameKind::kReadState) op->collect_limit = MaxStateBytes(chunk.range.length);
  op->header = BaseHeader();
  op->header.kind = request.kind;
  op->header.tensor = *tensor.id;
  op->header.chunk = chunk.key.chunk;
  op->header.dtype = tensor.spec.dtype;
  // On weights that a checkpoint has replaced, or of another group: brings nothing, and gets the
  // new ones.
  const bool lapsed = IsPush(request.kind) && (Lapses(tensor) || tensor.left_behind);
  const Samples samples = lapsed ? Samples(0) : request.options.samples;
  if (IsRound(request.kind)) {
    op->header.ordinal = tensor.next_ordinal;
    op->header.samples = samples;
    op->header.learning_rate = request.options.learning_rate;
    if (!tensor.bases.empty()) op->header.version = tensor.bases[index];
  }
  if (!request.values.empty() && (!IsRound(request.kind) || samples > Samples(0))) {
    op->payload = std::as_bytes(request.values.subspan(chunk.range.begin, chunk.range.length));
  }
  if (!request.out.empty()) {
    op->out = std::as_writable_bytes(request.out.subspan(chunk.range.begin, chunk.range.length));
  }
  return op;
}

absl::StatusOr<uint64_t> SessionImpl::Issue(const OpRequest& request) {
  std::vector<std::shared_ptr<ChunkOp>> ops;
  uint64_t id = 0;
  {
    MutexLock lock(&mutex_);
    PACELINE_RETURN_IF_ERROR(CheckTensor(request));
    Tensor& tensor = tensors_[request.tensor];
    auto pending = std::make_shared<Pending>();
    id = next_operation_++;
    pending->kind = request.kind;
    pending->tensor = request.tensor;
    pending->samples = request.options.samples;
    pending->began = Now();
    pending->deadline = Now() + request.patience.value_or(options_.deadline);
    pending->callback = request.options.done;
    pending->start = request.start;
    pending->remaining = tensor.chunks.size();
    pending->result.bases = tensor.bases;
    pending->result.versions.resize(tensor.chunks.size());
    for (uint32_t i = 0; i < tensor.chunks.size(); ++i) {
      ops.push_back(MakeChunkOp(request, tensor, i));
      ops.back()->tag = id;
    }
    if (IsRound(request.kind)) ++tensor.next_ordinal;
    pending->lapsed = IsPush(request.kind) && Lapses(tensor);
    if (IsPush(request.kind)) {
      pushed_this_step_ = true;
      if (tensor.ready && !request.start) tensor.start = {};
      const bool given_back = tensor.left_behind && !pending->lapsed;
      if (given_back) pending->samples = Samples(0);
      returns_rest_ = returns_rest_ || (given_back && request.options.samples > Samples(0));
      if (*tensor.id == plan_.lead_tensor) offered_this_step_ += pending->samples.value();
    }
    if (!request.out.empty() && request.kind != FrameKind::kReduce && !request.start) {
      tensor.left_behind = false;  // with this the program gets the weights of now
    }
    pending->ops = ops;
    pending_.emplace(id, std::move(pending));
  }
  for (auto& op : ops) links_->Issue(op);
  return id;
}

absl::Status SessionImpl::IssueAndWait(const std::vector<OpRequest>& requests) {
  absl::Status first;
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < requests.size() && first.ok(); ++i) {
    const absl::StatusOr<uint64_t> id = Issue(requests[i]);
    first.Update(id.status());
    if (id.ok()) ids.push_back(*id);
  }
  first.Update(WaitForEach(ids));
  return first;
}

void SessionImpl::OnOutcome(const std::shared_ptr<ChunkOp>& op, const absl::Status& status) {
  std::shared_ptr<Pending> finished;
  {
    MutexLock lock(&mutex_);
    auto it = pending_.find(op->tag);
    if (it == pending_.end()) return;
    Pending& pending = *it->second;
    if (const std::optional<Ticks> pause = Settle(pending, *op, status)) {
      retries_.push_back({Now() + *pause, op});
      timer_wake_.Signal();
      return;
    }
    if (--pending.remaining > 0) return;
    pending.done = true;
    for (const Version& version : pending.result.versions) {
      pending.result.version = std::max(pending.result.version, version);
    }
    for (const Version& base : pending.result.bases) {
      pending.result.base = std::max(pending.result.base, base);
    }
    if (pending.callback || pending.internal) {
      finished = it->second;
      pending_.erase(it);
    }
    changed_.SignalAll();
  }
  if (finished != nullptr) CallBack(*finished);
}

void SessionImpl::CallBack(const Pending& finished) {
  if (!finished.callback) return;
  if (finished.status.ok()) {
    finished.callback(finished.result);
  } else {
    finished.callback(finished.status);
  }
}

std::optional<Ticks> SessionImpl::Settle(Pending& pending, ChunkOp& op,
                                         const absl::Status& status) {
  if (!status.ok()) {
    if (pending.status.ok()) pending.status = status;
    CountSamples(pending, op, status);
    return std::nullopt;
  }
  const FrameHeader& reply = op.reply;
  if (reply.status == FrameStatus::kOldGeneration) {
    // No generation that is known there has this worker: it has no step to end.
    if (pending.kind == FrameKind::kBoundary) return std::nullopt;
    const bool ended = reply.group_generation == GroupGeneration(0);
    const bool without = group_->IsWithoutSelf(reply.group_generation);
    const bool past = op.header.group != group_->current().id;
    // Of just the generation that holds there: this worker is not in it, whatever it has missed.
    const bool out = without || reply.group_generation == op.header.group_generation;
    if (past || ended || (out && group_->goes_over())) return LeaveBehind(pending, op);
    if (reply.group == op.header.group && without) {
      const absl::Status left = absl::FailedPreconditionError(absl::StrCat(
          "worker '", options_.worker_name, "' has left its group, which goes on without it"));
      if (pending.status.ok()) pending.status = left;
      CountSamples(pending, op, left);
      return std::nullopt;
    }
  }
  // A Boundary to one that owns nothing any more is of no use to anybody.
  const bool moot = pending.kind == FrameKind::kBoundary && reply.status == FrameStatus::kNotOwner;
  if (moot) return std::nullopt;
  if (reply.status == FrameStatus::kNotYet || reply.status == FrameStatus::kOldGeneration ||
      reply.status == FrameStatus::kNotOwner || reply.status == FrameStatus::kLate) {
    if (!failed_.ok() || !pending.status.ok()) {
      if (pending.status.ok()) pending.status = failed_;
      CountSamples(pending, op, pending.status);
      return std::nullopt;
    }
    // The owner says which generation of this group holds for the step.
    if (reply.status == FrameStatus::kOldGeneration && reply.group == op.header.group &&
        reply.group_generation > op.header.group_generation) {
      op.header.group_generation = reply.group_generation;
    }
    const bool at_once = reply.status == FrameStatus::kLate && CatchUp(pending, op);
    return at_once ? Ticks(0) : Ticks(kRetryPause.value() << std::min(op.again++, kRetryDoublings));
  }
  const absl::Status outcome = FromReply(pending, op);
  if (!outcome.ok() && pending.status.ok()) pending.status = outcome;
  if (pending.kind == FrameKind::kBoundary) return std::nullopt;
  pending.result.versions[op.index] = reply.version;
  if (pending.kind == FrameKind::kReduce) pending.result.samples = reply.samples;
  CountSamples(pending, op, outcome);
  if (reply.status == FrameStatus::kDiscarded && op.header.kind == FrameKind::kReduce) {
    group_is_in_ = std::max(group_is_in_, reply.step);
    std::fill(op.out.begin(), op.out.end(), std::byte{0});  // no sum is of this step any more
  }
  if (reply.status == FrameStatus::kDiscarded && op.header.kind == FrameKind::kPushPull) {
    // The weights are owed all the same: without them all later gradients would be stale too.
    BecomePull(op);
    return kRetryPause;
  }
  const bool weights_came = !op.out.empty() && reply.total == op.out.size();
  Tensor& tensor = tensors_[pending.tensor];
  if (weights_came && pending.kind != FrameKind::kReduce && op.index < tensor.bases.size()) {
    tensor.bases[op.index] = reply.version;
  }
  return std::nullopt;
}

std::optional<Ticks> SessionImpl::LeaveBehind(const Pending& pending, ChunkOp& op) {
  const bool past = op.header.group != group_->current().id;
  const bool lead = op.header.tensor == plan_.lead_tensor && op.header.chunk == ChunkIndex(0);
  if (lead && pending.lapsed && IsPush(op.header.kind)) counters_.discarded += pending.samples;
  if (!past && IsPush(op.header.kind) && lead && !pending.lapsed) {
    const uint64_t refused = std::min(offered_this_step_, pending.samples.value());
    offered_this_step_ -= refused;
    returns_rest_ = returns_rest_ || refused > 0;
  }
  if (!past) group_->GoOverAtOnce();
  if (op.header.kind == FrameKind::kPushPull) {
    BecomePull(op);
    return Ticks(0);
  }
  // No sum of its old group will come any more.
  if (op.header.kind == FrameKind::kReduce) std::fill(op.out.begin(), op.out.end(), std::byte{0});
  return std::nullopt;
}

// The step that the group is in, where the owner said it, is begun after the next boundary.
void SessionImpl::BecomePull(ChunkOp& op) {
  const bool said = op.reply.status != FrameStatus::kOldGeneration &&
                    op.header.group == group_->current().id && op.reply.step > op.header.step;
  if (said) group_is_in_ = std::max(group_is_in_, op.reply.step);
  op.header.kind = FrameKind::kPull;
  op.header.samples = Samples(0);
  op.payload = {};
}

bool SessionImpl::CatchUp(const Pending& pending, ChunkOp& op) {
  if (pending.start) {
    // Nobody needs its nothing, and it needs no more than weights.
    BecomePull(op);
    return true;
  }
  // Owners know of different steps; the push goes into one round with all of its chunks.
  const Step step = std::max(op.reply.step, group_->step());
  if (op.reply.group != group_->current().id || !group_->MayCarryTo(step)) return false;
  if (step > group_->step()) group_->AdvanceTo(step);
  op.header.step = step;
  op.header.group_generation = group_->current().generation;
  return true;
}

std::string SessionImpl::NameOp(const Pending& pending, const ChunkOp& op) const {
  if (pending.kind == FrameKind::kBoundary) {
    return absl::StrCat("the end of step ", op.header.origin_step.value());
  }
  return absl::StrCat(Absl(Name(pending.kind)), " of tensor '", tensors_[pending.tensor].spec.name,
                      "' chunk ", op.header.chunk.value(), " in step ", op.header.step.value());
}

absl::Status SessionImpl::FromReply(const Pending& pending, const ChunkOp& op) {
  const std::string where = NameOp(pending, op);
  const std::string said =
      absl::StrCat(where, ": owner ", op.owner.value(), " answered ", Absl(Name(op.reply.status)));
  switch (op.reply.status) {
    case FrameStatus::kOk:
    case FrameStatus::kDiscarded:
      return absl::OkStatus();
    case FrameStatus::kNotFinite:
      if (not_finite_.empty()) not_finite_ = tensors_[pending.tensor].spec.name;
      LogWarning("worker", options_.worker_name, ": ", where,
                 ": the gradient holds NaN or infinity and was left out");
      return absl::OkStatus();
    case FrameStatus::kFenced:
      if (standing_ == Standing::kMember) standing_ = Standing::kFenced;
      return absl::FailedPreconditionError(absl::StrCat(
          said, ": this worker was declared dead, or another process has joined under its name"));
    case FrameStatus::kJobEnded:
      return absl::AbortedError(said);
    case FrameStatus::kNoOptimizer:
      return absl::FailedPreconditionError(absl::StrCat(said, "; call SetOptimizer first"));
    case FrameStatus::kNotWriter:
      return absl::FailedPreconditionError(
          absl::StrCat(said, "; another worker writes the initial values"));
    case FrameStatus::kQuota:
      return absl::ResourceExhaustedError(
          absl::StrCat(said, "; raise the job's memory quota on the servers"));
    default:
      return absl::InvalidArgumentError(said);
  }
}

void SessionImpl::CountSamples(const Pending& pending, const ChunkOp& op,
                               const absl::Status& status) {
  // A push counts where the owners count it: at the lead chunk.
  if (!IsPush(op.header.kind) || op.header.tensor != plan_.lead_tensor ||
      op.header.chunk != ChunkIndex(0)) {
    return;
  }
  if (absl::IsFailedPrecondition(status) || absl::IsCancelled(status)) {
    // The owners do without this incarnation: what they did not count is handed out again.
    counters_.returned += pending.samples;
  } else if (status.ok() && op.reply.status == FrameStatus::kOk && !pending.lapsed) {
    counters_.applied += pending.samples;
  } else {
    counters_.discarded += pending.samples;
  }
}

std::string SessionImpl::DescribeOp(const Pending& pending, const ChunkOp& op) const {
  return absl::StrCat("worker '", options_.worker_name, "' waited for ", NameOp(pending, op),
                      " from ", links_->Describe(op.owner));
}

absl::StatusOr<OperationResult> SessionImpl::WaitFor(uint64_t id) {
  std::shared_ptr<Pending> pending;
  MutexLock lock(&mutex_);
  auto it = pending_.find(id);
  if (it == pending_.end() || it->second->internal || it->second->callback) {
    return absl::InvalidArgumentError(
        absl::StrCat("operation ", id, " is not one that can be waited for, or was already"));
  }
  pending = it->second;
  const Ticks began = Clock::Real().Now();
  // The timer ends it at its deadline; its memory is free only when it is done.
  Block();
  while (!pending->done) changed_.Wait(&mutex_);
  --blocked_;
  waited_ += Clock::Real().Now() - began;
  pending_.erase(id);
  if (!pending->status.ok()) return pending->status;
  return pending->result;
}

absl::StatusOr<OperationResult> SessionImpl::Wait(OperationHandle operation) {
  return WaitFor(operation.value());
}

absl::Status SessionImpl::WaitAll() {
  std::vector<uint64_t> ids;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, pending] : pending_) {
      if (!pending->callback && !pending->internal) ids.push_back(id);
    }
  }
  return WaitForEach(ids);
}

absl::Status SessionImpl::WaitForEach(const std::vector<uint64_t>& ids) {
  absl::Status first;
  for (uint64_t id : ids) first.Update(WaitFor(id).status());
  return first;
}

// Where the chunk of an operation lives now.
void SessionImpl::FollowOwner(ChunkOp& op) {
  const auto pending = pending_.find(op.tag);
  if (pending == pending_.end() || pending->second->kind == FrameKind::kBoundary) return;
  op.owner = tensors_[pending->second->tensor].chunks[op.index].owner;
}

// What an operation waited for may have come.
void SessionImpl::RetryAtOnce() {
  for (Retry& retry : retries_) {
    retry.due = Ticks();
    retry.op->again = 0;
  }
  timer_wake_.Signal();
}

std::vector<std::shared_ptr<ChunkOp>> SessionImpl::TakeDueRetries(Ticks now) {
  std::vector<std::shared_ptr<ChunkOp>> due;
  std::erase_if(retries_, [&](const Retry& retry) NO_THREAD_SAFETY_ANALYSIS {
    if (retry.due > now) return false;
    retry.op->header.job_generation = plan_.generation;
    FollowOwner(*retry.op);
    due.push_back(retry.op);
    return true;
  });
  return due;
}

std::vector<SessionImpl::Late> SessionImpl::TakeLate(Ticks now) {
  std::vector<Late> late;
  for (const auto& [id, pending] : pending_) {
    if (pending->done) continue;
    // Members that start later are waited for longer than an owner that cannot be reached.
    const auto dark = std::find_if(pending->ops.begin(), pending->ops.end(), [&](const auto& op) {
      return links_->DownFor(op->owner) >= options_.deadline;
    });
    if (failed_.ok() && dark == pending->ops.end() && pending->deadline > now) continue;
    for (const std::shared_ptr<ChunkOp>& op : pending->ops) {
      const ChunkOp& cause = dark == pending->ops.end() ? *op : **dark;
      const bool awaits_retry =
          std::erase_if(retries_, [&op](const Retry& retry) { return retry.op == op; }) > 0;
      late.push_back({op, awaits_retry,
                      !failed_.ok() ? failed_
                                    : absl::DeadlineExceededError(absl::StrCat(
                                          DescribeOp(*pending, cause), " for ",
                                          (now - pending->began).value() / 1'000'000, " ms"))});
    }
  }
  return late;
}

void SessionImpl::RunTimer() {
  while (true) {
    std::vector<std::shared_ptr<ChunkOp>> again;
    std::vector<Late> late;
    std::vector<std::shared_ptr<Pending>> called_back;
    {
      MutexLock lock(&mutex_);
      if (closing_) return;
      if (called_back_.empty()) {
        timer_wake_.WaitFor(&mutex_, retries_.empty() ? kDeadlineScan : kRetryPause);
      }
      if (closing_) return;
      called_back.swap(called_back_);
      const Ticks now = Now();
      EndIfStuck(now);
      again = TakeDueRetries(now);
      late = TakeLate(now);
    }
    for (const auto& finished : called_back) CallBack(*finished);
    for (auto& op : again) links_->Issue(op);
    for (const Late& one : late) {
      // What waits to be sent again is known to no link, which could end it.
      if (one.awaits_retry) {
        OnOutcome(one.op, one.cause);
      } else {
        links_->Abandon(one.op, one.cause);
      }
    }
  }
}

}  // namespace paceline
