#include "control/heartbeat.h"

#include <algorithm>
#include <utility>

namespace paceline {
namespace {

// A call waits no longer than this: a lost connection must be noticed and dialled again while the
// lease still runs.
constexpr int64_t kTimeoutBeats = 2;
constexpr Ticks kLeastTimeout = Milliseconds(100);

}  // namespace

HeartbeatThread::HeartbeatThread(std::unique_ptr<ControlClient> client, NodeRef self,
                                 Ticks interval,
                                 std::function<void(const absl::Status&)> on_refused)
    : client_(std::move(client)),
      self_(self),
      interval_(interval),
      on_refused_(std::move(on_refused)),
      thread_([this] { Run(); }) {}

HeartbeatThread::~HeartbeatThread() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  thread_.join();
}

void HeartbeatThread::Run() {
  const Ticks timeout = std::max(kLeastTimeout, Ticks(interval_.value() * kTimeoutBeats));
  while (true) {
    const absl::Status status = client_->Call(self_, Heartbeat{}, timeout).status();
    if (IsOfIncarnation(status)) return on_refused_(status);
    MutexLock lock(&mutex_);
    if (!stopping_) wake_.WaitFor(&mutex_, interval_);
    if (stopping_) return;
  }
}

}  // namespace paceline
