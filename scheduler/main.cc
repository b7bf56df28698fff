// paceline-scheduler: wires configuration, journal, core, event loop and gRPC together.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/environment.h"
#include "common/runtime/clock.h"
#include "common/runtime/daemon.h"
#include "common/runtime/log.h"
#include "control/grpc/server.h"
#include "scheduler/core/core.h"
#include "scheduler/event_loop.h"
#include "scheduler/journal.h"
#include "scheduler/trace_file.h"

namespace paceline {
namespace {

constexpr unsigned kStopSeconds = 4;

absl::Status MakeStateDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("cannot make state_dir '", path,
                                                      "': ", error.message(),
                                                      "; give another with --state-dir"));
  }
  if (chmod(path.c_str(), 0700) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot make state_dir '", path,
                                                      "' private: ", strerror(errno),
                                                      "; give another with --state-dir"));
  }
  return absl::OkStatus();
}

CoreOptions ToCoreOptions(const SchedulerConfig& config) {
  CoreOptions options;
  options.cluster = config.cluster;
  options.version = std::string(ProgramVersion());
  options.heartbeat_interval_ms = config.heartbeat_ms;
  options.failure_timeout_ms = config.failure_timeout_ms;
  options.limits.max_jobs = config.max_jobs;
  options.limits.max_nodes = config.max_nodes;
  return options;
}

// Whether the event loop has answered what was asked of it the time before.
class LoopProbe {
 public:
  explicit LoopProbe(EventLoop* loop) : loop_(loop) {}

  bool Alive() {
    const bool answered = answered_->exchange(false);
    EventsQuery least;
    least.limit = 1;
    loop_->Operate(least,
                   [flag = answered_](const absl::StatusOr<OperatorReply>&) { *flag = true; });
    return answered;
  }

 private:
  EventLoop* const loop_;
  const std::shared_ptr<std::atomic<bool>> answered_ = std::make_shared<std::atomic<bool>>(true);
};

absl::Status Serve(const SchedulerConfig& config, const ServiceManager& manager,
                   EndSignals* signals) {
  PACELINE_RETURN_IF_ERROR(CheckExposure("listen", config.listen, config.tls, config.insecure));
  PACELINE_RETURN_IF_ERROR(MakeStateDirectory(config.state_dir));
  PACELINE_ASSIGN_OR_RETURN(auto journal, OpenSqliteJournal(config.journal, config.cluster));
  const CoreOptions core_options = ToCoreOptions(config);
  const std::vector<JournalEntry> recovered = journal->TakeRecovered();
  TraceFile trace(config.state_dir + "/trace", core_options, recovered, config.trace_max_events,
                  config.trace_max_bytes);
  absl::Status journal_failure;
  EventLoopOptions options;
  options.trace = [&trace](Ticks now, const SchedulerEvent& event) { trace.Append(now, event); };
  options.on_failed = [&journal_failure](const absl::Status& cause) {
    journal_failure = cause;
    kill(getpid(), SIGTERM);
  };
  PACELINE_ASSIGN_OR_RETURN(
      auto loop, EventLoop::Make(std::move(options), std::make_unique<Core>(core_options),
                                 recovered, std::move(journal), &Clock::Real()));
  loop->Start();
  PACELINE_ASSIGN_OR_RETURN(
      auto server,
      GrpcControlServer::Start(config.listen, {config.tls.cert, config.tls.key, config.tls.ca},
                               loop.get()));
  const std::string address = AdvertisedAddress(config.advertise, server->address());
  LogInfo("scheduler", "cluster '", config.cluster, "' at ", address);
  PACELINE_RETURN_IF_ERROR(TellReady(config.ready_fd, address));
  manager.Ready(absl::StrCat("cluster ", config.cluster, " at ", address));
  LoopProbe probe(loop.get());
  manager.WaitForSignal(signals, [&probe] { return probe.Alive(); });
  manager.Stopping();
  LogInfo("scheduler", "ending");
  // What is in the journal is safe at any moment: a disk that hangs must not keep the process.
  alarm(kStopSeconds);
  loop->Stop();
  server->Stop();
  return journal_failure;
}

ServiceManager ManagerOf(const Environment& env) {
  return {env.Get("NOTIFY_SOCKET").value_or(""), env.Get("WATCHDOG_USEC").value_or("")};
}

int Main(int argc, char** argv) {
  const Environment env = Environment::FromProcess();
  auto loaded = LoadSchedulerConfig(argc, argv, env);
  if (!loaded.ok()) {
    std::fprintf(stderr, "paceline-scheduler: %s\n",
                 std::string(loaded.status().message()).c_str());
    return 2;
  }
  if (loaded->exit_code) {
    std::fputs(loaded->text.c_str(), stdout);
    return *loaded->exit_code;
  }
  SetLogLevel(LogLevelFromName(loaded->config.log_level));
  EndSignals signals;
  const absl::Status status = Serve(loaded->config, ManagerOf(env), &signals);
  if (status.ok()) return 0;
  std::fprintf(stderr, "paceline-scheduler: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) { return paceline::Main(argc, argv); }
