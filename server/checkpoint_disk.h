// The thread on which a server does the slow part of checkpoints: writing what was copied, reading
// what is to be loaded. In order, one after another.
// Thread rule: Post and RequestStop from any thread, Stop from one; tasks run on the disk thread.
#pragma once

#include <deque>
#include <functional>
#include <stop_token>
#include <thread>

#include "absl/status/status.h"
#include "common/runtime/mutex.h"

namespace paceline {

class CheckpointDisk {
 public:
  // What takes long gives up when `stop` is requested.
  using Task = std::function<void(const std::stop_token& stop)>;

  CheckpointDisk();
  ~CheckpointDisk() { Stop(); }

  // The task is dropped: ResourceExhausted when too many wait already, Cancelled after RequestStop.
  absl::Status Post(Task task) EXCLUDES(mutex_);
  void RequestStop() EXCLUDES(mutex_);
  // RequestStop, and waits for all that was posted: what is to be removed still is. Idempotent.
  void Stop() EXCLUDES(mutex_);

 private:
  static constexpr size_t kMaxTasks = 64;

  void Run();

  Mutex mutex_;
  CondVar wake_;
  std::deque<Task> tasks_ GUARDED_BY(mutex_);
  std::stop_source stop_;
  std::thread thread_;
};

}  // namespace paceline
