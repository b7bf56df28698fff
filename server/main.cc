// paceline-server: wires configuration, transport, router and agent together.
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/environment.h"
#include "common/runtime/log.h"
#include "control/grpc/client.h"
#include "server/server.h"

namespace paceline {
namespace {

// Blocks the signals that end the daemon in every thread to come; they are read from the result.
int SignalDescriptor() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

absl::Status Ready(int fd, const std::string& address) {
  if (fd < 0) return absl::OkStatus();
  const std::string line = address + "\n";
  const bool written = write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  close(fd);
  if (!written) return absl::InternalError(absl::StrCat("cannot write to --ready-fd ", fd));
  return absl::OkStatus();
}

absl::Status Serve(const ServerConfig& config, int signals) {
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
  Server server(std::move(options), std::move(control), NewTcpTransport(transport),
                [](const absl::Status& cause) {
                  LogError("server",
                           "the scheduler refuses this server: ", std::string(cause.message()));
                  kill(getpid(), SIGTERM);
                });
  PACELINE_RETURN_IF_ERROR(server.Start());
  LogInfo("server", config.name, ": serving at ", server.data_address());
  PACELINE_RETURN_IF_ERROR(Ready(config.ready_fd, server.data_address()));
  signalfd_siginfo info;
  while (read(signals, &info, sizeof(info)) != sizeof(info)) {
  }
  LogInfo("server", config.name, ": ending");
  server.Stop();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  auto loaded = LoadServerConfig(argc, argv, Environment::FromProcess());
  if (!loaded.ok()) {
    std::fprintf(stderr, "paceline-server: %s\n", std::string(loaded.status().message()).c_str());
    return 2;
  }
  if (loaded->exit_code) {
    std::fputs(loaded->text.c_str(), stdout);
    return *loaded->exit_code;
  }
  const absl::Status status = Serve(loaded->config, SignalDescriptor());
  if (status.ok()) return 0;
  std::fprintf(stderr, "paceline-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) { return paceline::Main(argc, argv); }
