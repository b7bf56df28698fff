// How much a channel has handed to its sink that was not given back, and the buffers it is in.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/runtime/mutex.h"
#include "transport/channel.h"

namespace paceline {

struct FreeAligned {
  void operator()(std::byte* p) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;
AlignedBytes AllocateAligned(size_t bytes);  // to 64 bytes

// Keeps up to `max_free` buffers of one full piece for the next use.
// Thread rule: any thread.
class BufferPool {
 public:
  explicit BufferPool(size_t max_free) : max_free_(max_free) {}
  AlignedBytes Take() EXCLUDES(mutex_);
  void Give(AlignedBytes buffer) EXCLUDES(mutex_);

 private:
  const size_t max_free_;
  Mutex mutex_;
  std::vector<AlignedBytes> free_ GUARDED_BY(mutex_);
};

// Thread rule: Reserve, Buffer and Wrap from the channel's I/O thread. Payloads are destroyed
// anywhere, also after the channel is gone.
class ReceiveCredit : public std::enable_shared_from_this<ReceiveCredit> {
 public:
  // `wake` is called, from any thread, when credit returns after Reserve said no.
  ReceiveCredit(uint64_t max_bytes, std::shared_ptr<BufferPool> pool, std::function<void()> wake);

  // Takes credit for a piece of `length` bytes. One piece always fits when nothing is out.
  bool Reserve(uint32_t length);
  // After Reserve: memory for the piece, unless the sink named some.
  AlignedBytes Buffer(uint32_t length);
  // After Reserve: the payload that gives the credit (and the buffer, if not null) back.
  Payload Wrap(std::span<const std::byte> bytes, AlignedBytes buffer);
  // After Reserve, when no payload is made of it.
  void Return(uint32_t length, AlignedBytes buffer);

 private:
  class Held;
  static uint64_t ChargeOf(uint32_t length);
  static bool IsPooled(uint32_t length);

  const uint64_t max_bytes_;
  const std::shared_ptr<BufferPool> pool_;
  const std::function<void()> wake_;
  std::atomic<uint64_t> outstanding_ = 0;
  std::atomic<bool> waiting_ = false;
};

}  // namespace paceline
