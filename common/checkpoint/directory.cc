#include "common/checkpoint/directory.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/safetensors/atomic_file.h"
#include "common/safetensors/safetensors.h"
#include "plan/chunking.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

std::string Absolute(const std::string& path) {
  std::error_code error;
  std::string absolute = fs::absolute(path, error).lexically_normal().string();
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  return error ? path : absolute;
}

void SortByAge(std::vector<FoundCheckpoint>* found) {
  std::map<std::string, int64_t> newest;  // wall clock by run
  for (const FoundCheckpoint& f : *found) {
    if (!f.manifest.ok()) continue;
    int64_t& at = newest[f.manifest->run];
    at = std::max(at, f.manifest->unix_time_ms);
  }
  const auto key = [&newest](const FoundCheckpoint& f) {
    const CheckpointManifest& m = *f.manifest;
    return std::tuple(newest.at(m.run), m.run, m.number, f.path);
  };
  std::sort(found->begin(), found->end(), [&](const FoundCheckpoint& a, const FoundCheckpoint& b) {
    if (a.manifest.ok() != b.manifest.ok()) return a.manifest.ok();
    return a.manifest.ok() ? key(a) < key(b) : a.path < b.path;
  });
}

// What the parts hold, by "TENSOR/CHUNK/ARRAY" and "TENSOR/CHUNK".
struct Contents {
  std::map<std::string, SafetensorsEntry> arrays;
  std::map<std::string, std::string> counts;
};

absl::Status AddPart(const std::string& path, const CheckpointPart& part, Contents* contents) {
  PACELINE_ASSIGN_OR_RETURN(const CheckpointPart found, DescribePart(path, part.file));
  if (found != part) {
    return absl::DataLossError(absl::StrCat(
        path, "/", part.file, ": ",
        found.bytes != part.bytes
            ? absl::StrCat(found.bytes.value(), " bytes, the manifest says ", part.bytes.value())
            : std::string("its checksum is not the manifest's: it was changed or damaged")));
  }
  PACELINE_ASSIGN_OR_RETURN(const SafetensorsReader reader,
                            SafetensorsReader::Open(absl::StrCat(path, "/", part.file)));
  for (const SafetensorsEntry& entry : reader.tensors()) {
    if (!contents->arrays.emplace(entry.name, entry).second) {
      return absl::DataLossError(
          absl::StrCat(path, "/", part.file, ": ", entry.name, " is in two parts"));
    }
  }
  for (const auto& [name, counts] : reader.metadata()) contents->counts[name] = counts;
  return absl::OkStatus();
}

absl::Status CheckTensor(const TensorSpec& tensor, uint64_t chunk_bytes, Contents& contents) {
  const std::vector<ChunkRange> ranges = CutIntoChunks(tensor, chunk_bytes);
  for (uint32_t i = 0; i < ranges.size(); ++i) {
    const std::string chunk = ChunkName(tensor.name, ChunkIndex(i));
    const auto weights = contents.arrays.find(chunk + "/weights");
    const auto counts = contents.counts.find(chunk);
    if (weights == contents.arrays.end() || counts == contents.counts.end()) {
      return absl::DataLossError(absl::StrCat("chunk ", chunk, " is in no part"));
    }
    PACELINE_RETURN_IF_ERROR(ParseChunkCounts(counts->second).status());
    if (weights->second.elements() != ranges[i].length) {
      return absl::DataLossError(absl::StrCat("chunk ", chunk, " has ", weights->second.elements(),
                                              " elements, not ", ranges[i].length));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<FoundCheckpoint>> ListCheckpoints(const std::string& directory) {
  const std::string base = Absolute(directory);
  std::error_code error;
  if (!fs::is_directory(base, error)) {
    return absl::NotFoundError(absl::StrCat("checkpoints: ", base, " is no directory"));
  }
  if (fs::exists(absl::StrCat(base, "/", Absl(kManifestFile)), error)) {
    return std::vector<FoundCheckpoint>{{base, ReadManifest(base)}};
  }
  std::vector<FoundCheckpoint> found;
  for (fs::directory_iterator it(base, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_directory(ignored)) continue;
    const std::string path = it->path().string();
    bool parts = fs::exists(absl::StrCat(path, "/", Absl(kManifestFile)), ignored);
    for (fs::directory_iterator p(path, ignored); !parts && p != fs::directory_iterator();
         p.increment(ignored)) {
      parts = p->path().filename().string().starts_with("part-");
    }
    if (parts) found.push_back({path, ReadManifest(path)});
  }
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("checkpoints: cannot read ", base, ": ", error.message()));
  }
  SortByAge(&found);
  return found;
}

absl::Status VerifyCheckpoint(const std::string& path, const CheckpointManifest& manifest) {
  Contents contents;
  for (const CheckpointPart& part : manifest.parts) {
    PACELINE_RETURN_IF_ERROR(AddPart(path, part, &contents));
  }
  for (const TensorSpec& tensor : manifest.tensors) {
    const absl::Status status = CheckTensor(tensor, manifest.spec.chunk_bytes, contents);
    if (!status.ok()) return Annotate(status, path);
  }
  return absl::OkStatus();
}

absl::StatusOr<FoundCheckpoint> NewestCheckpoint(const std::string& directory) {
  PACELINE_ASSIGN_OR_RETURN(std::vector<FoundCheckpoint> found, ListCheckpoints(directory));
  absl::Status newest_fault;
  std::vector<std::string> passed_over;
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    const absl::Status status =
        it->manifest.ok() ? VerifyCheckpoint(it->path, *it->manifest) : it->manifest.status();
    if (status.ok()) {
      it->passed_over = std::move(passed_over);
      return std::move(*it);
    }
    passed_over.emplace_back(status.message());
    if (it->manifest.ok() || newest_fault.ok()) newest_fault = status;
  }
  if (newest_fault.ok()) {
    return absl::NotFoundError(absl::StrCat("no checkpoint at or below ", Absolute(directory)));
  }
  return Annotate(newest_fault, absl::StrCat("no whole checkpoint at or below ",
                                             Absolute(directory), "; the newest"));
}

absl::Status MakeCheckpointDirectory(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::path(Absolute(path));
  std::vector<fs::path> parents;  // whose entries are new
  for (fs::path at = whole; !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    parents.push_back(at.parent_path());
    if (at == at.parent_path()) break;
  }
  fs::create_directories(whole, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make checkpoint directory '", whole.string(), "': ", error.message()));
  }
  for (const fs::path& parent : parents) PACELINE_RETURN_IF_ERROR(SyncDirectory(parent.string()));
  return absl::OkStatus();
}

absl::Status RemoveCheckpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return absl::OkStatus();
  const std::string manifest = absl::StrCat(path, "/", Absl(kManifestFile));
  fs::remove(manifest, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(manifest, ": cannot be removed: ", error.message()));
  }
  // Without its manifest it is no checkpoint any more, whatever happens to the parts.
  const absl::Status synced = SyncDirectory(path);
  if (absl::IsNotFound(synced)) return absl::OkStatus();  // another server was faster
  PACELINE_RETURN_IF_ERROR(synced);
  std::vector<fs::path> files;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("part-") || name.starts_with(kManifestFile)) files.push_back(it->path());
  }
  for (const fs::path& file : files) fs::remove(file, error);
  fs::remove(path, error);  // left when somebody put something else there
  return absl::OkStatus();
}

}  // namespace paceline
