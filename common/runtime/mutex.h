// std::mutex with clang's thread safety annotations, so that -Wthread-safety checks what a lock
// guards. (Debian's absl::Mutex is not instrumented and makes ThreadSanitizer report correct code.)
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "common/base/types.h"

// Older Abseil defines some of these names itself, with the same meaning on clang only.
#undef GUARDED_BY
#undef NO_THREAD_SAFETY_ANALYSIS

#if defined(__clang__)
#define PACELINE_ATTRIBUTE(x) __attribute__((x))
#else
#define PACELINE_ATTRIBUTE(x)
#endif
#define CAPABILITY(x) PACELINE_ATTRIBUTE(capability(x))
#define SCOPED_CAPABILITY PACELINE_ATTRIBUTE(scoped_lockable)
#define GUARDED_BY(x) PACELINE_ATTRIBUTE(guarded_by(x))
#define REQUIRES(...) PACELINE_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) PACELINE_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) PACELINE_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) PACELINE_ATTRIBUTE(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS PACELINE_ATTRIBUTE(no_thread_safety_analysis)

#if defined(__has_feature)
#define PACELINE_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define PACELINE_THREAD_SANITIZER 0
#endif

namespace paceline {

class CAPABILITY("mutex") Mutex {
 public:
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() RELEASE() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits are in a loop that tests the condition; a wake-up proves nothing.
class CondVar {
 public:
  void Wait(Mutex* mutex) NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when `timeout` passed first.
  bool WaitFor(Mutex* mutex, Ticks timeout) NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const auto status =
        cv_.wait_until(lock, WaitClock::now() + std::chrono::nanoseconds(timeout.value()));
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
#if defined(__SANITIZE_THREAD__) || PACELINE_THREAD_SANITIZER
  // Thread sanitizer understands no wait on another clock.
  using WaitClock = std::chrono::system_clock;
#else
  // Steps of the wall clock are nothing to it.
  using WaitClock = std::chrono::steady_clock;
#endif

  std::condition_variable cv_;
};

}  // namespace paceline
