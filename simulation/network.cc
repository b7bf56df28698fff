#include "simulation/network.h"

#include <algorithm>
#include <utility>

namespace paceline::simulation {
namespace {

std::string Text(const Operation& op) {
  return absl::StrCat("operation ", static_cast<int>(op.kind), " on chunk ",
                      op.chunk.tensor.value(), "/", op.chunk.chunk.value(), " in step ",
                      op.step.value(), " of group ", op.group.value(), ".",
                      op.group_generation.value(), ", sequence ", op.sequence.value(),
                      ", acknowledged ", op.acknowledged.value());
}

}  // namespace

Ticks Network::Latency() {
  const Ticks typical = scenario_->latency;
  const bool late = world_->random().OneIn(300);
  return world_->random().TimeBetween(Ticks(typical.value() / 4),
                                      late ? Milliseconds(80) : typical + typical);
}

void Network::Connect(Process* worker, NodeRef self, FrameTaker* owner,
                      std::function<void(const DataReply&)> on_reply,
                      std::function<void()> on_closed, Connected connected) {
  auto connection = std::make_shared<Connection>();
  connection->id = ++last_id_;
  connection->worker = self;
  connection->worker_process = worker;
  connection->worker_life = worker->life();
  connection->owner = owner;
  connection->on_reply = std::move(on_reply);
  connection->on_closed = std::move(on_closed);
  world_->After(Latency(), [this, connection, connected = std::move(connected)]() mutable {
    FrameTaker* const owner = connection->owner;
    const auto tell = [this, connection](auto connected, absl::Status status) {
      connection->worker_process->AfterIn(connection->worker_life, Latency(),
                                          [connection, connected, status]() mutable {
                                            if (status.ok()) {
                                              connected(connection);
                                            } else {
                                              connected(status);
                                            }
                                          });
    };
    if (!owner->alive()) return tell(connected, absl::UnavailableError("refused"));
    connection->owner_life = owner->life();
    owner->After(Ticks(0), [this, connection, tell, connected = std::move(connected)] {
      absl::Status status = connection->owner->Authenticate(connection->worker);
      if (status.ok()) {
        connections_[connection->id] = connection;
        connection->owner->OnOpened(connection);
      }
      tell(connected, std::move(status));
    });
  });
}

// Messages keep to a lane, so that their frames keep their order.
Ticks Network::Arrival(Connection::Direction& direction, uint64_t message) {
  Ticks& lane = direction.lanes[message % direction.lanes.size()];
  lane = std::max(lane, world_->now() + Latency());
  return lane - world_->now();
}

void Network::Send(const std::shared_ptr<Connection>& connection, const DataFrame& frame) {
  if (!connection->open) return;
  const uint64_t index = connection->to_owner.sent++;
  const auto deliver = [this, connection, frame, index] {
    if (index >= connection->to_owner.cut_at) return;
    ++connection->to_owner.delivered;
    connection->owner->AfterIn(connection->owner_life, Ticks(0), [this, connection, frame] {
      if (world_->printing()) {
        world_->Trace(connection->worker_process->name(), " -> ", connection->owner->name(), ": ",
                      Text(frame.operation));
      }
      connection->owner->OnFrame(connection, frame);
    });
  };
  world_->After(Arrival(connection->to_owner, frame.operation.sequence.value()), deliver);
  if (world_->random().Per100k(scenario_->repeated)) {
    world_->After(world_->random().TimeBetween(Ticks(0), Milliseconds(500)), deliver);
  }
  if (world_->random().Per100k(scenario_->resets)) Break(connection);
}

void Network::Answer(const std::shared_ptr<Connection>& connection, const DataReply& reply) {
  if (!connection->open) return;
  if (world_->printing()) {
    world_->Trace(connection->owner->name(), " -> ", connection->worker_process->name(),
                  ": status ", static_cast<int>(reply.reply.status), " to ", Text(reply.reply.to));
  }
  const uint64_t index = connection->to_worker.sent++;
  const auto mute = mute_until_.find(connection->owner->name());
  if (mute != mute_until_.end() && world_->now() < mute->second) return;
  const bool lossy = world_->now() < lossy_until_;
  if (world_->random().Per100k(lossy ? lossy_ : scenario_->lost_replies)) {
    Break(connection);
    connection->to_worker.cut_at = std::min(connection->to_worker.cut_at, index);
    return;
  }
  world_->After(
      Arrival(connection->to_worker, reply.reply.to.sequence.value()), [connection, reply, index] {
        if (index >= connection->to_worker.cut_at) return;
        ++connection->to_worker.delivered;
        connection->worker_process->AfterIn(connection->worker_life, Ticks(0),
                                            [connection, reply] { connection->on_reply(reply); });
      });
}

void Network::Cut(Connection::Direction& direction) {
  const uint64_t done = std::min(direction.delivered, direction.sent);
  direction.cut_at = done + world_->random().Below(direction.sent - done + 1);
}

void Network::Break(const std::shared_ptr<Connection>& connection) {
  if (!std::exchange(connection->open, false)) return;
  world_->Trace("connection ", connection->id, " of ", connection->worker_process->name(), " to ",
                connection->owner->name(), " breaks");
  Cut(connection->to_owner);
  Cut(connection->to_worker);
  connection->worker_process->AfterIn(connection->worker_life, Latency(),
                                      [connection] { connection->on_closed(); });
  connection->owner->AfterIn(connection->owner_life, Latency(),
                             [connection] { connection->owner->OnClosed(connection); });
  connections_.erase(connection->id);
}

void Network::BreakAllOf(const Process* process) {
  std::vector<std::shared_ptr<Connection>> found;
  for (const auto& [id, weak] : connections_) {
    const std::shared_ptr<Connection> connection = weak.lock();
    if (connection == nullptr) continue;
    if (connection->worker_process == process || connection->owner == process) {
      found.push_back(connection);
    }
  }
  for (const auto& connection : found) Break(connection);
}

void Network::Mute(const Process* owner, Ticks duration) {
  Ticks& until = mute_until_[owner->name()];
  until = std::max(until, world_->now() + duration);
  world_->After(duration, [this, owner] {
    if (world_->now() >= mute_until_.at(owner->name())) BreakAllOf(owner);
  });
}

void Network::CutLink(const Process* a, const Process* b, Ticks until) {
  Ticks& cut = cut_until_[std::minmax(a->name(), b->name())];
  cut = std::max(cut, until);
}

bool Network::IsCut(const Process* a, const Process* b) const {
  const auto it = cut_until_.find(std::minmax(a->name(), b->name()));
  return it != cut_until_.end() && world_->now() < it->second;
}

}  // namespace paceline::simulation
