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
constexpr uint64_t kQuestionRoutes = uint64_t{1} << 63;  // above those of connections

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
  outbox_.clear();
  asked_.clear();
  askers_.clear();
  report_due_ = calling_ = false;
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

void SimServer::OpenWatch() {
  stream_ = scheduler_->Watch(
      this, self_, [this](const Directive& directive) { OnDirective(directive); },
      [this](const absl::Status&) { After(kPause, [this] { OpenWatch(); }); });
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
  std::shared_ptr<Arrivals> arrived;
  for (const ChunkMove& move : directive.plan.moves) {
    if (move.to != self_.node) continue;
    arrived = std::make_shared<Arrivals>(kThreads, AckWhenDone(directive.plan.move));
    break;
  }
  OnEveryThread(
      [this, prepared, arrived](JobShards& job, Replies* replies) {
        job.OnHandOver([this](OutgoingChunk chunk) {
          Give(std::make_shared<const OutgoingChunk>(std::move(chunk)));
        });
        job.ApplyPlan(prepared, world()->now(), replies);
        if (arrived) job.WhenAllArrived([arrived] { arrived->Arrive(); });
      },
      AckWhenDone(directive.change));
}

// As ShardMover: again and again until the other end has it.
void SimServer::Give(std::shared_ptr<const OutgoingChunk> chunk) {
  const Ticks takes = Ticks(static_cast<int64_t>(world()->random().Below(50'000'000)));
  After(takes, [this, chunk] {
    SimServer* const to = find_server(chunk->to.name);
    const auto again = [this, chunk] { After(kPause, [this, chunk] { Give(chunk); }); };
    if (!to->alive() || to->self().incarnation != chunk->to.incarnation) return again();
    to->TakeChunk(self_, *chunk, [again](bool taken) {
      if (!taken) again();
    });
  });
}

void SimServer::TakeChunk(NodeRef from, const OutgoingChunk& chunk,
                          std::function<void(bool)> done) {
  const uint32_t lane = JobShards::ThreadOf(chunk.chunk, kThreads);
  auto bytes = std::make_shared<const std::vector<std::byte>>(Encode(chunk.state));
  Operation op;
  op.kind = OperationKind::kMoveShard;
  op.sender = from.node;
  op.incarnation = from.incarnation;
  op.job_generation = chunk.generation;
  op.origin_step = Step(chunk.move);
  op.chunk = chunk.chunk;
  op.samples = Samples(bytes->size());
  op.total_bytes = bytes->size();
  Post(lane, [this, lane, op, bytes, done] {
    JobShards& job = *(*lanes_)[lane].job;
    Replies replies;
    bool taken = false;
    if (job.plan() != nullptr) {
      for (uint64_t at = 0; at < bytes->size(); at += kPieceBytes) {
        const uint64_t length = std::min<uint64_t>(kPieceBytes, bytes->size() - at);
        job.OnOperation(op, {at, std::span(*bytes).subspan(at, length)}, nullptr, world()->now(),
                        &replies);
      }
    }
    std::erase_if(replies, [&taken](const Reply& reply) {
      if (reply.to.kind != OperationKind::kMoveShard) return false;
      taken = taken || reply.status == OperationStatus::kOk;
      return true;
    });
    Send(lane, replies);
    done(taken);
  });
}

// ---- Verdicts ---------------------------------------------------------------------------------

void SimServer::Ask(uint32_t lane, OutgoingQuestion question) {
  std::erase_if(asked_, [&](const auto& entry) {
    return entry.second.first == lane && entry.second.second.push == question.push;
  });
  asked_.emplace(++last_token_, std::pair(lane, std::move(question)));
  SendQuestion(last_token_);
}

void SimServer::SendQuestion(uint64_t token) {
  const auto it = asked_.find(token);
  if (it == asked_.end() || ended_) return;
  const OutgoingQuestion question = it->second.second;
  const bool lost = world()->random().OneIn(50);
  After(world()->random().TimeBetween(Ticks(0), Milliseconds(4)), [this, token, question, lost] {
    SimServer* const to = find_server(question.lead.owner.name);
    if (lost || !to->alive() || to->self().incarnation != question.lead.owner.incarnation) return;
    to->TakeQuestion(this, token, question);
  });
  After(kPause, [this, token] { SendQuestion(token); });
}

void SimServer::TakeQuestion(SimServer* from, uint64_t token, const OutgoingQuestion& question) {
  const uint32_t lane = JobShards::ThreadOf(question.chunk, kThreads);
  Operation op;
  op.kind = OperationKind::kVerdict;
  op.route = kQuestionRoutes + ++last_token_;
  op.sender = from->self().node;
  op.incarnation = from->self().incarnation;
  op.sequence = Sequence(token);
  op.job_generation = question.lead.generation;
  op.base.lineage = question.lead.lineage;
  op.group = question.push.group;
  op.step = op.origin_step = question.push.step;
  op.chunk = question.chunk;
  op.total_bytes = question.bytes->size();
  askers_[op.route] = {from, from->life(), token};
  Post(lane, [this, lane, op, bytes = question.bytes] {
    JobShards& job = *(*lanes_)[lane].job;
    if (ended_ || job.plan() == nullptr) return;  // it will ask again
    Replies replies;
    job.OnOperation(op, {0, *bytes}, nullptr, world()->now(), &replies);
    Send(lane, replies);
  });
}

void SimServer::Answer(const Reply& reply) {
  const auto it = askers_.find(reply.to.route);
  if (it == askers_.end()) return;
  const Asker asker = it->second;
  askers_.erase(it);
  const Ticks takes = world()->random().TimeBetween(Ticks(0), Milliseconds(4));
  world()->After(takes, [asker, reply] {
    asker.server->AfterIn(asker.life, Ticks(0),
                          [asker, reply] { asker.server->OnAnswer(asker.token, reply); });
  });
}

void SimServer::OnAnswer(uint64_t token, const Reply& reply) {
  const auto it = asked_.find(token);
  if (it == asked_.end() || reply.status == OperationStatus::kNotYet) return;
  const uint32_t lane = it->second.first;
  const uint32_t lineage = it->second.second.lead.lineage;
  asked_.erase(it);
  if (reply.status != OperationStatus::kOk) return;
  Post(lane, [this, lane, lineage, answer = reply.state] {
    Replies replies;
    (*lanes_)[lane].job->OnVerdict(lineage, *answer, world()->now(), &replies);
    Send(lane, replies);
  });
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

void SimServer::Apply(const CutDirective&) {}

void SimServer::Apply(const EndJobDirective&) {
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
    if (const Verdict* verdict = job.verdicts().Find(push)) checker_->OnVerdict(push, *verdict);
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

// ---- Bugs put in on purpose -------------------------------------------------------------------

// What is summed of a round that may become void.
void SimServer::RememberSum(const DataFrame& frame) {
  const Operation& op = frame.operation;
  const bool whole = frame.payload != nullptr && frame.length == op.total_bytes;
  if (op.kind != OperationKind::kPushPull || op.samples.value() == 0 || !whole) return;
  std::vector<float>& sum = sums_[{op.chunk, op.group, op.step, op.ordinal}];
  sum.resize(frame.payload->size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += (*frame.payload)[i];
}

// Of the rounds that a directive made void.
void SimServer::KeepSums(const Replies& replies) {
  for (const Reply& reply : replies) {
    if (reply.status != OperationStatus::kOldGeneration) continue;
    auto sum = sums_.extract({reply.to.chunk, reply.to.group, reply.to.step, reply.to.ordinal});
    if (!sum.empty()) old_sums_.insert(std::move(sum));
  }
}

// The first contribution to a round that is done again comes on top of the old sum.
DataFrame SimServer::WithOldSum(DataFrame frame) {
  const Operation& op = frame.operation;
  const RoundKey key{op.chunk, op.group, op.step, op.ordinal};
  const auto it = old_sums_.find(key);
  if (it == old_sums_.end() || op.kind != OperationKind::kPushPull || op.samples.value() == 0) {
    return frame;
  }
  std::vector<float> sum = std::move(it->second);
  old_sums_.erase(it);
  if (sum.size() != frame.payload->size()) return frame;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += (*frame.payload)[i];
  frame.payload = std::make_shared<const std::vector<float>>(std::move(sum));
  return frame;
}

}  // namespace paceline::simulation
