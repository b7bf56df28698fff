// A first-in-first-out queue between threads that never grows beyond its bound.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "common/runtime/mutex.h"

namespace paceline {

// Thread rule: every method may be called from any thread.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False, leaving `item` as it was, when the queue is full or closed.
  bool TryPush(T&& item) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    not_empty_.Signal();
    return true;
  }

  // Waits for an item. Empty when `timeout` passed, or when the queue is closed and drained.
  std::optional<T> Pop(Ticks timeout) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    while (items_.empty() && !closed_) {
      if (!not_empty_.WaitFor(&mutex_, timeout)) break;
    }
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  // Everything that is there now, without waiting.
  std::vector<T> Drain() EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    std::vector<T> out(std::make_move_iterator(items_.begin()),
                       std::make_move_iterator(items_.end()));
    items_.clear();
    return out;
  }

  // No item goes in any more; waiting Pops return.
  void Close() EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    closed_ = true;
    not_empty_.SignalAll();
  }

 private:
  const size_t capacity_;
  Mutex mutex_;
  CondVar not_empty_;
  std::deque<T> items_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace paceline
