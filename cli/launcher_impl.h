// One run of the launcher: launcher.cc starts what it needs, launcher_watch.cc watches and ends it.
// Thread rule: one thread, the main one.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cli/job_monitor.h"
#include "cli/launcher.h"
#include "cli/process.h"
#include "cli/signals.h"
#include "cli/summary.h"
#include "common/runtime/clock.h"

namespace paceline {

class Launcher {
 public:
  static constexpr size_t kLogLines = 10;  // of a process that ended

  Launcher(const LaunchConfig& config, const LauncherContext& context)
      : config_(config),
        context_(context),
        clock_(Clock::Real()),
        started_(clock_.Now()),
        workers_(config.add != 0 ? config.add : config.job.workers),
        monitor_(config.job.name) {}

  int Run();

 private:
  absl::Status Prepare();
  absl::Status StartDaemons();
  absl::StatusOr<std::string> StartDaemon(const std::string& role, const std::string& name,
                                          const std::string& executable,
                                          std::vector<std::string> arguments);
  absl::StatusOr<std::string> AwaitReady(size_t process);
  absl::Status Connect();
  absl::Status Attach();
  absl::Status Resume();
  absl::Status StartWorker(uint32_t index);
  Environment WorkerEnvironment(uint32_t index) const;

  void WatchWorkers();
  void Wait(Ticks until);
  void TakeSignals();
  void ReapAll();
  void ShowEnd(const std::string& what, const Process& process);
  void OnEnd(size_t index);
  void TellScheduler(const Process& process);
  void OnWorkerFailed(uint32_t index, const std::string& what);
  void Fail(const std::string& reason);
  void Poll();
  void ShowProgress();
  void QueryLastCounts();
  void WriteSummaryFile();
  RunSummary Summary() const;

  void Finish();
  void StopRole(const std::string& role, int signal, Ticks grace);
  void KillRole(const std::string& role, Ticks waited);
  void CheckDaemonEnds();
  void SweepStrays();
  bool AnyLive(const std::string& role) const;
  int ExitCodeOf() const;
  bool interrupted() const { return first_signal_ != 0; }

  LaunchConfig config_;
  const LauncherContext& context_;
  const Clock& clock_;
  const Ticks started_;
  const uint32_t workers_;    // to start
  uint32_t first_index_ = 0;  // of them
  SignalSource signals_;
  Guard guard_;
  std::string directory_;
  std::string scheduler_;  // address
  std::string program_;
  JobMonitor monitor_;
  std::vector<Process> processes_;
  std::map<uint32_t, uint32_t> restarts_left_;  // by worker index
  std::set<std::string> lost_servers_;          // that the job went on without, or ended for
  std::optional<Ticks> gone_by_;                // after a signal: when every process has to be gone
  std::vector<uint32_t> finished_;              // indices whose worker ended well or is given up
  std::string reason_;                          // first failure
  bool watched_ = false;                        // the workers were started and watched to their end
  bool stopping_ = false;                       // ends of processes are expected
  bool unreachable_ = false;
  bool no_such_job_ = false;  // to add workers to
  int first_signal_ = 0;
  uint32_t unanswered_ = 0;  // polls in a row
  bool hurried_ = false;     // a second signal came
  Ticks next_poll_;
  Ticks next_line_;
  std::string last_line_;
};

}  // namespace paceline
