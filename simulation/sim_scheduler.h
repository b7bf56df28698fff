// The scheduler as a process: the real core, the order of scheduler/event_loop.h (step, append,
// durable, release), a journal that outlives it, calls and watch streams that break.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/core/core.h"
#include "simulation/checker.h"
#include "simulation/scenario.h"
#include "simulation/world.h"

namespace paceline::simulation {

// A disk with a queue: what is queued together becomes durable together, in order.
class SimJournal {
 public:
  // `on_durable` hears of each entry as it becomes durable.
  SimJournal(World* world, Ticks typical_sync, std::function<void(const JournalEntry&)> on_durable)
      : world_(world), typical_sync_(typical_sync), on_durable_(std::move(on_durable)) {}

  // `done` belongs to the life of the scheduler that appends.
  void Append(std::vector<JournalEntry> entries, std::function<void()> done);
  void Compact(JournalEntry state);
  // The scheduler is gone: what the disk was writing may have become durable, the rest has not.
  void Lose();
  // Makes the next writes this slow.
  void Slow(Ticks until, Ticks sync) { slow_until_ = until, slow_sync_ = sync; }

  const std::vector<JournalEntry>& durable() const { return durable_; }

 private:
  struct Write {
    std::vector<JournalEntry> entries;
    std::optional<JournalEntry> compacted;
    std::function<void()> done;
  };
  void StartWriting();
  void MakeDurable(const std::vector<Write>& writes);

  World* const world_;
  const Ticks typical_sync_;
  const std::function<void(const JournalEntry&)> on_durable_;
  Ticks slow_until_;
  Ticks slow_sync_;
  uint64_t life_ = 0;
  std::vector<Write> queued_;
  std::vector<Write> writing_;
  std::vector<JournalEntry> durable_;
};

// A stream of directives to one node. Both ends learn of its end in their own time.
struct WatchStream {
  uint64_t id = 0;
  NodeRef node;
  Process* process = nullptr;
  Life life = 0;
  std::function<void(Directive)> on_directive;
  std::function<void(absl::Status)> on_closed;
  Ticks last_delivery;
  bool open = true;  // for the node
};

class SimScheduler final : public Process {
 public:
  using JoinDone = std::function<void(absl::StatusOr<JoinReply>)>;
  using CallDone = std::function<void(absl::StatusOr<NodeReply>)>;

  SimScheduler(World* world, const Scenario* scenario, const Bugs* bugs, Checker* checker);

  // Calls of a node, as control_client.h: `done` once, in the same life of `caller`.
  void Join(Process* caller, JoinRequest request, Ticks timeout, JoinDone done);
  void Call(Process* caller, NodeRef from, NodeRequest request, Ticks timeout, CallDone done);
  // A stream; `on_closed` once, unless the node closes it itself.
  std::shared_ptr<WatchStream> Watch(Process* process, NodeRef node,
                                     std::function<void(Directive)> on_directive,
                                     std::function<void(absl::Status)> on_closed);
  void StopWatch(const std::shared_ptr<WatchStream>& stream);
  void BreakWatchOf(const Process* process);
  // The launcher saw the process end.
  void ProcessEnded(NodeRef node);

  // What an operator asks for; the answer is of no concern.
  void Operate(OperatorRequest request);
  // What an operator would see. Only while it runs.
  ClusterView Status();
  SimJournal& journal() { return journal_; }
  // Whether it takes it for alive.
  bool Knows(NodeRef node) const { return core_->CheckNode(node).ok(); }

 protected:
  void OnStart() override;
  void OnKill() override;

 private:
  using Done = std::variant<JoinDone, CallDone>;
  struct PendingCall {
    uint64_t id = 0;
    Process* caller = nullptr;
    Life life = 0;
    NodeRef from;  // none for Join
    Done done;
    bool over = false;
    std::string what;
  };
  struct ById {  // an order that does not depend on addresses
    template <typename T>
    bool operator()(const std::shared_ptr<T>& a, const std::shared_ptr<T>& b) const {
      return a->id < b->id;
    }
  };
  struct Item {
    SchedulerEvent event;
    std::shared_ptr<PendingCall> call;
    std::shared_ptr<WatchStream> opening;
    uint64_t closing = 0;
  };
  struct Batch {
    Ready ready;
    std::vector<std::shared_ptr<WatchStream>> opened;
    bool durable = false;
  };

  Ticks Latency();
  void Request(Process* caller, NodeRef from, SchedulerEvent event, std::string what, Ticks timeout,
               Done done);
  void CheckReply(const PendingCall& call,
                  const std::variant<JoinReply, NodeReply, OperatorReply>& reply);
  void OnTimer();
  void Arrive(Item item);
  void Loop();
  void Handle(Item item);
  void Step(SchedulerEvent event);
  void Submit();
  void ReleaseDurable();
  void Release(Batch& batch);
  void OpenStream(std::shared_ptr<WatchStream> stream);
  void Close(const std::shared_ptr<WatchStream>& stream, const absl::Status& cause);
  void Send(const std::shared_ptr<WatchStream>& stream, const Directive& directive);
  void Answer(RequestId request,
              absl::StatusOr<std::variant<JoinReply, NodeReply, OperatorReply>> reply);
  void Finish(const std::shared_ptr<PendingCall>& call,
              absl::StatusOr<std::variant<JoinReply, NodeReply, OperatorReply>> reply);
  void CheckRecovery();

  const Scenario* const scenario_;
  const Bugs* const bugs_;
  Checker* const checker_;
  SimJournal journal_;
  uint64_t last_call_ = 0;
  uint64_t last_stream_ = 0;
  uint64_t last_key_ = 0;

  // Of one life.
  std::unique_ptr<Core> core_;
  // What reached the process while it was stopped: their connections break when it is killed.
  std::set<std::shared_ptr<PendingCall>, ById> unread_calls_;
  std::set<std::shared_ptr<WatchStream>, ById> unread_streams_;
  std::deque<Item> queue_;
  bool loop_due_ = false;
  Ticks core_now_;
  Ticks real_now_;
  Ticks last_tick_;
  uint64_t last_request_ = 0;
  uint64_t entries_since_compaction_ = 0;
  std::map<RequestId, std::shared_ptr<PendingCall>> pending_;
  std::map<NodeId, std::shared_ptr<WatchStream>> streams_;
  std::deque<std::shared_ptr<Batch>> in_flight_;
  std::vector<std::shared_ptr<WatchStream>> opening_;
  std::vector<JournalEntry> decided_;  // not known to be durable
  std::optional<OperatorReply> view_;
};

}  // namespace paceline::simulation
