#include "simulation/sim_server.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/check.h"

namespace paceline::simulation {
namespace {

constexpr Ticks kCallTimeout = Seconds(5);
constexpr Ticks kPause = Milliseconds(100);
constexpr Ticks kReportInterval = Milliseconds(250);

// Runs a function when so many have arrived.
class Arrivals {
 public:
  Arrivals(uint32_t expected, std::function<void()> done)
      : left_(expected), done_(std::move(done)) {}
  void Arrive() {
    if (--left_ == 0 && done_) done_();
  }

 private:
  uint32_t left_;
  const std::function<void()> done_;
};

}  // namespace

// The same with what is missing of all of them.
class SimServer::MovedHere {
 public:
  using Done = std::function<void(std::vector<ChunkKey>)>;
  MovedHere(uint32_t expected, Done done) : left_(expected), done_(std::move(done)) {}
  void Arrive(const std::vector<ChunkKey>& missing) {
    missing_.insert(missing_.end(), missing.begin(), missing.end());
    if (--left_ == 0) done_(std::move(missing_));
  }

 private:
  uint32_t left_;
  std::vector<ChunkKey> missing_;
  const Done done_;
};

namespace {

bool Again(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

// ---- Living -----------------------------------------------------------------------------------

void SimServer::OnStart() {
  lanes_ = std::make_unique<std::array<Lane, kThreads>>();
  self_ = {};
  ended_ = false;
  Join();
}

void SimServer::OnKill() {
  scheduler_->StopWatch(stream_);
  stream_ = nullptr;
  routes_.clear();
  known_.clear();
  fenced_.clear();
  servers_.clear();
  mover_.reset();
  outbox_.clear();
  asked_.clear();
  askers_.clear();
  report_due_ = calling_ = cutting_ = false;
  disk_free_at_ = Ticks();
  lanes_.reset();
  network_->BreakAllOf(this);
}

void SimServer::Join() {
  JoinRequest request;
  request.role = Role::kServer;
  request.name = name();
  request.host = "host-" + name();
  request.data_address = name() + ":1";
  request.process_id = life();
  scheduler_->Join(this, std::move(request), kCallTimeout,
                   [this](const absl::StatusOr<JoinReply>& reply) {
                     if (!reply.ok()) return After(kPause, [this] { Join(); });
                     self_ = reply->self;
                     MakeMover();
                     for (uint32_t i = 0; i < kThreads; ++i) {
                       Lane& lane = (*lanes_)[i];
                       lane.job.emplace(self_.node, i, kThreads, 4u << 20, &lane.pool);
                       lane.job->OnQuestion(
                           [this, i](OutgoingQuestion question) { Ask(i, std::move(question)); });
                     }
                     OpenWatch();
                     OnReportDue();
                   });
}

void SimServer::MakeMover() {
  SimMover::Hooks hooks;
  hooks.take_back = [this](ChunkKey chunk, uint64_t move, std::vector<std::byte> bytes) {
    TakeBack(chunk, move, std::move(bytes));
  };
  hooks.link_down = [this](NodeId peer, Ticks since) {
    Queue(LinkDownRequest{peer, static_cast<uint32_t>(since.value() / 1'000'000), "out of reach"});
  };
  mover_.emplace(world(), scenario_, network_, this, std::move(hooks));
}

void SimServer::OpenWatch() {
  stream_ = scheduler_->Watch(
      this, self_, [this](const Directive& directive) { OnDirective(directive); },
      [this](const absl::Status&) {
        ReleaseCuts();
        After(kPause, [this] { OpenWatch(); });
      });
}

// ---- Calls to the scheduler -------------------------------------------------------------------

void SimServer::Queue(NodeRequest request) {
  outbox_.push_back(std::move(request));
  Pump();
}

void SimServer::OnReportDue() {
  report_due_ = true;
  Pump();
  After(kReportInterval, [this] { OnReportDue(); });
}

// One call at a time: first what is queued, then the report that is due.
void SimServer::Pump() {
  if (calling_ || (outbox_.empty() && !report_due_)) return;
  calling_ = true;
  if (!outbox_.empty()) return Call(outbox_.front(), true);
  report_due_ = false;
  Report();
}

void SimServer::Report() {
  auto report = std::make_shared<ServerReport>();
  auto arrivals =
      std::make_shared<Arrivals>(kThreads, [this, report] { Call(std::move(*report), false); });
  for (uint32_t i = 0; i < kThreads; ++i) {
    Post(i, [this, i, report, arrivals] {
      JobAtServer part = (*lanes_)[i].job->Report();
      if (part.lead) checker_->OnLeadReport(part);
      if (part.job != JobId()) {
        if (report->jobs.empty()) report->jobs.emplace_back().job = part.job;
        Merge(report->jobs.front(), std::move(part));
      }
      arrivals->Arrive();
    });
  }
}

void SimServer::Call(NodeRequest request, bool queued) {
  scheduler_->Call(this, self_, std::move(request), kCallTimeout,
                   [this, queued](const absl::StatusOr<NodeReply>& reply) {
                     calling_ = false;
                     if (Again(reply.status())) return After(kPause, [this] { Pump(); });
                     if (queued) outbox_.pop_front();
                     Pump();
                   });
}

SimServer::Done SimServer::AckWhenDone(uint64_t id) {
  return [this, id] {
    if (id == 0) return;
    AckRequest ack;
    ack.id = id;
    Queue(ack);
  };
}

// ---- Directives -------------------------------------------------------------------------------

void SimServer::OnDirective(const Directive& directive) {
  std::visit([this](const auto& body) { Apply(body); }, directive.body);
}

void SimServer::Post(uint32_t lane, std::function<void()> task) {
  Lane& queue = (*lanes_)[lane];
  const bool busy = world()->random().OneIn(100);
  const Ticks takes =
      Ticks(static_cast<int64_t>(world()->random().Below(busy ? 20'000'000 : 100'000)));
  queue.last = std::max(queue.last, world()->now()) + takes;
  After(queue.last - world()->now(), std::move(task));
}

void SimServer::OnEveryThread(const std::function<void(JobShards&, Replies*)>& task, Done done) {
  auto arrivals = std::make_shared<Arrivals>(kThreads, std::move(done));
  for (uint32_t i = 0; i < kThreads; ++i) {
    Post(i, [this, i, task, arrivals] {
      Replies replies;
      task(*(*lanes_)[i].job, &replies);
      if (bugs_->redo_keeps_accumulator) KeepSums(replies);
      Send(i, replies);
      arrivals->Arrive();
    });
  }
}

void SimServer::Learn(const std::vector<GroupPlan>& groups) {
  for (const GroupPlan& group : groups) {
    for (const Member& m : group.members) {
      if (m.key != SecretKey{}) known_[m.node] = std::max(known_[m.node], m.incarnation);
    }
  }
}

void SimServer::Apply(const PlanDirective& directive) {
  auto prepared = std::make_shared<PreparedPlan>();
  prepared->plan = directive.plan;
  auto optimizer = Optimizer::Create(directive.plan.spec.optimizer);
  auto policy = StalenessPolicy::Create(directive.plan.spec.policy);
  PACELINE_CHECK(optimizer.ok() && policy.ok());
  prepared->optimizer = *std::move(optimizer);
  prepared->policy = *std::move(policy);
  Learn(directive.plan.groups);
  for (const ServerInfo& server : directive.plan.servers) {
    servers_[server.node] = server.incarnation;
  }
  const std::shared_ptr<MovedHere> arrived = ArrivalsOf(directive.plan);
  OnEveryThread(
      [this, prepared, arrived](JobShards& job, Replies* replies) {
        job.OnHandOver([this](OutgoingChunk chunk) {
          checker_->OnGivenAway(chunk.chunk);
          mover_->Give(std::move(chunk));
        });
        job.ApplyPlan(prepared, world()->now(), replies);
        if (arrived != nullptr && prepared->plan.withdrawn) {
          arrived->Arrive(job.Missing());
        } else if (arrived != nullptr) {
          job.WhenAllArrived([arrived] { arrived->Arrive({}); });
        }
      },
      [this, plan = directive.plan, done = AckWhenDone(directive.change)] {
        if (plan.restore_from.empty()) return done();
        Load(plan, done);
      });
  mover_->Follow(directive.plan);
}

// As Router: tells when every thread has the chunks that the plan brings here, or what they miss.
std::shared_ptr<SimServer::MovedHere> SimServer::ArrivalsOf(const Plan& plan) {
  const bool comes = std::any_of(plan.moves.begin(), plan.moves.end(),
                                 [this](const ChunkMove& move) { return move.to == self_.node; });
  if (!comes) return nullptr;
  return std::make_shared<MovedHere>(
      kThreads, [this, move = plan.move](auto missing) { OnArrived(move, std::move(missing)); });
}

void SimServer::Apply(const PrepareDirective& directive) {
  Learn(directive.groups);
  OnEveryThread([](JobShards&, Replies*) {}, AckWhenDone(directive.change));
}

void SimServer::Apply(const CommitDirective& directive) {
  Learn(directive.groups);
  OnEveryThread(
      [this, directive](JobShards& job, Replies* replies) {
        if (job.plan() != nullptr) job.Commit(directive, world()->now(), replies);
      },
      nullptr);
}

void SimServer::Apply(const AbortDirective&) {}

void SimServer::Apply(const FenceDirective& directive) {
  Incarnation& fenced = fenced_[directive.dead.node];
  fenced = std::max(fenced, directive.dead.incarnation);
  OnEveryThread(
      [this, directive](JobShards& job, Replies* replies) {
        if (job.plan() != nullptr) job.Fence(directive, world()->now(), replies);
      },
      AckWhenDone(directive.change));
}

void SimServer::Apply(const SealedDirective& directive) {
  OnEveryThread(
      [this, directive](JobShards& job, Replies* replies) {
        job.Seal(directive.tensors, world()->now(), replies);
      },
      nullptr);
}

void SimServer::Apply(const EndJobDirective&) {
  mover_->Forget();
  OnEveryThread(
      [this](JobShards& job, Replies* replies) {
        job.End(replies);
        ended_ = true;
      },
      nullptr);
}

// ---- Frames -----------------------------------------------------------------------------------

absl::Status SimServer::Authenticate(NodeRef worker) {
  if (const auto it = fenced_.find(worker.node);
      it != fenced_.end() && worker.incarnation <= it->second) {
    return absl::PermissionDeniedError("fenced");
  }
  const auto it = known_.find(worker.node);
  if (it == known_.end() || it->second < worker.incarnation) {
    return absl::UnavailableError("not known yet");
  }
  return it->second == worker.incarnation ? absl::OkStatus()
                                          : absl::PermissionDeniedError("an older incarnation");
}

void SimServer::OnOpened(const std::shared_ptr<Connection>& connection) {
  routes_[connection->id] = connection;
}

void SimServer::OnClosed(const std::shared_ptr<Connection>& connection) {
  routes_.erase(connection->id);
}

void SimServer::OnFrame(const std::shared_ptr<Connection>& connection, const DataFrame& frame) {
  const uint64_t route = connection->id;
  const Operation& op = frame.operation;
  if (op.kind != OperationKind::kBoundary) {
    const uint32_t lane = JobShards::ThreadOf(op.chunk, kThreads);
    return Post(lane, [this, lane, route, frame] { TakeFrame(lane, route, frame, nullptr); });
  }
  auto answer = std::make_shared<BoundaryAnswer>();
  answer->outstanding = kThreads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    Post(i, [this, i, route, frame, answer] { TakeFrame(i, route, frame, answer); });
  }
}

void SimServer::TakeFrame(uint32_t lane, uint64_t route, const DataFrame& sent,
                          std::shared_ptr<BoundaryAnswer> boundary) {
  JobShards& job = *(*lanes_)[lane].job;
  DataFrame frame = bugs_->redo_keeps_accumulator ? WithOldSum(sent) : sent;
  Operation& op = frame.operation;
  op.route = route;
  Replies replies;
  if (ended_ || job.plan() == nullptr) {
    if (boundary != nullptr && boundary->outstanding.fetch_sub(1) != 1) return;
    Reply reply;
    reply.to = op;
    reply.status = ended_ ? OperationStatus::kJobEnded : OperationStatus::kNotYet;
    replies.push_back(std::move(reply));
    return Send(lane, replies);
  }
  if (bugs_->retry_applied_twice &&
      answered_.contains({op.chunk, op.incarnation, op.origin_step, op.ordinal})) {
    if (ParameterShard* shard = job.shard(op.chunk)) shard->Forget({op.sender, op.incarnation});
  }
  Piece piece{frame.offset, {}};
  if (frame.payload != nullptr) {
    piece.bytes = std::as_bytes(std::span(*frame.payload)).subspan(frame.offset, frame.length);
  }
  job.OnOperation(op, piece, std::move(boundary), world()->now(), &replies);
  if (bugs_->redo_keeps_accumulator) RememberSum(frame);
  Send(lane, replies);
}

void SimServer::Send(uint32_t lane, Replies& replies) {
  const JobShards& job = *(*lanes_)[lane].job;
  for (const Reply& reply : replies) {
    const PushKey push{reply.to.group, reply.to.step};
    const Verdict* const verdict = job.verdicts().Find(push);
    if (verdict != nullptr) checker_->OnVerdict(job.plan()->lineage, push, *verdict);
  }
  checker_->OnReplies(name(), replies);
  for (const Reply& reply : replies) {
    const Operation& op = reply.to;
    if (op.kind == OperationKind::kVerdict) {
      Answer(reply);
      continue;
    }
    if (bugs_->retry_applied_twice && reply.status == OperationStatus::kOk) {
      answered_.insert({op.chunk, op.incarnation, op.origin_step, op.ordinal});
    }
    if (bugs_->redo_keeps_accumulator && reply.status == OperationStatus::kOk) {
      sums_.erase({op.chunk, op.group, op.step, op.ordinal});
    }
    const auto it = routes_.find(op.route);
    if (it == routes_.end()) continue;  // it will ask again on another connection
    DataReply out{reply, JobGeneration(), GroupGeneration()};
    if (job.plan() != nullptr) {
      out.job_generation = job.plan()->generation;
      out.group_generation = job.GenerationFor(op.group, op.step);
    }
    network_->Answer(it->second, out);
  }
  replies.clear();
}

}  // namespace paceline::simulation
