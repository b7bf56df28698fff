// Messages of which a piece was refused. A refusal is for the whole message and is said at its last
// piece; what it was refused for may be over by then (a plan has come, parked bytes were freed),
// but its first pieces are gone. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "common/base/types.h"
#include "parameter/operation.h"

namespace paceline {

class RefusedMessages {
 public:
  // Messages that are under way at once over all channels; beyond it the oldest channel's go.
  static constexpr size_t kMax = 1u << 16;

  void Add(const Operation& operation, OperationStatus status) {
    refused_.try_emplace({operation.route, operation.sequence}, status);
    if (refused_.size() > kMax) refused_.erase(refused_.begin());
  }

  // What the message was refused with; its last piece ends it.
  std::optional<OperationStatus> Find(const Operation& operation, const Piece& piece) {
    if (refused_.empty()) return std::nullopt;
    const auto it = refused_.find({operation.route, operation.sequence});
    if (it == refused_.end()) return std::nullopt;
    const OperationStatus status = it->second;
    if (IsLast(operation, piece)) refused_.erase(it);
    return status;
  }

  // No further piece comes on this channel.
  void CloseRoute(uint64_t route) {
    refused_.erase(refused_.lower_bound({route, Sequence(0)}),
                   refused_.lower_bound({route + 1, Sequence(0)}));
  }

 private:
  std::map<std::pair<uint64_t, Sequence>, OperationStatus> refused_;
};

}  // namespace paceline
