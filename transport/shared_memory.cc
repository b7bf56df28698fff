#include "transport/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/status.h"
#include "transport/system_error.h"

namespace paceline {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Create(uint64_t bytes) {
  FileDescriptor descriptor(memfd_create("paceline-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return SystemError(errno, "memfd_create");
  if (ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    return SystemError(errno, absl::StrCat("an arena of ", bytes, " bytes: ftruncate"));
  }
  if (fcntl(descriptor.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return SystemError(errno, "sealing an arena");
  }
  return Map(std::move(descriptor), bytes, true);
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Open(FileDescriptor descriptor,
                                                                 uint64_t bytes, bool writable) {
  // Reading memory that the peer can cut off, or of a kind that can run out, would end this
  // process.
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return absl::InvalidArgumentError("the arena is not sealed against shrinking and growing");
  }
  struct statfs file_system {};
  if (fstatfs(descriptor.get(), &file_system) != 0 || file_system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("the arena is not ordinary memory");
  }
  struct stat status {};
  if (fstat(descriptor.get(), &status) != 0) return SystemError(errno, "fstat of an arena");
  if (bytes == 0 || static_cast<uint64_t>(status.st_size) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the arena was announced with ", bytes, " bytes and has ", status.st_size));
  }
  return Map(std::move(descriptor), bytes, writable);
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Map(FileDescriptor descriptor,
                                                                uint64_t bytes, bool writable) {
  void* const memory = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                            MAP_SHARED | MAP_NORESERVE, descriptor.get(), 0);
  if (memory == MAP_FAILED) {
    return SystemError(errno, absl::StrCat("an arena of ", bytes, " bytes: mmap"));
  }
  return std::shared_ptr<SharedMemory>(
      new SharedMemory(std::move(descriptor), {static_cast<std::byte*>(memory), bytes}));
}

SharedMemory::~SharedMemory() { munmap(bytes_.data(), bytes_.size()); }

}  // namespace paceline
