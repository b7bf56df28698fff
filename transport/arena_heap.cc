#include "transport/arena_heap.h"

#include <algorithm>

#include "common/base/check.h"

namespace paceline {
namespace {

constexpr uint64_t kBlockAlignment = 64;
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 40;

}  // namespace

std::shared_ptr<std::byte[]> ArenaHeap::Allocate(size_t bytes) {
  if (bytes > kMaxBlockBytes) return nullptr;
  const uint64_t rounded = std::max<uint64_t>(
      kBlockAlignment, (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment);
  MutexLock lock(&mutex_);
  for (Extent& extent : extents_) {
    if (extent.memory.use_count() == 1) extent.used = 0;
    if (extent.memory->bytes().size() - extent.used < rounded) continue;
    std::byte* const at = extent.memory->bytes().data() + extent.used;
    extent.used += rounded;
    return std::shared_ptr<std::byte[]>(extent.memory, at);
  }
  if (extents_.size() == kMaxExtents) return nullptr;
  absl::StatusOr<std::shared_ptr<SharedMemory>> made =
      SharedMemory::Create(std::max(rounded, kExtentBytes));
  if (!made.ok()) return nullptr;
  extents_.push_back({.memory = *std::move(made), .used = rounded});
  const Extent& extent = extents_.back();
  return std::shared_ptr<std::byte[]>(extent.memory, extent.memory->bytes().data());
}

uint32_t ArenaHeap::extents() const {
  MutexLock lock(&mutex_);
  return static_cast<uint32_t>(extents_.size());
}

ArenaHeap::Announcement ArenaHeap::Announce(uint32_t number) const {
  MutexLock lock(&mutex_);
  PACELINE_CHECK(number >= kFirst && number - kFirst < extents_.size());
  const SharedMemory& memory = *extents_[number - kFirst].memory;
  return {.descriptor = memory.descriptor(), .bytes = memory.bytes().size()};
}

std::optional<ArenaHeap::Place> ArenaHeap::Find(std::span<const std::byte> bytes) const {
  MutexLock lock(&mutex_);
  for (uint32_t i = 0; i < extents_.size(); ++i) {
    const std::span<const std::byte> extent = extents_[i].memory->bytes();
    if (bytes.data() < extent.data() || bytes.data() >= extent.data() + extent.size()) continue;
    const auto offset = static_cast<uint64_t>(bytes.data() - extent.data());
    if (bytes.size() > extent.size() - offset) return std::nullopt;
    return Place{.number = kFirst + i, .offset = offset};
  }
  return std::nullopt;
}

}  // namespace paceline
