// The thread on which a server does the slow part of checkpoints: writing what was copied, reading
// what is to be loaded. In order, one after another.
// Thread rule: Post from any thread; callbacks run on the disk thread.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "common/runtime/mutex.h"

namespace paceline {

class CheckpointDisk {
 public:
  using Task = std::function<void()>;

  CheckpointDisk();
  // What waits is dropped; what runs is waited for.
  ~CheckpointDisk();

  // False, and the task is dropped, when too many wait already.
  bool Post(Task task) EXCLUDES(mutex_);

 private:
  static constexpr size_t kMaxTasks = 64;

  void Run();

  Mutex mutex_;
  CondVar wake_;
  std::deque<Task> tasks_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline
