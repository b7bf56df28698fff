// Chunks that come to this owner or go from it.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "parameter/job_shards.h"

namespace paceline {

const ChunkMove* JobShards::MoveOf(ChunkKey key) const {
  for (const ChunkMove& move : plan_->plan.moves) {
    if (move.chunk == key && (move.to == self_ || move.from == self_)) return &move;
  }
  return nullptr;
}

void JobShards::GiveAway(ChunkKey key, ParameterShard& shard, Replies* replies) {
  const ChunkMove* const move = MoveOf(key);
  const Plan& plan = plan_->plan;
  const auto to = std::find_if(plan.servers.begin(), plan.servers.end(), [&](const ServerInfo& s) {
    return move != nullptr && s.node == move->to;
  });
  if (move == nullptr || to == plan.servers.end() || !hand_over_) {
    return shard.Abandon(OperationStatus::kNotOwner, replies);
  }
  OutgoingChunk out{plan.job, plan.generation, plan.move, key, *to, shard.HandOver(replies)};
  if (key == LeadChunk()) out.state.verdicts = verdicts_.HandOver();
  hand_over_(std::move(out));
}

std::vector<ChunkKey> JobShards::Missing() const {
  std::vector<ChunkKey> missing;
  for (const auto& [key, arrival] : arriving_) missing.push_back(key);
  return missing;
}

void JobShards::WhenAllArrived(std::function<void()> arrived) {
  arrived_ = std::move(arrived);
  if (arriving_.empty() && arrived_) std::exchange(arrived_, nullptr)();
}

// The bytes of a chunk come in order, over any number of channels: what comes again is taken as
// in, and what comes before its time is sent again.
void JobShards::OnMoveShard(const Operation& operation, const Piece& piece, Ticks now,
                            Replies* replies) {
  if (operation.job_generation > plan_->plan.generation) {
    return Refuse(operation, piece, OperationStatus::kNotYet, replies);
  }
  const auto it = arriving_.find(operation.chunk);
  if (plan_->over_quota && it != arriving_.end()) {
    return Refuse(operation, piece, OperationStatus::kQuota, replies);
  }
  if (plan_->plan.withdrawn && it != arriving_.end()) {
    return Refuse(operation, piece, OperationStatus::kNotOwner, replies);
  }
  if (it == arriving_.end()) {
    // A part of what has arrived comes again.
    const bool here = shards_.contains(operation.chunk);
    return Refuse(operation, piece, here ? OperationStatus::kOk : OperationStatus::kNotOwner,
                  replies);
  }
  Arrival& arrival = it->second;
  if (operation.origin_step.value() != arrival.move) {
    // The chunk has been elsewhere since.
    return Refuse(operation, piece, OperationStatus::kOldGeneration, replies);
  }
  const ChunkMove* const move = MoveOf(operation.chunk);
  const uint64_t total = operation.samples.value();
  const uint64_t at = operation.step.value() + piece.offset;
  const bool fits = move != nullptr && move->from == operation.sender && total > 0 &&
                    total <= MaxHandoverBytes(arrival.elements, MostArrays()) &&
                    at % kPieceBytes == 0 && at < total &&
                    piece.bytes.size() == std::min(kPieceBytes, total - at);
  if (!fits) return Refuse(operation, piece, OperationStatus::kBadRequest, replies);
  if (at > arrival.bytes.size()) {
    return Refuse(operation, piece, OperationStatus::kNotYet, replies);
  }
  if (at == arrival.bytes.size()) {
    arrival.bytes.insert(arrival.bytes.end(), piece.bytes.begin(), piece.bytes.end());
  }
  if (arrival.bytes.size() < total) {
    return Refuse(operation, piece, OperationStatus::kOk, replies);
  }
  const absl::Status installed = Install(operation.chunk, arrival.bytes);
  if (!installed.ok()) {
    arrival.bytes = {};
    return Refuse(operation, piece, OperationStatus::kBadRequest, replies);
  }
  Refuse(operation, piece, OperationStatus::kOk, replies);
  Arrived(operation.chunk, now, replies);
}

void JobShards::TakeBack(ChunkKey key, uint64_t move, std::span<const std::byte> bytes, Ticks now,
                         Replies* replies) {
  const auto it = arriving_.find(key);
  if (it == arriving_.end() || it->second.move != move) return;  // a newer plan has come since
  const absl::Status installed = Install(key, bytes);
  PACELINE_CHECK(installed.ok());  // it was here
  Arrived(key, now, replies);
}

void JobShards::Arrived(ChunkKey key, Ticks now, Replies* replies) {
  arriving_.erase(key);
  FollowLead(replies);
  ReplayParked(now, replies);
  PursueVerdicts(now, replies);
  if (arriving_.empty() && arrived_) std::exchange(arrived_, nullptr)();
}

absl::Status JobShards::Install(ChunkKey key, std::span<const std::byte> bytes) {
  const uint64_t elements = arriving_.at(key).elements;
  absl::StatusOr<Handover> handover = DecodeHandover(bytes, elements);
  if (!handover.ok()) return handover.status();
  groups_.Learn(handover->covered);
  verdicts_.TakeOver(handover->verdicts);
  const TensorPlan& tensor = *FindTensor(plan_->plan, key.tensor);
  const auto it = shards_
                      .try_emplace(key, key, elements, &groups_, &verdicts_, pool_,
                                   SettingsOf(tensor, key.chunk.value()))
                      .first;
  const absl::Status taken = it->second.TakeOver(*std::move(handover));
  if (!taken.ok()) {
    shards_.erase(it);
    return taken;
  }
  unused_.ForEach(
      [&shard = it->second](GroupId group, const NodeRef& member, Step through, Samples samples) {
        shard.Unused(group, member, through, samples);
      });
  return absl::OkStatus();
}

// Weights, slots, what each group holds, and replies that members may still ask for; some of
// members that are gone.
uint64_t JobShards::MostArrays() const {
  uint64_t holders = 64;
  for (const GroupPlan& group : plan_->plan.groups) holders += 1 + group.members.size();
  const size_t slots = plan_->optimizer == nullptr ? 0 : plan_->optimizer->slots().size();
  return 1 + slots + holders * MemberOperations::kMaxOperations;
}

}  // namespace paceline
