#include "cli/run_directory.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <system_error>

#include "common/base/status.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

std::string TimeText() {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &local);
  return text.data();
}

absl::Status MakeAll(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && fs::is_directory(path, error) && access(path.c_str(), W_OK) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("output: cannot write to ", path.string(),
                   error ? absl::StrCat(": ", error.message()) : std::string()));
}

// Best effort: a file system without links is no reason not to train.
void LinkLatest(const fs::path& directory) {
  const fs::path link = directory.parent_path() / "latest";
  const fs::path temporary = directory.parent_path() / absl::StrCat(".latest-", getpid());
  std::error_code error;
  if (fs::exists(fs::symlink_status(link, error)) && !fs::is_symlink(link, error)) return;
  fs::remove(temporary, error);
  fs::create_directory_symlink(directory.filename(), temporary, error);
  fs::rename(temporary, link, error);
}

}  // namespace

absl::StatusOr<std::string> CreateRunDirectory(const std::string& output, const std::string& job) {
  if (!output.empty()) {
    std::error_code error;
    fs::path path(output);
    while (!path.has_filename() && path.has_parent_path() && path != path.root_path()) {
      path = path.parent_path();
    }
    PACELINE_RETURN_IF_ERROR(MakeAll(path));
    // Two runs in one directory would mix their logs, and the scheduler would recover the old job.
    if (fs::exists(path / "summary.json", error)) {
      return absl::AlreadyExistsError(
          absl::StrCat("output: ", path.string(),
                       " holds an earlier run; name another directory, or remove it"));
    }
    LinkLatest(path);
    return path.string();
  }
  PACELINE_RETURN_IF_ERROR(MakeAll("runs"));
  const std::string base = absl::StrCat("runs/", job, "-", TimeText());
  for (int attempt = 1; attempt < 1000; ++attempt) {
    const std::string path = attempt == 1 ? base : absl::StrCat(base, "-", attempt);
    if (mkdir(path.c_str(), 0755) == 0) {
      LinkLatest(path);
      return path;
    }
    if (errno != EEXIST) break;
  }
  return absl::InternalError(absl::StrCat("output: cannot create ", base));
}

}  // namespace paceline
