// paceline-server: wires configuration, transport, router and agent together.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/environment.h"
#include "common/runtime/daemon.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "control/grpc/client.h"
#include "server/server.h"

namespace paceline {
namespace {

constexpr unsigned kStopSeconds = 4;

// Why the scheduler no longer knows this server.
class LostCause {
 public:
  void Set(const absl::Status& cause) {
    MutexLock lock(&mutex_);
    cause_ = cause;
  }
  absl::Status Get() {
    MutexLock lock(&mutex_);
    return cause_;
  }

 private:
  Mutex mutex_;
  absl::Status cause_ GUARDED_BY(mutex_);
};

absl::Status Serve(const ServerConfig& config, const ServiceManager& manager, EndSignals* signals) {
  PACELINE_RETURN_IF_ERROR(CheckExposure("bind", config.bind, config.tls, config.insecure));
  PACELINE_ASSIGN_OR_RETURN(
      auto control,
      MakeGrpcControlClient(config.scheduler, {config.tls.cert, config.tls.key, config.tls.ca}));
  TransportOptions transport;
  transport.max_connections = config.max_connections;
  ServerOptions options;
  options.bind = config.bind;
  options.advertise = [&config](const std::string& bound) {
    return AdvertisedAddress(config.advertise, bound);
  };
  options.agent.name = config.name;
  options.agent.host = config.host;
  options.agent.labels = config.labels;
  options.agent.process_id = getpid();
  options.agent.join_timeout = Milliseconds(config.join_timeout_ms);
  if (config.threads > 0) options.router.threads = config.threads;
  options.router.job_memory_quota = config.memory_quota_bytes;
  LostCause lost;
  Server server(std::move(options), std::move(control), NewHostTransport(transport),
                [&lost](const absl::Status& cause) {
                  LogError("server",
                           "the scheduler refuses this server: ", std::string(cause.message()));
                  lost.Set(cause);
                  kill(getpid(), SIGTERM);
                });
  PACELINE_RETURN_IF_ERROR(server.Start());
  LogInfo("server", config.name, ": serving at ", server.data_address());
  PACELINE_RETURN_IF_ERROR(TellReady(config.ready_fd, server.data_address()));
  manager.Ready(absl::StrCat("server ", config.name, " at ", server.data_address()));
  manager.WaitForSignal(signals, [&server] { return server.Answers(); });
  manager.Stopping();
  LogInfo("server", config.name, ": ending");
  // It waits for answers of a scheduler that may be silent; nothing is lost by not hearing them.
  alarm(kStopSeconds);
  server.Stop();
  return lost.Get();
}

ServiceManager ManagerOf(const Environment& env) {
  return {env.Get("NOTIFY_SOCKET").value_or(""), env.Get("WATCHDOG_USEC").value_or("")};
}

int Main(int argc, char** argv) {
  const Environment env = Environment::FromProcess();
  auto loaded = LoadServerConfig(argc, argv, env);
  if (!loaded.ok()) {
    std::fprintf(stderr, "paceline-server: %s\n", std::string(loaded.status().message()).c_str());
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
  std::fprintf(stderr, "paceline-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) { return paceline::Main(argc, argv); }
