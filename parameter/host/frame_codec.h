// Between frames and the operations of a shard.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "parameter/operation.h"
#include "transport/frame.h"

namespace paceline {

// Empty when the frame is not an operation that an owner takes.
std::optional<Operation> ToOperation(const FrameHeader& header, uint64_t route);

// The header of the answer; plan-level fields (generations, sender) are the caller's.
FrameHeader ToHeader(const Reply& reply);

FrameStatus ToFrameStatus(OperationStatus status);

}  // namespace paceline
