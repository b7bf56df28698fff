#include "transport/unix_wire.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "transport/system_error.h"

namespace paceline {
namespace {

constexpr int kLocalBacklog = 512;
// One comes with a frame; what is beyond is closed unseen.
constexpr size_t kMaxDescriptors = 4;

struct LocalAddress {
  sockaddr_un storage{};
  socklen_t length = 0;

  explicit LocalAddress(const std::string& name) {
    storage.sun_family = AF_UNIX;
    const size_t n = std::min(name.size(), sizeof(storage.sun_path) - 1);
    std::memcpy(storage.sun_path + 1, name.data(), n);  // after a zero: the abstract namespace
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

FileDescriptor ProcessBehind(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0) {
    return FileDescriptor();
  }
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
}

union DescriptorBuffer {
  cmsghdr align;
  std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> bytes;
};

void TakeDescriptorsOf(msghdr& message, std::vector<FileDescriptor>& taken) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      FileDescriptor descriptor(fd);
      if (taken.size() < kMaxDescriptors) taken.push_back(std::move(descriptor));
    }
  }
}

}  // namespace

UnixWire::UnixWire(std::shared_ptr<EpollPoller> poller, FileDescriptor socket,
                   std::string peer_address)
    : poller_(std::move(poller)),
      socket_(std::move(socket)),
      process_(ProcessBehind(socket_.get())),
      peer_address_(std::move(peer_address)) {}

absl::StatusOr<std::unique_ptr<Wire>> UnixWire::Dial(std::shared_ptr<EpollPoller> poller,
                                                     const std::string& name,
                                                     const std::string& address) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return SystemError(errno, "its Unix socket: socket");
  const LocalAddress to(name);
  if (connect(fd.get(), to.get(), to.length) != 0) {
    return SystemError(errno, "its Unix socket: connect");
  }
  return std::make_unique<UnixWire>(std::move(poller), std::move(fd), address);
}

absl::Status UnixWire::Attach(uint64_t token) {
  PACELINE_RETURN_IF_ERROR(poller_->Add(socket_.get(), token));
  return process_.valid() ? poller_->AddProcess(process_.get(), token) : absl::OkStatus();
}

absl::StatusOr<size_t> UnixWire::Read(std::span<const iovec> parts) {
  DescriptorBuffer control;
  while (true) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    const ssize_t n = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (n >= 0) TakeDescriptorsOf(message, taken_);
    if (n > 0) return static_cast<size_t>(n);
    if (n == 0) return absl::UnavailableError("closed by the peer");
    if (errno == EINTR) continue;
    if (WouldBlock(errno)) return size_t{0};
    return SystemError(errno, "read");
  }
}

absl::StatusOr<size_t> UnixWire::Write(std::span<const iovec> parts) {
  DescriptorBuffer control;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  if (passed_) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int));
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &*passed_, sizeof(int));
  }
  while (true) {
    const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (n >= 0) {
      passed_.reset();
      return static_cast<size_t>(n);
    }
    if (errno == EINTR) continue;
    if (WouldBlock(errno)) return size_t{0};
    return SystemError(errno, "write");
  }
}

void UnixWire::ShutdownWrite() { shutdown(socket_.get(), SHUT_WR); }

// The socket alone does not tell when a child of the peer has inherited it.
absl::Status UnixWire::CheckLink() {
  pollfd process = {.fd = process_.get(), .events = POLLIN, .revents = 0};
  if (process_.valid() && poll(&process, 1, 0) > 0) {
    return absl::UnavailableError("the peer's process has ended");
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalSocket> ListenLocally() {
  LocalSocket made;
  // Random, so that no other server, of before or of now, is ever taken for this one.
  made.name = "paceline-";
  const HandshakeNonce random = RandomNonce();
  for (size_t i = 0; i < 16; ++i) {
    absl::StrAppend(&made.name, absl::Hex(random[i], absl::kZeroPad2));
  }
  made.socket = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.socket.valid()) return SystemError(errno, "Unix socket: socket");
  const LocalAddress at(made.name);
  if (bind(made.socket.get(), at.get(), at.length) != 0) {
    return SystemError(errno, "Unix socket: bind");
  }
  if (listen(made.socket.get(), kLocalBacklog) != 0)
    return SystemError(errno, "Unix socket: listen");
  return made;
}

absl::StatusOr<BootId> CurrentBoot() {
  const FileDescriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const ssize_t n = file.valid() ? read(file.get(), text.data(), text.size()) : 0;
  BootId boot{};
  size_t digits = 0;
  for (ssize_t i = 0; i < n && digits < 2 * boot.size(); ++i) {
    const char c = text[static_cast<size_t>(i)];
    const char* const hex = "0123456789abcdef";
    const char* const digit = c == '\0' ? nullptr : std::strchr(hex, c);
    if (digit == nullptr) continue;
    boot[digits / 2] =
        boot[digits / 2] << 4 | static_cast<std::byte>(static_cast<uint8_t>(digit - hex));
    ++digits;
  }
  if (digits != 2 * boot.size()) return absl::NotFoundError("the system has no boot id");
  return boot;
}

}  // namespace paceline
