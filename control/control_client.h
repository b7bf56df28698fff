// How a node or the CLI speaks with the scheduler. Implementations: control/grpc, and
// control/in_memory.h for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/messages.h"
#include "plan/operator_view.h"

namespace paceline {

// Thread rule: Join, Call, Operate and Peer may be called from any thread and block until the reply
// or the deadline; Watch and StopWatch from one thread at a time. Errors: Unavailable (no scheduler
// there; retry), ResourceExhausted (the scheduler is busy; back off), DeadlineExceeded, and what
// the scheduler answered (FailedPrecondition: this incarnation is fenced or superseded).
class ControlClient {
 public:
  virtual ~ControlClient() = default;

  virtual absl::StatusOr<JoinReply> Join(const JoinRequest& request, Ticks timeout) = 0;
  virtual absl::StatusOr<NodeReply> Call(NodeRef self, const NodeRequest& request,
                                         Ticks timeout) = 0;
  virtual absl::StatusOr<OperatorReply> Operate(const OperatorRequest& request, Ticks timeout) = 0;

  // Opens the Watch stream, stopping one that is open. `on_directive` is called in order, from one
  // thread of the client, and must not block. `on_closed` is called once, last, when the stream
  // ended, with the cause (Cancelled after StopWatch). StopWatch returns when no callback runs or
  // will run; neither it nor Watch may be called from a callback.
  virtual void Watch(NodeRef self, std::function<void(Directive)> on_directive,
                     std::function<void(absl::Status)> on_closed) = 0;
  virtual void StopWatch() = 0;

  // A client of the same scheduler over a connection of its own.
  virtual std::unique_ptr<ControlClient> Another() const = 0;

  // "127.0.0.1:4300" or "in-memory", for messages.
  virtual std::string Peer() const = 0;
};

// Whether a refusal is of the caller's incarnation, and not of what it asked for: a node that was
// declared dead, has left or is unknown (FailedPrecondition; it may join again), or whose name
// another process has taken (AlreadyExists; joining again would displace that one).
inline bool IsOfIncarnation(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsAlreadyExists(status);
}

// Whether the same call may succeed later: the scheduler was away, slow to answer, or busy.
inline bool IsWorthRetrying(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

}  // namespace paceline
