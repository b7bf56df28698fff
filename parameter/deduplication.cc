#include "parameter/deduplication.h"

#include <algorithm>

namespace paceline {

void MemberOperations::Acknowledge(Sequence sequence) {
  if (sequence <= acknowledged_) return;
  acknowledged_ = sequence;
  for (auto it = operations_.begin(); it != operations_.end();) {
    if (it->second.reply && it->second.operation.sequence <= sequence) {
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

}  // namespace paceline
