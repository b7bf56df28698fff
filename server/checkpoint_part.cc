#include "server/checkpoint_part.h"

#include <filesystem>
#include <map>
#include <span>
#include <system_error>

#include "common/base/status.h"
#include "common/safetensors/safetensors.h"

namespace paceline {

absl::Status WriteCheckpointPart(const std::string& directory, const std::string& server,
                                 const std::vector<ChunkSnapshot>& chunks) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make checkpoint directory '", directory, "': ", error.message()));
  }
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsView> views;
  for (const ChunkSnapshot& chunk : chunks) {
    const std::string key = absl::StrCat(chunk.key.tensor.value(), "/", chunk.key.chunk.value());
    metadata[key] =
        absl::StrCat(chunk.version.lineage, ".", chunk.version.count, " t=", chunk.applied_steps);
    for (const auto& [name, values] : chunk.arrays) {
      views.push_back({absl::StrCat(key, "/", name),
                       DType::kF32,
                       {values.size()},
                       std::as_bytes(std::span<const float>(values))});
    }
  }
  return WriteSafetensors(absl::StrCat(directory, "/part-", server, ".safetensors"), metadata,
                          views);
}

}  // namespace paceline
