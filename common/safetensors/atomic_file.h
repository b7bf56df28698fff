// A file that is there under its final name only once it is whole: written under a temporary name
// beside it, synced, renamed, the directory synced.
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace paceline {

class AtomicFile {
 public:
  explicit AtomicFile(std::string path) : path_(std::move(path)) {}
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  // Without a Commit `path` is what it was and nothing is left behind.
  ~AtomicFile();

  // Each error names the path and what failed.
  absl::Status Open();
  // Waits for the disk every so many bytes, so that Commit never has much left to wait for.
  absl::Status Append(std::span<const std::byte> data);
  absl::Status Commit();

 private:
  absl::Status Error(const char* what) const;

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  size_t unsynced_ = 0;  // bytes
};

// Makes what was created, renamed or removed in a directory durable.
absl::Status SyncDirectory(const std::string& directory);

}  // namespace paceline
