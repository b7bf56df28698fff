// The manifest of a checkpoint: written last and atomically, so that a directory without one, or
// with one that does not check out, is never taken for a checkpoint.
// Thread rule: no state.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/checkpoint.h"

namespace paceline {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr uint64_t kMaxManifestBytes = 256u << 20;

// Arrays of a part are named "TENSOR/CHUNK/ARRAY", its metadata has "TENSOR/CHUNK" ->
// "lineage=L version=V updates=T samples=S".
std::string ChunkName(std::string_view tensor, ChunkIndex chunk);
struct ChunkCounts {
  Version version;
  uint64_t updates = 0;  // Adam's t
  Samples samples;

  bool operator==(const ChunkCounts&) const = default;
};
std::string ToText(const ChunkCounts& counts);
absl::StatusOr<ChunkCounts> ParseChunkCounts(std::string_view text);

// "part-SERVER.safetensors".
std::string PartFile(std::string_view server);
// Size and checksum of a file, read as it is on disk. Cancelled once `stop` is requested.
absl::StatusOr<CheckpointPart> DescribePart(const std::string& directory, const std::string& file,
                                            const std::stop_token& stop = {});

// Refuses, naming the file, when a part is not in the directory: its server wrote it elsewhere.
absl::Status WriteManifest(const std::string& directory, const CheckpointManifest& manifest);
// NotFound: there is none; DataLoss: cut short, changed, or of an unknown format. Each names the
// file.
absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& directory);

}  // namespace paceline
