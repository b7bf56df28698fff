// A ControlClient that calls a ControlService in the same process: for tests, and for the launcher
// that embeds everything in one process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/runtime/mutex.h"
#include "control/control_client.h"
#include "control/control_service.h"

namespace paceline {

// Thread rule: Join, Call, Operate and Peer from any thread. Watch and StopWatch from one thread at
// a time, and never from a callback of this client. `service` outlives the client.
//
// Deadlines are real time, whatever clock the service runs on. A reply that comes after its
// deadline is dropped. A stream that lags by more than kMaxQueuedDirectives is closed with
// ResourceExhausted; opening it again brings the full state.
class InMemoryControlClient final : public ControlClient {
 public:
  static constexpr size_t kMaxQueuedDirectives = 4096;

  explicit InMemoryControlClient(ControlService* service) : service_(service) {}
  ~InMemoryControlClient() override { StopWatch(); }

  absl::StatusOr<JoinReply> Join(const JoinRequest& request, Ticks timeout) override;
  absl::StatusOr<NodeReply> Call(NodeRef self, const NodeRequest& request, Ticks timeout) override;
  absl::StatusOr<OperatorReply> Operate(const OperatorRequest& request, Ticks timeout) override;

  void Watch(NodeRef self, std::function<void(Directive)> on_directive,
             std::function<void(absl::Status)> on_closed) override;
  void StopWatch() override;

  std::unique_ptr<ControlClient> Another() const override {
    return std::make_unique<InMemoryControlClient>(service_);
  }
  std::string Peer() const override { return "in-memory"; }

 private:
  class WatchQueue;

  ControlService* const service_;
  NodeRef watched_;
  std::shared_ptr<WatchQueue> watch_;
  std::thread watch_thread_;
};

}  // namespace paceline
