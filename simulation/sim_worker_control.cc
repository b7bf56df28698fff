// What a simulated worker hears from the scheduler and tells it.
#include <algorithm>
#include <utility>
#include <variant>

#include "simulation/sim_worker.h"

namespace paceline::simulation {
namespace {

constexpr Ticks kCallTimeout = Seconds(5);
constexpr Ticks kPause = Milliseconds(100);
constexpr Ticks kReportInterval = Milliseconds(500);

}  // namespace

void SimWorker::OpenWatch() {
  new_stream_ = true;
  stream_ = scheduler_->Watch(
      this, self_, [this](const Directive& directive) { OnDirective(directive); },
      [this](const absl::Status& cause) {
        if (phase_ >= Phase::kLeaving && absl::IsFailedPrecondition(cause)) {
          gone_ = true;
          return Go();
        }
        After(kPause, [this] { OpenWatch(); });
      });
}

void SimWorker::OnDirective(const Directive& directive) {
  std::visit([this](const auto& body) { Apply(body); }, directive.body);
  if (alive()) Go();
}

void SimWorker::Apply(const PlanDirective& directive) {
  if (have_plan_ && directive.plan.generation < plan_.generation) return;
  const std::vector<ServerInfo> servers_before = std::move(plan_.servers);
  plan_ = directive.plan;
  have_plan_ = true;
  if (!lineage_) lineage_ = plan_.lineage;
  if (std::exchange(new_stream_, false)) group_->OnNewStream();
  group_->OnPlan(plan_);
  for (auto& [node, link] : links_) link.gone = true;
  for (const ServerInfo& server : plan_.servers) {
    links_[server.node].server = find_server_(server.name);
    links_[server.node].gone = false;
  }
  FollowOwners(servers_before);
  AnswerGone();
  if (plan_.state == JobState::kStopped) Fail(absl::StrCat("the job was stopped: ", plan_.reason));
}

// As Session::FollowOwners: chunks may have moved, owners started again under their names.
void SimWorker::FollowOwners(const std::vector<ServerInfo>& servers_before) {
  std::set<NodeId> before = Owners(), newcomers;
  for (const ServerInfo& server : plan_.servers) {
    const bool again =
        std::any_of(servers_before.begin(), servers_before.end(), [&server](const ServerInfo& s) {
          return s.node == server.node && s.incarnation != server.incarnation;
        });
    if (again) before.erase(server.node);
  }
  for (PlacedChunk& chunk : chunks_) {
    chunk.owner = plan_.tensors[chunk.key.tensor.value()].owners[chunk.key.chunk.value()];
    if (before.count(chunk.owner) == 0) newcomers.insert(chunk.owner);
  }
  if (passed_ && group_->in_group()) Pass(newcomers, *passed_, *passed_, false);
}

void SimWorker::Apply(const RemoveDirective&) { AskToLeave(); }

void SimWorker::Apply(const PrepareDirective& directive) {
  AckRequest ack;
  ack.id = directive.change;
  ack.step = group_->OnPrepare(directive);
  outbox_.push_back(ack);
  Pump();
}

void SimWorker::Apply(const CommitDirective& directive) { group_->OnCommit(directive); }

void SimWorker::Apply(const AbortDirective& directive) { group_->OnAbort(directive.change); }

void SimWorker::Apply(const FenceDirective& directive) {
  if (directive.dead == self_) return Fail("it was declared dead");
  group_->OnFence(directive);
}

void SimWorker::Apply(const SealedDirective& directive) {
  for (TensorPlan& tensor : plan_.tensors) {
    if (std::find(directive.tensors.begin(), directive.tensors.end(), tensor.id) !=
        directive.tensors.end()) {
      tensor.sealed = true;
    }
  }
}

void SimWorker::Apply(const RecallSamplesDirective&) {
  ReturnSamplesRequest unused;
  if (lease_) unused.ranges = lease_->TakeAll();
  for (const SampleRange& range : unused.ranges) ledger_.returned += range.end - range.begin;
  checker_->OnGivenBack(self_, unused.ranges);
  outbox_.push_back(std::move(unused));
  Pump();
}

void SimWorker::Apply(const EndJobDirective& directive) {
  if (phase_ >= Phase::kLeaving) {
    gone_ = true;
    return Go();
  }
  Fail(absl::StrCat("the job ended: ", directive.reason));
}

// ---- Heartbeats, reports, acks ----------------------------------------------------------------

void SimWorker::OnHeartbeatDue() {
  After(Milliseconds(heartbeat_interval_ms_), [this] { OnHeartbeatDue(); });
  if (calling_) return;
  calling_ = true;
  NodeRequest request = Heartbeat{};
  if (world()->now() - reported_at_ >= kReportInterval) {
    reported_at_ = world()->now();
    request = MakeReport();
  }
  scheduler_->Call(this, self_, std::move(request), kCallTimeout,
                   [this](const absl::StatusOr<NodeReply>& reply) {
                     calling_ = false;
                     if (absl::IsFailedPrecondition(reply.status()) && phase_ < Phase::kLeaving) {
                       return Fail(std::string(reply.status().message()));
                     }
                     Pump();
                   });
}

// What is queued goes one at a time, in order, and stays while the scheduler is away.
void SimWorker::Pump() {
  if (calling_ || outbox_.empty()) return;
  calling_ = true;
  scheduler_->Call(
      this, self_, outbox_.front(), kCallTimeout, [this](const absl::StatusOr<NodeReply>& reply) {
        calling_ = false;
        if (absl::IsUnavailable(reply.status()) || absl::IsDeadlineExceeded(reply.status())) {
          return After(kPause, [this] { Pump(); });
        }
        outbox_.pop_front();
        Pump();
        Go();
      });
}

WorkerReport SimWorker::MakeReport() const {
  WorkerReport report;
  if (group_) report.step = group_->step();
  if (group_ && group_->in_group()) report.group = group_->current().id;
  report.step_time_us = static_cast<uint32_t>(step_took_.value() / 1000);
  report.drawn = Samples(ledger_.drawn);
  report.applied = Samples(ledger_.applied);
  report.discarded = Samples(ledger_.discarded);
  report.returned = Samples(ledger_.returned);
  return report;
}

}  // namespace paceline::simulation
