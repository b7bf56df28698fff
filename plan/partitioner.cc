#include "plan/partitioner.h"

#include "common/base/status.h"

namespace paceline {

absl::StatusOr<std::vector<PlacedChunk>> Partition(const Plan& plan, TensorId tensor) {
  const TensorPlan* placed = FindTensor(plan, tensor);
  if (placed == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("job '", plan.spec.name, "' has no tensor with id ", tensor.value()));
  }
  const std::vector<ChunkRange> ranges = CutIntoChunks(placed->spec, plan.spec.chunk_bytes);
  if (ranges.size() != placed->owners.size()) {
    return absl::InternalError(
        absl::StrCat("tensor '", placed->spec.name, "' is cut into ", ranges.size(),
                     " chunks but the plan names ", placed->owners.size(),
                     " owners; worker and scheduler are of different versions"));
  }
  std::vector<PlacedChunk> chunks;
  chunks.reserve(ranges.size());
  for (uint32_t i = 0; i < ranges.size(); ++i) {
    chunks.push_back({ChunkKey{tensor, ChunkIndex(i)}, ranges[i], placed->owners[i]});
  }
  return chunks;
}

}  // namespace paceline
