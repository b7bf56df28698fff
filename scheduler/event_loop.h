// Runs the scheduler's core: takes requests from any thread, steps the core on one, makes what it
// decided durable, and only then tells anyone.
//
//   request -> bounded queue -> Core::Step -> TakeReady -> Journal::Append -> (durable) ->
//   decisions logged, streams opened, replies answered, directives sent, in this order
//
// Batches are released in the order in which they were decided, also those with nothing to append.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "control/control_service.h"
#include "plan/events.h"
#include "scheduler/core/core.h"
#include "scheduler/journal.h"

namespace paceline {

struct EventLoopOptions {
  size_t max_queued = 8192;           // requests; heartbeats may use as many again
  size_t max_pending = 65'536;        // requests that wait for their reply (barriers, checkpoints)
  size_t max_batches_in_flight = 64;  // appends the journal has not answered
  uint64_t compact_after_entries = 10'000;  // since the last compaction
  Ticks tick_interval = Milliseconds(100);
  // The core's time advances by no more than this at once, so that a scheduler that was stopped
  // or starved does not take its own silence for that of every node.
  Ticks max_time_step = Seconds(1);
  // Called before each step, on the loop's thread; may be empty.
  std::function<void(Ticks, const SchedulerEvent&)> trace;
  // Called once, on the loop's thread, when the journal failed: the scheduler has to be restarted.
  std::function<void(const absl::Status&)> on_failed;
};

// Thread rule: as ControlService; Start and Stop from one thread.
class EventLoop final : public ControlService {
 public:
  // Recovers the core from what the journal held (TakeRecovered); DataLoss when the core cannot
  // read it. `clock` outlives the loop.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Make(EventLoopOptions options,
                                                         std::unique_ptr<Core> core,
                                                         const std::vector<JournalEntry>& recovered,
                                                         std::unique_ptr<Journal> journal,
                                                         const Clock* clock);
  ~EventLoop() override { Stop(); }

  void Start();
  // Releases what is being made durable, answers everything else with Unavailable, closes all
  // streams.
  void Stop();

  void Join(JoinRequest request, std::function<void(absl::StatusOr<JoinReply>)> done) override;
  void Call(NodeRef from, NodeRequest request,
            std::function<void(absl::StatusOr<NodeReply>)> done) override;
  void Operate(OperatorRequest request,
               std::function<void(absl::StatusOr<OperatorReply>)> done) override;
  void OpenWatch(NodeRef from, std::shared_ptr<DirectiveSink> sink) override;
  void CloseWatch(NodeRef from, const DirectiveSink* sink) override;

 private:
  using Done = std::variant<std::function<void(absl::StatusOr<JoinReply>)>,
                            std::function<void(absl::StatusOr<NodeReply>)>,
                            std::function<void(absl::StatusOr<OperatorReply>)>>;
  struct Stream {
    NodeRef node;
    std::shared_ptr<DirectiveSink> sink;
  };
  struct Request {
    SchedulerEvent event;  // its RequestId is given by the loop
    Done done;
  };
  struct Closing {
    NodeRef node;
    const DirectiveSink* sink;
  };
  using Item = std::variant<Request, Stream, Closing>;

  // What one TakeReady asked for, waiting for its entries to be durable.
  struct Batch {
    Ready ready;
    std::vector<Stream> opened;  // full state of these is in `ready`
    bool durable = false;        // guarded by mutex_ until released
  };

  EventLoop(EventLoopOptions options, std::unique_ptr<Core> core, std::unique_ptr<Journal> journal,
            const Clock* clock, uint64_t recovered_entries);

  void Enqueue(Request request) EXCLUDES(mutex_);
  void Run();
  std::vector<Item> TakeItems() EXCLUDES(mutex_);
  bool IsFull() const;
  void SkipTime();
  void AdvanceTime();
  void Handle(Item item);
  void HandleRequest(Request request);
  void HandleOpen(Stream stream);
  void HandleClosing(const Closing& closing);
  void Step(SchedulerEvent event);
  void Tick();
  void Submit();  // what the core is ready with, to the journal
  void CompactIfDue(size_t appended);
  void OnAppended(Batch* batch, const absl::Status& status) EXCLUDES(mutex_);
  void ReleaseDurable() EXCLUDES(mutex_);
  void Release(Batch& batch);
  void OpenStream(Stream stream);
  void CloseFencedStreams();
  void StampTimes(OperatorReply& reply) const;
  void Shutdown(const absl::Status& cause) EXCLUDES(mutex_);
  static void Answer(Done& done,
                     absl::StatusOr<std::variant<JoinReply, NodeReply, OperatorReply>> reply);
  static void Refuse(Done& done, const absl::Status& status);

  const EventLoopOptions options_;
  const Clock* const clock_;

  // Of the loop's thread.
  std::unique_ptr<Core> core_;
  std::unique_ptr<Journal> journal_;
  Ticks now_;        // the core's time
  Ticks real_now_;   // the clock's, when now_ was advanced
  Ticks last_tick_;  // core's time
  uint64_t entries_since_compaction_;
  RequestId last_request_;
  std::map<RequestId, Done> pending_;
  std::map<NodeId, Stream> streams_;
  std::deque<std::unique_ptr<Batch>> in_flight_;
  std::vector<Stream> opening_;                // go with the next batch
  std::map<uint64_t, int64_t> decided_at_ms_;  // wall clock by decision, bounded

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> queue_ GUARDED_BY(mutex_);
  size_t completions_ GUARDED_BY(mutex_) = 0;  // not yet looked at
  absl::Status failed_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;  // nothing is taken any more
  std::thread thread_;
};

}  // namespace paceline
