#include "simulation/faults.h"

#include <algorithm>

namespace paceline::simulation {
namespace {

constexpr Ticks kServerTimeout = Milliseconds(5500);  // as the scheduler's options, and a bit
constexpr Ticks kLook = Milliseconds(50);

}  // namespace

Faults::Faults(World* world, const Scenario* scenario, Cluster* cluster)
    : world_(world),
      scenario_(scenario),
      cluster_(cluster),
      left_(scenario->faults),
      disturbed_at_(world->now()) {
  for (const auto& worker : cluster_->workers) {
    SimWorker* const it = worker.get();
    // A supervisor starts a program again that ended with an error.
    it->on_failed = [this, it] {
      Disturb();
      Restart(it, world_->random().TimeBetween(Milliseconds(20), Milliseconds(400)));
    };
  }
}

Ticks Faults::disturbed_at() const { return away_ > 0 ? world_->now() : disturbed_at_; }

void Faults::Begin() { Next(); }

void Faults::Next() {
  if (left_ == 0 || over_) return;
  --left_;
  world_->After(world_->random().TimeBetween(Milliseconds(30), Milliseconds(1500)), [this] {
    if (over_) return;
    Happen();
    Next();
  });
}

void Faults::Happen() {
  using Fault = void (Faults::*)();
  static constexpr Fault kFaults[] = {
      &Faults::KillWorker,    &Faults::KillWorker,       &Faults::KillWorker,
      &Faults::StopWorker,    &Faults::StopWorker,       &Faults::StopServer,
      &Faults::StopScheduler, &Faults::KillScheduler,    &Faults::KillScheduler,
      &Faults::KillScheduler, &Faults::BreakConnections, &Faults::BreakWatch,
      &Faults::BreakWatch,    &Faults::SlowJournal,      &Faults::JoinSpare,
      &Faults::JoinSpare,     &Faults::AskToLeave,       &Faults::Migrate,
      &Faults::Migrate,       &Faults::Migrate,          &Faults::Migrate,
      &Faults::JoinServer,    &Faults::JoinServer,       &Faults::DrainServer,
      &Faults::DrainServer,   &Faults::DrainServer,      &Faults::DrainServer,
      &Faults::DrainServer,   &Faults::DrainServer,      &Faults::CutLink,
      &Faults::Checkpoint,    &Faults::KillServer,       &Faults::KillServer,
      &Faults::KillServer,
  };
  ++happened_;
  Disturb();
  (this->*kFaults[world_->random().Below(std::size(kFaults))])();
}

SimWorker* Faults::Victim() {
  std::vector<SimWorker*> training;
  for (const auto& worker : cluster_->workers) {
    // Who is to leave ends no epoch: another has to stay.
    const bool stays = worker->running() && worker->training() && !worker->asked_to_leave();
    if (stays) training.push_back(worker.get());
  }
  if (training.size() < 2) return nullptr;
  return training[world_->random().Below(training.size())];
}

void Faults::Restart(SimWorker* worker, Ticks delay) {
  world_->After(delay, [this, worker] {
    if (worker->alive() || worker->left() || over_) return;
    world_->Trace("fault: ", worker->name(), " is started again");
    Disturb();
    worker->Start();
  });
}

void Faults::KillWorker() {
  if (SimWorker* const victim = Victim()) Kill(victim);
}

void Faults::Kill(SimWorker* victim) {
  const bool seen = world_->random().OneIn(2);
  world_->Trace("fault: ", victim->name(), " is killed", seen ? ", its launcher sees it" : "");
  const NodeRef self = victim->self();
  victim->Kill();
  if (seen) cluster_->scheduler->ProcessEnded(self);
  if (world_->random().OneIn(5)) return;  // for good
  Restart(victim, world_->random().TimeBetween(Milliseconds(1), Seconds(4)));
}

void Faults::StopFor(Process* process, Ticks duration) {
  world_->Trace("fault: ", process->name(), " is stopped for ", duration.value() / 1'000'000,
                " ms");
  process->Stop();
  const Life life = process->life();
  world_->After(duration, [this, process, life] {
    if (process->life() != life) return;
    world_->Trace("fault: ", process->name(), " is continued");
    Disturb();
    process->Continue();
  });
}

void Faults::StopWorker() {
  SimWorker* const victim = Victim();
  if (victim == nullptr) return;
  const auto longest = Milliseconds(scenario_->job.failure_timeout_ms) + Seconds(3);
  StopFor(victim, world_->random().TimeBetween(Milliseconds(20), longest));
}

// Another is there to take its chunks; the job has a checkpoint to return to, mostly.
void Faults::KillServer() {
  std::vector<SimServer*> running;
  for (const auto& server : cluster_->servers) {
    if (server->running() && server->self() != NodeRef()) running.push_back(server.get());
  }
  if (!scenario_->servers_die || running.size() < 2) return;
  if (!cluster_->has_checkpoint() && !world_->random().OneIn(20)) return;
  SimServer* const victim = running[world_->random().Below(running.size())];
  const bool seen = world_->random().OneIn(2);
  world_->Trace("fault: ", victim->name(), " is killed", seen ? ", its launcher sees it" : "");
  const NodeRef self = victim->self();
  victim->Kill();
  if (seen) cluster_->scheduler->ProcessEnded(self);
  server_killed_at_ = world_->now();
  ++away_;
  AwaitFence(self, world_->now());
  RestartServer(victim, world_->random().TimeBetween(Milliseconds(1), Seconds(7)));
}

// Groups wait for as long as the scheduler may take it for alive.
void Faults::AwaitFence(NodeRef server, Ticks killed_at) {
  const Ticks since = std::max(killed_at, scheduler_back_at_);
  const bool up = cluster_->scheduler->running();
  if (up && (!cluster_->scheduler->Knows(server) || world_->now() - since > kServerTimeout)) {
    --away_;
    return Disturb();
  }
  world_->After(kLook, [this, server, killed_at] { AwaitFence(server, killed_at); });
}

void Faults::RestartServer(SimServer* server, Ticks delay) {
  world_->After(delay, [this, server] {
    world_->Trace("fault: ", server->name(), " is started again");
    Disturb();
    server->Start();
  });
}

// Servers that are silent for longer than their failure timeout end the job.
void Faults::StopServer() {
  SimServer* const server =
      cluster_->servers[world_->random().Below(cluster_->servers.size())].get();
  if (!server->running()) return;
  const Ticks duration = world_->random().TimeBetween(Milliseconds(20), Seconds(3));
  ++away_;
  StopFor(server, duration);
  world_->After(duration, [this] { --away_; });
}

void Faults::StopScheduler() {
  if (!cluster_->scheduler->running()) return;
  const Ticks duration = world_->random().TimeBetween(Milliseconds(20), Seconds(4));
  ++away_;
  StopFor(cluster_->scheduler, duration);
  world_->After(duration, [this] {
    --away_;
    scheduler_back_at_ = world_->now();
  });
}

void Faults::KillScheduler() {
  if (!cluster_->scheduler->alive()) return;
  Ticks delay;
  if (world_->random().OneIn(2)) {  // with much that is decided and not durable
    SlowJournal();
    delay = world_->random().TimeBetween(Milliseconds(1), Milliseconds(600));
  }
  world_->After(delay, [this] {
    if (!cluster_->scheduler->alive()) return;
    world_->Trace("fault: the scheduler is killed");
    Disturb();
    cluster_->scheduler->Kill();
    ++away_;
    StartSchedulerAgain();
  });
}

void Faults::StartSchedulerAgain() {
  world_->After(world_->random().TimeBetween(Milliseconds(5), Seconds(2)), [this] {
    --away_;
    Disturb();
    scheduler_back_at_ = world_->now();
    cluster_->scheduler->Start();
  });
}

void Faults::BreakConnections() {
  const uint64_t which =
      world_->random().Below(cluster_->servers.size() + cluster_->workers.size());
  const Process* process = which < cluster_->servers.size()
                               ? static_cast<Process*>(cluster_->servers[which].get())
                               : cluster_->workers[which - cluster_->servers.size()].get();
  world_->Trace("fault: all connections of ", process->name(), " break");
  cluster_->network->BreakAllOf(process);
}

void Faults::BreakWatch() {
  const uint64_t which =
      world_->random().Below(cluster_->servers.size() + cluster_->workers.size());
  cluster_->scheduler->BreakWatchOf(
      which < cluster_->servers.size() ? static_cast<Process*>(cluster_->servers[which].get())
                                       : cluster_->workers[which - cluster_->servers.size()].get());
}

void Faults::SlowJournal() {
  const Ticks sync = world_->random().TimeBetween(Milliseconds(50), Milliseconds(400));
  world_->Trace("fault: a write of the journal takes ", sync.value() / 1'000'000, " ms");
  cluster_->scheduler->journal().Slow(world_->now() + Seconds(3), sync);
}

void Faults::JoinSpare() {
  for (const auto& worker : cluster_->workers) {
    if (worker->alive() || worker->left() || worker->life() > 0) continue;
    world_->Trace("fault: ", worker->name(), " joins");
    return worker->Start();
  }
}

void Faults::AskToLeave() {
  SimWorker* const victim = Victim();
  if (victim == nullptr) return;
  world_->Trace("fault: ", victim->name(), " is asked to leave");
  victim->AskToLeave();
}

// Mostly to where another one is; to where it is, or where no group is, is refused.
void Faults::Migrate() {
  SimWorker* const victim = Victim();
  if (victim == nullptr) return;
  std::vector<GroupId> others;
  for (const auto& worker : cluster_->workers) {
    const std::optional<GroupId> group = worker->running() ? worker->group() : std::nullopt;
    if (group && group != victim->group()) others.push_back(*group);
  }
  MoveWorkerRequest move{scenario_->job.name, victim->name(), std::nullopt, ""};
  const uint64_t choice = world_->random().Below(8);
  if (choice == 0) move.group = GroupId(static_cast<uint32_t>(world_->random().Below(7)));
  if (choice > 1 && !others.empty()) move.group = others[world_->random().Below(others.size())];
  world_->Trace("fault: ", victim->name(), " is to go to ",
                move.group ? absl::StrCat("group ", move.group->value()) : "a group of its own");
  cluster_->scheduler->Operate(std::move(move));
  if (!world_->random().OneIn(4)) return;
  // It may be on its way by then.
  const Life life = victim->life();
  world_->After(world_->random().TimeBetween(Milliseconds(1), Milliseconds(150)),
                [this, victim, life] {
                  if (over_ || victim->life() != life || !victim->running()) return;
                  if (!victim->training() || Victim() == nullptr) return;
                  Disturb();
                  Kill(victim);
                });
}

// ---- Chunks that move -------------------------------------------------------------------------

// Chunks spread to it.
void Faults::JoinServer() {
  for (const auto& server : cluster_->servers) {
    if (server->life() > 0) continue;
    world_->Trace("fault: ", server->name(), " joins");
    return server->Start();
  }
  DrainServer();
}

// Refused when it is the last.
void Faults::DrainServer() {
  std::vector<SimServer*> running;
  for (const auto& server : cluster_->servers) {
    if (server->running()) running.push_back(server.get());
  }
  if (running.empty()) return;
  SimServer* const server = running[world_->random().Below(running.size())];
  const bool undo = world_->random().OneIn(3);
  world_->Trace("fault: ", server->name(), undo ? " drains no longer" : " drains");
  cluster_->scheduler->Operate(DrainServerRequest{server->name(), undo});
  if (!world_->random().OneIn(3)) LoseAnswers(server);
  if (world_->random().OneIn(4)) CutLink();
}

// What it has answered has to be asked for at the owner after it, and there again.
void Faults::LoseAnswers(SimServer* server) {
  const Ticks mute = world_->random().TimeBetween(Milliseconds(50), Milliseconds(800));
  const Ticks lossy = world_->random().TimeBetween(Milliseconds(50), Seconds(2));
  world_->Trace("fault: all answers of ", server->name(), " are lost for ",
                mute.value() / 1'000'000, " ms, many of all servers for ",
                lossy.value() / 1'000'000, " ms after that");
  cluster_->network->Mute(server, mute);
  world_->After(mute, [this, lossy] {
    Disturb();
    cluster_->network->LoseReplies(world_->now() + lossy, 20'000);
  });
  world_->After(mute + lossy, [this] { Disturb(); });
}

// What should move there goes back to where it was.
void Faults::CutLink() {
  const size_t count = cluster_->servers.size();
  if (count < 2) return;
  const size_t a = world_->random().Below(count);
  const size_t b = (a + 1 + world_->random().Below(count - 1)) % count;
  const Ticks duration = world_->random().TimeBetween(Milliseconds(50), Seconds(6));
  world_->Trace("fault: nothing passes between ", cluster_->servers[a]->name(), " and ",
                cluster_->servers[b]->name(), " for ", duration.value() / 1'000'000, " ms");
  cluster_->network->CutLink(cluster_->servers[a].get(), cluster_->servers[b].get(),
                             world_->now() + duration);
  // Owners ask the lead one for verdicts over it.
  const bool needed = scenario_->job.quorum > 0;
  if (needed) ++away_;
  world_->After(duration, [this, needed] {
    if (needed) --away_;
    Disturb();
  });
}

void Faults::Checkpoint() {
  world_->Trace("fault: a checkpoint is asked for");
  cluster_->scheduler->Operate(CheckpointJobRequest{scenario_->job.name, "/asked-for"});
}

}  // namespace paceline::simulation
