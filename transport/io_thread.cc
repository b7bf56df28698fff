#include "transport/io_thread.h"

#include "common/base/check.h"
#include "common/runtime/clock.h"

namespace paceline {

IoThread::IoThread(std::shared_ptr<Poller> poller) : poller_(std::move(poller)) {
  thread_ = std::thread([this] { Loop(); });
}

IoThread::~IoThread() { PACELINE_CHECK(!thread_.joinable()); }

bool IoThread::Post(std::function<void()> task) {
  bool wake = false;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return false;
    wake = tasks_.empty() && scheduled_.empty();
    tasks_.push_back(std::move(task));
  }
  if (wake) poller_->Wake();
  return true;
}

bool IoThread::Schedule(std::shared_ptr<IoHandler> handler) {
  bool wake = false;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return false;
    if (handler->scheduled_.exchange(true)) return true;
    wake = tasks_.empty() && scheduled_.empty();
    scheduled_.push_back(std::move(handler));
  }
  if (wake) poller_->Wake();
  return true;
}

void IoThread::PostAndWait(std::function<void()> task) {
  PACELINE_CHECK(!InThread());
  struct Gate {
    Mutex mutex;
    CondVar changed;
    bool done GUARDED_BY(mutex) = false;
  };
  auto gate = std::make_shared<Gate>();
  const bool posted = Post([gate, task = std::move(task)] {
    task();
    MutexLock lock(&gate->mutex);
    gate->done = true;
    gate->changed.SignalAll();
  });
  if (!posted) return;
  MutexLock lock(&gate->mutex);
  while (!gate->done) gate->changed.Wait(&gate->mutex);
}

void IoThread::Stop() {
  PACELINE_CHECK(!InThread());
  if (Post([this] { stopping_ = true; })) thread_.join();
}

uint64_t IoThread::Add(std::shared_ptr<IoHandler> handler) {
  const uint64_t token = next_token_++;
  entries_.emplace(token, Entry{.handler = std::move(handler), .timer = std::nullopt});
  return token;
}

void IoThread::Remove(uint64_t token) {
  ClearTimer(token);
  entries_.erase(token);
}

void IoThread::SetTimer(uint64_t token, Ticks when) {
  ClearTimer(token);
  const auto found = entries_.find(token);
  if (found == entries_.end()) return;
  found->second.timer = when;
  timers_.emplace(when, token);
}

void IoThread::ClearTimer(uint64_t token) {
  const auto found = entries_.find(token);
  if (found == entries_.end() || !found->second.timer) return;
  timers_.erase({*found->second.timer, token});
  found->second.timer.reset();
}

std::vector<std::shared_ptr<IoHandler>> IoThread::Handlers() const {
  std::vector<std::shared_ptr<IoHandler>> handlers;
  handlers.reserve(entries_.size());
  for (const auto& [token, entry] : entries_) handlers.push_back(entry.handler);
  return handlers;
}

Ticks IoThread::TimeToNextTimer() const {
  if (timers_.empty()) return Ticks(-1);
  const Ticks left = timers_.begin()->first - Clock::Real().Now();
  return left > Ticks(0) ? left : Ticks(0);
}

void IoThread::Loop() {
  std::vector<IoEvent> events;
  while (!stopping_) {
    events.clear();
    poller_->Wait(TimeToNextTimer(), events);
    for (const IoEvent& event : events) {
      const auto found = entries_.find(event.token);
      if (found == entries_.end()) continue;  // removed by an earlier event of this round
      const std::shared_ptr<IoHandler> handler = found->second.handler;
      handler->OnEvent(event);
    }
    RunMailbox();
    RunTimers();
  }
  Drain();
}

void IoThread::RunMailbox() {
  std::vector<std::function<void()>> tasks;
  std::vector<std::shared_ptr<IoHandler>> scheduled;
  {
    MutexLock lock(&mutex_);
    tasks.swap(tasks_);
    scheduled.swap(scheduled_);
  }
  for (auto& task : tasks) task();
  for (auto& handler : scheduled) {
    handler->scheduled_.store(
        false);  // before the call, so that nothing asked for meanwhile is lost
    handler->OnScheduled();
  }
}

void IoThread::RunTimers() {
  const Ticks now = Clock::Real().Now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const uint64_t token = timers_.begin()->second;
    ClearTimer(token);
    const std::shared_ptr<IoHandler> handler = entries_.at(token).handler;
    handler->OnTimer();
  }
}

// Everything posted before the end of the thread still runs: completions are owed to their owners.
void IoThread::Drain() {
  while (true) {
    for (const auto& handler : Handlers()) handler->OnStop();
    RunMailbox();
    MutexLock lock(&mutex_);
    if (!tasks_.empty() || !scheduled_.empty() || !entries_.empty()) continue;
    stopped_ = true;
    return;
  }
}

}  // namespace paceline
