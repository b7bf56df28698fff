#include "transport/tcp_wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/base/check.h"
#include "common/base/status.h"
#include "transport/system_error.h"

namespace paceline {
namespace {

constexpr uint64_t kWakeToken = 0;                   // no handler has it
constexpr uint64_t kProcessBit = uint64_t{1} << 63;  // nor so many events

// Bytes the kernel may hold that are not on the wire yet: an urgent message waits behind them.
constexpr int kNotSentLowWater = 512 << 10;

// Longest pause between retransmissions. By default they double up to two minutes: a link that was
// down for 4.5 s stood still for 6.5 s. Linux 6.15 and later; older headers do not name it.
constexpr int kTcpRtoMaxMs = 44;
constexpr int kRtoMaxMs = 1000;

// Failures leave the default in place, which is slower but right.
void SetOption(int fd, int level, int name, int value) {
  static_cast<void>(setsockopt(fd, level, name, &value, sizeof(value)));
}

// TCP_USER_TIMEOUT is not used on purpose: it also kills a connection whose peer is alive and has
// not read for that long, and a slow reader is what receive credit makes on purpose. CheckLink
// tells the two apart.
void SetUp(int fd, uint32_t user_timeout_ms) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kNotSentLowWater);
  SetOption(fd, IPPROTO_TCP, kTcpRtoMaxMs, kRtoMaxMs);
  if (user_timeout_ms == 0) return;
  const int timeout_s = static_cast<int>(std::clamp(user_timeout_ms / 1000, 1u, 3600u));
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, timeout_s / 2));
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, timeout_s / 6));
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

msghdr MessageOf(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

EpollPoller::EpollPoller()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wakeup_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  PACELINE_CHECK(epoll_.valid() && wakeup_.valid());
  PACELINE_CHECK(Add(wakeup_.get(), kWakeToken).ok());
}

absl::Status EpollPoller::Add(int fd, uint64_t token) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = token;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return SystemError(errno, "epoll_ctl");
  }
  return absl::OkStatus();
}

absl::Status EpollPoller::AddProcess(int fd, uint64_t token) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = token | kProcessBit;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return SystemError(errno, "epoll_ctl");
  }
  return absl::OkStatus();
}

void EpollPoller::Wait(Ticks timeout, std::vector<IoEvent>& events) {
  std::array<epoll_event, 64> ready;
  // Rounded up: a timer that is due in less than a millisecond must not be polled for.
  const int64_t ms = timeout < Ticks(0) ? -1 : (timeout.value() + 999'999) / 1'000'000;
  const int n = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()),
                           static_cast<int>(std::min<int64_t>(ms, 1'000'000)));
  PACELINE_CHECK(n >= 0 || errno == EINTR);
  for (int i = 0; i < n; ++i) {
    const epoll_event& event = ready[static_cast<size_t>(i)];
    if (event.data.u64 == kWakeToken) {
      uint64_t count = 0;
      static_cast<void>(!read(wakeup_.get(), &count, sizeof(count)));
      continue;
    }
    if ((event.data.u64 & kProcessBit) != 0) {
      events.push_back({.token = event.data.u64 & ~kProcessBit, .peer = true});
      continue;
    }
    events.push_back({.token = event.data.u64,
                      .readable = (event.events & (EPOLLIN | EPOLLRDHUP)) != 0,
                      .writable = (event.events & EPOLLOUT) != 0,
                      .failed = (event.events & (EPOLLERR | EPOLLHUP)) != 0});
  }
}

void EpollPoller::Wake() {
  const uint64_t one = 1;
  static_cast<void>(!write(wakeup_.get(), &one, sizeof(one)));
}

TcpWire::TcpWire(std::shared_ptr<EpollPoller> poller, FileDescriptor socket,
                 std::string peer_address, uint32_t user_timeout_ms)
    : poller_(std::move(poller)),
      socket_(std::move(socket)),
      peer_address_(std::move(peer_address)),
      user_timeout_ms_(user_timeout_ms) {
  SetUp(socket_.get(), user_timeout_ms_);
}

absl::StatusOr<std::unique_ptr<Wire>> TcpWire::Dial(std::shared_ptr<EpollPoller> poller,
                                                    const TcpEndpoint& endpoint,
                                                    const std::string& address,
                                                    uint32_t user_timeout_ms) {
  FileDescriptor fd(
      socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const std::string name = absl::StrCat("tcp ", address, " (", endpoint.ToString(), ")");
  if (!fd.valid()) return SystemError(errno, absl::StrCat(name, ": socket"));
  if (connect(fd.get(), endpoint.get(), endpoint.length) != 0 && errno != EINPROGRESS) {
    return SystemError(errno, absl::StrCat(name, ": connect"));
  }
  return std::make_unique<TcpWire>(std::move(poller), std::move(fd), address, user_timeout_ms);
}

absl::Status TcpWire::Attach(uint64_t token) { return poller_->Add(socket_.get(), token); }

absl::Status TcpWire::FinishConnect() {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) return SystemError(error, "connect");
  TcpEndpoint self, peer;
  self.length = peer.length = sizeof(sockaddr_storage);
  auto* self_address = reinterpret_cast<sockaddr*>(&self.storage);
  auto* peer_address = reinterpret_cast<sockaddr*>(&peer.storage);
  if (getsockname(socket_.get(), self_address, &self.length) != 0 ||
      getpeername(socket_.get(), peer_address, &peer.length) != 0) {
    return SystemError(errno, "connect");
  }
  // The system may give the dialing socket the very port it dials when nobody listens there.
  if (self.ToString() == peer.ToString()) return SystemError(ECONNREFUSED, "connect");
  return absl::OkStatus();
}

absl::StatusOr<size_t> TcpWire::Read(std::span<const iovec> parts) {
  msghdr message = MessageOf(parts);
  while (true) {
    const ssize_t n = recvmsg(socket_.get(), &message, 0);
    if (n > 0) return static_cast<size_t>(n);
    if (n == 0) return absl::UnavailableError("closed by the peer");
    if (errno == EINTR) continue;
    if (WouldBlock(errno)) return size_t{0};
    return SystemError(errno, "read");
  }
}

absl::StatusOr<size_t> TcpWire::Write(std::span<const iovec> parts) {
  const msghdr message = MessageOf(parts);
  while (true) {
    const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EINTR) continue;
    if (WouldBlock(errno)) return size_t{0};
    return SystemError(errno, "write");
  }
}

void TcpWire::ShutdownWrite() { shutdown(socket_.get(), SHUT_WR); }

// A live host acknowledges segments, and window probes when its process does not read. Unanswered
// probes are waited for longer, since the kernel spaces them out.
absl::Status TcpWire::CheckLink() {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
    return absl::OkStatus();
  }
  // While the sink keeps all credit nothing is read, so this is where a reset shows.
  if (info.tcpi_state == TCP_CLOSE) return absl::UnavailableError("the connection was reset");
  const bool unanswered =
      (info.tcpi_unacked > 0 && info.tcpi_retransmits > 0) || info.tcpi_probes >= 3;
  if (!unanswered || info.tcpi_last_ack_recv < user_timeout_ms_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("link down: bytes are outstanding and nothing was "
                   "acknowledged for ",
                   info.tcpi_last_ack_recv, " ms"));
}

}  // namespace paceline
