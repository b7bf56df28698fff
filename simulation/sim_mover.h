// Chunks that an owner gives to others: a thin model of parameter/host/shard_mover.h. Parts travel
// as messages that are lost, late, or come twice, and what a plan gives back is taken back. Of one
// life of its owner.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "parameter/job_shards.h"
#include "simulation/network.h"
#include "simulation/scenario.h"

namespace paceline::simulation {

class SimServer;

class SimMover {
 public:
  struct Hooks {
    std::function<void(ChunkKey chunk, uint64_t move, std::vector<std::byte> bytes)> take_back;
    std::function<void(NodeId peer, Ticks since)> link_down;
  };
  SimMover(World* world, const Scenario* scenario, Network* network, SimServer* self, Hooks hooks)
      : world_(world),
        scenario_(scenario),
        network_(network),
        self_(self),
        hooks_(std::move(hooks)) {}

  // From the shard threads.
  void Give(OutgoingChunk chunk);
  // Each plan, when it comes and before the threads apply it.
  void Follow(const Plan& plan);
  // The job ended.
  void Forget() { parcels_.clear(); }

 private:
  struct Parcel {
    OutgoingChunk chunk;
    std::shared_ptr<const std::vector<std::byte>> bytes;
    uint64_t taken = 0;
    uint64_t attempt = 0;  // an answer to an earlier one is none
    uint32_t tries = 0;
    Ticks in_vain_since;  // 0: it is not
    Ticks next_word;
  };
  using ParcelPtr = std::shared_ptr<Parcel>;

  bool IsNewer(const OutgoingChunk& chunk) const;
  bool IsWanted(const OutgoingChunk& chunk) const;
  bool IsReturned(const OutgoingChunk& chunk) const;
  void Return(const Parcel& parcel);
  ServerInfo AddressOf(const OutgoingChunk& chunk) const;
  void SendLater(const ParcelPtr& parcel, Ticks pause);
  void Send(const ParcelPtr& parcel);
  void SendPart(const ParcelPtr& parcel, SimServer* to);
  void OnAnswer(const ParcelPtr& parcel, uint64_t attempt, uint64_t end, OperationStatus status);
  // It could not be given; told after a while.
  void InVain(const ParcelPtr& parcel);

  World* const world_;
  const Scenario* const scenario_;
  Network* const network_;
  SimServer* const self_;
  const Hooks hooks_;

  JobGeneration generation_;  // of the newest plan, with what it says of chunks that move from here
  uint64_t move_ = 0;
  std::map<ChunkKey, NodeId> to_;
  std::map<NodeId, ServerInfo> servers_;
  std::vector<ParcelPtr> parcels_;
};

}  // namespace paceline::simulation
