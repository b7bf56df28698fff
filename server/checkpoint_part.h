// What one server writes of a checkpoint, and what it reads back: its chunks' arrays as
// safetensors, their versions in the metadata (common/checkpoint/manifest.h has the names).
// Each function ends soon, with Cancelled, once `stop` is requested.
// Thread rule: no state; blocks on the disk, so never on a shard thread.
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parameter/host/router.h"
#include "plan/checkpoint.h"
#include "plan/plan.h"

namespace paceline {

// Writes `directory`/part-SERVER.safetensors atomically, making the directory when it is missing.
// After an error the part is not there, nor the directory when nothing else is in it.
absl::StatusOr<CheckpointPart> WriteCheckpointPart(const std::string& directory,
                                                   const std::string& server,
                                                   const std::vector<ChunkSnapshot>& chunks,
                                                   const std::stop_token& stop = {});

// The states of `keys` from the checkpoint at `directory`, whoever wrote them. Tensors go by name.
// DataLoss names the file that is not as its manifest says; NotFound the chunk that is in no part.
absl::StatusOr<std::vector<RestoredChunk>> ReadChunks(const std::string& directory,
                                                      const Plan& plan,
                                                      const std::vector<ChunkKey>& keys,
                                                      const std::stop_token& stop = {});

}  // namespace paceline
