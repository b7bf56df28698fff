// Checkpoints below a directory: which there are, whether they are whole, which is the newest.
// Thread rule: no state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/checkpoint.h"

namespace paceline {

struct FoundCheckpoint {
  std::string path;  // absolute
  absl::StatusOr<CheckpointManifest> manifest;
  std::vector<std::string> passed_over = {};  // faults of newer ones; by NewestCheckpoint
};

// `directory` itself when it has a manifest, else what is in the directories below it: oldest
// first, then those that are no whole checkpoint. Runs go by the clock of whoever wrote their
// newest one, checkpoints of one run by their number. NotFound names the directory.
absl::StatusOr<std::vector<FoundCheckpoint>> ListCheckpoints(const std::string& directory);

// Reads every byte: sizes and checksums of the parts, their headers, and that each chunk of each
// tensor is there once, whole and of the length it must have. The first fault is named.
absl::Status VerifyCheckpoint(const std::string& path, const CheckpointManifest& manifest);

// The newest checkpoint at or below `directory` that verifies.
absl::StatusOr<FoundCheckpoint> NewestCheckpoint(const std::string& directory);

// Makes a directory and those above it that are missing, durably: parts that are synced must not
// vanish with the directory they are in.
absl::Status MakeCheckpointDirectory(const std::string& path);

// Removes a checkpoint, or what is left of one: the manifest first, then parts, then the directory
// if nothing else is in it. Only files named like those of a checkpoint go.
absl::Status RemoveCheckpoint(const std::string& path);

}  // namespace paceline
