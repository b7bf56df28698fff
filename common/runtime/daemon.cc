#include "common/runtime/daemon.h"

#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
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

bool EndSignals::WaitFor(Ticks timeout) {
  pollfd waiting{fd_, POLLIN, 0};
  const int ready = poll(&waiting, 1, static_cast<int>(timeout.value() / 1'000'000));
  if (ready <= 0) return false;
  Wait();
  return true;
}

ServiceManager::ServiceManager(std::string socket, const std::string& watchdog_usec)
    : socket_(std::move(socket)) {
  int64_t usec = 0;
  if (absl::SimpleAtoi(watchdog_usec, &usec) && usec > 0) watchdog_ = Ticks(usec * 1000);
}

void ServiceManager::Send(const std::string& message) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = 0;  // of the abstract namespace
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  // A manager that does not listen is no reason to fail.
  (void)!sendto(fd, message.data(), message.size(), MSG_NOSIGNAL,
                reinterpret_cast<const sockaddr*>(&address), length);
  close(fd);
}

void ServiceManager::Ready(const std::string& status) const {
  Send(absl::StrCat("READY=1\nSTATUS=", status));
}

void ServiceManager::Stopping() const { Send("STOPPING=1"); }

void ServiceManager::WaitForSignal(EndSignals* signals, const std::function<bool()>& alive,
                                   Ticks trim_every) const {
  const bool watched = watchdog_ > Ticks(0) && !socket_.empty();
  const Ticks pause = watched ? std::min(trim_every, Ticks(watchdog_.value() / 2)) : trim_every;
  while (!signals->WaitFor(pause)) {
    if (watched && alive()) Send("WATCHDOG=1");
    malloc_trim(0);
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
