// A cluster of well-behaved nodes around a Core, without threads or time: nodes ack what they are
// told at once (unless told not to) and remember it.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/core/core.h"

namespace paceline::scheduler {

class ClusterForTest {
 public:
  explicit ClusterForTest(CoreOptions options = {}) : options_(options) {
    core_ = std::make_unique<Core>(options_);
  }

  Core& core() { return *core_; }
  const std::vector<JournalEntry>& journal() const { return journal_; }
  const std::vector<DecisionRecord>& decisions() const { return decisions_; }
  const std::vector<DirectiveAction>& directives() const { return directives_; }

  void Feed(SchedulerEvent event) {
    core_->Step(now, std::move(event));
    Drain();
  }
  void Tick(int64_t ms) {
    now += Milliseconds(ms);
    Feed(TickEvent{});
  }

  JoinRequest Worker(const std::string& name, const JobSpec& job, uint32_t index) {
    JoinRequest join;
    join.role = Role::kWorker;
    join.name = name;
    join.host = "host-" + name;
    join.data_address = "127.0.0.1:1";
    join.job = job;
    join.index = WorkerIndex(index);
    return join;
  }
  JoinRequest Server(const std::string& name) {
    JoinRequest join;
    join.role = Role::kServer;
    join.name = name;
    join.host = "host-" + name;
    join.data_address = "127.0.0.1:2";
    return join;
  }

  // Joins and watches; the reply is kept under the name.
  absl::Status Join(const JoinRequest& join, bool watch = true) {
    const RequestId id = NextRequest();
    JoinEvent event{id, join, {}};
    event.key.fill(static_cast<uint8_t>(id.value()));
    Feed(std::move(event));
    const auto& reply = replies_.at(id);
    if (!reply.ok()) return reply.status();
    joined[join.name] = std::get<JoinReply>(*reply);
    if (watch) Feed(WatchEvent{joined[join.name].self});
    return absl::OkStatus();
  }

  // A draw says what its node has received of earlier ones.
  RequestId Ask(const std::string& name, NodeRequest body) {
    const RequestId id = NextRequest();
    const NodeRef self = joined.at(name).self;
    if (auto* draw = std::get_if<DrawSamplesRequest>(&body)) {
      draw->received = received[self];
      draws_.emplace(id, self);
    }
    Feed(NodeEvent{id, self, std::move(body)});
    return id;
  }
  // The answer does not arrive.
  RequestId AskAndLose(const std::string& name, NodeRequest body) {
    const auto before = received;
    const RequestId id = Ask(name, std::move(body));
    received = before;
    draws_.erase(id);
    return id;
  }
  bool Answered(RequestId id) const { return replies_.count(id) > 0; }
  absl::Status StatusOf(RequestId id) const {
    auto it = replies_.find(id);
    return it == replies_.end() ? absl::UnavailableError("no reply") : it->second.status();
  }
  NodeReply AnyReplyOf(RequestId id) const { return std::get<NodeReply>(*replies_.at(id)); }
  template <typename T>
  T ReplyOf(RequestId id) const {
    return std::get<T>(std::get<NodeReply>(*replies_.at(id)));
  }
  absl::Status TryOperate(OperatorRequest body) {
    const RequestId id = NextRequest();
    Feed(OperatorEvent{id, std::move(body)});
    return StatusOf(id);
  }
  // What every owner answers a cut with.
  void applied_by_all(const std::map<GroupId, paceline::Step>& steps) {
    for (const auto& [name, reply] : joined) applied[reply.self.node] = steps;
  }
  OperatorReply Operate(OperatorRequest body) {
    const RequestId id = NextRequest();
    Feed(OperatorEvent{id, std::move(body)});
    return std::get<OperatorReply>(*replies_.at(id));
  }
  JobView Job(const std::string& name) {
    return std::get<ClusterView>(Operate(StatusQuery{name})).jobs.back();
  }

  template <typename T>
  std::vector<T> Received(const std::string& name) const {
    std::vector<T> out;
    for (const DirectiveAction& action : directives_) {
      if (action.to.node != joined.at(name).self.node) continue;
      if (const T* body = std::get_if<T>(&action.directive.body)) out.push_back(*body);
    }
    return out;
  }

  // A scheduler that starts again from the first `entries` of the journal.
  std::unique_ptr<Core> Recovered(size_t entries) const {
    auto core = std::make_unique<Core>(options_);
    const absl::Status status =
        core->Recover({journal_.begin(), journal_.begin() + static_cast<ptrdiff_t>(entries)});
    return status.ok() ? std::move(core) : nullptr;
  }
  void RestartScheduler() {
    core_ = Recovered(journal_.size());
    Drain();
  }

  Ticks now = Seconds(1);
  std::map<std::string, JoinReply> joined;
  std::map<NodeId, paceline::Step> steps;  // what a worker acks with
  std::set<NodeId> silent;                 // do not ack
  std::map<NodeRef, Samples> received;     // drawn, as the nodes know
  std::function<void(const Ready&)> on_ready = [](const Ready&) {};

 private:
  RequestId NextRequest() { return RequestId(++last_request_); }

  void Drain() {
    for (;;) {
      Ready ready = core_->TakeReady();
      if (ready.empty()) return;
      on_ready(ready);
      journal_.insert(journal_.end(), ready.entries.begin(), ready.entries.end());
      decisions_.insert(decisions_.end(), ready.decisions.begin(), ready.decisions.end());
      for (ReplyAction& reply : ready.replies) {
        Receive(reply);
        replies_.emplace(reply.request, reply.reply);
      }
      directives_.insert(directives_.end(), ready.directives.begin(), ready.directives.end());
      for (const DirectiveAction& action : ready.directives) AckOf(action);
    }
  }

  void Receive(const ReplyAction& reply) {
    auto draw = draws_.find(reply.request);
    if (draw == draws_.end() || !reply.reply.ok()) return;
    const auto& drawn = std::get<DrawSamplesReply>(std::get<NodeReply>(*reply.reply));
    for (const SampleRange& r : drawn.ranges) received[draw->second] += Samples(r.end - r.begin);
  }

  // Chunks arrive as soon as their new owner knows that it is one.
  void AckMoves(const DirectiveAction& action, const PlanDirective& plan) {
    for (const ChunkMove& move : plan.plan.moves) {
      if (move.to != action.to.node) continue;
      AckRequest arrived;
      arrived.id = plan.plan.move;
      core_->Step(now, NodeEvent{NextRequest(), action.to, std::move(arrived)});
      return;
    }
  }

  void AckOf(const DirectiveAction& action) {
    if (silent.count(action.to.node) > 0) return;
    AckRequest ack;
    if (const auto* plan = std::get_if<PlanDirective>(&action.directive.body))
      ack.id = plan->change;
    if (const auto* p = std::get_if<PrepareDirective>(&action.directive.body)) ack.id = p->change;
    if (const auto* f = std::get_if<FenceDirective>(&action.directive.body)) ack.id = f->change;
    if (const auto* cut = std::get_if<CutDirective>(&action.directive.body)) {
      if (!cut->abort) ack.id = cut->cut;
      if (cut->collect) ack.applied = applied[action.to.node];
      if (!cut->collect && !cut->abort && !cut->manifest) {
        ack.part = {absl::StrCat("part-", action.to.node.value()), Bytes(100), 7};
        ack.updates = cut_updates;
        ack.workers = cut_workers;
      }
      if (cut->manifest) manifests.push_back(*cut->manifest);
    }
    if (const auto* plan = std::get_if<PlanDirective>(&action.directive.body))
      AckMoves(action, *plan);
    if (ack.id == 0) return;
    ack.step = steps[action.to.node];
    core_->Step(now, NodeEvent{NextRequest(), action.to, std::move(ack)});
  }

 public:
  std::map<NodeId, std::map<GroupId, paceline::Step>> applied;  // what an owner answers a cut with
  uint64_t cut_updates = 0;                                     // what it says with its part
  std::vector<WorkerSamples> cut_workers;
  std::vector<CheckpointManifest> manifests;  // that were to be written

 private:
  CoreOptions options_;
  std::unique_ptr<Core> core_;
  uint64_t last_request_ = 0;
  std::map<RequestId, NodeRef> draws_;
  std::vector<JournalEntry> journal_;
  std::vector<DecisionRecord> decisions_;
  std::vector<DirectiveAction> directives_;
  std::map<RequestId, decltype(ReplyAction::reply)> replies_;
};

}  // namespace paceline::scheduler
