#include "parameter/shared_floats.h"

#include <new>

#include "common/base/check.h"

namespace paceline {

SharedFloats::SharedFloats(size_t size) {
  void* memory =
      ::operator new(sizeof(Block) + size * sizeof(float), std::align_val_t(alignof(Block)));
  block_ = new (memory) Block;
  block_->size = size;
}

SharedFloats::SharedFloats(const SharedFloats& other) : block_(other.block_) {
  if (block_ != nullptr) block_->references.fetch_add(1, std::memory_order_relaxed);
}

SharedFloats::~SharedFloats() {
  if (block_ == nullptr || block_->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  block_->~Block();
  ::operator delete(block_, std::align_val_t(alignof(Block)));
}

std::span<const float> SharedFloats::values() const {
  if (block_ == nullptr) return {};
  return {Data(block_), block_->size};
}

bool SharedFloats::unique() const {
  return block_ != nullptr && block_->references.load(std::memory_order_acquire) == 1;
}

std::span<float> SharedFloats::writable() {
  PACELINE_CHECK(unique());
  return {Data(block_), block_->size};
}

SharedFloats FloatPool::Take(size_t size) {
  for (size_t i = arrays_.size(); i-- > 0;) {
    if (arrays_[i].size() != size || !arrays_[i].unique()) continue;
    SharedFloats found = std::move(arrays_[i]);
    arrays_[i] = std::move(arrays_.back());
    arrays_.pop_back();
    bytes_ -= size * sizeof(float);
    return found;
  }
  return SharedFloats(size);
}

void FloatPool::Give(SharedFloats array) {
  const size_t bytes = array.size() * sizeof(float);
  if (bytes == 0 || bytes_ + bytes > max_bytes_ || arrays_.size() >= kMaxArrays) return;
  bytes_ += bytes;
  arrays_.push_back(std::move(array));
}

}  // namespace paceline
