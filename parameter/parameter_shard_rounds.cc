// The rounds of a ParameterShard: contributions in, sums applied, replies out.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/kernels/kernels.h"
#include "parameter/parameter_shard.h"
#include "staleness/version.h"

namespace paceline {
namespace {

RoundKind KindOf(OperationKind kind) {
  return kind == OperationKind::kReduce ? RoundKind::kReduce : RoundKind::kApply;
}

OperationId IdOf(const Operation& operation) {
  return {operation.origin_step, operation.ordinal, KindOf(operation.kind)};
}

NodeRef SenderOf(const Operation& operation) { return {operation.sender, operation.incarnation}; }

RoundKey KeyOf(const Operation& operation) {
  return {operation.group, operation.step, operation.ordinal};
}

// The reply goes to the newest attempt; an older one may still be on its way, also on a channel
// that its sender has given up.
void TakeNewer(Operation& current, const Operation& attempt) {
  if (attempt.sequence < current.sequence) return;
  if (attempt.sequence == current.sequence && attempt.route < current.route) return;
  current.route = attempt.route;
  current.sequence = attempt.sequence;
}

}  // namespace

MemberOperations& ParameterShard::OperationsOf(const Operation& operation) {
  const MemberKey key{operation.group, operation.sender};
  const auto [it, first] = members_.try_emplace(key, operation.incarnation);
  if (first) {
    // It may come from another group, where it acknowledges nothing any more.
    for (auto& [other, operations] : members_) {
      const bool its = other.node == operation.sender && other.group != operation.group &&
                       operations.incarnation() == operation.incarnation;
      if (its) operations.Acknowledge(operation.acknowledged);
    }
  }
  if (it->second.incarnation() < operation.incarnation) {
    it->second = MemberOperations(operation.incarnation);
  }
  return it->second;
}

OperationStatus ParameterShard::Check(const Operation& operation) const {
  if (!IsFloatOnTheWire(operation.dtype) || operation.origin_step > operation.step) {
    return OperationStatus::kBadRequest;
  }
  const uint64_t bytes = elements_ * SizeOf(operation.dtype);
  const bool empty_handed = operation.samples.value() == 0 && operation.total_bytes == 0;
  if (operation.total_bytes != bytes && !empty_handed) return OperationStatus::kBadRequest;
  // Others of its group may have had their answer before the return to a checkpoint.
  if (operation.lineage < restored_lineage_) return OperationStatus::kDiscarded;
  if (operation.kind == OperationKind::kReduce) return OperationStatus::kOk;
  if (settings_.optimizer == nullptr) return OperationStatus::kNoOptimizer;
  if (operation.samples.value() == 0) return OperationStatus::kOk;
  // 0 is the optimizer's own.
  if (!std::isfinite(operation.learning_rate) || operation.learning_rate < 0) {
    return OperationStatus::kBadRequest;
  }
  if (operation.base.lineage != version_.lineage) return OperationStatus::kDiscarded;
  return Staleness(version_, operation.base) ? OperationStatus::kOk : OperationStatus::kBadRequest;
}

bool ParameterShard::Repeats(const Operation& operation, const Piece& piece, Replies* replies) {
  const auto member = members_.find({operation.group, operation.sender});
  if (member == members_.end() || member->second.incarnation() != operation.incarnation) {
    return false;
  }
  if (member->second.IsStray(operation.sequence)) return true;
  OpenOperation* const open = member->second.Find(IdOf(operation));
  if (open == nullptr || !open->reply) return false;
  // Of the owner before: it named no step.
  const bool taken_over = open->operation.sequence == Sequence(0);
  if (!taken_over && KeyOf(open->operation) != KeyOf(operation)) return false;
  Again(*open, operation, piece, replies);
  return true;
}

void ParameterShard::Contribute(const Operation& operation, const Piece& piece,
                                const GroupTable::Generation& generation, size_t position,
                                Ticks now, Replies* replies) {
  MemberOperations& member = OperationsOf(operation);
  member.Acknowledge(operation.acknowledged);
  const OperationId id = IdOf(operation);
  if (OpenOperation* open = member.Find(id)) {
    // `position` is that of the sender at this step; in another round it may be another member's.
    if (KeyOf(open->operation) != KeyOf(operation)) {
      // An attempt at a step that went on without it, come after the one at a later step.
      if (operation.sequence < open->operation.sequence) return;
      return Refuse(operation, piece, OperationStatus::kBadRequest, replies);
    }
    if (open->contribution) {
      TakeNewer(open->operation, operation);
      return AddPiece(KeyOf(operation), position, *open, piece, now, replies);
    }
    return Again(*open, operation, piece, replies);
  }
  if (member.IsStray(operation.sequence)) return;

  if (member.IsOver(id)) return Refuse(operation, piece, OperationStatus::kDiscarded, replies);
  OperationStatus status = Check(operation);
  const auto found = rounds_.find(KeyOf(operation));
  if (found != rounds_.end() &&
      (found->second.kind() != id.kind ||
       found->second.contributors()[position].part != Round::Part::kAbsent)) {
    status = OperationStatus::kBadRequest;  // not what this member or others began there
  } else if (groups_->IsCovered(operation.group, generation.plan->members[position],
                                operation.step)) {
    status = OperationStatus::kDiscarded;  // after its own Boundary
  }
  if (status == OperationStatus::kDiscarded) {
    if (IsLast(operation, piece)) Discard(operation, std::nullopt, replies);
    return;
  }
  if (status != OperationStatus::kOk) return Refuse(operation, piece, status, replies);
  if (verdicts_->FateOf({operation.group, operation.step}, SenderOf(operation)) == Fate::kOut) {
    if (IsLast(operation, piece)) TellLate(operation, replies);
    return;
  }
  OpenOperation* const open = member.Open(id, operation);
  // A thread of this owner may owe the member an answer, with which it acknowledges many.
  if (open == nullptr) return Refuse(operation, piece, OperationStatus::kNotYet, replies);
  Round& round = rounds_
                     .try_emplace(KeyOf(operation), id.kind, generation,
                                  settings_.deterministic || verdicts_->in_use(), pool_)
                     .first->second;
  round.Begin(position, id);
  // Without samples there is nothing to keep; whether bytes were sent along does not matter.
  open->contribution.emplace(operation.samples.value() == 0 ? 0 : elements_, operation.dtype,
                             pool_);
  AddPiece(KeyOf(operation), position, *open, piece, now, replies);
}

// A whole operation comes again: its newest attempt takes the reply.
void ParameterShard::Again(OpenOperation& open, const Operation& operation, const Piece& piece,
                           Replies* replies) {
  if (!IsLast(operation, piece)) return;
  if (open.operation.sequence == Sequence(0)) {
    open.operation = operation;  // of the owner before, and asked for here for the first time
  } else {
    TakeNewer(open.operation, operation);
  }
  if (!open.reply) return;  // its round will answer
  Reply reply = *open.reply;
  reply.to = open.operation;
  const bool owed = reply.status != OperationStatus::kDiscarded && !reply.values;
  if (operation.kind == OperationKind::kPushPull && owed) {
    // Answered by the owner before this one, which did not hand over old weights.
    reply.values = weights_;
    reply.version = version_;
    if (settings_.policy->compensates()) pulled_[operation.group] = {version_, weights_};
  }
  replies->push_back(std::move(reply));
}

void ParameterShard::AddPiece(const RoundKey& key, size_t position, OpenOperation& open,
                              const Piece& piece, Ticks now, Replies* replies) {
  const bool has_samples = open.operation.samples.value() > 0;
  if (has_samples) {
    if (!open.contribution->Add(piece)) {
      // The rest of the message may still make it whole; this piece is not part of it.
      return Refuse(open.operation, piece, OperationStatus::kBadRequest, replies);
    }
    if (!open.contribution->whole()) return;
  } else if (!IsLast(open.operation, piece)) {
    return;
  }
  const auto round = rounds_.find(key);
  PACELINE_CHECK(round != rounds_.end());
  FinishPart(round->second, position, open);
  Settle(key.group, now, replies);
}

void ParameterShard::FinishPart(Round& round, size_t position, OpenOperation& open) {
  const Operation& operation = open.operation;
  SharedFloats values = open.contribution->Take();
  const bool taken = open.contribution->finite() || settings_.nan == NotFinite::kAllow;
  open.contribution.reset();
  if (operation.samples.value() == 0) {
    round.Finish(position, Round::Part::kNoSamples, operation, {});
  } else if (taken) {
    round.Finish(position, Round::Part::kSum, operation, std::move(values));
  } else {
    pool_->Give(std::move(values));
    round.Finish(position, Round::Part::kRefused, operation, {});
  }
}

void ParameterShard::OnCovered(GroupId group, Ticks now, Replies* replies) {
  Settle(group, now, replies);
}

void ParameterShard::Settle(GroupId group, Ticks now, Replies* replies) {
  auto it = rounds_.lower_bound({group, Step(0), Ordinal(0)});
  while (it != rounds_.end() && it->first.group == group) {
    const auto& [key, round] = *it;
    if (!TakeVerdict(key, it->second, replies)) {
      ++it;
      continue;
    }
    if (round.empty()) {
      it = rounds_.erase(it);
      continue;
    }
    const Verdict* const verdict =
        verdicts_->in_use() ? verdicts_->Find({group, key.step}) : nullptr;
    if (!round.IsWhole(*groups_, group, key.step, verdict) ||
        (round.kind() == RoundKind::kApply && IsHeld(key))) {
      ++it;
      continue;
    }
    Decided(key, it->second, verdict, now, replies);
    it = rounds_.erase(it);
  }
}

bool ParameterShard::TakeVerdict(const RoundKey& key, Round& round, Replies* replies) {
  if (!verdicts_->in_use()) return true;
  const PushKey push{key.group, key.step};
  if (verdicts_->Find(push) == nullptr && !verdicts_->IsOver(push)) {
    const std::vector<NodeRef> done = round.Done(*groups_, key.group, key.step);
    // What was decided before a fence may have fewer members that live than now close a round.
    const bool fenced = round.group().last_fence > GroupGeneration(0);
    if (done.size() >= verdicts_->Needed(round.group()) || (fenced && !done.empty())) {
      verdicts_->Offer(push, done, round.samples());
    }
  }
  const Verdict* const verdict = verdicts_->Find(push);
  if (verdict == nullptr && !verdicts_->IsOver(push)) return false;
  const std::vector<Round::Contributor>& contributors = round.contributors();
  for (size_t i = 0; i < contributors.size(); ++i) {
    const NodeRef member = RefOf(round.group().members[i]);
    if (contributors[i].part == Round::Part::kAbsent) continue;
    if (verdict != nullptr && verdict->Has(member)) continue;
    const OperationId id = contributors[i].operation;
    round.Leave(i);
    const auto operations = members_.find({key.group, member.node});
    if (operations == members_.end()) continue;
    const OpenOperation* const open = operations->second.Find(id);
    if (open == nullptr) continue;
    // One that is still coming is told at its last piece.
    const bool whole = !open->contribution;
    const Operation operation = open->operation;
    operations->second.Erase(id);
    if (whole) TellLate(operation, replies);
  }
  return true;
}

void ParameterShard::TellLate(const Operation& operation, Replies* replies) {
  const NodeRef sender = SenderOf(operation);
  const Step open = verdicts_->NextFor({operation.group, operation.step}, sender);
  const GroupTable::Generation* const then = groups_->InForce(operation.group, open);
  const bool goes_on =
      then != nullptr && std::any_of(then->plan->members.begin(), then->plan->members.end(),
                                     [&](const Member& m) { return RefOf(m) == sender; });
  // A Reduce too: in a later step it would be of one that gave its gradients nowhere.
  if (verdicts_->drops_late() || !goes_on) return Discard(operation, open, replies);
  Reply reply = MakeReply(operation, OperationStatus::kLate);
  reply.open_step = open;
  replies->push_back(std::move(reply));
}

// Its answer is kept: asked for again, it is counted once.
void ParameterShard::Discard(const Operation& operation, std::optional<Step> late,
                             Replies* replies) {
  OpenOperation* const kept = OperationsOf(operation).Open(IdOf(operation), operation);
  if (kept == nullptr) return replies->push_back(MakeReply(operation, OperationStatus::kNotYet));
  Reply reply = MakeReply(operation, OperationStatus::kDiscarded);
  reply.open_step = late.value_or(Step(0));
  kept->reply = reply;
  // What was pushed before the lineage was adopted is counted by the scheduler.
  const bool rolled_back = operation.lineage < restored_lineage_;
  if (settings_.lead && KindOf(operation.kind) == RoundKind::kApply && !rolled_back) {
    if (late) {
      recorder_.Dropped(operation.group, operation.sender, operation.samples);
    } else {
      recorder_.Discarded(operation.group, operation.sender, operation.samples);
    }
  }
  replies->push_back(std::move(reply));
}

void ParameterShard::Decided(const RoundKey& key, Round& round, const Verdict* verdict, Ticks now,
                             Replies* replies) {
  const Samples samples = round.samples();
  if (round.kind() == RoundKind::kReduce) {
    SharedFloats sum = round.Sum();
    if (!sum) {  // nobody had samples
      sum = pool_->Take(elements_);
      std::ranges::fill(sum.writable(), 0.0f);
    }
    return Answer(key, round, sum, samples, replies);
  }
  if (samples.value() > 0) Apply(key, round, verdict, now);
  CountRefused(key.group, round);
  Step& applied = applied_steps_[key.group];
  applied = std::max(applied, key.step);
  if (settings_.policy->compensates()) pulled_[key.group] = {version_, weights_};
  Answer(key, round, weights_, samples, replies);
}

void ParameterShard::Apply(const RoundKey& key, Round& round, const Verdict* verdict, Ticks now) {
  const Version base = *round.base();
  const Samples samples = round.samples();
  const uint32_t members = round.members_in_sum(verdict);
  // With policy none every owner comes to the same weight by itself.
  const PushFacts facts{.tau = *Staleness(version_, base), .groups = groups_->live_groups()};
  const double weight =
      verdict != nullptr ? verdict->weight : settings_.policy->Weigh(facts).weight;
  SharedFloats sum = round.Sum();
  if (settings_.normalization == Normalization::kMean) {
    kernels::Divide(sum.writable(), static_cast<float>(samples.value()));
  } else if (round.planned_members() != members) {
    kernels::Scale(sum.writable(),
                   static_cast<float>(static_cast<double>(round.planned_members()) / members));
  }
  float rate = round.learning_rate();
  if (rate == 0) rate = settings_.optimizer->learning_rate();
  const auto pulled = pulled_.find(key.group);
  if (pulled != pulled_.end() && pulled->second.first == base) {
    settings_.policy->Compensate(sum.writable(), {.weights_now = weights_.values(),
                                                  .weights_pulled = pulled->second.second.values(),
                                                  .learning_rate = rate});
  }
  rate = static_cast<float>(rate * weight);
  std::array<std::span<float>, kMaxStateArrays> slots;
  for (size_t i = 0; i < slots_.size(); ++i) slots[i] = Writable(slots_[i].second);
  settings_.optimizer->Apply(Writable(weights_), {slots.data(), slots_.size()}, sum.values(), rate,
                             ++updates_);
  pool_->Give(std::move(sum));
  Record(key, round, base, now);
  ++version_.count;
  samples_ += samples;
}

// Counted with the round that leaves them out: one that is void counts nothing.
void ParameterShard::CountRefused(GroupId group, const Round& round) {
  if (!settings_.lead) return;
  const std::vector<Round::Contributor>& contributors = round.contributors();
  for (size_t i = 0; i < contributors.size(); ++i) {
    if (contributors[i].part != Round::Part::kRefused) continue;
    recorder_.Discarded(group, round.group().members[i].node, contributors[i].samples);
  }
}

void ParameterShard::Record(const RoundKey& key, const Round& round, Version base, Ticks now) {
  std::vector<StalenessRecorder::Contribution> contributions;
  if (settings_.lead) {
    const std::vector<Round::Contributor>& contributors = round.contributors();
    for (size_t i = 0; i < contributors.size(); ++i) {
      if (contributors[i].part != Round::Part::kSum) continue;
      contributions.push_back({.worker = round.group().members[i].node,
                               .samples = contributors[i].samples,
                               .carried = contributors[i].operation.origin_step < key.step});
    }
  }
  recorder_.Applied({.group = key.group,
                     .groups = groups_->live_groups(),
                     .base = base,
                     .before = version_,
                     .step = key.step,
                     .now = now},
                    contributions);
}

std::span<float> ParameterShard::Writable(SharedFloats& array) {
  if (!array.unique()) {
    SharedFloats copy = pool_->Take(elements_);
    std::ranges::copy(array.values(), copy.writable().begin());
    pool_->Give(std::move(array));
    array = std::move(copy);
  }
  return array.writable();
}

void ParameterShard::Answer(const RoundKey& key, Round& round, const SharedFloats& values,
                            Samples samples, Replies* replies) {
  const std::vector<Round::Contributor>& contributors = round.contributors();
  for (size_t i = 0; i < contributors.size(); ++i) {
    if (contributors[i].part == Round::Part::kAbsent) continue;
    const auto member = members_.find({key.group, round.group().members[i].node});
    if (member == members_.end()) continue;
    OpenOperation* const open = member->second.Find(contributors[i].operation);
    if (open == nullptr) continue;  // of an incarnation that is gone
    Reply reply = MakeReply(open->operation, contributors[i].part == Round::Part::kRefused
                                                 ? OperationStatus::kNotFinite
                                                 : OperationStatus::kOk);
    if (open->operation.kind != OperationKind::kPush) reply.values = values;
    reply.samples = samples;
    open->reply = reply;
    replies->push_back(std::move(reply));
  }
}

// ---- Fences and new generations -------------------------------------------------------------

void ParameterShard::VoidOutdated(Replies* replies) {
  for (auto it = rounds_.begin(); it != rounds_.end();) {
    const auto& [key, round] = *it;
    const GroupTable::Generation* const holds = groups_->InForce(key.group, key.step);
    if (holds != nullptr && holds->plan->generation == round.group().generation) {
      ++it;
      continue;
    }
    VoidRound(round, key.group, OperationStatus::kOldGeneration, replies);
    it = rounds_.erase(it);
  }
}

void ParameterShard::DiscardOpenPushes(Replies* replies) {
  for (auto it = rounds_.begin(); it != rounds_.end();) {
    const auto& [key, round] = *it;
    if (round.kind() != RoundKind::kApply) {
      ++it;
      continue;
    }
    const std::vector<Round::Contributor>& contributors = round.contributors();
    for (size_t i = 0; i < contributors.size(); ++i) {
      if (contributors[i].part != Round::Part::kSum) continue;
      const Samples samples = contributors[i].samples;
      if (!settings_.lead || samples == Samples(0)) continue;
      recorder_.Discarded(key.group, round.group().members[i].node, samples);
    }
    VoidRound(round, key.group, OperationStatus::kDiscarded, replies);
    it = rounds_.erase(it);
  }
}

void ParameterShard::Abandon(OperationStatus status, Replies* replies) {
  for (const auto& [key, round] : rounds_) VoidRound(round, key.group, status, replies);
  rounds_.clear();
}

std::vector<Operation> ParameterShard::VoidRound(const Round& round, GroupId group,
                                                 OperationStatus status, Replies* replies) {
  std::vector<Operation> coming;
  const std::vector<Round::Contributor>& contributors = round.contributors();
  for (size_t i = 0; i < contributors.size(); ++i) {
    if (contributors[i].part == Round::Part::kAbsent) continue;
    const auto member = members_.find({group, round.group().members[i].node});
    if (member == members_.end()) continue;
    const OpenOperation* const open = member->second.Find(contributors[i].operation);
    if (open == nullptr) continue;
    if (open->contribution) {
      coming.push_back(open->operation);
    } else {
      replies->push_back(MakeReply(open->operation, status));
    }
    member->second.Erase(contributors[i].operation);
  }
  return coming;
}

void ParameterShard::Acknowledge(const Operation& operation) {
  const auto member = members_.find({operation.group, operation.sender});
  if (member == members_.end() || member->second.incarnation() != operation.incarnation) return;
  member->second.Acknowledge(operation.acknowledged);
}

void ParameterShard::ForgetGone() {
  for (auto it = members_.begin(); it != members_.end();) {
    auto& [key, member] = *it;
    const bool gone = !groups_->Knows(key.group, {key.node, member.incarnation()});
    if (gone) member.ForgetWeights();
    it = gone && member.operations().empty() ? members_.erase(it) : std::next(it);
  }
}

void ParameterShard::Forget(const NodeRef& dead) {
  std::erase_if(members_, [&dead](const auto& entry) {
    return entry.first.node == dead.node && entry.second.incarnation() <= dead.incarnation;
  });
}

}  // namespace paceline
