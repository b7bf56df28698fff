#include "scheduler/event_loop.h"

#include <sys/random.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/log.h"

namespace paceline {
namespace {

constexpr size_t kMaxDecisionTimes = 20'000;

SecretKey DrawKey() {
  SecretKey key;
  // Up to 256 bytes are never cut short once the system's generator is seeded (getrandom(2)).
  PACELINE_CHECK(getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()));
  return key;
}

uint64_t DrawNumber() {
  uint64_t number = 0;
  PACELINE_CHECK(getrandom(&number, sizeof(number), 0) == sizeof(number));
  return number;
}

absl::Status StoppingError() {
  return absl::UnavailableError("the scheduler is stopping; retry when it is back");
}

void LogDecision(const DecisionRecord& decision) {
  if (decision.job.empty()) {
    LogInfo("scheduler", decision.kind, ": ", decision.text);
  } else {
    LogInfo("scheduler", "job ", decision.job, ": ", decision.kind, ": ", decision.text);
  }
}

bool IsHeartbeat(const SchedulerEvent& event) {
  const auto* node = std::get_if<NodeEvent>(&event);
  return node != nullptr && std::holds_alternative<Heartbeat>(node->body);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Make(
    EventLoopOptions options, std::unique_ptr<Core> core,
    const std::vector<JournalEntry>& recovered, std::unique_ptr<Journal> journal,
    const Clock* clock) {
  PACELINE_RETURN_IF_ERROR(Annotate(core->Recover(recovered), "recovery from the journal"));
  if (!recovered.empty()) {
    LogInfo("scheduler", "recovered ", recovered.size(), " journal entries up to ",
            recovered.back().index, ", term ", core->term().value());
  }
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(options), std::move(core),
                                                  std::move(journal), clock, recovered.size()));
}

EventLoop::EventLoop(EventLoopOptions options, std::unique_ptr<Core> core,
                     std::unique_ptr<Journal> journal, const Clock* clock,
                     uint64_t recovered_entries)
    : options_(std::move(options)),
      clock_(clock),
      core_(std::move(core)),
      journal_(std::move(journal)),
      now_(clock->Now()),
      real_now_(now_),
      last_tick_(now_),
      entries_since_compaction_(recovered_entries) {}

void EventLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EventLoop::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    closed_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

// ---- Any thread --------------------------------------------------------------------------------

void EventLoop::Join(JoinRequest request, std::function<void(absl::StatusOr<JoinReply>)> done) {
  Enqueue({JoinEvent{{}, std::move(request), {}}, std::move(done)});
}

void EventLoop::Call(NodeRef from, NodeRequest request,
                     std::function<void(absl::StatusOr<NodeReply>)> done) {
  Enqueue({NodeEvent{{}, from, std::move(request)}, std::move(done)});
}

void EventLoop::Operate(OperatorRequest request,
                        std::function<void(absl::StatusOr<OperatorReply>)> done) {
  Enqueue({OperatorEvent{{}, std::move(request)}, std::move(done)});
}

void EventLoop::Enqueue(Request request) {
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    // Heartbeats get past a queue full of requests: load must not look like death.
    const size_t bound = options_.max_queued * (IsHeartbeat(request.event) ? 2 : 1);
    if (closed_) {
      refused = StoppingError();
    } else if (queue_.size() >= bound) {
      refused = absl::ResourceExhaustedError(absl::StrCat(
          "the scheduler's queue is full (", queue_.size(), " requests); back off and retry"));
    } else {
      queue_.emplace_back(std::move(request));
      changed_.SignalAll();
    }
  }
  if (!refused.ok()) Refuse(request.done, refused);
}

void EventLoop::OpenWatch(NodeRef from, std::shared_ptr<DirectiveSink> sink) {
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    if (closed_) {
      refused = StoppingError();
    } else if (queue_.size() >= options_.max_queued) {
      refused = absl::ResourceExhaustedError("the scheduler's queue is full; back off and retry");
    } else {
      queue_.emplace_back(Stream{from, sink});
      changed_.SignalAll();
    }
  }
  if (!refused.ok()) sink->Close(refused);
}

void EventLoop::CloseWatch(NodeRef from, const DirectiveSink* sink) {
  MutexLock lock(&mutex_);
  if (closed_) return;
  // Past the bound: there are no more of these than streams that were let in.
  queue_.emplace_back(Closing{from, sink});
  changed_.SignalAll();
}

void EventLoop::OnAppended(Batch* batch, const absl::Status& status) {
  MutexLock lock(&mutex_);
  batch->durable = status.ok();
  if (!status.ok() && failed_.ok()) failed_ = status;
  ++completions_;
  changed_.SignalAll();
}

// ---- The loop's thread -------------------------------------------------------------------------

void EventLoop::Run() {
  while (true) {
    std::vector<Item> items = TakeItems();
    absl::Status failed;
    {
      MutexLock lock(&mutex_);
      failed = failed_;
      if (stopping_ || !failed.ok()) break;
    }
    ReleaseDurable();
    if (IsFull()) {
      SkipTime();
      continue;
    }
    AdvanceTime();
    for (Item& item : items) Handle(std::move(item));
    if (now_ - last_tick_ >= options_.tick_interval) Tick();
    Submit();
    ReleaseDurable();
  }
  Shutdown(StoppingError());
}

std::vector<EventLoop::Item> EventLoop::TakeItems() {
  const bool full = IsFull();
  MutexLock lock(&mutex_);
  while (!stopping_ && failed_.ok() && completions_ == 0 && (full || queue_.empty())) {
    if (!changed_.WaitFor(&mutex_, options_.tick_interval)) break;
  }
  completions_ = 0;
  std::vector<Item> items;
  if (full || stopping_ || !failed_.ok()) return items;
  items.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.end()));
  queue_.clear();
  return items;
}

bool EventLoop::IsFull() const { return in_flight_.size() >= options_.max_batches_in_flight; }

// While nobody is heard nobody's lease runs.
void EventLoop::SkipTime() { real_now_ = clock_->Now(); }

void EventLoop::AdvanceTime() {
  const Ticks real = clock_->Now();
  now_ += std::min(real - real_now_, options_.max_time_step);
  real_now_ = real;
}

void EventLoop::Handle(Item item) {
  if (auto* request = std::get_if<Request>(&item)) {
    HandleRequest(std::move(*request));
  } else if (auto* stream = std::get_if<Stream>(&item)) {
    HandleOpen(std::move(*stream));
  } else {
    HandleClosing(std::get<Closing>(item));
  }
}

void EventLoop::HandleRequest(Request request) {
  if (pending_.size() >= options_.max_pending) {
    Refuse(request.done, absl::ResourceExhaustedError(absl::StrCat(
                             pending_.size(), " requests wait for their reply; back off")));
    return;
  }
  const RequestId id = ++last_request_;
  if (auto* join = std::get_if<JoinEvent>(&request.event)) {
    join->request = id;
    join->key = DrawKey();
    join->random = DrawNumber();
  } else if (auto* node = std::get_if<NodeEvent>(&request.event)) {
    node->request = id;
  } else {
    std::get<OperatorEvent>(request.event).request = id;
  }
  pending_.emplace(id, std::move(request.done));
  Step(std::move(request.event));
}

void EventLoop::HandleOpen(Stream stream) {
  if (absl::Status known = core_->CheckNode(stream.node); !known.ok()) {
    stream.sink->Close(known);
    return;
  }
  // What was decided before belongs to the stream before: the new one begins with full state.
  Submit();
  const NodeRef node = stream.node;
  opening_.push_back(std::move(stream));
  Step(WatchEvent{node});
  Submit();
}

void EventLoop::HandleClosing(const Closing& closing) {
  const auto is_it = [&](const Stream& stream) { return stream.sink.get() == closing.sink; };
  const auto it = streams_.find(closing.node.node);
  bool found = it != streams_.end() && is_it(it->second);
  if (found) streams_.erase(it);
  bool replaced = false;
  for (const std::unique_ptr<Batch>& batch : in_flight_) {
    found = std::erase_if(batch->opened, is_it) > 0 || found;
    for (const Stream& stream : batch->opened) {
      replaced = replaced || stream.node.node == closing.node.node;
    }
  }
  // One that another stream has replaced, or is about to, says nothing about its node.
  if (found && !replaced) Step(WatchClosedEvent{closing.node});
}

void EventLoop::Step(SchedulerEvent event) {
  if (options_.trace) options_.trace(now_, event);
  core_->Step(now_, std::move(event));
}

void EventLoop::Tick() {
  last_tick_ = now_;
  Step(TickEvent{});
  CloseFencedStreams();
}

void EventLoop::Submit() {
  Ready ready = core_->TakeReady();
  if (ready.empty() && opening_.empty()) return;
  auto batch = std::make_unique<Batch>();
  batch->opened = std::exchange(opening_, {});
  std::vector<JournalEntry> entries = std::move(ready.entries);
  ready.entries.clear();
  batch->ready = std::move(ready);
  batch->durable = entries.empty();
  Batch* const raw = batch.get();
  in_flight_.push_back(std::move(batch));
  if (entries.empty()) return;
  const size_t appended = entries.size();
  journal_->Append(std::move(entries), [this, raw](absl::Status s) { OnAppended(raw, s); });
  CompactIfDue(appended);
}

void EventLoop::CompactIfDue(size_t appended) {
  entries_since_compaction_ += appended;
  if (entries_since_compaction_ < options_.compact_after_entries) return;
  entries_since_compaction_ = 0;
  journal_->Compact(core_->Compacted());
}

void EventLoop::ReleaseDurable() {
  while (!in_flight_.empty()) {
    {
      MutexLock lock(&mutex_);
      if (!in_flight_.front()->durable) return;
    }
    const std::unique_ptr<Batch> batch = std::move(in_flight_.front());
    in_flight_.pop_front();
    Release(*batch);
  }
}

void EventLoop::Release(Batch& batch) {
  for (DecisionRecord& decision : batch.ready.decisions) {
    decision.unix_time_ms = clock_->UnixTimeMs();
    decided_at_ms_[decision.sequence] = decision.unix_time_ms;
    if (decided_at_ms_.size() > kMaxDecisionTimes) decided_at_ms_.erase(decided_at_ms_.begin());
    LogDecision(decision);
  }
  for (Stream& stream : batch.opened) OpenStream(std::move(stream));
  for (ReplyAction& action : batch.ready.replies) {
    auto pending = pending_.extract(action.request);
    if (pending.empty()) continue;
    if (action.reply.ok()) {
      if (auto* reply = std::get_if<OperatorReply>(&*action.reply)) StampTimes(*reply);
    }
    Answer(pending.mapped(), std::move(action.reply));
  }
  for (const DirectiveAction& action : batch.ready.directives) {
    const auto it = streams_.find(action.to.node);
    if (it != streams_.end() && it->second.node == action.to) {
      it->second.sink->Send(action.directive);
    }
  }
}

void EventLoop::OpenStream(Stream stream) {
  Stream& place = streams_[stream.node.node];
  if (place.sink != nullptr) {
    place.sink->Close(absl::AbortedError("another watch stream of this node took its place"));
  }
  place = std::move(stream);
}

void EventLoop::CloseFencedStreams() {
  // What a fenced node is still to be told comes first, also what was decided just now.
  Submit();
  ReleaseDurable();
  if (!in_flight_.empty()) return;
  std::erase_if(streams_, [this](const auto& item) {
    const absl::Status known = core_->CheckNode(item.second.node);
    if (!known.ok()) item.second.sink->Close(known);
    return !known.ok();
  });
}

void EventLoop::Answer(Done& done,
                       absl::StatusOr<std::variant<JoinReply, NodeReply, OperatorReply>> reply) {
  if (!reply.ok()) return Refuse(done, reply.status());
  std::visit(
      [&](auto& callback) {
        using Callback = std::decay_t<decltype(callback)>;
        using T = std::conditional_t<
            std::is_same_v<Callback, std::function<void(absl::StatusOr<JoinReply>)>>, JoinReply,
            std::conditional_t<
                std::is_same_v<Callback, std::function<void(absl::StatusOr<NodeReply>)>>, NodeReply,
                OperatorReply>>;
        PACELINE_CHECK(std::holds_alternative<T>(*reply));
        callback(std::get<T>(*std::move(reply)));
      },
      done);
}

void EventLoop::Refuse(Done& done, const absl::Status& status) {
  std::visit([&](auto& callback) { callback(status); }, done);
}

void EventLoop::StampTimes(OperatorReply& reply) const {
  auto* records = std::get_if<std::vector<DecisionRecord>>(&reply);
  if (records == nullptr) return;
  for (DecisionRecord& record : *records) {
    const auto it = decided_at_ms_.find(record.sequence);
    if (it != decided_at_ms_.end()) record.unix_time_ms = it->second;
  }
}

void EventLoop::Shutdown(const absl::Status& cause) {
  journal_.reset();  // returns when every append is answered
  ReleaseDurable();
  absl::Status failed;
  std::deque<Item> queued;
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    failed = failed_;
    queued.swap(queue_);
  }
  const absl::Status answer =
      failed.ok() ? cause
                  : absl::UnavailableError(absl::StrCat(
                        "the scheduler cannot keep its journal and stops: ", failed.message()));
  for (auto& [id, done] : pending_) Refuse(done, answer);
  pending_.clear();
  for (auto& [node, stream] : streams_) stream.sink->Close(answer);
  streams_.clear();
  for (const auto& batch : in_flight_) {
    for (const Stream& stream : batch->opened) stream.sink->Close(answer);
  }
  in_flight_.clear();
  for (Item& item : queued) {
    if (auto* request = std::get_if<Request>(&item)) Refuse(request->done, answer);
    if (auto* stream = std::get_if<Stream>(&item)) stream->sink->Close(answer);
  }
  if (!failed.ok()) {
    LogError("scheduler", "journal: ", failed.message());
    if (options_.on_failed) options_.on_failed(failed);
  }
}

}  // namespace paceline
