// Sockets and epoll behind the Wire and Poller interfaces.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/tcp_address.h"
#include "transport/wire.h"

namespace paceline {

class EpollPoller final : public Poller {
 public:
  EpollPoller();
  void Wait(Ticks timeout, std::vector<IoEvent>& events) override;
  void Wake() override;
  // Reports both directions of a socket until it is closed.
  absl::Status Add(int fd, uint64_t token);
  // Reports the end of a process (a pidfd) as IoEvent::peer of `token`.
  absl::Status AddProcess(int fd, uint64_t token);

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
  std::string_view transport() const override { return "tcp"; }

 private:
  const std::shared_ptr<EpollPoller> poller_;
  const FileDescriptor socket_;
  const std::string peer_address_;
  const uint32_t user_timeout_ms_;
};

}  // namespace paceline
