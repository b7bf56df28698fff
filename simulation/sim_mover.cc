#include "simulation/sim_mover.h"

#include <algorithm>
#include <utility>

#include "simulation/sim_server.h"

namespace paceline::simulation {
namespace {

constexpr Ticks kAnswerTimeout = Milliseconds(200);  // until a lost connection is noticed
constexpr Ticks kDownAfter = Seconds(1);
constexpr Ticks kDownAgainAfter = Seconds(2);

// As parameter/host/peer_link.h.
Ticks PauseAfter(uint32_t tries) {
  return std::min(Seconds(1), Ticks(Milliseconds(20).value() << std::min(tries, 6u)));
}

}  // namespace

bool SimMover::IsNewer(const OutgoingChunk& chunk) const { return generation_ > chunk.generation; }

bool SimMover::IsWanted(const OutgoingChunk& chunk) const {
  if (!IsNewer(chunk)) return true;
  const auto to = to_.find(chunk.chunk);
  return move_ == chunk.move && to != to_.end() && to->second == chunk.to.node;
}

bool SimMover::IsReturned(const OutgoingChunk& chunk) const {
  if (!IsNewer(chunk)) return false;
  const auto to = to_.find(chunk.chunk);
  return to != to_.end() && to->second == self_->self().node;
}

void SimMover::Return(const Parcel& parcel) {
  world_->Trace(self_->name(), ": takes chunk ", parcel.chunk.chunk.tensor.value(), "/",
                parcel.chunk.chunk.chunk.value(), " back");
  hooks_.take_back(parcel.chunk.chunk, move_, *parcel.bytes);
}

ServerInfo SimMover::AddressOf(const OutgoingChunk& chunk) const {
  const auto server = servers_.find(chunk.to.node);
  return IsNewer(chunk) && server != servers_.end() ? server->second : chunk.to;
}

void SimMover::Give(OutgoingChunk chunk) {
  auto parcel = std::make_shared<Parcel>();
  parcel->bytes = std::make_shared<const std::vector<std::byte>>(Encode(chunk.state));
  chunk.state = {};
  parcel->chunk = std::move(chunk);
  if (IsReturned(parcel->chunk)) return Return(*parcel);
  if (!IsWanted(parcel->chunk)) return;
  parcels_.push_back(parcel);
  SendLater(parcel, world_->random().TimeBetween(Ticks(0), Milliseconds(50)));
}

void SimMover::Follow(const Plan& plan) {
  if (plan.generation < generation_) return;
  generation_ = plan.generation;
  move_ = plan.move;
  to_.clear();
  servers_.clear();
  for (const ServerInfo& server : plan.servers) servers_[server.node] = server;
  for (const ChunkMove& move : plan.moves) {
    if (move.from == self_->self().node) to_[move.chunk] = move.to;
  }
  for (const ParcelPtr& parcel : std::exchange(parcels_, {})) {
    if (IsReturned(parcel->chunk)) {
      Return(*parcel);
    } else if (IsWanted(parcel->chunk)) {
      parcels_.push_back(parcel);
    }
  }
}

void SimMover::SendLater(const ParcelPtr& parcel, Ticks pause) {
  self_->After(pause, [this, parcel] { Send(parcel); });
}

void SimMover::Send(const ParcelPtr& parcel) {
  if (std::find(parcels_.begin(), parcels_.end(), parcel) == parcels_.end()) return;
  const ServerInfo address = AddressOf(parcel->chunk);
  SimServer* const to = self_->find_server(address.name);
  const bool reached = to->running() && to->self().incarnation == address.incarnation &&
                       to->Knows(self_->self()) && !network_->IsCut(self_, to);
  if (!reached) return InVain(parcel);
  SendPart(parcel, to);
}

// One part at a time. The way to and fro may each lose it, and bring it a second time.
void SimMover::SendPart(const ParcelPtr& parcel, SimServer* to) {
  Random& random = world_->random();
  const uint64_t left = parcel->bytes->size() - parcel->taken;
  const uint64_t part = random.OneIn(2) ? left : std::min(left, kPieceBytes);
  Operation op;
  op.kind = OperationKind::kMoveShard;
  op.sender = self_->self().node;
  op.incarnation = self_->self().incarnation;
  op.job_generation = parcel->chunk.generation;
  op.origin_step = Step(parcel->chunk.move);
  op.chunk = parcel->chunk.chunk;
  op.step = Step(parcel->taken);
  op.samples = Samples(parcel->bytes->size());
  op.total_bytes = part;
  const uint64_t attempt = ++parcel->attempt;
  const auto deliver = [this, parcel, attempt, op, to, life = to->life()] {
    to->AfterIn(life, Ticks(0), [=, this, self_life = self_->life()] {
      to->TakePart(op, parcel->bytes, [=, this](OperationStatus status) {
        if (world_->random().Per100k(scenario_->lost_parts)) return;
        const Ticks takes = world_->random().TimeBetween(Ticks(0), Milliseconds(10));
        world_->After(takes, [=, this] {
          self_->AfterIn(self_life, Ticks(0), [=, this] {
            OnAnswer(parcel, attempt, op.step.value() + op.total_bytes, status);
          });
        });
      });
    });
  };
  if (!random.Per100k(scenario_->lost_parts)) {
    world_->After(random.TimeBetween(Ticks(0), Milliseconds(20)), deliver);
  }
  if (random.Per100k(scenario_->repeated + scenario_->lost_parts)) {
    world_->After(random.TimeBetween(Ticks(0), Milliseconds(700)), deliver);
  }
  self_->After(kAnswerTimeout, [this, parcel, attempt] {
    if (parcel->attempt == attempt) Send(parcel);
  });
}

void SimMover::OnAnswer(const ParcelPtr& parcel, uint64_t attempt, uint64_t end,
                        OperationStatus status) {
  const auto it = std::find(parcels_.begin(), parcels_.end(), parcel);
  if (it == parcels_.end() || parcel->attempt != attempt) return;
  ++parcel->attempt;
  if (status == OperationStatus::kOk) {
    parcel->taken = end;
    parcel->tries = 0;
    parcel->in_vain_since = Ticks();
    if (end < parcel->bytes->size()) return Send(parcel);
    parcels_.erase(it);
    return;
  }
  parcel->taken = 0;  // it may be gone with the refusal
  if (status != OperationStatus::kNotYet) return InVain(parcel);
  SendLater(parcel, PauseAfter(parcel->tries++));
}

void SimMover::InVain(const ParcelPtr& parcel) {
  const Ticks now = world_->now();
  if (parcel->in_vain_since == Ticks()) {
    parcel->in_vain_since = now;
    parcel->next_word = now + kDownAfter;
  }
  if (now >= parcel->next_word) {
    parcel->next_word = now + kDownAgainAfter;
    hooks_.link_down(parcel->chunk.to.node, now - parcel->in_vain_since);
  }
  SendLater(parcel, PauseAfter(parcel->tries++));
}

}  // namespace paceline::simulation
