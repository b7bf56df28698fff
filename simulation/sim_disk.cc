#include "simulation/sim_disk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace paceline::simulation {

CheckpointPart SimDisk::WritePart(const std::string& directory, const std::string& server,
                                  const std::vector<ChunkSnapshot>& chunks) {
  std::vector<RestoredChunk> held;
  for (const ChunkSnapshot& chunk : chunks) {
    ChunkState state{chunk.state.version, chunk.state.updates, chunk.state.samples, {}};
    for (const auto& [name, values] : chunk.state.arrays) {
      state.arrays.emplace_back(name,
                                std::vector<float>(values.values().begin(), values.values().end()));
    }
    held.push_back({chunk.key, std::move(state)});
  }
  // No two parts are the same: what was written in place of another is told from it.
  const CheckpointPart part{absl::StrCat("part-", server), Bytes(held.size()), ++written_};
  directories_[directory].parts[part.file] = {part, std::move(held)};
  return part;
}

absl::Status SimDisk::WriteManifest(const std::string& directory,
                                    const CheckpointManifest& manifest) {
  Directory& held = directories_[directory];
  for (const CheckpointPart& part : manifest.parts) {
    const auto it = held.parts.find(part.file);
    if (it == held.parts.end()) {
      return absl::FailedPreconditionError(absl::StrCat(directory, ": no ", part.file));
    }
  }
  held.manifest = manifest;
  return absl::OkStatus();
}

std::vector<RestoredChunk> SimDisk::ChunksOf(const std::string& directory) const {
  std::vector<RestoredChunk> chunks;
  const auto held = directories_.find(directory);
  if (held == directories_.end() || !held->second.manifest) return chunks;
  for (const CheckpointPart& part : held->second.manifest->parts) {
    const auto it = held->second.parts.find(part.file);
    if (it == held->second.parts.end() || it->second.first != part) continue;
    chunks.insert(chunks.end(), it->second.second.begin(), it->second.second.end());
  }
  return chunks;
}

absl::StatusOr<std::vector<RestoredChunk>> SimDisk::ReadChunks(
    const std::string& directory, const std::vector<ChunkKey>& keys) const {
  const std::vector<RestoredChunk> all = ChunksOf(directory);
  std::vector<RestoredChunk> chunks;
  for (const ChunkKey& key : keys) {
    const auto it = std::find_if(all.begin(), all.end(),
                                 [&key](const RestoredChunk& chunk) { return chunk.key == key; });
    if (it == all.end()) {
      return absl::NotFoundError(absl::StrCat(directory, ": chunk ", key.tensor.value(), "/",
                                              key.chunk.value(), " is in none of its parts"));
    }
    chunks.push_back(*it);
  }
  return chunks;
}

}  // namespace paceline::simulation
