// What a simulated owner asks of others, and is given by them.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "simulation/sim_server.h"

namespace paceline::simulation {
namespace {

constexpr Ticks kPause = Milliseconds(100);
constexpr uint64_t kQuestionRoutes = uint64_t{1} << 63;  // above those of connections

}  // namespace

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
  SimServer* const lead = find_server(question.lead.owner.name);
  const bool lost = world()->random().OneIn(50) || network_->IsCut(this, lead);
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

// ---- Chunks that move -------------------------------------------------------------------------

void SimServer::OnArrived(uint64_t move, std::vector<ChunkKey> missing) {
  AckRequest ack;
  ack.id = move;
  ack.missing = std::move(missing);
  Queue(ack);
}

void SimServer::TakePart(const Operation& part, std::shared_ptr<const std::vector<std::byte>> bytes,
                         std::function<void(OperationStatus)> done) {
  const uint32_t lane = JobShards::ThreadOf(part.chunk, kThreads);
  Operation op = part;
  op.route = kQuestionRoutes + ++last_token_;
  Post(lane, [this, lane, op, bytes, done] {
    JobShards& job = *(*lanes_)[lane].job;
    if (ended_ || job.plan() == nullptr) return done(OperationStatus::kJobEnded);
    Replies replies;
    for (uint64_t at = 0; at < op.total_bytes; at += kPieceBytes) {
      const uint64_t length = std::min<uint64_t>(kPieceBytes, op.total_bytes - at);
      job.OnOperation(op, {at, std::span(*bytes).subspan(op.step.value() + at, length)}, nullptr,
                      world()->now(), &replies);
    }
    const auto own = std::find_if(replies.begin(), replies.end(), [&op](const Reply& reply) {
      return reply.to.kind == OperationKind::kMoveShard && reply.to.route == op.route;
    });
    PACELINE_CHECK(own != replies.end());
    const OperationStatus status = own->status;
    replies.erase(own);
    job.CloseRoute(op.route);
    Send(lane, replies);
    done(status);
  });
}

void SimServer::TakeBack(ChunkKey chunk, uint64_t move, std::vector<std::byte> bytes) {
  const uint32_t lane = JobShards::ThreadOf(chunk, kThreads);
  Post(lane, [this, lane, chunk, move, bytes = std::move(bytes)] {
    Replies replies;
    (*lanes_)[lane].job->TakeBack(chunk, move, bytes, world()->now(), &replies);
    Send(lane, replies);
  });
}

}  // namespace paceline::simulation
