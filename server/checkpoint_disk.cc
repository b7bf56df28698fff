#include "server/checkpoint_disk.h"

#include <utility>

namespace paceline {

CheckpointDisk::CheckpointDisk() : thread_([this] { Run(); }) {}

CheckpointDisk::~CheckpointDisk() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  thread_.join();
}

bool CheckpointDisk::Post(Task task) {
  MutexLock lock(&mutex_);
  if (stopping_ || tasks_.size() >= kMaxTasks) return false;
  tasks_.push_back(std::move(task));
  wake_.Signal();
  return true;
}

void CheckpointDisk::Run() {
  while (true) {
    Task task;
    {
      MutexLock lock(&mutex_);
      while (tasks_.empty() && !stopping_) wake_.Wait(&mutex_);
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace paceline
