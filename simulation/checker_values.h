// What the parts of the checker share: how values are compared, and what things are called.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/types.h"
#include "parameter/operation.h"

namespace paceline::simulation {

inline constexpr ChunkKey kLead{};
inline constexpr JobId kJob(1);  // one that begins after it ended is of no concern
inline constexpr uint64_t kMostRemembered = 4096;  // elements of a tensor whose past is kept

inline uint64_t Checksum(std::span<const float> values) {
  uint64_t sum = values.size();
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    sum = (sum ^ bits) * 0x100000001B3u;
  }
  return sum;
}

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::string Text(ChunkKey chunk) {
  return absl::StrCat("chunk ", chunk.tensor.value(), "/", chunk.chunk.value());
}
inline std::string Text(Version v) { return absl::StrCat(v.lineage, ".", v.count); }
inline std::string Text(NodeRef ref) {
  return absl::StrCat("node ", ref.node.value(), ".", ref.incarnation.value());
}
inline std::string Text(const Operation& op) {
  return absl::StrCat("operation of node ", op.sender.value(), ".", op.incarnation.value(),
                      " in step ", op.origin_step.value(), " on ", Text(op.chunk));
}

inline bool IsRound(OperationKind kind) {
  return kind == OperationKind::kPushPull || kind == OperationKind::kReduce;
}

}  // namespace paceline::simulation
