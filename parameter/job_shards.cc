#include "parameter/job_shards.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "plan/chunking.h"

namespace paceline {
namespace {

bool IsContribution(OperationKind kind) {
  return kind == OperationKind::kPush || kind == OperationKind::kPushPull ||
         kind == OperationKind::kReduce;
}

bool IsWriters(OperationKind kind) {
  return kind == OperationKind::kInit || kind == OperationKind::kWriteState;
}

}  // namespace

// ---- Operations -----------------------------------------------------------------------------

void JobShards::OnOperation(const Operation& operation, const Piece& piece,
                            std::shared_ptr<BoundaryAnswer> boundary, Ticks now, Replies* replies) {
  if (operation.kind == OperationKind::kBoundary) {
    return OnBoundary(operation, boundary, now, replies);
  }
  if (const auto refused = refused_messages_.Find(operation, piece)) {
    return Refuse(operation, piece, *refused, replies);
  }
  if (operation.kind == OperationKind::kMoveShard) {
    return OnMoveShard(operation, piece, now, replies);
  }
  if (operation.kind == OperationKind::kVerdict) {
    OnVerdictAsked(operation, piece, replies);
    return PursueVerdicts(now, replies);
  }
  if (groups_.IsFenced(operation.sender, operation.incarnation)) {
    return Refuse(operation, piece, OperationStatus::kFenced, replies);
  }
  ParameterShard* shard = nullptr;
  const OperationStatus status = Locate(operation, &shard);
  if (status == OperationStatus::kNotYet) return Park(operation, piece, nullptr, replies);
  if (status != OperationStatus::kOk) return Refuse(operation, piece, status, replies);
  if (IsWriters(operation.kind) && operation.sender != plan_->plan.init_writer) {
    return Refuse(operation, piece, OperationStatus::kNotWriter, replies);
  }
  if (!IsWriters(operation.kind) && !shard->sealed()) {
    return Park(operation, piece, nullptr, replies);
  }
  switch (operation.kind) {
    case OperationKind::kInit:
      shard->Init(operation, piece, replies);
      break;
    case OperationKind::kWriteState:
      shard->WriteState(operation, piece, replies);
      break;
    case OperationKind::kPull:
      return shard->Pull(operation, replies);
    case OperationKind::kReadState:
      return shard->ReadState(operation, replies);
    default:
      OnContribution(*shard, operation, piece, now, replies);
  }
  if (const auto refused = shard->TakeRefusal()) refused_messages_.Add(operation, *refused);
}

OperationStatus JobShards::Locate(const Operation& operation, ParameterShard** shard) {
  const auto it = shards_.find(operation.chunk);
  const Plan& plan = plan_->plan;
  if (operation.job_generation > plan.generation) return OperationStatus::kNotYet;
  if (it != shards_.end()) {
    *shard = &it->second;
    return OperationStatus::kOk;
  }
  if (arriving_.contains(operation.chunk)) return OperationStatus::kNotYet;
  const TensorPlan* const tensor = FindTensor(plan, operation.chunk.tensor);
  if (tensor == nullptr) return OperationStatus::kUnknownTensor;
  if (operation.chunk.chunk.value() >= tensor->owners.size()) return OperationStatus::kBadRequest;
  if (tensor->owners[operation.chunk.chunk.value()] != self_) return OperationStatus::kNotOwner;
  return OperationStatus::kQuota;
}

void JobShards::OnContribution(ParameterShard& shard, const Operation& operation,
                               const Piece& piece, Ticks now, Replies* replies) {
  PACELINE_CHECK(IsContribution(operation.kind));
  if (shard.Repeats(operation, piece, replies)) return;
  const GroupTable::Admitted admitted =
      groups_.Admit(operation.group, operation.group_generation, operation.step, operation.sender,
                    operation.incarnation);
  switch (admitted.admission) {
    case Admission::kPark:
      return Park(operation, piece, nullptr, replies);
    case Admission::kOldGeneration:
      return Refuse(operation, piece, OperationStatus::kOldGeneration, replies);
    case Admission::kFenced:
      return Refuse(operation, piece, OperationStatus::kFenced, replies);
    case Admission::kAccept:
      break;
  }
  shard.Contribute(operation, piece, *admitted.generation, admitted.position, now, replies);
  PursueVerdicts(now, replies);
  if (cut_ && cut_->done && TryCopy(shard.key(), now, replies)) FinishCut();
}

void JobShards::OnBoundary(const Operation& operation,
                           const std::shared_ptr<BoundaryAnswer>& answer, Ticks now,
                           Replies* replies) {
  if (operation.origin_step < operation.step) {
    return AnswerBoundary(operation, *answer, OperationStatus::kBadRequest, replies);
  }
  switch (groups_.AdmitBoundary(operation.group, operation.group_generation, operation.sender,
                                operation.incarnation)) {
    case Admission::kPark:
      return Park(operation, {}, answer, replies);
    case Admission::kOldGeneration:
      return AnswerBoundary(operation, *answer, OperationStatus::kOldGeneration, replies);
    case Admission::kFenced:
      return AnswerBoundary(operation, *answer, OperationStatus::kFenced, replies);
    case Admission::kAccept:
      break;
  }
  groups_.Cover(operation.group, operation.sender, operation.incarnation, operation.origin_step);
  const NodeRef member{operation.sender, operation.incarnation};
  // What it drew before it adopts the lineage the scheduler counts.
  const bool adopted = plan_ == nullptr || operation.lineage >= plan_->plan.lineage;
  const Samples unused = adopted ? operation.samples : Samples(0);
  unused_.Add(operation.group, member, operation.origin_step, unused);
  for (auto& [key, shard] : shards_) {
    shard.Acknowledge(operation);
    shard.Unused(operation.group, member, operation.origin_step, unused);
    if (shard.open_rounds() > 0) shard.OnCovered(operation.group, now, replies);
    if (shard.holds_taken_over()) shard.ForgetTakenOver(operation.group);
  }
  verdicts_.Prune(operation.group);
  PursueVerdicts(now, replies);
  AnswerBoundary(operation, *answer, OperationStatus::kOk, replies);
  AdvanceCut(now, replies);
}

void JobShards::AnswerBoundary(const Operation& operation, BoundaryAnswer& answer,
                               OperationStatus status, Replies* replies) {
  if (status != OperationStatus::kOk) answer.status.store(status);
  if (answer.outstanding.fetch_sub(1) != 1) return;
  Reply reply;
  reply.to = operation;
  reply.status = answer.status.load();
  replies->push_back(std::move(reply));
}

void JobShards::Refuse(const Operation& operation, const Piece& piece, OperationStatus status,
                       Replies* replies) {
  if (!IsLast(operation, piece)) {
    if (status != OperationStatus::kOk) refused_messages_.Add(operation, status);
    return;
  }
  Answer(operation, status, replies);
}

void JobShards::Answer(const Operation& operation, OperationStatus status, Replies* replies) {
  Reply reply;
  reply.to = operation;
  reply.status = status;
  replies->push_back(std::move(reply));
}

// ---- Frames that wait for a plan ------------------------------------------------------------

void JobShards::Park(const Operation& operation, const Piece& piece,
                     std::shared_ptr<BoundaryAnswer> boundary, Replies* replies) {
  const uint64_t bytes = sizeof(Parked) + piece.bytes.size();
  if (parked_bytes_ + bytes > max_parked_bytes_) {
    if (boundary != nullptr) {
      return AnswerBoundary(operation, *boundary, OperationStatus::kNotYet, replies);
    }
    return Refuse(operation, piece, OperationStatus::kNotYet, replies);
  }
  parked_bytes_ += bytes;
  // Copied, so that the channel's credit returns: what the parked frame waits for may come through
  // the same channel.
  parked_.push_back(
      {operation, piece.offset, {piece.bytes.begin(), piece.bytes.end()}, std::move(boundary)});
}

void JobShards::ReplayParked(Ticks now, Replies* replies) {
  std::vector<Parked> parked = std::exchange(parked_, {});
  parked_bytes_ = 0;
  for (Parked& frame : parked) {
    OnOperation(frame.operation, {frame.offset, frame.bytes}, std::move(frame.boundary), now,
                replies);
  }
}

// ---- Directives -----------------------------------------------------------------------------

void JobShards::ApplyPlan(std::shared_ptr<const PreparedPlan> plan, Ticks now, Replies* replies) {
  if (plan_ != nullptr && plan->plan.generation < plan_->plan.generation) return;
  plan_ = std::move(plan);
  if (plan_->plan.withdrawn) arrived_ = nullptr;
  if (groups_.MissedFence(plan_->plan.groups)) {
    CutAbort(absl::AbortedError("a member was fenced during the cut; try again"), now, replies);
  }
  groups_.ApplyPlan(plan_->plan.groups, plan_->plan.fenced, plan_->plan.next_group);
  VoidOutdated(replies);
  for (const NodeRef& dead : plan_->plan.fenced) {
    for (auto& [key, shard] : shards_) shard.Forget(dead);
    unused_.Forget(dead);
  }
  UpdateShards(now, replies);
  FollowLead(replies);
  verdicts_.OnGroupsChanged();
  ReplayParked(now, replies);
  PursueVerdicts(now, replies);
}

void JobShards::UpdateShards(Ticks now, Replies* replies) {
  const Plan& plan = plan_->plan;
  std::set<ChunkKey> owned;
  for (const TensorPlan& tensor : plan.tensors) {
    const std::vector<ChunkRange> ranges = CutIntoChunks(tensor.spec, plan.spec.chunk_bytes);
    for (uint32_t i = 0; i < ranges.size() && i < tensor.owners.size(); ++i) {
      const ChunkKey key{tensor.id, ChunkIndex(i)};
      if (tensor.owners[i] != self_ || ThreadOf(key, threads_) != index_) continue;
      owned.insert(key);
      AddOwned(tensor, i, ranges[i].length, now, replies);
    }
  }
  for (auto it = shards_.begin(); it != shards_.end();) {
    if (owned.contains(it->first)) {
      ++it;
      continue;
    }
    CutAbort(absl::AbortedError("a shard moved during the cut; try again"), now, replies);
    GiveAway(it->first, it->second, replies);
    it = shards_.erase(it);
  }
  std::erase_if(arriving_, [&owned](const auto& entry) { return !owned.contains(entry.first); });
}

ShardSettings JobShards::SettingsOf(const TensorPlan& tensor, uint32_t chunk) const {
  const Plan& plan = plan_->plan;
  return {.optimizer = plan_->optimizer,
          .policy = plan_->policy,
          .normalization = plan.spec.normalization,
          .deterministic = plan.spec.deterministic,
          .nan = plan.spec.nan,
          .lead = tensor.id == plan.lead_tensor && chunk == 0};
}

void JobShards::AddOwned(const TensorPlan& tensor, uint32_t chunk, uint64_t elements, Ticks now,
                         Replies* replies) {
  const ChunkKey key{tensor.id, ChunkIndex(chunk)};
  const Plan& plan = plan_->plan;
  const bool restores = !plan.restore_from.empty();
  auto it = shards_.find(key);
  if (it != shards_.end()) {
    it->second.Configure(SettingsOf(tensor, chunk));
  } else if (MoveOf(key) != nullptr) {
    Arrival& arrival = arriving_[key];
    if (arrival.move != plan_->plan.move) arrival = {elements, plan_->plan.move, {}};
    return;
  } else if (plan_->over_quota || (arriving_.contains(key) && !restores)) {
    return;
  } else {
    arriving_.erase(key);  // what was on its way is of the past
    it =
        shards_
            .try_emplace(key, key, elements, &groups_, &verdicts_, pool_, SettingsOf(tensor, chunk))
            .first;
  }
  if (restores && it->second.restored_lineage() != plan.lineage) {
    CutAbort(absl::AbortedError("the job returns to a checkpoint; try again"), now, replies);
    for (const Operation& coming : it->second.AwaitRestore(plan.lineage, replies)) {
      refused_messages_.Add(coming, OperationStatus::kOldGeneration);
    }
  }
  if (tensor.sealed) it->second.Seal();
}

void JobShards::VoidOutdated(Replies* replies) {
  for (auto& [key, shard] : shards_) {
    if (shard.open_rounds() > 0) shard.VoidOutdated(replies);
    shard.ForgetGone();
  }
}

void JobShards::Commit(const CommitDirective& directive, Ticks now, Replies* replies) {
  groups_.Commit(directive.groups);
  VoidOutdated(replies);
  verdicts_.OnGroupsChanged();
  ReplayParked(now, replies);
  PursueVerdicts(now, replies);
}

void JobShards::Fence(const FenceDirective& directive, Ticks now, Replies* replies) {
  // What is whole but held by a cut is decided first, while its contributors are known.
  CutAbort(absl::AbortedError("a member was fenced during the cut; try again"), now, replies);
  groups_.Fence(directive.dead, directive.groups);
  VoidOutdated(replies);
  for (auto& [key, shard] : shards_) shard.Forget(directive.dead);
  for (const GroupPlan& group : directive.groups) verdicts_.Prune(group.id);
  verdicts_.OnGroupsChanged();
  unused_.Forget(directive.dead);
  ReplayParked(now, replies);
  PursueVerdicts(now, replies);
}

void JobShards::Seal(const std::vector<TensorId>& tensors, Ticks now, Replies* replies) {
  for (auto& [key, shard] : shards_) {
    if (std::find(tensors.begin(), tensors.end(), key.tensor) != tensors.end()) shard.Seal();
  }
  ReplayParked(now, replies);
}

void JobShards::End(Replies* replies) {
  for (auto& [key, shard] : shards_) shard.Abandon(OperationStatus::kJobEnded, replies);
  for (const Operation& asked : verdicts_.TakeWaiting()) {
    Answer(asked, OperationStatus::kJobEnded, replies);
  }
  for (const Parked& frame : parked_) {
    if (frame.boundary != nullptr) {
      AnswerBoundary(frame.operation, *frame.boundary, OperationStatus::kJobEnded, replies);
    } else {
      Refuse(frame.operation, {frame.offset, frame.bytes}, OperationStatus::kJobEnded, replies);
    }
  }
  parked_.clear();
  if (cut_ && cut_->done) cut_->done(absl::AbortedError("the job ended during the cut"));
  cut_.reset();
}

GroupGeneration JobShards::GenerationFor(GroupId group, Step step) const {
  const GroupTable::Generation* generation = groups_.InForce(group, step);
  if (generation == nullptr) generation = groups_.Newest(group);
  return generation == nullptr ? GroupGeneration(0) : generation->plan->generation;
}

// ---- Cuts -----------------------------------------------------------------------------------

std::map<GroupId, Step> JobShards::CutCollect(Ticks now, Replies* replies) {
  CutAbort(absl::AbortedError("another cut was begun"), now, replies);
  std::map<GroupId, Step> steps;
  for (const auto& [key, shard] : shards_) {
    for (const auto& [group, step] : shard.applied_steps()) {
      const auto it = steps.try_emplace(group, step).first;
      it->second = std::max(it->second, step);
    }
  }
  for (auto& [key, shard] : shards_) shard.Hold(steps);
  cut_.emplace();
  cut_->steps = steps;
  return steps;
}

void JobShards::CutAt(const std::map<GroupId, Step>& steps, CutDone done, Ticks now,
                      Replies* replies) {
  if (!cut_ || cut_->done) {
    return done(absl::FailedPreconditionError("no cut was collected, or it was aborted"));
  }
  if (const absl::Status within = CheckWithin(steps); !within.ok()) {
    CutAbort(within, now, replies);
    return done(within);
  }
  cut_->steps = steps;
  cut_->done = std::move(done);
  for (auto& [key, shard] : shards_) {
    cut_->remaining.insert(key);
    shard.Hold(steps);
    for (const auto& [group, step] : steps) shard.OnCovered(group, now, replies);
  }
  AskForCut();
  PursueVerdicts(now, replies);
  AdvanceCut(now, replies);
}

// Whether no chunk has a step beyond the cut: it would not be of one moment.
absl::Status JobShards::CheckWithin(const std::map<GroupId, Step>& steps) const {
  for (const auto& [key, shard] : shards_) {
    for (const auto& [group, step] : shard.applied_steps()) {
      const auto cut = steps.find(group);
      if (cut != steps.end() && step <= cut->second) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "chunk ", key.chunk.value(), " of tensor ", key.tensor.value(), " has step ",
          step.value(), " of group ", group.value(), ", which is beyond the cut; try again"));
    }
  }
  return absl::OkStatus();
}

void JobShards::AdvanceCut(Ticks now, Replies* replies) {
  if (!cut_ || !cut_->done) return;
  const std::set<ChunkKey> remaining = cut_->remaining;
  for (const ChunkKey& key : remaining) TryCopy(key, now, replies);
  if (cut_->remaining.empty()) FinishCut();
}

// True when it was the last chunk of the cut.
bool JobShards::TryCopy(ChunkKey key, Ticks now, Replies* replies) {
  ParameterShard& shard = shards_.at(key);
  if (!cut_->remaining.contains(key) || !shard.IsAtHold()) return false;
  const TensorPlan* const tensor = FindTensor(plan_->plan, key.tensor);
  PACELINE_CHECK(tensor != nullptr);
  ChunkSnapshot snapshot{.key = key, .tensor = tensor->spec.name, .state = shard.Snapshot()};
  if (shard.lead()) snapshot.workers = shard.staleness().workers();
  cut_->copies.push_back(std::move(snapshot));
  cut_->remaining.erase(key);
  shard.Release(now, replies);
  return cut_->remaining.empty();
}

void JobShards::FinishCut() {
  Cut cut = *std::exchange(cut_, std::nullopt);
  cut.done(std::move(cut.copies));
}

void JobShards::CutAbort(const absl::Status& cause, Ticks now, Replies* replies) {
  if (!cut_) return;
  Cut cut = *std::exchange(cut_, std::nullopt);
  for (auto& [key, shard] : shards_) shard.Release(now, replies);
  if (cut.done) cut.done(cause);
}

// ---- Returning to a checkpoint ----------------------------------------------------------------

std::vector<ChunkKey> JobShards::AwaitingRestore() const {
  std::vector<ChunkKey> keys;
  for (const auto& [key, shard] : shards_) {
    if (shard.awaits_restore()) keys.push_back(key);
  }
  return keys;
}

void JobShards::Restore(uint32_t lineage, std::vector<RestoredChunk> chunks, Ticks now,
                        Replies* replies) {
  for (RestoredChunk& chunk : chunks) {
    const auto it = shards_.find(chunk.key);
    if (it == shards_.end() || !it->second.awaits_restore()) continue;
    if (it->second.restored_lineage() != lineage) continue;
    it->second.Load(std::move(chunk.state));
  }
  ReplayParked(now, replies);
}

// ---- Report ---------------------------------------------------------------------------------

JobAtServer JobShards::Report() const {
  JobAtServer report;
  if (plan_ == nullptr) return report;
  report.job = plan_->plan.job;
  report.lineage = plan_->plan.lineage;
  uint64_t memory = parked_bytes_;
  for (const auto& [key, arrival] : arriving_) memory += arrival.bytes.size();
  for (const auto& [key, shard] : shards_) {
    memory += shard.memory().value();
    if (shard.lead()) {
      report.lead = true;
      report.groups = shard.staleness().groups();
      report.workers = shard.staleness().workers();
    }
  }
  for (const auto& [key, shard] : shards_) {
    if (shard.lead() == report.lead) report.updates += shard.staleness().updates();
  }
  report.memory = Bytes(memory);
  for (size_t i = 1; i < refused_.size(); ++i) report.refused_frames += refused_[i];
  return report;
}

void Merge(JobAtServer& into, JobAtServer&& part) {
  into.refused_frames += part.refused_frames;
  into.memory += part.memory;
  if (part.lead == into.lead) {
    into.updates += part.updates;
  } else if (part.lead) {  // pushes, not chunk updates
    into.updates = part.updates;
  }
  if (!part.lead) return;
  into.lead = true;
  into.lineage = part.lineage;
  into.groups = std::move(part.groups);
  into.workers = std::move(part.workers);
}

}  // namespace paceline
