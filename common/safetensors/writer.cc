#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>

#include "common/base/status.h"
#include "common/safetensors/header.h"
#include "common/safetensors/safetensors.h"

namespace paceline {
namespace {

static_assert(std::endian::native == std::endian::little,
              "arrays are written as they are in memory");

// A file that is there under its final name only after Commit().
class AtomicFile {
 public:
  explicit AtomicFile(std::string path) : path_(std::move(path)) {}
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() {
    if (fd_ >= 0) close(fd_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }

  absl::Status Open() {
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

  absl::Status Append(std::span<const std::byte> data) {
    while (!data.empty()) {
      const ssize_t put = write(fd_, data.data(), data.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return Error("write");
      data = data.subspan(static_cast<size_t>(put));
    }
    return absl::OkStatus();
  }

  absl::Status Commit() {
    if (fsync(fd_) != 0) return Error("sync");
    if (close(std::exchange(fd_, -1)) != 0) return Error("close");
    if (rename(temporary_.c_str(), path_.c_str()) != 0) return Error("rename to");
    temporary_.clear();
    const std::string parent = std::filesystem::path(path_).parent_path();
    const int fd = open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return Error("open the directory of");
    const bool synced = fsync(fd) == 0;
    const int error = errno;
    close(fd);
    errno = error;
    return synced ? absl::OkStatus() : Error("sync the directory of");
  }

 private:
  absl::Status Error(const char* what) const {
    const int error = errno;
    return absl::ErrnoToStatus(error, absl::StrCat(path_, ": cannot ", what, " it"));
  }

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
};

absl::Status CheckView(const SafetensorsView& view) {
  if (view.name.empty() || view.name == "__metadata__") {
    return absl::InvalidArgumentError(
        absl::StrCat("'", view.name, "' cannot be a tensor's name in a safetensors file"));
  }
  const auto bytes = safetensors::ArrayBytes(view.dtype, view.shape);
  if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("tensor '", view.name, "'"));
  if (*bytes != view.data.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", view.name, "': ", view.data.size(),
                                                   " bytes given, the shape needs ", *bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string>& metadata,
                              std::span<const SafetensorsView> tensors) {
  std::vector<const SafetensorsView*> order;
  std::set<std::string_view> names;
  for (const SafetensorsView& view : tensors) {
    if (auto status = CheckView(view); !status.ok()) return Annotate(status, path);
    if (!names.insert(view.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", view.name, "' is given twice"));
    }
    order.push_back(&view);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(SizeOf(b->dtype), std::string_view(a->name)) <
           std::pair(SizeOf(a->dtype), std::string_view(b->name));
  });
  auto header = safetensors::MakeHeader(metadata, order);
  if (!header.ok()) return Annotate(header.status(), path);
  if (header->size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the header needs ", header->size(),
                                                   " bytes, at most ", kMaxSafetensorsHeaderBytes,
                                                   " are allowed"));
  }

  AtomicFile file(path);
  PACELINE_RETURN_IF_ERROR(file.Open());
  const uint64_t header_bytes = header->size();
  PACELINE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(&header_bytes, 1))));
  PACELINE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(*header))));
  for (const SafetensorsView* view : order) PACELINE_RETURN_IF_ERROR(file.Append(view->data));
  return file.Commit();
}

}  // namespace paceline
