// Proves a node's life to the scheduler from a thread and over a connection of its own, so that
// neither a node that is busy nor a call that takes long ever looks like death.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "common/runtime/mutex.h"
#include "control/control_client.h"

namespace paceline {

// Thread rule: constructed and destroyed by one thread. `on_refused` is called at most once, from
// the heartbeat's thread: the scheduler no longer takes this incarnation for alive (declared dead,
// left, superseded). It must not destroy the heartbeat.
class HeartbeatThread {
 public:
  HeartbeatThread(std::unique_ptr<ControlClient> client, NodeRef self, Ticks interval,
                  std::function<void(const absl::Status&)> on_refused);
  ~HeartbeatThread();

 private:
  void Run();

  const std::unique_ptr<ControlClient> client_;
  const NodeRef self_;
  const Ticks interval_;
  const std::function<void(const absl::Status&)> on_refused_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline
