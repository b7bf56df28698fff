// What goes into the scheduler's core and what comes out. Everything that happens to a scheduler is
// one of these events; the core's outputs are data. A trace of events replays an incident.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/messages.h"
#include "plan/operator_view.h"

namespace paceline {

using RequestId = Strong<struct RequestIdTag, uint64_t>;

// A node asks to join. Key and number are drawn by the event loop: the core has no randomness.
struct JoinEvent {
  RequestId request;
  JoinRequest join;
  SecretKey key{};
  uint64_t random = 0;  // no secret: names the run of a job that begins with this join
};
struct NodeEvent {
  RequestId request;
  NodeRef from;
  NodeRequest body;
};
// A node opened its Watch stream: directives may be sent; full state comes first.
struct WatchEvent {
  NodeRef from;
};
struct WatchClosedEvent {
  NodeRef from;
};
// The launcher or a pidfd saw the process end.
struct ProcessEndedEvent {
  NodeRef node;
  std::string cause;
};
struct OperatorEvent {
  RequestId request;
  OperatorRequest body;
};
// Time has passed; sent at least every 100 ms.
struct TickEvent {};

using SchedulerEvent = std::variant<JoinEvent, NodeEvent, WatchEvent, WatchClosedEvent,
                                    ProcessEndedEvent, OperatorEvent, TickEvent>;

struct ReplyAction {
  RequestId request;
  absl::StatusOr<std::variant<JoinReply, NodeReply, OperatorReply>> reply;
};
struct DirectiveAction {
  NodeRef to;
  Directive directive;
};

// A decided change of state, to be durable before the actions that follow from it are released.
// Opaque to the journal; the core applies it at recovery without deciding again.
struct JournalEntry {
  uint64_t index = 0;  // from 1, no gaps
  std::string bytes;   // versioned encoding by scheduler/core
};

// In the manner of etcd raft: append `entries`, and only then send the rest.
struct Ready {
  std::vector<JournalEntry> entries;
  std::vector<DecisionRecord> decisions;
  std::vector<ReplyAction> replies;
  std::vector<DirectiveAction> directives;

  bool empty() const {
    return entries.empty() && decisions.empty() && replies.empty() && directives.empty();
  }
};

}  // namespace paceline
