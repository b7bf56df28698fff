// What goes wrong in a run, when, and what goes right again: drawn from the seed as it goes on.
// Thread rule: one thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "simulation/network.h"
#include "simulation/scenario.h"
#include "simulation/sim_scheduler.h"
#include "simulation/sim_server.h"
#include "simulation/sim_worker.h"

namespace paceline::simulation {

struct Cluster {
  SimScheduler* scheduler = nullptr;
  Network* network = nullptr;
  std::vector<std::unique_ptr<SimServer>> servers;
  std::vector<std::unique_ptr<SimWorker>> workers;  // spare ones too
  std::function<bool()> has_checkpoint;             // that a job may return to
};

class Faults {
 public:
  Faults(World* world, const Scenario* scenario, Cluster* cluster);

  void Begin();
  // No more of them; what is down comes back.
  void End() { over_ = true; }
  // The newest moment at which something went wrong or came back; now, while something is away
  // that a group cannot do without.
  Ticks disturbed_at() const;
  uint32_t happened() const { return happened_; }
  // When a server was last killed; 0: never.
  Ticks server_killed_at() const { return server_killed_at_; }

 private:
  void Next();
  void Happen();
  void KillWorker();
  void Kill(SimWorker* victim);
  void StopWorker();
  void StopServer();
  void KillServer();
  void StopScheduler();
  void KillScheduler();
  void StartSchedulerAgain();
  void BreakConnections();
  void BreakWatch();
  void SlowJournal();
  void JoinSpare();
  void AskToLeave();
  void Migrate();
  void JoinServer();
  void DrainServer();
  void LoseAnswers(SimServer* server);
  void CutLink();
  void Checkpoint();
  void Restart(SimWorker* worker, Ticks delay);
  void RestartServer(SimServer* server, Ticks delay);
  void AwaitFence(NodeRef server, Ticks killed_at);
  void Disturb() { disturbed_at_ = world_->now(); }
  // A worker that the job can do without; null when there is none.
  SimWorker* Victim();
  void StopFor(Process* process, Ticks duration);

  World* const world_;
  const Scenario* const scenario_;
  Cluster* const cluster_;
  uint32_t left_;
  uint32_t happened_ = 0;
  uint32_t away_ = 0;  // servers or the scheduler, stopped or dead
  bool over_ = false;
  Ticks disturbed_at_;
  Ticks server_killed_at_;
  Ticks scheduler_back_at_;  // newest start, or end of a stop
};

}  // namespace paceline::simulation
