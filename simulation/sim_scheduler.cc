#include "simulation/sim_scheduler.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status.h"
#include "scheduler/core/describe.h"

namespace paceline::simulation {
namespace {

constexpr Ticks kTickInterval = Milliseconds(100);
constexpr Ticks kMaxTimeStep = Seconds(1);

absl::Status LostError() { return absl::UnavailableError("the connection broke"); }
absl::Status AwayError() { return absl::UnavailableError("nobody listens there"); }

// What a message is called in the trace.
struct NameOf {
  std::string operator()(const Heartbeat&) const { return "Heartbeat"; }
  std::string operator()(const RegisterTensorsRequest&) const { return "RegisterTensors"; }
  std::string operator()(const InitDoneRequest&) const { return "InitDone"; }
  std::string operator()(const SetOptimizerRequest&) const { return "SetOptimizer"; }
  std::string operator()(const DrawSamplesRequest&) const { return "DrawSamples"; }
  std::string operator()(const ReturnSamplesRequest&) const { return "ReturnSamples"; }
  std::string operator()(const BarrierRequest&) const { return "Barrier"; }
  std::string operator()(const CheckpointRequest&) const { return "Checkpoint"; }
  std::string operator()(const AckRequest& a) const {
    return absl::StrCat("Ack ", a.id, " step ", a.step.value());
  }
  std::string operator()(const LinkDownRequest&) const { return "LinkDown"; }
  std::string operator()(const WorkerReport&) const { return "WorkerReport"; }
  std::string operator()(const ServerReport&) const { return "ServerReport"; }
  std::string operator()(const LeaveRequest&) const { return "Leave"; }
  template <typename Other>
  std::string operator()(const Other&) const {
    return "request";
  }
};

}  // namespace

SimScheduler::SimScheduler(World* world, const Scenario* scenario, const Bugs* bugs,
                           Checker* checker)
    : Process(world, "scheduler"),
      scenario_(scenario),
      bugs_(bugs),
      checker_(checker),
      journal_(world, scenario->sync,
               [checker](const JournalEntry& entry) { checker->OnDurable(entry); }) {}

Ticks SimScheduler::Latency() {
  const Ticks typical = scenario_->latency;
  const bool late = world()->random().OneIn(200);
  return world()->random().TimeBetween(Ticks(typical.value() / 4),
                                       late ? Milliseconds(60) : typical + typical);
}

// ---- Living -----------------------------------------------------------------------------------

void SimScheduler::OnStart() {
  CoreOptions options;
  options.failure_timeout_ms = 5000;
  options.limits.move_bytes = scenario_->move_bytes;
  options.limits.move_outage = Milliseconds(1000);
  options.limits.move_avoidance = Seconds(5);
  core_ = std::make_unique<Core>(options);
  const absl::Status recovered = core_->Recover(journal_.durable());
  if (!recovered.ok()) {
    return world()->Fail("the journal recovers", std::string(recovered.message()));
  }
  world()->Trace("scheduler: starts, term ", core_->term().value(), ", ", journal_.durable().size(),
                 " entries");
  core_now_ = real_now_ = last_tick_ = world()->now();
  Submit();
  OnTimer();
}

void SimScheduler::OnTimer() {
  Loop();
  After(kTickInterval, [this] { OnTimer(); });
}

void SimScheduler::OnKill() {
  CheckRecovery();
  journal_.Lose();
  for (const auto& call : std::exchange(unread_calls_, {})) Finish(call, LostError());
  for (const auto& stream : std::exchange(unread_streams_, {})) Close(stream, LostError());
  for (const auto& [id, call] : pending_) Finish(call, LostError());
  for (const Item& item : queue_) {
    if (item.call != nullptr) Finish(item.call, LostError());
    if (item.opening != nullptr) Close(item.opening, LostError());
  }
  for (const auto& batch : in_flight_) {
    for (const auto& stream : batch->opened) Close(stream, LostError());
  }
  for (const auto& stream : opening_) Close(stream, LostError());
  for (const auto& [node, stream] : streams_) Close(stream, LostError());
  pending_.clear();
  queue_.clear();
  in_flight_.clear();
  opening_.clear();
  streams_.clear();
  decided_.clear();
  loop_due_ = false;
  core_.reset();
}

// Core invariant 6: the state that entries recover to is the state that produced them.
void SimScheduler::CheckRecovery() {
  std::vector<JournalEntry> all = journal_.durable();
  for (const JournalEntry& entry : decided_) {
    if (all.empty() || entry.index > all.back().index) all.push_back(entry);
  }
  Core again((CoreOptions()));
  const absl::Status status = again.Recover(all);
  if (!status.ok() || again.Snapshot() != core_->Snapshot()) {
    world()->Fail("recovery gives the state that wrote the journal",
                  status.ok() ? "the snapshots differ" : std::string(status.message()));
  }
}

// ---- Calls ------------------------------------------------------------------------------------

void SimScheduler::Join(Process* caller, JoinRequest request, Ticks timeout, JoinDone done) {
  Request(caller, {}, JoinEvent{{}, std::move(request), {}}, "Join", timeout, std::move(done));
}

void SimScheduler::Call(Process* caller, NodeRef from, NodeRequest request, Ticks timeout,
                        CallDone done) {
  std::string what = world()->tracing() ? std::visit(NameOf(), request) : "";
  Request(caller, from, NodeEvent{{}, from, std::move(request)}, std::move(what), timeout,
          std::move(done));
}

void SimScheduler::Request(Process* caller, NodeRef from, SchedulerEvent event, std::string what,
                           Ticks timeout, Done done) {
  auto call = std::make_shared<PendingCall>();
  call->id = ++last_call_;
  call->from = from;
  call->caller = caller;
  call->life = caller->life();
  call->done = std::move(done);
  call->what = std::move(what);
  caller->After(timeout, [this, call] {
    Finish(call, absl::DeadlineExceededError("the scheduler does not answer"));
  });
  if (world()->random().Per100k(scenario_->lost_calls)) {
    world()->Trace(caller->name(), " -> scheduler: ", call->what, " is lost");
    caller->After(Latency(), [this, call] { Finish(call, LostError()); });
    return;
  }
  world()->After(Latency(), [this, call, event = std::move(event)]() mutable {
    if (!alive()) return Finish(call, AwayError());
    unread_calls_.insert(call);
    After(Ticks(0), [this, call, event = std::move(event)]() mutable {
      unread_calls_.erase(call);
      Arrive({std::move(event), call, nullptr});
    });
  });
}

void SimScheduler::Finish(const std::shared_ptr<PendingCall>& call,
                          absl::StatusOr<std::variant<JoinReply, NodeReply, OperatorReply>> reply) {
  if (std::exchange(call->over, true)) return;
  call->caller->AfterIn(call->life, Ticks(0), [this, call, reply = std::move(reply)]() mutable {
    if (!reply.ok()) {
      world()->Trace(call->caller->name(), ": ", call->what, ": ",
                     std::string(reply.status().message()));
      return std::visit([&](auto& done) { done(reply.status()); }, call->done);
    }
    if (auto* done = std::get_if<JoinDone>(&call->done)) {
      (*done)(std::get<JoinReply>(*std::move(reply)));
    } else {
      std::get<CallDone>(call->done)(std::get<NodeReply>(*std::move(reply)));
    }
  });
}

void SimScheduler::Answer(RequestId request,
                          absl::StatusOr<std::variant<JoinReply, NodeReply, OperatorReply>> reply) {
  auto found = pending_.extract(request);
  if (found.empty()) {
    if (reply.ok()) view_ = std::get<OperatorReply>(*std::move(reply));
    return;
  }
  const std::shared_ptr<PendingCall> call = found.mapped();
  if (reply.ok()) CheckReply(*call, *reply);
  const bool lost = world()->random().Per100k(scenario_->lost_calls);
  if (lost)
    world()->Trace("scheduler -> ", call->caller->name(), ": reply to ", call->what, " is lost");
  world()->After(Latency(), [this, call, lost, reply = std::move(reply)]() mutable {
    Finish(call, lost ? LostError() : std::move(reply));
  });
}

void SimScheduler::CheckReply(const PendingCall& call,
                              const std::variant<JoinReply, NodeReply, OperatorReply>& reply) {
  if (const auto* joined = std::get_if<JoinReply>(&reply)) {
    return checker_->OnJoined(joined->self, absl::StrCat(call.caller->name(), "#", call.life));
  }
  const auto* node = std::get_if<NodeReply>(&reply);
  if (node == nullptr) return;
  if (const auto* drawn = std::get_if<DrawSamplesReply>(node)) {
    checker_->OnDrawn(call.from, drawn->ranges,
                      [this](NodeRef ref) { return core_->CheckNode(ref).ok(); });
  }
}

void SimScheduler::ProcessEnded(NodeRef node) {
  world()->After(Latency(), [this, node] {
    if (alive())
      After(Ticks(0), [this, node] { Arrive({ProcessEndedEvent{node, "it ended"}, {}, {}}); });
  });
}

void SimScheduler::Operate(OperatorRequest request) {
  world()->After(Latency(), [this, request = std::move(request)]() mutable {
    if (!alive()) return;
    After(Ticks(0), [this, request = std::move(request)]() mutable {
      Arrive({OperatorEvent{{}, std::move(request)}, {}, {}});
    });
  });
}

// ---- Streams ----------------------------------------------------------------------------------

std::shared_ptr<WatchStream> SimScheduler::Watch(Process* process, NodeRef node,
                                                 std::function<void(Directive)> on_directive,
                                                 std::function<void(absl::Status)> on_closed) {
  auto stream = std::make_shared<WatchStream>();
  stream->id = ++last_stream_;
  stream->node = node;
  stream->process = process;
  stream->life = process->life();
  stream->on_directive = std::move(on_directive);
  stream->on_closed = std::move(on_closed);
  world()->After(Latency(), [this, stream] {
    if (!alive()) return Close(stream, AwayError());
    unread_streams_.insert(stream);
    After(Ticks(0), [this, stream] {
      unread_streams_.erase(stream);
      Arrive({TickEvent{}, nullptr, stream});
    });
  });
  return stream;
}

void SimScheduler::StopWatch(const std::shared_ptr<WatchStream>& stream) {
  if (stream == nullptr) return;
  stream->open = false;
  // A process that is killed closes its connections; the scheduler sees it at once or, when the
  // machine went with it, after its keepalive.
  const Ticks noticed = world()->random().OneIn(3) ? Seconds(10) : Latency();
  world()->After(noticed, [this, id = stream->id] {
    if (alive()) After(Ticks(0), [this, id] { Arrive({TickEvent{}, nullptr, nullptr, id}); });
  });
}

void SimScheduler::BreakWatchOf(const Process* process) {
  for (const auto& [node, stream] : streams_) {
    if (stream->process != process || !stream->open) continue;
    world()->Trace("watch stream of ", process->name(), " breaks");
    StopWatch(stream);
    stream->open = true;  // until it is told
    return Close(stream, LostError());
  }
}

void SimScheduler::Close(const std::shared_ptr<WatchStream>& stream, const absl::Status& cause) {
  if (!std::exchange(stream->open, false)) return;
  const Ticks at = std::max(stream->last_delivery, world()->now() + Latency());
  stream->process->AfterIn(stream->life, at - world()->now(),
                           [stream, cause] { stream->on_closed(cause); });
}

void SimScheduler::OpenStream(std::shared_ptr<WatchStream> stream) {
  std::shared_ptr<WatchStream>& place = streams_[stream->node.node];
  if (place != nullptr) Close(place, absl::AbortedError("another watch stream took its place"));
  place = std::move(stream);
}

void SimScheduler::Send(const std::shared_ptr<WatchStream>& stream, const Directive& directive) {
  if (!stream->open) return;
  if (world()->random().Per100k(scenario_->broken_watches)) {
    world()->Trace("watch stream of ", stream->process->name(), " breaks");
    StopWatch(stream);
    stream->open = true;
    return Close(stream, LostError());
  }
  const Ticks at = std::max(stream->last_delivery, world()->now() + Latency());
  stream->last_delivery = at;
  stream->process->AfterIn(stream->life, at - world()->now(), [this, stream, directive] {
    if (stream->open) {
      world()->Trace("scheduler => ", stream->process->name(), ": ",
                     world()->tracing() ? scheduler::Describe(directive) : "");
      checker_->OnDirective(stream->node, directive);
      stream->on_directive(directive);
    }
  });
}

// ---- The event loop ---------------------------------------------------------------------------

void SimScheduler::Arrive(Item item) {
  queue_.push_back(std::move(item));
  if (std::exchange(loop_due_, true)) return;
  After(Ticks(static_cast<int64_t>(world()->random().Below(500'000))), [this] {
    loop_due_ = false;
    Loop();
  });
}

void SimScheduler::Loop() {
  core_now_ += std::min(world()->now() - real_now_, kMaxTimeStep);
  real_now_ = world()->now();
  for (Item& item : std::exchange(queue_, {})) Handle(std::move(item));
  if (core_now_ - last_tick_ >= kTickInterval) {
    last_tick_ = core_now_;
    Step(TickEvent{});
    Submit();
    if (in_flight_.empty()) {
      std::erase_if(streams_, [this](const auto& entry) {
        const absl::Status known = core_->CheckNode(entry.second->node);
        if (!known.ok()) Close(entry.second, known);
        return !known.ok();
      });
    }
  }
  Submit();
}

void SimScheduler::Handle(Item item) {
  if (item.opening != nullptr) {
    if (!item.opening->open) return;
    const absl::Status known = core_->CheckNode(item.opening->node);
    if (!known.ok()) return Close(item.opening, known);
    Submit();
    const NodeRef node = item.opening->node;
    opening_.push_back(std::move(item.opening));
    Step(WatchEvent{node});
    return Submit();
  }
  if (item.closing != 0) {
    for (auto it = streams_.begin(); it != streams_.end(); ++it) {
      if (it->second->id != item.closing) continue;
      const NodeRef node = it->second->node;
      streams_.erase(it);
      return Step(WatchClosedEvent{node});
    }
    return;
  }
  if (item.call != nullptr) {
    const RequestId id(++last_request_);
    if (auto* join = std::get_if<JoinEvent>(&item.event)) {
      join->request = id;
      join->key.fill(static_cast<uint8_t>(1 + last_key_++ % 255));
    } else {
      std::get<NodeEvent>(item.event).request = id;
    }
    pending_.emplace(id, std::move(item.call));
  }
  Step(std::move(item.event));
}

void SimScheduler::Step(SchedulerEvent event) { core_->Step(core_now_, std::move(event)); }

void SimScheduler::Submit() {
  Ready ready = core_->TakeReady();
  if (ready.empty() && opening_.empty()) return;
  auto batch = std::make_shared<Batch>();
  batch->opened = std::exchange(opening_, {});
  std::vector<JournalEntry> entries = std::exchange(ready.entries, {});
  for (const DecisionRecord& d : ready.decisions) {
    world()->Trace("scheduler: ", d.kind, ": ", d.text);
  }
  batch->ready = std::move(ready);
  batch->durable = entries.empty() || bugs_->release_before_durable;
  in_flight_.push_back(batch);
  if (!entries.empty()) {
    decided_.insert(decided_.end(), entries.begin(), entries.end());
    entries_since_compaction_ += entries.size();
    const uint64_t last = entries.back().index;
    journal_.Append(std::move(entries), [this, batch, last] {
      std::erase_if(decided_, [last](const JournalEntry& e) { return e.index <= last; });
      batch->durable = true;
      After(Ticks(0), [this] { ReleaseDurable(); });
    });
    if (scenario_->compact_after > 0 && entries_since_compaction_ >= scenario_->compact_after) {
      entries_since_compaction_ = 0;
      journal_.Compact(core_->Compacted());
    }
  }
  ReleaseDurable();
}

void SimScheduler::ReleaseDurable() {
  while (!in_flight_.empty() && in_flight_.front()->durable) {
    const std::shared_ptr<Batch> batch = std::move(in_flight_.front());
    in_flight_.pop_front();
    Release(*batch);
  }
}

void SimScheduler::Release(Batch& batch) {
  for (auto& stream : batch.opened) OpenStream(std::move(stream));
  for (ReplyAction& action : batch.ready.replies) Answer(action.request, std::move(action.reply));
  for (const DirectiveAction& action : batch.ready.directives) {
    const auto it = streams_.find(action.to.node);
    if (it != streams_.end() && it->second->node == action.to) Send(it->second, action.directive);
  }
}

ClusterView SimScheduler::Status() {
  PACELINE_CHECK(alive());
  Submit();
  view_.reset();
  core_->Step(core_now_, OperatorEvent{RequestId(++last_request_), StatusQuery{}});
  Ready ready = core_->TakeReady();
  PACELINE_CHECK(ready.entries.empty() && ready.replies.size() == 1);
  Answer(ready.replies.front().request, std::move(ready.replies.front().reply));
  return std::get<ClusterView>(*std::exchange(view_, std::nullopt));
}

}  // namespace paceline::simulation
