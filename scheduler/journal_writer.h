// The thread behind a journal: takes what has been queued since the last commit, commits it as one
// transaction, and calls back in order.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/runtime/mutex.h"
#include "plan/events.h"

namespace paceline {

// Thread rule: Append and Compact from one thread; the functions given to the constructor run on
// the writer's own thread.
class JournalWriter {
 public:
  using Commit = std::function<absl::Status(const std::vector<JournalEntry>&)>;
  using Compaction = std::function<void(const JournalEntry&)>;

  JournalWriter(Commit commit, Compaction compact)
      : commit_(std::move(commit)), compact_(std::move(compact)), thread_([this] { Run(); }) {}

  // Writes what is queued, calls back, and ends.
  ~JournalWriter() {
    {
      MutexLock lock(&mutex_);
      closed_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

  void Append(std::vector<JournalEntry> batch, std::function<void(absl::Status)> done)
      EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    queue_.push_back({std::move(batch), std::move(done)});
    changed_.SignalAll();
  }

  void Compact(JournalEntry state) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    compaction_ = std::move(state);
    changed_.SignalAll();
  }

 private:
  struct Pending {
    std::vector<JournalEntry> batch;
    std::function<void(absl::Status)> done;
  };

  void Run() {
    absl::Status failed;
    while (true) {
      std::deque<Pending> taken;
      std::optional<JournalEntry> compaction;
      {
        MutexLock lock(&mutex_);
        while (queue_.empty() && !compaction_ && !closed_) changed_.Wait(&mutex_);
        if (queue_.empty() && !compaction_) return;
        taken.swap(queue_);
        compaction.swap(compaction_);
      }
      std::vector<JournalEntry> entries;
      for (Pending& pending : taken) {
        std::move(pending.batch.begin(), pending.batch.end(), std::back_inserter(entries));
      }
      if (failed.ok() && !entries.empty()) failed = commit_(entries);
      for (Pending& pending : taken) pending.done(failed);
      if (failed.ok() && compaction) compact_(*compaction);
    }
  }

  const Commit commit_;
  const Compaction compact_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Pending> queue_ GUARDED_BY(mutex_);
  std::optional<JournalEntry> compaction_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline
