#include "cli/launcher.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/launcher_impl.h"
#include "cli/run_directory.h"
#include "common/base/status.h"

namespace paceline {
namespace {

constexpr Ticks kReadyTimeout = Seconds(20);
constexpr Ticks kAttachTimeout = Seconds(5);

}  // namespace

int Launcher::Run() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGPIPE, SIG_IGN);
  absl::Status status = Prepare();
  if (status.ok() && config_.scheduler.empty()) status = StartDaemons();
  if (status.ok() && !interrupted()) status = Resume();
  for (uint32_t i = 0; status.ok() && !interrupted() && i < workers_; ++i) {
    restarts_left_[first_index_ + i] = config_.restarts;
    status = StartWorker(first_index_ + i);
  }
  if (status.ok()) {
    WatchWorkers();
    watched_ = true;
  } else if (!interrupted()) {
    Fail(std::string(status.message()));
  }
  Finish();
  return ExitCodeOf();
}

absl::Status Launcher::Prepare() {
  PACELINE_ASSIGN_OR_RETURN(
      program_,
      FindExecutable(config_.program.front(), context_.binary_directory, context_.environment));
  PACELINE_ASSIGN_OR_RETURN(guard_, Guard::Start());
  // Before anything is written: what is asked of the cluster may be refused.
  if (!config_.scheduler.empty()) PACELINE_RETURN_IF_ERROR(Attach());
  PACELINE_ASSIGN_OR_RETURN(directory_, CreateRunDirectory(config_.output, config_.job.name));
  // Servers that are started here share this machine's disk.
  if (config_.scheduler.empty() && config_.job.checkpoint_dir.empty()) {
    config_.job.checkpoint_dir = std::filesystem::absolute(directory_ + "/checkpoints").string();
  }
  WriteSummaryFile();
  return absl::OkStatus();
}

absl::Status Launcher::StartDaemons() {
  PACELINE_ASSIGN_OR_RETURN(
      const std::string scheduler,
      FindExecutable("paceline-scheduler", context_.binary_directory, context_.environment));
  PACELINE_ASSIGN_OR_RETURN(
      const std::string server,
      FindExecutable("paceline-server", context_.binary_directory, context_.environment));
  const std::string timeout = absl::StrCat(config_.job.failure_timeout_ms);
  const uint32_t heartbeat = std::clamp(config_.job.failure_timeout_ms / 5, 10u, 500u);
  PACELINE_ASSIGN_OR_RETURN(
      scheduler_,
      StartDaemon("scheduler", "scheduler", scheduler,
                  {"--listen=127.0.0.1:0", "--state-dir=" + directory_ + "/scheduler",
                   "--failure-timeout-ms=" + timeout, absl::StrCat("--heartbeat-ms=", heartbeat)}));
  for (uint32_t i = 0; i < config_.servers && !interrupted(); ++i) {
    const std::string name = absl::StrCat("server-", i);
    PACELINE_RETURN_IF_ERROR(
        StartDaemon("server", name, server,
                    {"--name=" + name, "--scheduler=" + scheduler_, "--bind=127.0.0.1:0"})
            .status());
  }
  return Connect();
}

absl::StatusOr<std::string> Launcher::StartDaemon(const std::string& role, const std::string& name,
                                                  const std::string& executable,
                                                  std::vector<std::string> arguments) {
  SpawnRequest request{role,
                       name,
                       executable,
                       std::move(arguments),
                       context_.environment,
                       directory_ + "/" + name + ".log",
                       true};
  // What the launcher was told is in the flags; a variable meant for it must not reach a daemon.
  for (const auto& [variable, value] : context_.environment.variables()) {
    if (variable.starts_with("PACELINE_")) request.environment.Remove(variable);
  }
  if (const auto level = context_.environment.Get("PACELINE_LOG_LEVEL")) {
    request.environment.Set("PACELINE_LOG_LEVEL", *level);
  }
  PACELINE_ASSIGN_OR_RETURN(Process process, Spawn(request, guard_, clock_.Now()));
  processes_.push_back(std::move(process));
  return AwaitReady(processes_.size() - 1);
}

// Reads "host:port\n" from the daemon's pipe, until it ends, a signal comes or time is up.
absl::StatusOr<std::string> Launcher::AwaitReady(size_t index) {
  Process& process = processes_[index];
  const Ticks deadline = clock_.Now() + kReadyTimeout;
  std::string address;
  while (!interrupted() && clock_.Now() < deadline) {
    pollfd fds[] = {{process.ready.get(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    poll(fds, 2, 100);
    TakeSignals();
    if (fds[0].revents == 0) continue;
    char buffer[256];
    const ssize_t got = read(process.ready.get(), buffer, sizeof(buffer));
    if (got > 0) address.append(buffer, static_cast<size_t>(got));
    const size_t end = address.find('\n');
    if (end != std::string::npos) {
      process.ready.Close();
      address.resize(end);
      PACELINE_RETURN_IF_ERROR(
          Annotate(ParseHostPort(address).status(), process.name + " reported its address"));
      return address;
    }
    if (got <= 0 || address.size() > 1024) break;
  }
  if (interrupted()) return absl::CancelledError("interrupted");
  // Its pipe closed: it is ending; its exit code says more than the pipe.
  for (int i = 0; i < 20 && !Reap(process, guard_, clock_.Now()); ++i) poll(nullptr, 0, 50);
  *context_.err << LastLines(process.log_path, kLogLines) << "\n";
  return absl::UnavailableError(absl::StrCat(process.name,
                                             process.ended
                                                 ? " ended before it was ready: " + EndOf(process)
                                                 : std::string(" was not ready in time"),
                                             "; see ", process.log_path));
}

absl::Status Launcher::Connect() {
  absl::StatusOr<std::unique_ptr<ControlClient>> client = context_.connect(scheduler_, config_.tls);
  if (!client.ok()) {
    unreachable_ = true;
    return client.status();
  }
  monitor_.Use(*std::move(client));
  return absl::OkStatus();
}

absl::Status Launcher::Attach() {
  scheduler_ = config_.scheduler;
  PACELINE_RETURN_IF_ERROR(Connect());
  if (config_.add != 0) {
    auto running = monitor_.FindRunning(kAttachTimeout);
    no_such_job_ = absl::IsNotFound(running.status());
    unreachable_ = !running.ok() && !no_such_job_;
    PACELINE_RETURN_IF_ERROR(running.status());
    config_.job = std::move(running->spec);
    first_index_ = running->first_free;
    return absl::OkStatus();
  }
  const absl::Status status = monitor_.CheckName(kAttachTimeout);
  unreachable_ = !status.ok() && !absl::IsAlreadyExists(status);
  return status;
}

absl::Status Launcher::Resume() {
  if (!context_.resume) return absl::OkStatus();
  return Annotate(monitor_.Resume(*context_.resume, Seconds(10)), "resume");
}

Environment Launcher::WorkerEnvironment(uint32_t index) const {
  Environment env = context_.environment;
  env.Remove("PACELINE_CONFIG");  // the launcher's file, whose job keys follow as variables
  for (const auto& [variable, value] : JobEnvironment(config_.job)) env.Set(variable, value);
  env.Set("PACELINE_SCHEDULER", scheduler_);
  env.Set("PACELINE_WORKER_INDEX", absl::StrCat(index));
  env.Set("PACELINE_WORKER_NAME", absl::StrCat("worker-", index));
  if (config_.insecure) env.Set("PACELINE_INSECURE", "true");
  if (config_.tls.enabled()) {
    env.Set("PACELINE_TLS_CERT", config_.tls.cert);
    env.Set("PACELINE_TLS_KEY", config_.tls.key);
    env.Set("PACELINE_TLS_CA", config_.tls.ca);
  }
  return env;
}

absl::Status Launcher::StartWorker(uint32_t index) {
  const std::string name = absl::StrCat("worker-", index);
  SpawnRequest request{"worker",
                       name,
                       program_,
                       {config_.program.begin() + 1, config_.program.end()},
                       WorkerEnvironment(index),
                       directory_ + "/" + name + ".log",
                       false};
  PACELINE_ASSIGN_OR_RETURN(Process process, Spawn(request, guard_, clock_.Now()));
  processes_.push_back(std::move(process));
  return absl::OkStatus();
}

int RunLauncher(const LaunchConfig& config, const LauncherContext& context) {
  return Launcher(config, context).Run();
}

}  // namespace paceline
