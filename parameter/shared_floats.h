// An array of floats with shared ownership: the weights of one version, read by every reply that
// carries them. Whoever finds itself the only owner may write; others make a copy first.
//
// Thread rule: a handle belongs to one thread; handles of one array may live on several (a reply is
// let go on an I/O thread). Writing needs unique().
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace paceline {

class SharedFloats {
 public:
  SharedFloats() = default;
  // 64-byte aligned; values are not set.
  explicit SharedFloats(size_t size);
  SharedFloats(const SharedFloats& other);
  SharedFloats(SharedFloats&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  SharedFloats& operator=(SharedFloats other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~SharedFloats();

  explicit operator bool() const { return block_ != nullptr; }
  size_t size() const { return block_ == nullptr ? 0 : block_->size; }
  std::span<const float> values() const;
  // Only this handle holds the array, and what others read of it happened before.
  bool unique() const;
  // Checked: unique().
  std::span<float> writable();

 private:
  struct alignas(64) Block {
    std::atomic<size_t> references{1};
    size_t size = 0;
  };
  static float* Data(Block* block) { return reinterpret_cast<float*>(block + 1); }

  Block* block_ = nullptr;
};

// Arrays that were let go, kept for the next of their size: a round allocates no array in the
// steady state. What is given may still be read elsewhere; it is reused once it is not.
// Thread rule: one thread.
class FloatPool {
 public:
  explicit FloatPool(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Unique; values are not set.
  SharedFloats Take(size_t size);
  void Give(SharedFloats array);
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kMaxArrays = 128;  // bounds the search of Take

  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::vector<SharedFloats> arrays_;
};

}  // namespace paceline
