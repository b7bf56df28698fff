// Operations of a simulated worker, from issue to reply.
#include <algorithm>
#include <limits>
#include <utility>

#include "simulation/sim_worker.h"

namespace paceline::simulation {
namespace {

constexpr Ticks kRetryPause = Milliseconds(5);
constexpr Ticks kFirstConnect = Milliseconds(5);

}  // namespace

Operation SimWorker::Header(OperationKind kind) const {
  Operation op;
  op.kind = kind;
  op.sender = self_.node;
  op.incarnation = self_.incarnation;
  op.job_generation = plan_.generation;
  op.lineage = lineage_.value_or(plan_.lineage);
  op.group = group_->current().id;
  op.group_generation = group_->current().generation;
  op.step = op.origin_step = group_->step();
  return op;
}

void SimWorker::IssueChunks(OperationKind kind, size_t first, size_t last, Ordinal ordinal,
                            Samples samples) {
  const bool poison = kind == OperationKind::kPushPull && samples.value() > 0 &&
                      world()->random().Per100k(scenario_->not_finite);
  const size_t poisoned = poison ? world()->random().Below(last) : last;
  const Samples asked = samples;
  std::vector<OpPtr> ops;
  for (size_t i = first; i < last; ++i) {
    const PlacedChunk& chunk = chunks_[i];
    auto op = std::make_shared<Op>();
    op->operation = Header(kind);
    op->operation.chunk = chunk.key;
    op->operation.ordinal = chunk.key.tensor == TensorId(0) && i == 0 ? ordinal : Ordinal(0);
    const bool lapsed = kind == OperationKind::kPushPull && Lapses(chunk.key.tensor);
    samples = lapsed ? Samples(0) : asked;
    if (lapsed && chunk.key == ChunkKey{} && asked.value() > 0) {
      used_this_step_ += asked.value();
      ledger_.discarded += asked.value();
      checker_->OnLapsed(self_, op->operation.group, op->operation.step);
    }
    op->operation.samples = samples;
    op->operation.base = bases_[i];
    op->owner = chunk.owner;
    op->elements = chunk.range.length;
    if (samples.value() > 0) {
      std::vector<float> values =
          Gradient(self_.incarnation, op->operation.origin_step, op->operation.ordinal, chunk.key)
              .Values(chunk.range.length);
      if (i == poisoned) values[0] = std::numeric_limits<float>::quiet_NaN();
      op->operation.total_bytes = values.size() * sizeof(float);
      op->payload = std::make_shared<const std::vector<float>>(std::move(values));
    }
    ops.push_back(std::move(op));
  }
  for (OpPtr& op : ops) Issue(std::move(op));
}

std::set<NodeId> SimWorker::Owners() const {
  std::set<NodeId> owners;
  for (const PlacedChunk& chunk : chunks_) owners.insert(chunk.owner);
  return owners;
}

// A Boundary to each of them: nothing more comes up to this step.
std::vector<SimWorker::OpPtr> SimWorker::Pass(const std::set<NodeId>& owners, Step first,
                                              Step through, bool wait) {
  passed_ = std::max(passed_.value_or(Step()), through);
  std::vector<OpPtr> ops;
  for (const NodeId owner : owners) {
    auto op = std::make_shared<Op>();
    op->operation = Header(OperationKind::kBoundary);
    op->operation.step = first;
    op->operation.origin_step = through;
    op->owner = owner;
    op->waited_for = wait;
    ops.push_back(op);
    Issue(std::move(op));
  }
  return ops;
}

// As OwnerLinks: what waits for an owner that no plan names any more is to be asked elsewhere.
void SimWorker::AnswerGone() {
  for (auto& [owner, link] : links_) {
    if (!link.gone) continue;
    for (const auto& [sequence, op] : std::exchange(link.pending, {})) {
      if (op->waited_for) --outstanding_;
      if (op->operation.kind != OperationKind::kBoundary) IssueAgain(op, Ticks(0));
    }
  }
}

void SimWorker::Issue(OpPtr op) {
  Link& link = links_.at(op->owner);
  if (link.gone) {
    if (op->operation.kind != OperationKind::kBoundary) IssueAgain(op, kRetryPause);
    return;
  }
  if (op->waited_for) ++outstanding_;
  op->needs_send = true;
  op->operation.sequence = Sequence(++link.last_sequence);
  const NodeId owner = op->owner;
  link.pending.emplace(link.last_sequence, std::move(op));
  SendPending(owner);
}

void SimWorker::SendPending(NodeId owner) {
  Link& link = links_.at(owner);
  if (link.connection == nullptr) return Connect(owner);
  const std::shared_ptr<Connection> connection = link.connection;
  for (const auto& [sequence, op] : link.pending) {
    if (!std::exchange(op->needs_send, false)) continue;
    DataFrame frame{op->operation, 0, 0, op->payload};
    // Replies come in any order; everything below the oldest pending one is here.
    frame.operation.acknowledged = Sequence(link.pending.begin()->first - 1);
    do {
      frame.length = std::min(kPieceBytes, op->operation.total_bytes - frame.offset);
      network_->Send(connection, frame);
      frame.offset += frame.length;
    } while (frame.offset < op->operation.total_bytes);
  }
}

void SimWorker::Connect(NodeId owner) {
  Link& link = links_.at(owner);
  if (std::exchange(link.connecting, true)) return;
  const Ticks pause =
      link.tries == 0 ? Ticks(0) : Ticks(kFirstConnect.value() << std::min(link.tries, 6u));
  ++link.tries;
  After(pause, [this, owner] {
    network_->Connect(
        this, self_, links_.at(owner).server,
        [this, owner](const DataReply& reply) { OnReply(owner, reply); },
        [this, owner] {
          Link& lost = links_.at(owner);
          lost.connection = nullptr;
          for (const auto& [sequence, op] : lost.pending) op->needs_send = true;
          if (!lost.pending.empty()) Connect(owner);
        },
        [this, owner](const absl::StatusOr<std::shared_ptr<Connection>>& connection) {
          Link& opened = links_.at(owner);
          opened.connecting = false;
          // One that broke before this was heard of has said so already, or will.
          if (!connection.ok() || !(*connection)->open) {
            if (!opened.pending.empty()) Connect(owner);
            return;
          }
          opened.tries = 0;
          opened.connection = *connection;
          SendPending(owner);
        });
  });
}

void SimWorker::OnReply(NodeId owner, const DataReply& reply) {
  Link& link = links_.at(owner);
  const auto it = link.pending.find(reply.reply.to.sequence.value());
  if (it == link.pending.end()) return;
  const OpPtr op = it->second;
  checker_->OnReplyArrived(reply.reply);
  link.pending.erase(it);
  if (op->waited_for) --outstanding_;
  Settle(op, reply);
  Go();
}

void SimWorker::IssueAgain(const OpPtr& op, Ticks pause) {
  if (op->waited_for) ++outstanding_;
  After(pause, [this, op] {
    op->operation.job_generation = plan_.generation;
    for (const PlacedChunk& chunk : chunks_) {
      const bool its = op->operation.kind != OperationKind::kBoundary;
      if (its && chunk.key == op->operation.chunk) op->owner = chunk.owner;
    }
    if (op->waited_for) --outstanding_;
    Issue(op);
  });
}

void SimWorker::BecomePull(Op& op, const DataReply& reply) {
  const bool said = reply.reply.status != OperationStatus::kOldGeneration &&
                    op.operation.group == group_->current().id;
  if (said) group_is_in_ = std::max(group_is_in_, reply.reply.open_step);
  op.operation.kind = OperationKind::kPull;
  op.operation.samples = Samples(0);
  op.operation.total_bytes = 0;
  op.payload = nullptr;
}

// As Session::CatchUp.
bool SimWorker::CatchUp(Op& op, const DataReply& reply) {
  if (phase_ == Phase::kStartRound) {
    BecomePull(op, reply);
    return true;
  }
  Operation& operation = op.operation;
  const Step step = std::max(reply.reply.open_step, group_->step());
  if (operation.group != group_->current().id || !group_->MayCarryTo(step)) return false;
  if (step > group_->step()) group_->AdvanceTo(step);
  operation.step = step;
  operation.group_generation = group_->current().generation;
  return true;
}

// As Session::LeaveBehind: its group goes on without this worker, which goes over to another.
void SimWorker::LeaveBehind(const OpPtr& op, const DataReply& reply) {
  const Operation& mine = op->operation;
  const bool past = mine.group != group_->current().id;
  const bool lead = mine.kind == OperationKind::kPushPull && mine.chunk == ChunkKey{};
  if (!past && lead && mine.samples.value() > 0) returns_rest_ = true;
  if (!past) group_->GoOverAtOnce();
  if (mine.kind != OperationKind::kPushPull) return;
  BecomePull(*op, reply);
  IssueAgain(op, Ticks(0));
}

void SimWorker::Settle(const OpPtr& op, const DataReply& reply) {
  Operation& mine = op->operation;
  if (reply.reply.status == OperationStatus::kOldGeneration) {
    // No generation that is known there has this worker: it has no step to end.
    if (mine.kind == OperationKind::kBoundary) return;
    const bool ended = reply.group_generation == GroupGeneration(0);
    const bool past = mine.group != group_->current().id;
    const bool without = group_->IsWithoutSelf(reply.group_generation);
    const bool out = without || reply.group_generation == mine.group_generation;
    if (past || ended || (out && group_->goes_over())) return LeaveBehind(op, reply);
    if (without) return Fail("its group goes on without it");
  }
  // A Boundary to one that owns nothing any more is of no use to anybody.
  const bool moot =
      mine.kind == OperationKind::kBoundary && reply.reply.status == OperationStatus::kNotOwner;
  if (moot) return;
  switch (reply.reply.status) {
    case OperationStatus::kNotYet:
    case OperationStatus::kOldGeneration:
    case OperationStatus::kNotOwner:
    case OperationStatus::kLate: {
      // The owner says which generation of this group holds for the step.
      if (reply.reply.status == OperationStatus::kOldGeneration &&
          reply.group_generation > mine.group_generation) {
        mine.group_generation = reply.group_generation;
      }
      const bool at_once = reply.reply.status == OperationStatus::kLate && CatchUp(*op, reply);
      return IssueAgain(op, at_once ? Ticks(0) : kRetryPause);
    }
    case OperationStatus::kOk:
    case OperationStatus::kDiscarded:
    case OperationStatus::kNotFinite:
      break;
    case OperationStatus::kJobEnded:
      if (phase_ >= Phase::kLeaving) return;  // nobody is left who would wait for its last word
      return Fail("the job ended");
    case OperationStatus::kFenced:
    case OperationStatus::kNotWriter:
      return Fail(absl::StrCat("an owner answered status ", static_cast<int>(reply.reply.status)));
    default:
      world()->Fail(
          "understood",
          absl::StrCat(name(), " is answered status ", static_cast<int>(reply.reply.status), " by ",
                       links_.at(op->owner).server->name(), " to an operation on chunk ",
                       mine.chunk.tensor.value(), "/", mine.chunk.chunk.value(), " in step ",
                       mine.step.value()));
  }
  if (mine.kind == OperationKind::kReduce) {
    group_is_in_ = std::max(group_is_in_, reply.reply.open_step);
  }
  if (mine.kind != OperationKind::kPushPull && mine.kind != OperationKind::kPull) return;
  if (mine.chunk == ChunkKey{} && mine.samples.value() > 0) {
    used_this_step_ += mine.samples.value();
    (reply.reply.status == OperationStatus::kOk ? ledger_.applied : ledger_.discarded) +=
        mine.samples.value();
  }
  if (reply.reply.status == OperationStatus::kDiscarded) {
    BecomePull(*op, reply);
    return IssueAgain(op, Ticks(0));
  }
  if (reply.reply.values.size() != op->elements) return;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].key == mine.chunk) bases_[i] = reply.reply.version;
  }
}

}  // namespace paceline::simulation
