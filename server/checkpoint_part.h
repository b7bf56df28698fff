// The part of a checkpoint that one server writes: its chunks' arrays as safetensors, with versions
// in the metadata.
// Thread rule: no state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parameter/host/router.h"

namespace paceline {

// Writes `directory`/part-SERVER.safetensors atomically, making the directory when it is missing.
// Arrays are named "TENSOR/CHUNK/ARRAY" by ids; metadata "TENSOR/CHUNK" holds "LINEAGE.COUNT t=N".
absl::Status WriteCheckpointPart(const std::string& directory, const std::string& server,
                                 const std::vector<ChunkSnapshot>& chunks);

}  // namespace paceline
