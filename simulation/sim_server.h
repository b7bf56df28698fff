// An owner as a process: the parts of jobs that shard threads hold (parameter/job_shards.h), with
// server/agent.h and parameter/host/router.h around them in a few lines: directives pass through
// the threads' queues, acks wait for all of them, calls to the scheduler go one at a time. Thread
// rule: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "parameter/job_shards.h"
#include "simulation/checker.h"
#include "simulation/network.h"
#include "simulation/scenario.h"
#include "simulation/sim_disk.h"
#include "simulation/sim_mover.h"
#include "simulation/sim_scheduler.h"

namespace paceline::simulation {

class SimServer final : public FrameTaker {
 public:
  SimServer(World* world, const Scenario* scenario, const Bugs* bugs, Checker* checker,
            SimScheduler* scheduler, Network* network, SimDisk* disk, const std::string& name)
      : FrameTaker(world, name),
        scenario_(scenario),
        bugs_(bugs),
        checker_(checker),
        scheduler_(scheduler),
        network_(network),
        disk_(disk) {}

  NodeRef self() const { return self_; }
  // Where another owner is; set before the first Start.
  std::function<SimServer*(const std::string& name)> find_server;
  // Whether it lets another owner in.
  bool Knows(NodeRef owner) const {
    const auto it = servers_.find(owner.node);
    return it != servers_.end() && it->second == owner.incarnation;
  }
  // The part `part.step` on of the bytes of a chunk comes; `done` with the answer.
  void TakePart(const Operation& part, std::shared_ptr<const std::vector<std::byte>> bytes,
                std::function<void(OperationStatus)> done);

  // FrameTaker
  absl::Status Authenticate(NodeRef worker) override;
  void OnOpened(const std::shared_ptr<Connection>& connection) override;
  void OnFrame(const std::shared_ptr<Connection>& connection, const DataFrame& frame) override;
  void OnClosed(const std::shared_ptr<Connection>& connection) override;

 protected:
  void OnStart() override;
  void OnKill() override;

 private:
  static constexpr uint32_t kThreads = 2;
  using Replies = JobShards::Replies;
  using OperationKey = std::tuple<ChunkKey, Incarnation, Step, Ordinal>;
  using RoundKey = std::tuple<ChunkKey, GroupId, Step, Ordinal>;
  struct Lane {
    FloatPool pool{16u << 20};
    std::optional<JobShards> job;
    Ticks last;  // when the newest of its queue is done
  };
  using Done = std::function<void()>;
  class MovedHere;

  void Join();
  void OpenWatch();
  void OnDirective(const Directive& directive);
  void Apply(const PlanDirective& directive);
  void Apply(const PrepareDirective& directive);
  void Apply(const CommitDirective& directive);
  void Apply(const AbortDirective& directive);
  void Apply(const FenceDirective& directive);
  void Apply(const SealedDirective& directive);
  void Apply(const CutDirective& directive);
  // sim_server_cuts.cc
  void PostToDisk(std::function<void()> task);
  void Load(const Plan& plan, Done done);
  void AbortCuts();
  void ReleaseCuts();
  void Collect(const CutDirective& cut);
  void CopyAt(const CutDirective& cut);
  void WritePart(const CutDirective& cut, std::vector<ChunkSnapshot> chunks);

  void Apply(const RecallSamplesDirective&) {}
  void Apply(const RemoveDirective&) {}
  void Apply(const EndJobDirective& directive);
  void MakeMover();
  std::shared_ptr<MovedHere> ArrivalsOf(const Plan& plan);
  void OnArrived(uint64_t move, std::vector<ChunkKey> missing);
  void TakeBack(ChunkKey chunk, uint64_t move, std::vector<std::byte> bytes);
  // As VerdictLinks: again and again until it is answered.
  void Ask(uint32_t lane, OutgoingQuestion question);
  void SendQuestion(uint64_t token);
  void TakeQuestion(SimServer* from, uint64_t token, const OutgoingQuestion& question);
  void Answer(const Reply& reply);
  void OnAnswer(uint64_t token, const Reply& reply);
  void Learn(const std::vector<GroupPlan>& groups);

  void Post(uint32_t lane, std::function<void()> task);
  // Runs `task` on the queue of every thread; `done` after the last.
  void OnEveryThread(const std::function<void(JobShards&, Replies*)>& task, Done done);
  Done AckWhenDone(uint64_t id);
  void TakeFrame(uint32_t lane, uint64_t route, const DataFrame& frame,
                 std::shared_ptr<BoundaryAnswer> boundary);
  void Send(uint32_t lane, Replies& replies);
  void Queue(NodeRequest request);
  void Pump();
  void OnReportDue();
  void Report();
  void Call(NodeRequest request, bool queued);

  // ---- Bugs
  DataFrame WithOldSum(DataFrame frame);
  void RememberSum(const DataFrame& frame);
  void KeepSums(const Replies& replies);

  const Scenario* const scenario_;
  const Bugs* const bugs_;
  Checker* const checker_;
  SimScheduler* const scheduler_;
  Network* const network_;
  SimDisk* const disk_;

  // Of one life.
  NodeRef self_;
  std::shared_ptr<WatchStream> stream_;
  std::unique_ptr<std::array<Lane, kThreads>> lanes_;
  std::map<uint64_t, std::shared_ptr<Connection>> routes_;
  std::map<NodeId, Incarnation> known_;
  std::map<NodeId, Incarnation> fenced_;
  std::map<NodeId, Incarnation> servers_;
  std::optional<SimMover> mover_;
  std::deque<NodeRequest> outbox_;
  bool report_due_ = false;
  bool calling_ = false;
  bool ended_ = false;
  bool cutting_ = false;  // a cut may hold later steps
  Ticks disk_free_at_;
  std::map<uint64_t, std::pair<uint32_t, OutgoingQuestion>> asked_;  // by token; of which lane
  struct Asker {
    SimServer* server;
    Life life;
    uint64_t token;
  };
  std::map<uint64_t, Asker> askers_;  // by route
  uint64_t last_token_ = 0;

  // Of the bugs.
  std::set<OperationKey> answered_;
  std::map<RoundKey, std::vector<float>> sums_;
  std::map<RoundKey, std::vector<float>> old_sums_;
};

}  // namespace paceline::simulation
