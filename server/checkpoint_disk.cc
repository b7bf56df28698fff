#include "server/checkpoint_disk.h"

#include <utility>

namespace paceline {

CheckpointDisk::CheckpointDisk() : thread_([this] { Run(); }) {}

void CheckpointDisk::Stop() {
  RequestStop();
  if (thread_.joinable()) thread_.join();
}

void CheckpointDisk::RequestStop() {
  MutexLock lock(&mutex_);
  stop_.request_stop();
  wake_.SignalAll();
}

absl::Status CheckpointDisk::Post(Task task) {
  MutexLock lock(&mutex_);
  if (stop_.stop_requested()) return absl::CancelledError("the server ends");
  if (tasks_.size() >= kMaxTasks)
    return absl::ResourceExhaustedError("too much waits for the disk");
  tasks_.push_back(std::move(task));
  wake_.Signal();
  return absl::OkStatus();
}

void CheckpointDisk::Run() {
  while (true) {
    Task task;
    {
      MutexLock lock(&mutex_);
      while (tasks_.empty() && !stop_.stop_requested()) wake_.Wait(&mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task(stop_.get_token());
  }
}

}  // namespace paceline
