// The bytes of ReadState and WriteState: everything an owner must have to go on with a chunk.
//
//   0  u32 layout = 1          4  u32 number of arrays
//   8  u64 elements of each   16  u64 version count
//  24  u32 version lineage    28  u32 zero
//  32  u64 updates (Adam's t) 40  u64 samples so far
//  48  16 bytes of zero
//  64  a name of 32 bytes per array, padded with zeros: "weights", then optimizer slots
//   .  the arrays as fp32, in the order of the names
// Little-endian. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"

namespace paceline {

struct ChunkState {
  Version version;
  uint64_t updates = 0;
  Samples samples;
  std::vector<std::pair<std::string, std::vector<float>>> arrays;  // "weights" first
};

inline constexpr uint32_t kMaxStateArrays = 8;
inline constexpr size_t kStateHeaderBytes = 64;
inline constexpr size_t kStateNameBytes = 32;

// The most bytes a state of so many elements has.
constexpr uint64_t MaxStateBytes(uint64_t elements) {
  return kStateHeaderBytes + kMaxStateArrays * (kStateNameBytes + elements * sizeof(float));
}

// What EncodeState can take: at most kMaxStateArrays names of 1..31 bytes. InvalidArgument names
// the one that is not.
absl::Status CheckArrayNames(const std::vector<std::string>& names);

// Checked: CheckArrayNames, and arrays of one length.
std::vector<std::byte> EncodeState(const ChunkState& state);
// InvalidArgument names the field; `elements` is what the chunk has.
absl::StatusOr<ChunkState> DecodeState(std::span<const std::byte> bytes, uint64_t elements);

}  // namespace paceline
