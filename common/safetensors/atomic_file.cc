#include "common/safetensors/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace paceline {
namespace {

constexpr size_t kSyncBytes = 64u << 20;

}  // namespace

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Open() {
  // Another writer of the same path, perhaps on another host, may hold a name already.
  constexpr int kAttempts = 64;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string name = absl::StrCat(path_, ".tmp-", getpid(), "-", attempt);
    fd_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) {
      temporary_ = name;
      return absl::OkStatus();
    }
    if (errno != EEXIST) break;
  }
  return Error("create a file beside");
}

absl::Status AtomicFile::Append(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t put = write(fd_, data.data(), data.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Error("write");
    data = data.subspan(static_cast<size_t>(put));
    unsynced_ += static_cast<size_t>(put);
  }
  if (unsynced_ < kSyncBytes) return absl::OkStatus();
  unsynced_ = 0;
  if (fdatasync(fd_) != 0) return Error("sync");
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return Error("sync");
  if (close(std::exchange(fd_, -1)) != 0) return Error("close");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Error("rename to");
  temporary_.clear();
  const std::string parent = std::filesystem::path(path_).parent_path();
  return SyncDirectory(parent.empty() ? "." : parent);
}

absl::Status AtomicFile::Error(const char* what) const {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat(path_, ": cannot ", what, " it"));
}

absl::Status SyncDirectory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(directory, ": cannot open it"));
  const bool synced = fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (synced) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat(directory, ": cannot sync it"));
}

}  // namespace paceline
