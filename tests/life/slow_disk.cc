// Preloaded into one process, stands for a disk that takes SLOW_DISK_MS for each write of a
// checkpoint's part.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>

namespace {

bool IsPart(int fd) {
  char path[4096];
  const ssize_t length =
      readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof(path) - 1);
  if (length <= 0) return false;
  path[length] = 0;
  return strstr(path, "/part-") != nullptr;
}

}  // namespace

extern "C" ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto real =
      reinterpret_cast<ssize_t (*)(int, const void*, size_t)>(dlsym(RTLD_NEXT, "write"));
  const char* const pause_ms = getenv("SLOW_DISK_MS");
  if (fd > STDERR_FILENO && pause_ms != nullptr && IsPart(fd)) {
    usleep(static_cast<useconds_t>(atoi(pause_ms)) * 1000);
  }
  return real(fd, data, bytes);
}
