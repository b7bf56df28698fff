#include "parameter/parameter_shard.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/check.h"

namespace paceline {
namespace {

SharedFloats Zeros(uint64_t elements) {
  SharedFloats array(elements);
  std::ranges::fill(array.writable(), 0.0f);
  return array;
}

std::vector<float> ToVector(const SharedFloats& array) {
  return {array.values().begin(), array.values().end()};
}

}  // namespace

ParameterShard::ParameterShard(ChunkKey key, uint64_t elements, const GroupTable* groups,
                               Verdicts* verdicts, FloatPool* pool, ShardSettings settings)
    : key_(key),
      elements_(elements),
      groups_(groups),
      verdicts_(verdicts),
      pool_(pool),
      weights_(Zeros(elements)) {
  Configure(std::move(settings));
}

void ParameterShard::Configure(ShardSettings settings) {
  PACELINE_CHECK(settings.policy != nullptr);
  settings_ = std::move(settings);
  if (settings_.optimizer == nullptr) return;
  std::vector<std::pair<std::string, SharedFloats>> slots;
  for (const std::string& name : settings_.optimizer->slots()) {
    const auto kept = std::find_if(slots_.begin(), slots_.end(),
                                   [&name](const auto& slot) { return slot.first == name; });
    slots.emplace_back(name, kept == slots_.end() ? Zeros(elements_) : std::move(kept->second));
  }
  slots_ = std::move(slots);
}

void ParameterShard::Refuse(const Operation& operation, const Piece& piece, OperationStatus status,
                            Replies* replies) {
  if (IsLast(operation, piece)) {
    replies->push_back(MakeReply(operation, status));
  } else if (status != OperationStatus::kOk) {
    refusal_ = status;
  }
}

Reply ParameterShard::MakeReply(const Operation& operation, OperationStatus status) const {
  Reply reply;
  reply.to = operation;
  reply.status = status;
  reply.version = version_;
  return reply;
}

// ---- Values in and out ----------------------------------------------------------------------

bool ParameterShard::SameTransfer(const Operation& operation) const {
  const Operation& current = transfer_.operation;
  return current.kind == operation.kind && current.sender == operation.sender &&
         current.incarnation == operation.incarnation && current.sequence == operation.sequence &&
         current.dtype == operation.dtype && current.total_bytes == operation.total_bytes;
}

void ParameterShard::Init(const Operation& operation, const Piece& piece, Replies* replies) {
  if (sealed_) return Refuse(operation, piece, OperationStatus::kNotWriter, replies);
  if (!IsFloatOnTheWire(operation.dtype) ||
      operation.total_bytes != elements_ * SizeOf(operation.dtype)) {
    return Refuse(operation, piece, OperationStatus::kBadRequest, replies);
  }
  if (!SameTransfer(operation)) {
    transfer_ = Transfer{.operation = operation};
    transfer_.values.emplace(elements_, operation.dtype, pool_);
  }
  if (!transfer_.done) {
    if (!transfer_.values->Add(piece)) {
      return Refuse(operation, piece, OperationStatus::kBadRequest, replies);
    }
    if (!transfer_.values->whole()) return;
    weights_ = transfer_.values->Take();
    transfer_.values.reset();
    transfer_.done = true;
    replies->push_back(MakeReply(operation, OperationStatus::kOk));
    return;
  }
  Refuse(operation, piece, OperationStatus::kOk, replies);  // a repetition: answered once more
}

void ParameterShard::Pull(const Operation& operation, Replies* replies) {
  if (!IsFloatOnTheWire(operation.dtype)) {
    return Refuse(operation, {}, OperationStatus::kBadRequest, replies);
  }
  Reply reply = MakeReply(operation, OperationStatus::kOk);
  reply.values = weights_;
  reply.samples = samples_;
  if (settings_.policy->compensates()) pulled_[operation.group] = {version_, weights_};
  replies->push_back(std::move(reply));
}

ShardSnapshot ParameterShard::Snapshot() const {
  ShardSnapshot state{.version = version_, .updates = updates_, .samples = samples_, .arrays = {}};
  state.arrays.emplace_back("weights", weights_);
  for (const auto& slot : slots_) state.arrays.push_back(slot);
  return state;
}

ChunkState ParameterShard::Copy() const {
  ChunkState state{.version = version_, .updates = updates_, .samples = samples_, .arrays = {}};
  state.arrays.emplace_back("weights", ToVector(weights_));
  for (const auto& [name, values] : slots_) state.arrays.emplace_back(name, ToVector(values));
  return state;
}

void ParameterShard::ReadState(const Operation& operation, Replies* replies) {
  Reply reply = MakeReply(operation, OperationStatus::kOk);
  reply.state = std::make_shared<const std::vector<std::byte>>(EncodeState(Copy()));
  reply.samples = samples_;
  replies->push_back(std::move(reply));
}

bool ParameterShard::AddBytes(const Piece& piece) {
  const uint64_t total = transfer_.bytes.size();
  if (piece.offset % kPieceBytes != 0 || piece.offset >= total) return false;
  if (piece.bytes.size() != std::min(kPieceBytes, total - piece.offset)) return false;
  std::memcpy(transfer_.bytes.data() + piece.offset, piece.bytes.data(), piece.bytes.size());
  transfer_.in[piece.offset / kPieceBytes] = true;
  return true;
}

// By the owner before this one, whose reply was lost.
bool ParameterShard::WasWritten(const Operation& operation) const {
  return written_.operation > Step(0) && written_.operation == operation.origin_step &&
         written_.node == operation.sender && written_.incarnation == operation.incarnation;
}

void ParameterShard::WriteState(const Operation& operation, const Piece& piece, Replies* replies) {
  if (operation.total_bytes < kStateHeaderBytes ||
      operation.total_bytes > MaxStateBytes(elements_)) {
    return Refuse(operation, piece, OperationStatus::kBadRequest, replies);
  }
  if (!SameTransfer(operation)) {
    transfer_ = Transfer{.operation = operation};
    transfer_.bytes.resize(operation.total_bytes);
    transfer_.in.resize((operation.total_bytes + kPieceBytes - 1) / kPieceBytes);
  }
  if (transfer_.done) return Refuse(operation, piece, OperationStatus::kOk, replies);
  if (WasWritten(operation)) return Refuse(operation, piece, OperationStatus::kOk, replies);
  if (!AddBytes(piece)) return Refuse(operation, piece, OperationStatus::kBadRequest, replies);
  if (std::find(transfer_.in.begin(), transfer_.in.end(), false) != transfer_.in.end()) return;
  absl::StatusOr<ChunkState> state = DecodeState(transfer_.bytes, elements_);
  transfer_ = Transfer{.operation = operation};
  if (!state.ok()) {
    transfer_ = {};
    return Refuse(operation, piece, OperationStatus::kBadRequest, replies);
  }
  transfer_.done = true;
  written_ = {operation.sender, operation.incarnation, operation.origin_step};
  Restore(*std::move(state), version_.lineage + 1);
  DiscardOpenPushes(replies);
  replies->push_back(MakeReply(operation, OperationStatus::kOk));
}

void ParameterShard::Restore(ChunkState state, uint32_t lineage) {
  // Counts of the state and of what was here cannot be told apart but by a lineage of their own.
  version_ = {std::max({lineage, version_.lineage + 1, state.version.lineage + 1}),
              state.version.count};
  updates_ = state.updates;
  samples_ = state.samples;
  slots_.clear();
  for (auto& [name, values] : state.arrays) {
    SharedFloats array(elements_);
    std::ranges::copy(values, array.writable().begin());
    if (name == "weights") {
      weights_ = std::move(array);
    } else {
      slots_.emplace_back(name, std::move(array));
    }
  }
  pulled_.clear();
  Configure(settings_);
}

std::vector<Operation> ParameterShard::AwaitRestore(uint32_t lineage, Replies* replies) {
  std::vector<Operation> coming;
  for (const auto& [key, round] : rounds_) {
    const auto more = VoidRound(round, key.group, OperationStatus::kOldGeneration, replies);
    coming.insert(coming.end(), more.begin(), more.end());
  }
  rounds_.clear();
  hold_.reset();
  held_unused_.clear();
  recorder_ = {};  // what it counted is of the lineage before
  transfer_ = {};
  awaits_restore_ = true;
  sealed_ = false;
  restored_lineage_ = lineage;
  return coming;
}

void ParameterShard::Load(ChunkState state) {
  Restore(std::move(state), restored_lineage_);
  awaits_restore_ = false;
  sealed_ = true;
}

// ---- Cuts -----------------------------------------------------------------------------------

void ParameterShard::Hold(const std::map<GroupId, Step>& through) { hold_ = through; }

bool ParameterShard::IsHeld(const RoundKey& key) const {
  if (!hold_) return false;
  const auto it = hold_->find(key.group);
  return it == hold_->end() || key.step > it->second;
}

bool ParameterShard::IsAtHold() const {
  PACELINE_CHECK(hold_.has_value());
  for (const auto& [key, round] : rounds_) {
    if (!IsHeld(key)) return false;
  }
  for (const auto& [group, through] : *hold_) {
    if (!IsPast(group, through)) return false;
  }
  return true;
}

// All members are, but for those that the verdict left out; or as many as close the rounds after
// it, which would else wait for the rest.
bool ParameterShard::IsPast(GroupId group, Step step) const {
  const GroupTable::Generation* const generation = groups_->InForce(group, step);
  if (generation == nullptr) return true;
  size_t past = 0;
  bool all = true;
  for (const Member& member : generation->plan->members) {
    if (groups_->IsCovered(group, member, step) || IsInLaterStep(group, step, RefOf(member))) {
      ++past;
    } else {
      all = all && verdicts_->FateOf({group, step}, RefOf(member)) == Fate::kOut;
    }
  }
  return all || (verdicts_->in_use() && past >= verdicts_->Needed(*generation->plan));
}

// One that was late for `step` and carried on goes on in a later one without a Boundary.
bool ParameterShard::IsInLaterStep(GroupId group, Step step, NodeRef member) const {
  auto it = rounds_.lower_bound({group, step + Step(1), Ordinal(0)});
  for (; it != rounds_.end() && it->first.group == group; ++it) {
    if (it->second.Has(member)) return true;
  }
  return false;
}

void ParameterShard::Release(Ticks now, Replies* replies) {
  if (!hold_) return;
  hold_.reset();
  for (const auto& held : std::exchange(held_unused_, {})) {
    Unused(held.group, held.member, held.through, held.samples);
  }
  // Of groups that have ended meanwhile, too: their last steps wait here.
  std::set<GroupId> held;
  for (const auto& [key, round] : rounds_) held.insert(key.group);
  for (const GroupId group : held) Settle(group, now, replies);
}

Bytes ParameterShard::memory() const {
  uint64_t bytes = elements_ * sizeof(float) * (1 + slots_.size());
  std::set<const float*> counted = {weights_.values().data()};  // replies share arrays
  for (const auto& [key, round] : rounds_) bytes += round.bytes();
  for (const auto& [key, member] : members_) {
    for (const auto& [id, open] : member.operations()) {
      if (open.contribution) bytes += open.contribution->values().size() * sizeof(float);
      if (!open.reply || !open.reply->values) continue;
      const std::span<const float> kept = open.reply->values.values();
      if (counted.insert(kept.data()).second) bytes += kept.size() * sizeof(float);
    }
  }
  return Bytes(bytes);
}

}  // namespace paceline
