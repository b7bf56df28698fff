// Checkpoints on a disk that all servers share and that outlives them: a part is there once it is
// whole, a directory is a checkpoint once it has its manifest.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parameter/chunk_snapshot.h"
#include "plan/checkpoint.h"

namespace paceline::simulation {

class SimDisk {
 public:
  // As server/checkpoint_part.h.
  CheckpointPart WritePart(const std::string& directory, const std::string& server,
                           const std::vector<ChunkSnapshot>& chunks);
  absl::StatusOr<std::vector<RestoredChunk>> ReadChunks(const std::string& directory,
                                                        const std::vector<ChunkKey>& keys) const;
  // FailedPrecondition: a part is not there.
  absl::Status WriteManifest(const std::string& directory, const CheckpointManifest& manifest);
  void Remove(const std::string& directory) { directories_.erase(directory); }

  // Of all parts that the manifest names.
  std::vector<RestoredChunk> ChunksOf(const std::string& directory) const;

 private:
  struct Directory {
    std::map<std::string, std::pair<CheckpointPart, std::vector<RestoredChunk>>> parts;
    std::optional<CheckpointManifest> manifest;
  };

  std::map<std::string, Directory> directories_;
  uint64_t written_ = 0;
};

}  // namespace paceline::simulation
