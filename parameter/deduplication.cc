#include "parameter/deduplication.h"

#include <algorithm>

namespace paceline {

void MemberOperations::Acknowledge(Sequence sequence) {
  if (sequence <= acknowledged_) return;
  acknowledged_ = sequence;
  for (auto it = operations_.begin(); it != operations_.end();) {
    const Sequence own = it->second.operation.sequence;
    if (it->second.reply && own <= sequence && own > Sequence(0)) {
      over_[over_count_++ % kRemembered] = it->first;
      it = operations_.erase(it);
    } else {
      ++it;
    }
  }
}

OpenOperation* MemberOperations::Find(const OperationId& id) {
  const auto it = operations_.find(id);
  return it == operations_.end() ? nullptr : &it->second;
}

bool MemberOperations::IsOver(const OperationId& id) const {
  const auto end = over_.begin() + std::min(over_count_, kRemembered);
  return std::find(over_.begin(), end, id) != end;
}

OpenOperation* MemberOperations::Open(const OperationId& id, const Operation& operation) {
  if (operations_.size() >= kMaxOperations) return nullptr;
  OpenOperation& open = operations_[id];
  open.operation = operation;
  return &open;
}

Handover::MemberState MemberOperations::HandOver() const {
  Handover::MemberState state;
  state.incarnation = incarnation_;
  const size_t kept = std::min(over_count_, kRemembered);
  for (size_t i = over_count_ - kept; i < over_count_; ++i) {
    state.over.push_back(over_[i % kRemembered]);
  }
  for (const auto& [id, open] : operations_) {
    if (!open.reply) continue;
    state.answers.push_back(
        {id, open.reply->status, open.reply->version, open.reply->samples, open.reply->values});
  }
  return state;
}

void MemberOperations::TakeOver(const Handover::MemberState& state) {
  for (const OperationId& id : state.over) over_[over_count_++ % kRemembered] = id;
  for (const Handover::Answer& answer : state.answers) {
    if (operations_.size() >= kMaxOperations) return;
    OpenOperation& open = operations_[answer.id];
    open.reply.emplace();
    open.reply->status = answer.status;
    open.reply->version = answer.version;
    open.reply->samples = answer.samples;
    open.reply->values = answer.values;
  }
}

void MemberOperations::ForgetTakenOver(Step through) {
  for (auto it = operations_.begin(); it != operations_.end();) {
    const bool taken_over = it->second.reply && it->second.operation.sequence == Sequence(0);
    if (taken_over && it->first.origin_step <= through) {
      over_[over_count_++ % kRemembered] = it->first;
      it = operations_.erase(it);
    } else {
      ++it;
    }
  }
}

void MemberOperations::ForgetWeights() {
  for (auto& [id, open] : operations_) {
    if (open.reply && id.kind == RoundKind::kApply) open.reply->values = {};
  }
}

}  // namespace paceline
