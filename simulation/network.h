// Data connections between workers and owners. Frames of one message keep their order; those of
// different messages may overtake one another, as priorities make them. A connection that breaks
// loses what was on its way from some point on; what came before may still arrive after a new
// connection was opened.
// Thread rule: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "parameter/operation.h"
#include "plan/messages.h"
#include "simulation/scenario.h"
#include "simulation/world.h"

namespace paceline::simulation {

// A piece of an operation's message.
struct DataFrame {
  Operation operation;
  uint64_t offset = 0;
  uint64_t length = 0;
  std::shared_ptr<const std::vector<float>> payload;
};

// What an owner adds to its answer for the sender to catch up.
struct DataReply {
  Reply reply;
  JobGeneration job_generation;
  GroupGeneration group_generation;
};

struct Connection;

// The end of a connection that accepts.
class FrameTaker : public Process {
 public:
  using Process::Process;
  // Unavailable: not known yet, try again. Anything else refuses for good.
  virtual absl::Status Authenticate(NodeRef worker) = 0;
  virtual void OnOpened(const std::shared_ptr<Connection>& connection) = 0;
  virtual void OnFrame(const std::shared_ptr<Connection>& connection, const DataFrame& frame) = 0;
  virtual void OnClosed(const std::shared_ptr<Connection>& connection) = 0;
};

struct Connection {
  struct Direction {
    uint64_t sent = 0;
    uint64_t delivered = 0;
    uint64_t cut_at = std::numeric_limits<uint64_t>::max();  // frames from here on are lost
    std::array<Ticks, 3> lanes{};                            // when the last of each arrives
  };
  uint64_t id = 0;
  NodeRef worker;
  Process* worker_process = nullptr;
  Life worker_life = 0;
  FrameTaker* owner = nullptr;
  Life owner_life = 0;
  std::function<void(const DataReply&)> on_reply;
  std::function<void()> on_closed;
  bool open = true;
  Direction to_owner;
  Direction to_worker;
};

class Network {
 public:
  Network(World* world, const Scenario* scenario) : world_(world), scenario_(scenario) {}

  using Connected = std::function<void(absl::StatusOr<std::shared_ptr<Connection>>)>;
  // `connected` once, in this life of `worker`.
  void Connect(Process* worker, NodeRef self, FrameTaker* owner,
               std::function<void(const DataReply&)> on_reply, std::function<void()> on_closed,
               Connected connected);
  void Send(const std::shared_ptr<Connection>& connection, const DataFrame& frame);
  void Answer(const std::shared_ptr<Connection>& connection, const DataReply& reply);
  void Break(const std::shared_ptr<Connection>& connection);
  void BreakAllOf(const Process* process);
  // Nothing that this owner answers to workers arrives until then; then its connections break.
  void Mute(const Process* owner, Ticks duration);
  // Until then owners lose so many of 100 000 answers to workers.
  void LoseReplies(Ticks until, uint32_t per_100k) { lossy_until_ = until, lossy_ = per_100k; }
  // Nothing passes between these two owners until then.
  void CutLink(const Process* a, const Process* b, Ticks until);
  bool IsCut(const Process* a, const Process* b) const;

 private:
  Ticks Latency();
  Ticks Arrival(Connection::Direction& direction, uint64_t message);
  void Cut(Connection::Direction& direction);

  World* const world_;
  const Scenario* const scenario_;
  uint64_t last_id_ = 0;
  Ticks lossy_until_;
  uint32_t lossy_ = 0;
  std::map<std::string, Ticks> mute_until_;                         // by owner
  std::map<std::pair<std::string, std::string>, Ticks> cut_until_;  // by owners, in order
  std::map<uint64_t, std::weak_ptr<Connection>> connections_;
};

}  // namespace paceline::simulation
