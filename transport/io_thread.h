// One thread that serves connections: events of their wires, work asked for by other threads,
// timers. It never waits for anything but its poller.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "common/runtime/mutex.h"
#include "transport/wire.h"

namespace paceline {

// Something an I/O thread serves. All calls come from that thread.
class IoHandler {
 public:
  virtual ~IoHandler() = default;
  virtual void OnEvent(const IoEvent& event) = 0;
  virtual void OnScheduled() = 0;
  virtual void OnTimer() = 0;
  // The thread ends; the handler is not called again but for OnScheduled.
  virtual void OnStop() = 0;

 private:
  friend class IoThread;
  std::atomic<bool> scheduled_ = false;
};

class IoThread {
 public:
  explicit IoThread(std::shared_ptr<Poller> poller);
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // Any thread. False once the thread has stopped: the call had no effect.
  bool Post(std::function<void()> task) EXCLUDES(mutex_);
  bool Schedule(std::shared_ptr<IoHandler> handler) EXCLUDES(mutex_);
  // Runs `task` on the thread and waits for its end. Not from an I/O thread.
  void PostAndWait(std::function<void()> task);
  bool InThread() const { return std::this_thread::get_id() == thread_.get_id(); }
  // Stops all handlers and joins. Once, not from the thread.
  void Stop() EXCLUDES(mutex_);

  // I/O thread only. A token is never used again.
  uint64_t Add(std::shared_ptr<IoHandler> handler);
  void Remove(uint64_t token);
  void SetTimer(uint64_t token, Ticks when);  // one per handler; replaces the former
  void ClearTimer(uint64_t token);
  std::vector<std::shared_ptr<IoHandler>> Handlers() const;

  const std::shared_ptr<Poller>& poller() const { return poller_; }

 private:
  struct Entry {
    std::shared_ptr<IoHandler> handler;
    std::optional<Ticks> timer;
  };

  void Loop();
  Ticks TimeToNextTimer() const;
  void RunMailbox() EXCLUDES(mutex_);
  void RunTimers();
  void Drain() EXCLUDES(mutex_);

  const std::shared_ptr<Poller> poller_;

  Mutex mutex_;
  std::vector<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<IoHandler>> scheduled_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;

  // I/O thread only.
  std::map<uint64_t, Entry> entries_;
  std::set<std::pair<Ticks, uint64_t>> timers_;
  uint64_t next_token_ = 1;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace paceline
