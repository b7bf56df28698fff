#include "server/checkpoint_part.h"

#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/manifest.h"
#include "common/safetensors/safetensors.h"
#include "plan/chunking.h"

namespace paceline {
namespace {

// The parts of one checkpoint, opened as they are needed, each checked against the manifest once.
class Parts {
 public:
  Parts(std::string directory, std::stop_token stop)
      : directory_(std::move(directory)), stop_(std::move(stop)) {}

  absl::Status Open() {
    PACELINE_ASSIGN_OR_RETURN(manifest_, ReadManifest(directory_));
    for (const CheckpointPart& part : manifest_.parts) {
      PACELINE_ASSIGN_OR_RETURN(SafetensorsReader reader,
                                SafetensorsReader::Open(absl::StrCat(directory_, "/", part.file)));
      for (const auto& [chunk, counts] : reader.metadata()) of_chunk_[chunk] = readers_.size();
      readers_.push_back(std::move(reader));
      arrays_.emplace_back();
      for (const SafetensorsEntry& entry : readers_.back().tensors()) {
        const size_t slash = entry.name.rfind('/');
        if (slash == std::string::npos) continue;
        arrays_.back()[entry.name.substr(0, slash)].push_back(entry);
      }
    }
    return absl::OkStatus();
  }

  const CheckpointManifest& manifest() const { return manifest_; }

  absl::StatusOr<ChunkState> Read(const std::string& chunk, uint64_t elements) {
    if (stop_.stop_requested()) {
      return absl::CancelledError(absl::StrCat(directory_, ": stopped while it was read"));
    }
    const auto found = of_chunk_.find(chunk);
    if (found == of_chunk_.end()) {
      return absl::NotFoundError(absl::StrCat(directory_, ": chunk ", chunk,
                                              " is in none of its parts; was the tensor "
                                              "registered when it was taken?"));
    }
    const size_t part = found->second;
    PACELINE_RETURN_IF_ERROR(Check(part));
    const SafetensorsReader& reader = readers_[part];
    PACELINE_ASSIGN_OR_RETURN(const ChunkCounts counts,
                              ParseChunkCounts(reader.metadata().at(chunk)));
    ChunkState state{counts.version, counts.updates, counts.samples, {}};
    for (const SafetensorsEntry& entry : arrays_[part][chunk]) {
      const std::string name = entry.name.substr(chunk.size() + 1);
      PACELINE_ASSIGN_OR_RETURN(std::vector<float> values,
                                reader.ReadFloats(entry.name, {elements}));
      // "weights" first.
      state.arrays.emplace(name == "weights" ? state.arrays.begin() : state.arrays.end(), name,
                           std::move(values));
    }
    if (state.arrays.empty() || state.arrays.front().first != "weights") {
      return absl::DataLossError(absl::StrCat(reader.path(), ": chunk ", chunk, " has no weights"));
    }
    return state;
  }

 private:
  absl::Status Check(size_t part) {
    if (!checked_.insert(part).second) return absl::OkStatus();
    const CheckpointPart& said = manifest_.parts[part];
    PACELINE_ASSIGN_OR_RETURN(const CheckpointPart found,
                              DescribePart(directory_, said.file, stop_));
    if (found == said) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(directory_, "/", said.file,
                                            ": its size or checksum is not the manifest's; "
                                            "it was changed or damaged"));
  }

  const std::string directory_;
  const std::stop_token stop_;
  CheckpointManifest manifest_;
  std::vector<SafetensorsReader> readers_;                                    // as manifest_.parts
  std::vector<std::map<std::string, std::vector<SafetensorsEntry>>> arrays_;  // by chunk
  std::map<std::string, size_t> of_chunk_;
  std::set<size_t> checked_;
};

absl::StatusOr<CheckpointPart> WriteAndDescribe(const std::string& directory,
                                                const std::string& file,
                                                const std::vector<ChunkSnapshot>& chunks,
                                                const std::stop_token& stop) {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsView> views;
  for (const ChunkSnapshot& chunk : chunks) {
    const std::string key = ChunkName(chunk.tensor, chunk.key.chunk);
    metadata[key] = ToText({chunk.state.version, chunk.state.updates, chunk.state.samples});
    for (const auto& [name, values] : chunk.state.arrays) {
      views.push_back({absl::StrCat(key, "/", name),
                       DType::kF32,
                       {values.size()},
                       std::as_bytes(values.values())});
    }
  }
  PACELINE_RETURN_IF_ERROR(
      WriteSafetensors(absl::StrCat(directory, "/", file), metadata, views, stop));
  return DescribePart(directory, file, stop);
}

}  // namespace

absl::StatusOr<CheckpointPart> WriteCheckpointPart(const std::string& directory,
                                                   const std::string& server,
                                                   const std::vector<ChunkSnapshot>& chunks,
                                                   const std::stop_token& stop) {
  PACELINE_RETURN_IF_ERROR(MakeCheckpointDirectory(directory));
  const std::string file = PartFile(server);
  auto part = WriteAndDescribe(directory, file, chunks, stop);
  // This server ends, and hears of no abort any more. What failed otherwise the abort removes:
  // another server may be about to write beside it.
  if (absl::IsCancelled(part.status())) {
    std::error_code ignored;
    std::filesystem::remove(absl::StrCat(directory, "/", file), ignored);
    std::filesystem::remove(directory, ignored);  // not when another server's part is in it
  }
  return part;
}

absl::StatusOr<std::vector<RestoredChunk>> ReadChunks(const std::string& directory,
                                                      const Plan& plan,
                                                      const std::vector<ChunkKey>& keys,
                                                      const std::stop_token& stop) {
  Parts parts(directory, stop);
  PACELINE_RETURN_IF_ERROR(parts.Open());
  std::map<std::string, const TensorSpec*> known;
  for (const TensorSpec& tensor : parts.manifest().tensors) known[tensor.name] = &tensor;
  std::vector<RestoredChunk> chunks;
  for (const ChunkKey& key : keys) {
    const TensorPlan* const tensor = FindTensor(plan, key.tensor);
    PACELINE_CHECK(tensor != nullptr);
    const auto was = known.find(tensor->spec.name);
    if (was != known.end() && *was->second != tensor->spec) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory, ": tensor ", tensor->spec.name, " was ", ToString(*was->second),
                       " when it was taken and is ", ToString(tensor->spec), " now"));
    }
    const uint64_t elements =
        CutIntoChunks(tensor->spec, plan.spec.chunk_bytes)[key.chunk.value()].length;
    PACELINE_ASSIGN_OR_RETURN(ChunkState state,
                              parts.Read(ChunkName(tensor->spec.name, key.chunk), elements));
    chunks.push_back({key, std::move(state)});
  }
  return chunks;
}

}  // namespace paceline
