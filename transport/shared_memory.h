// Memory that two processes have mapped: a memfd whose size is sealed, so that neither end can
// shrink it under the other. Nothing of it has a name, so that a crash leaves nothing behind.
// Thread rule: values; the bytes are shared with another process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/runtime/file_descriptor.h"

namespace paceline {

class SharedMemory {
 public:
  // Of this process; `bytes` are taken from the system page by page at their first use.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Create(uint64_t bytes);

  // Of a peer. InvalidArgument unless it is ordinary memory of exactly `bytes`, sealed against
  // shrinking and growing. Read-only unless `writable`.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Open(FileDescriptor descriptor,
                                                            uint64_t bytes, bool writable);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  int descriptor() const { return descriptor_.get(); }

 private:
  SharedMemory(FileDescriptor descriptor, std::span<std::byte> bytes)
      : descriptor_(std::move(descriptor)), bytes_(bytes) {}
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Map(FileDescriptor descriptor,
                                                           uint64_t bytes, bool writable);

  const FileDescriptor descriptor_;
  const std::span<std::byte> bytes_;
};

}  // namespace paceline
