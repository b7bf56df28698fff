#include "common/runtime/daemon.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/status.h"

namespace paceline {
namespace {

int BlockAndOpen() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

}  // namespace

EndSignals::EndSignals() : fd_(BlockAndOpen()) { PACELINE_CHECK(fd_ >= 0); }
EndSignals::~EndSignals() { close(fd_); }

void EndSignals::Wait() {
  signalfd_siginfo info;
  while (read(fd_, &info, sizeof(info)) != sizeof(info)) {
  }
}

absl::Status TellReady(int fd, const std::string& address) {
  if (fd < 0) return absl::OkStatus();
  const std::string line = address + "\n";
  const bool written = write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  close(fd);
  if (!written) return absl::InternalError(absl::StrCat("cannot write to --ready-fd ", fd));
  return absl::OkStatus();
}

}  // namespace paceline
