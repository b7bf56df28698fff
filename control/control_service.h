// The scheduler's side of the control plane: what control/grpc and control/in_memory.h drive.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "plan/messages.h"
#include "plan/operator_view.h"

namespace paceline {

// Where directives of one Watch stream go.
// Thread rule: Send from the scheduler's event loop only; Close from there or, when the service
// refuses the stream, from OpenWatch. Neither may block or call the service. Nothing is sent after
// Close.
class DirectiveSink {
 public:
  virtual ~DirectiveSink() = default;
  virtual void Send(const Directive& directive) = 0;
  virtual void Close(const absl::Status& cause) = 0;
};

// Thread rule: methods may be called from any thread and never block; each callback is called
// exactly once, from the event loop, also when the service shuts down (Unavailable); it must not
// block. A request that cannot be queued is refused from within the method: ResourceExhausted (the
// bounded event queue is full; the caller backs off) or Unavailable (shut down).
class ControlService {
 public:
  virtual ~ControlService() = default;

  virtual void Join(JoinRequest request, std::function<void(absl::StatusOr<JoinReply>)> done) = 0;
  virtual void Call(NodeRef from, NodeRequest request,
                    std::function<void(absl::StatusOr<NodeReply>)> done) = 0;
  virtual void Operate(OperatorRequest request,
                       std::function<void(absl::StatusOr<OperatorReply>)> done) = 0;
  // A second stream of the same node replaces the first (which is closed with Aborted). One of an
  // incarnation that is not its node's newest is closed with FailedPrecondition.
  virtual void OpenWatch(NodeRef from, std::shared_ptr<DirectiveSink> sink) = 0;
  // After it the service drops `sink`; a directive already on its way may still be sent.
  virtual void CloseWatch(NodeRef from, const DirectiveSink* sink) = 0;
};

}  // namespace paceline
