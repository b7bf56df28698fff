// Takes a tensor apart into its chunks and their owners, as the plan says.
// Thread rule: values; no shared state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "plan/chunking.h"
#include "plan/plan.h"

namespace paceline {

// One chunk of a tensor and who owns it now.
struct PlacedChunk {
  ChunkKey key;
  ChunkRange range;  // elements
  NodeId owner;
};

// NotFound when the plan lacks the tensor; Internal when its owners do not fit its chunks (a plan
// of another version of the cut).
absl::StatusOr<std::vector<PlacedChunk>> Partition(const Plan& plan, TensorId tensor);

}  // namespace paceline
