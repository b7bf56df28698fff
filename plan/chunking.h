// Cuts a tensor into chunks. A pure function of the spec and chunk_bytes, so every node computes
// the same boundaries, and they never change within a job.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/types.h"
#include "plan/tensor_spec.h"

namespace paceline {

// A contiguous part of a dense tensor, in elements.
struct ChunkRange {
  uint64_t begin = 0;
  uint64_t length = 0;

  bool operator==(const ChunkRange&) const = default;
};

// Chunks of equal size but the last, each a multiple of 64 bytes but the last. An empty tensor has
// one chunk of length 0, so that every tensor has an owner. `whole` tensors have one chunk.
std::vector<ChunkRange> CutIntoChunks(const TensorSpec& spec, uint64_t chunk_bytes);

}  // namespace paceline
