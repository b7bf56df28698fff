// Memory of this process that its peers on the host have mapped: what is sent from it moves
// nothing. One for all channels of a transport, since the chunks of one tensor go to several
// owners. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/runtime/mutex.h"
#include "transport/shared_memory.h"

namespace paceline {

class ArenaHeap {
 public:
  // Extents have the numbers kFirst .. kFirst + kMaxExtents - 1, in order, for all peers.
  static constexpr uint32_t kFirst = 2;
  static constexpr uint32_t kMaxExtents = 14;
  static constexpr uint64_t kExtentBytes = 64u << 20;

  // 64-byte aligned, from an extent; null when there are no more extents or no memory for one. An
  // extent is used again when everything taken from it was given back.
  std::shared_ptr<std::byte[]> Allocate(size_t bytes) EXCLUDES(mutex_);

  // How many extents there are; they never become fewer.
  uint32_t extents() const EXCLUDES(mutex_);
  struct Announcement {
    int descriptor = -1;
    uint64_t bytes = 0;
  };
  Announcement Announce(uint32_t number) const EXCLUDES(mutex_);

  struct Place {
    uint32_t number = 0;
    uint64_t offset = 0;
  };
  // Where the bytes are, if they are all within one extent.
  std::optional<Place> Find(std::span<const std::byte> bytes) const EXCLUDES(mutex_);

 private:
  struct Extent {
    std::shared_ptr<SharedMemory> memory;
    uint64_t used = 0;
  };
  mutable Mutex mutex_;
  std::vector<Extent> extents_ GUARDED_BY(mutex_);
};

}  // namespace paceline
