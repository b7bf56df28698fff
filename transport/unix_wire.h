// A stream to a peer on this host: a Unix socket in the abstract namespace, over which descriptors
// can be passed, and the peer's process, whose end it reports.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/runtime/file_descriptor.h"
#include "transport/authentication.h"
#include "transport/tcp_wire.h"
#include "transport/wire.h"

namespace paceline {

class UnixWire final : public Wire {
 public:
  UnixWire(std::shared_ptr<EpollPoller> poller, FileDescriptor socket, std::string peer_address);
  // Connects; at once or not at all. `address` is how the peer is known to people.
  static absl::StatusOr<std::unique_ptr<Wire>> Dial(std::shared_ptr<EpollPoller> poller,
                                                    const std::string& name,
                                                    const std::string& address);

  absl::Status Attach(uint64_t token) override;
  absl::Status FinishConnect() override { return absl::OkStatus(); }
  absl::StatusOr<size_t> Read(std::span<const iovec> parts) override;
  absl::StatusOr<size_t> Write(std::span<const iovec> parts) override;
  void ShutdownWrite() override;
  absl::Status CheckLink() override;
  const std::string& peer_address() const override { return peer_address_; }
  std::string_view transport() const override { return "shm"; }
  void PassDescriptor(int descriptor) override { passed_ = descriptor; }
  std::vector<FileDescriptor> TakeDescriptors() override { return std::exchange(taken_, {}); }

 private:
  const std::shared_ptr<EpollPoller> poller_;
  const FileDescriptor socket_;
  FileDescriptor process_;  // none where the peer lives in another pid namespace
  const std::string peer_address_;
  std::optional<int> passed_;
  std::vector<FileDescriptor> taken_;
};

// A listening socket with a name that nobody else has.
struct LocalSocket {
  FileDescriptor socket;
  std::string name;
};
absl::StatusOr<LocalSocket> ListenLocally();

// Of the host this process runs on. NotFound where the system does not say.
absl::StatusOr<BootId> CurrentBoot();

}  // namespace paceline
