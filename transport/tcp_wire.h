// Sockets and epoll behind the Wire and Poller interfaces.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/tcp_address.h"
#include "transport/wire.h"

namespace paceline {

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Unavailable with the text of `error` (an errno), AlreadyExists for a taken address.
absl::Status SystemError(int error, const std::string& what);

class EpollPoller final : public Poller {
 public:
  EpollPoller();
  void Wait(Ticks timeout, std::vector<IoEvent>& events) override;
  void Wake() override;
  // Reports both directions of a socket until it is closed.
  absl::Status Add(int fd, uint64_t token);

 private:
  FileDescriptor epoll_;
  FileDescriptor wakeup_;
};

class TcpWire final : public Wire {
 public:
  TcpWire(std::shared_ptr<EpollPoller> poller, FileDescriptor socket, std::string peer_address,
          uint32_t user_timeout_ms);
  // Begins to connect.
  static absl::StatusOr<std::unique_ptr<Wire>> Dial(std::shared_ptr<EpollPoller> poller,
                                                    const TcpEndpoint& endpoint,
                                                    const std::string& address,
                                                    uint32_t user_timeout_ms);

  absl::Status Attach(uint64_t token) override;
  absl::Status FinishConnect() override;
  absl::StatusOr<size_t> Read(std::span<const iovec> parts) override;
  absl::StatusOr<size_t> Write(std::span<const iovec> parts) override;
  void ShutdownWrite() override;
  absl::Status CheckLink() override;
  const std::string& peer_address() const override { return peer_address_; }

 private:
  const std::shared_ptr<EpollPoller> poller_;
  const FileDescriptor socket_;
  const std::string peer_address_;
  const uint32_t user_timeout_ms_;
};

}  // namespace paceline
