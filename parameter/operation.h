// What members ask of a shard and what it answers: the messages that step a ParameterShard. The
// host translates frames to and from them.
// Thread rule: values; no shared state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/types.h"
#include "parameter/shared_floats.h"

namespace paceline {

enum class OperationKind : uint8_t {
  kInit,
  kPush,
  kPull,
  kPushPull,
  kReduce,
  kBoundary,
  kReadState,
  kWriteState,
  // From another owner; `step` is where this part begins, `samples` the bytes in all, `origin_step`
  // the number of the move.
  kMoveShard,
  kVerdict,  // from another owner, about the push (group, step)
};

enum class OperationStatus : uint8_t {
  kOk,
  kNotYet,
  kOldGeneration,
  kFenced,
  kNotOwner,
  kUnknownTensor,
  kBadRequest,
  kNoOptimizer,
  kNotWriter,
  kNotFinite,
  kDiscarded,
  kQuota,
  kJobEnded,
  kLate,  // its push went on without it: to be sent again for `open_step` of the reply
};
inline constexpr size_t kOperationStatuses = 14;

// The header of an operation; the same in each of its pieces.
struct Operation {
  OperationKind kind = OperationKind::kPull;
  uint64_t route = 0;  // where the reply goes; of the host, higher for channels that opened later
  NodeId sender;
  Incarnation incarnation;
  Sequence sequence;
  Sequence acknowledged;
  JobGeneration job_generation;
  GroupId group;
  GroupGeneration group_generation;
  Step step;
  Step origin_step;
  Ordinal ordinal;
  ChunkKey chunk;
  Version base;
  uint32_t lineage = 0;  // that its sender has adopted
  Samples samples;
  float learning_rate = 0;
  DType dtype = DType::kF32;
  uint64_t total_bytes = 0;
};

// Part of an operation's payload. Pieces begin at multiples of the piece size and are full but the
// last (docs/wire_format.md), so that a repeated one is recognised by its place.
inline constexpr uint64_t kPieceBytes = 256u << 10;
struct Piece {
  uint64_t offset = 0;
  std::span<const std::byte> bytes;
};

// Whether the message ends with this piece. Refusals are sent then, once per message.
inline bool IsLast(const Operation& operation, const Piece& piece) {
  return piece.offset + piece.bytes.size() >= operation.total_bytes;
}

struct Reply {
  Operation to;
  OperationStatus status = OperationStatus::kOk;
  Version version;
  Samples samples;
  SharedFloats values;  // weights or sum; empty when the operation carries none back
  std::shared_ptr<const std::vector<std::byte>> state;  // ReadState, Verdict
  Step open_step;  // of what came late: the first step its sender may be in; else 0
};

}  // namespace paceline
