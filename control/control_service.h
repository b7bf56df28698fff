// The scheduler's side of the control plane: what control/grpc and control/in_memory.h drive.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "plan/messages.h"
#include "plan/operator_view.h"

namespace paceline {

// Where directives of one Watch stream go.
// Thread rule: called from the scheduler's event loop only; must not block.
class DirectiveSink {
 public:
  virtual ~DirectiveSink() = default;
  virtual void Send(const Directive& directive) = 0;
  virtual void Close(const absl::Status& cause) = 0;
};

// Thread rule: methods may be called from any thread and never block; each callback is called
// exactly once, from the event loop, also when the service shuts down (Unavailable).
// ResourceExhausted: the bounded event queue is full; the caller backs off.
class ControlService {
 public:
  virtual ~ControlService() = default;

  virtual void Join(JoinRequest request, std::function<void(absl::StatusOr<JoinReply>)> done) = 0;
  virtual void Call(NodeRef from, NodeRequest request,
                    std::function<void(absl::StatusOr<NodeReply>)> done) = 0;
  virtual void Operate(OperatorRequest request,
                       std::function<void(absl::StatusOr<OperatorReply>)> done) = 0;
  // A second stream of the same node replaces the first (which is closed with Aborted).
  virtual void OpenWatch(NodeRef from, std::shared_ptr<DirectiveSink> sink) = 0;
  virtual void CloseWatch(NodeRef from, const DirectiveSink* sink) = 0;
};

}  // namespace paceline
