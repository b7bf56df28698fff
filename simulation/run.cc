#include "simulation/run.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "simulation/faults.h"

namespace paceline::simulation {
namespace {

constexpr Ticks kLook = Milliseconds(100);
constexpr Ticks kLongest = Seconds(150);
constexpr Ticks kFaultsUntil = Seconds(20);
// Owners report what they counted after the last worker has left.
constexpr Ticks kLastReports = Seconds(4);
// Until the scheduler misses a server that died at the end.
constexpr Ticks kMissed = Seconds(8);

class Simulation {
 public:
  Simulation(uint64_t seed, const RunOptions& options)
      : options_(options),
        world_(seed, options.keep_lines, options.on_line),
        scenario_(DrawScenario(world_.random())),
        checker_(&world_, &scenario_),
        scheduler_(&world_, &scenario_, &options_.bugs, &checker_),
        network_(&world_, &scenario_) {
    cluster_.scheduler = &scheduler_;
    cluster_.network = &network_;
    cluster_.has_checkpoint = [this] { return checker_.recorded_checkpoints() > 0; };
    for (uint32_t i = 0; i < scenario_.servers + scenario_.spare_servers; ++i) {
      cluster_.servers.push_back(std::make_unique<SimServer>(&world_, &scenario_, &options_.bugs,
                                                             &checker_, &scheduler_, &network_,
                                                             &disk_, absl::StrCat("server-", i)));
      cluster_.servers.back()->find_server = [this](const std::string& name) {
        for (const auto& server : cluster_.servers) {
          if (server->name() == name) return server.get();
        }
        return static_cast<SimServer*>(nullptr);
      };
    }
    for (uint32_t i = 0; i < scenario_.job.workers + scenario_.spare_workers; ++i) {
      cluster_.workers.push_back(std::make_unique<SimWorker>(
          &world_, &scenario_, &checker_, &scheduler_, &network_,
          [this](const std::string& name) { return Find(name); }, i));
    }
    faults_ = std::make_unique<Faults>(&world_, &scenario_, &cluster_);
  }

  RunResult Run() {
    world_.Trace(Describe(scenario_));
    Start();
    faults_->Begin();
    const Ticks start = world_.now();
    RunResult result;
    while (!world_.violation() && world_.now() - start < kLongest) {
      world_.RunUntil(world_.now() + kLook);
      if (world_.now() - start > kFaultsUntil) faults_->End();
      if (world_.violation() || Ended(&result)) break;
      CheckProgress();
    }
    if (!world_.violation() && world_.now() - start >= kLongest) {
      world_.Fail("the job ends", absl::StrCat("not after 150 s", Doing()));
    }
    result.violation = world_.violation();
    result.scenario = Describe(scenario_);
    result.lines.assign(world_.lines().begin(), world_.lines().end());
    result.events = world_.events();
    result.updates = checker_.updates();
    result.checkpoints = checker_.checkpoints();
    result.rollbacks = checker_.rollbacks();
    result.faults = faults_->happened();
    result.took = world_.now() - start;
    return result;
  }

 private:
  FrameTaker* Find(const std::string& name) {
    for (const auto& server : cluster_.servers) {
      if (server->name() == name) return server.get();
    }
    return nullptr;
  }

  // In any order, as machines come up.
  void Start() {
    std::vector<Process*> all{&scheduler_};
    for (uint32_t i = 0; i < scenario_.servers; ++i) all.push_back(cluster_.servers[i].get());
    for (uint32_t i = 0; i < scenario_.job.workers; ++i) all.push_back(cluster_.workers[i].get());
    for (Process* process : all) {
      world_.After(world_.random().TimeBetween(Ticks(0), Milliseconds(400)), [process] {
        if (process->life() == 0) process->Start();
      });
    }
  }

  // True when the job is over and everything that must hold then was looked at.
  bool Ended(RunResult* result) {
    if (!scheduler_.running()) return false;
    std::optional<JobView> job = TheJob();
    // A scheduler that starts again does not show what had ended before.
    if (!job) return begun_;
    begun_ = true;
    if (job->state < JobState::kFinished) return false;
    if (job->state == JobState::kStopped) {
      // When the last worker died, the next one begins another job, which is of no concern.
      if (!MayStop(job->reason)) {
        world_.Fail("the job ends", absl::StrCat("it failed: ", job->reason));
      }
      return true;
    }
    const bool busy =
        std::any_of(cluster_.workers.begin(), cluster_.workers.end(),
                    [](const auto& worker) { return worker->running() && worker->training(); });
    if (busy) return false;
    faults_->End();
    world_.RunUntil(world_.now() + kLastReports);
    if (world_.violation()) return true;
    if (!scheduler_.running()) world_.RunUntil(world_.now() + Seconds(5));
    // With all workers gone nothing returns to a checkpoint.
    const bool counts_lost = faults_->server_killed_at() > checker_.rolled_back_at();
    if (counts_lost) world_.RunUntil(world_.now() + kMissed);
    job = TheJob();
    if (!job) return true;
    const bool nobody_stayed = std::none_of(
        cluster_.workers.begin(), cluster_.workers.end(),
        [](const auto& worker) { return worker->left() && !worker->asked_to_leave(); });
    // What the last owner of the lead chunk had told is lost with a scheduler that dies, too.
    const bool told = scheduler_.life() == 1;
    if (counts_lost && !told) return true;
    checker_.OnFinished(*job, {counts_lost, nobody_stayed});
    result->balanced = !counts_lost;
    return true;
  }

  bool MayStop(const std::string& reason) const {
    const auto says = [&reason](const char* text) {
      return reason.find(text) != std::string::npos;
    };
    if (says("it was the last")) return true;
    if (!scenario_.servers_die || !says("the shards it held are lost")) return false;
    return says("no server is left") ||
           (says("there is no checkpoint") && checker_.recorded_checkpoints() == 0);
  }

  // The first one; those that stragglers begin later are of no concern.
  std::optional<JobView> TheJob() {
    const ClusterView view = scheduler_.Status();
    for (const JobView& job : view.jobs) {
      if (job.id == JobId(1)) return job;
    }
    return std::nullopt;
  }

  std::string Doing() const {
    std::string text;
    for (const auto& worker : cluster_.workers) {
      if (worker->life() > 0) absl::StrAppend(&text, "\n    ", worker->Doing());
    }
    return text;
  }

  // Within failure_timeout + 2 s of the last thing that went wrong each group goes on.
  void CheckProgress() {
    const Ticks bound = Milliseconds(scenario_.job.failure_timeout_ms) + Seconds(2);
    const std::map<GroupId, Ticks> progress = checker_.progress();
    for (const auto& worker : cluster_.workers) {
      const auto group = worker->waiting_group();
      if (!group) continue;
      const auto it = progress.find(*group);
      Ticks since = std::max(faults_->disturbed_at(), worker->since());
      if (it != progress.end()) since = std::max(since, it->second);
      if (world_.now() - since <= bound) continue;
      return world_.Fail("progress",
                         absl::StrCat("group ", group->value(), " had no round for ",
                                      (world_.now() - since).value() / 1'000'000, " ms", Doing()));
    }
  }

  const RunOptions options_;
  World world_;
  const Scenario scenario_;
  Checker checker_;
  SimScheduler scheduler_;
  Network network_;
  SimDisk disk_;
  Cluster cluster_;
  std::unique_ptr<Faults> faults_;
  bool begun_ = false;  // the job
};

}  // namespace

RunResult Run(uint64_t seed, const RunOptions& options) { return Simulation(seed, options).Run(); }

}  // namespace paceline::simulation
