// `pacelinectl run`: starts the processes of one job, watches them and ends them all.
// One thread waits on a signalfd and on a pidfd per process; nothing races with SIGCHLD.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "common/config/config.h"
#include "common/config/environment.h"
#include "control/control_client.h"

namespace paceline {

using ControlClientFactory = std::function<absl::StatusOr<std::unique_ptr<ControlClient>>(
    const std::string& address, const TlsConfig& tls)>;

// Exit codes, as --help and docs/cli.md list them.
enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitNoSuchJob = 4,
  kExitSignalBase = 128,  // + the signal that interrupted the launcher
};

struct LauncherContext {
  Environment environment;
  std::string binary_directory;  // where paceline-scheduler and paceline-server lie
  ControlClientFactory connect;
  std::ostream* out = nullptr;  // summary, progress
  std::ostream* err = nullptr;  // what went wrong
  bool terminal = false;        // `out` is one: the progress line is redrawn in place
  // Time that processes get between the signal and SIGKILL; all ends within twice that and 1 s.
  uint32_t grace_ms = 2000;
  // The checkpoint to go on from; told to the scheduler before the first worker starts.
  std::optional<ResumeJobRequest> resume{};
};

// Blocks until everything it started has ended. Returns the exit code.
// Must be called from the main thread, once per process: it blocks SIGINT, SIGTERM and SIGHUP and
// makes the process a subreaper.
int RunLauncher(const LaunchConfig& config, const LauncherContext& context);

}  // namespace paceline
