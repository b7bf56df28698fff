// What one server writes of a checkpoint, and what it reads back: its chunks' arrays as
// safetensors, their versions in the metadata (common/checkpoint/manifest.h has the names). Thread
// rule: no state; blocks on the disk, so never on a shard thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parameter/host/router.h"
#include "plan/checkpoint.h"
#include "plan/plan.h"

namespace paceline {

// Writes `directory`/part-SERVER.safetensors atomically, making the directory when it is missing.
absl::StatusOr<CheckpointPart> WriteCheckpointPart(const std::string& directory,
                                                   const std::string& server,
                                                   const std::vector<ChunkSnapshot>& chunks);

// The states of `keys` from the checkpoint at `directory`, whoever wrote them. Tensors go by name.
// DataLoss names the file that is not as its manifest says; NotFound the chunk that is in no part.
absl::StatusOr<std::vector<RestoredChunk>> ReadChunks(const std::string& directory,
                                                      const Plan& plan,
                                                      const std::vector<ChunkKey>& keys);

}  // namespace paceline
