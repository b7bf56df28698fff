// The tcp transport, with and without shared memory within the host: the shared machinery over
// sockets.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "transport/channel.h"
#include "transport/system_error.h"
#include "transport/tcp_address.h"
#include "transport/tcp_wire.h"
#include "transport/transport_core.h"
#include "transport/unix_wire.h"

namespace paceline {
namespace {

constexpr int kBacklog = 512;
constexpr Ticks kAcceptPause = Milliseconds(100);

std::shared_ptr<EpollPoller> PollerOf(const IoThread& io) {
  return std::static_pointer_cast<EpollPoller>(io.poller());
}

// Takes connections from a listening socket, of the network or within the host. I/O thread only.
class Acceptor final : public IoHandler {
 public:
  Acceptor(TransportCore* core, FileDescriptor socket, TransportCore::Acceptance acceptance,
           std::string address)
      : core_(core),
        socket_(std::move(socket)),
        acceptance_(std::move(acceptance)),
        address_(std::move(address)) {}

  absl::Status Start(const std::shared_ptr<Acceptor>& self) {
    token_ = core_->accept_thread().Add(self);
    return PollerOf(core_->accept_thread())->Add(socket_.get(), token_);
  }
  void Close() {
    core_->accept_thread().Remove(token_);
    socket_ = FileDescriptor();
  }

  void OnEvent(const IoEvent& event) override { AcceptAll(); }
  void OnScheduled() override { AcceptAll(); }
  void OnTimer() override { AcceptAll(); }
  void OnStop() override { Close(); }

 private:
  void AcceptAll() {
    while (socket_.valid()) {
      TcpEndpoint peer;
      peer.length = sizeof(peer.storage);
      FileDescriptor fd(accept4(socket_.get(), reinterpret_cast<sockaddr*>(&peer.storage),
                                &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.valid()) {
        Adopt(std::move(fd), acceptance_.local ? "a peer on this host" : peer.ToString());
        continue;
      }
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      return Pause(errno);
    }
  }

  void Adopt(FileDescriptor fd, const std::string& who) {
    core_->Accept(acceptance_, who, [&](IoThread& io) -> absl::StatusOr<std::unique_ptr<Wire>> {
      if (acceptance_.local) return std::make_unique<UnixWire>(PollerOf(io), std::move(fd), who);
      return std::make_unique<TcpWire>(PollerOf(io), std::move(fd), who,
                                       core_->shared().options.user_timeout_ms);
    });
  }

  // Out of descriptors or memory: those who wait stay in the backlog.
  void Pause(int error) {
    core_->shared().log.Warning(absl::StrCat(
        std::string(SystemError(error, absl::StrCat("accept on ", address_)).message()),
        "; trying again in 100 ms"));
    core_->accept_thread().SetTimer(token_, Clock::Real().Now() + kAcceptPause);
  }

  TransportCore* const core_;
  FileDescriptor socket_;
  const TransportCore::Acceptance acceptance_;
  const std::string address_;
  uint64_t token_ = 0;
};

class TcpListener final : public Listener {
 public:
  TcpListener(std::shared_ptr<TransportCore> core, std::string address, uint64_t id)
      : core_(std::move(core)), address_(std::move(address)), id_(id) {}
  ~TcpListener() override {
    core_->accept_thread().PostAndWait([this] {
      for (const auto& acceptor : acceptors_) acceptor->Close();
    });
    core_->CloseAccepted(id_);
  }
  absl::Status Accept(FileDescriptor socket, const TransportCore::Acceptance& acceptance) {
    auto acceptor =
        std::make_shared<Acceptor>(core_.get(), std::move(socket), acceptance, address_);
    acceptors_.push_back(acceptor);
    absl::Status started;
    core_->accept_thread().PostAndWait([&] { started = acceptor->Start(acceptor); });
    return started;
  }
  std::string address() const override { return address_; }

 private:
  const std::shared_ptr<TransportCore> core_;
  const std::string address_;
  const uint64_t id_;
  std::vector<std::shared_ptr<Acceptor>> acceptors_;
};

absl::StatusOr<FileDescriptor> Bind(const TcpEndpoint& endpoint, const std::string& address) {
  FileDescriptor fd(
      socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const std::string name = absl::StrCat("tcp ", address);
  if (!fd.valid()) return SystemError(errno, absl::StrCat(name, ": socket"));
  const int on = 1;
  static_cast<void>(setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
  if (bind(fd.get(), endpoint.get(), endpoint.length) != 0) {
    return SystemError(errno, absl::StrCat(name, ": bind"));
  }
  if (listen(fd.get(), kBacklog) != 0) return SystemError(errno, absl::StrCat(name, ": listen"));
  return fd;
}

class TcpTransport final : public Transport {
 public:
  // `boot`: of the host, where shared memory is to be used within it.
  TcpTransport(const TransportOptions& options, std::optional<BootId> boot)
      : boot_(boot), core_(std::make_shared<TransportCore>(options, "tcp", [] {
          return std::make_shared<EpollPoller>();
        })) {}
  ~TcpTransport() override { core_->Stop(); }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, FrameSink* sink,
                                                   const KeyStore* keys) override {
    core_->CheckNotInIoThread();
    PACELINE_ASSIGN_OR_RETURN(const std::vector<TcpEndpoint> endpoints, ResolveTcp(address, true));
    PACELINE_ASSIGN_OR_RETURN(FileDescriptor fd, Bind(endpoints.front(), address));
    TcpEndpoint bound;
    bound.length = sizeof(bound.storage);
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
      return SystemError(errno, absl::StrCat("tcp ", address, ": getsockname"));
    }
    TransportCore::Acceptance acceptance = {
        .listener = core_->NewListener(), .sink = sink, .keys = keys, .offer = {}};
    auto listener = std::make_unique<TcpListener>(core_, bound.ToString(), acceptance.listener);
    if (boot_) {
      PACELINE_ASSIGN_OR_RETURN(LocalSocket local, ListenLocally());
      acceptance.local = true;
      PACELINE_RETURN_IF_ERROR(listener->Accept(std::move(local.socket), acceptance));
      acceptance.local = false;
      acceptance.offer = {.boot = *boot_, .socket = std::move(local.name)};
    }
    PACELINE_RETURN_IF_ERROR(listener->Accept(std::move(fd), acceptance));
    return listener;
  }

  absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string& address,
                                                   const PeerIdentity& self, const ChannelKey& key,
                                                   FrameSink* sink, Ticks timeout) override {
    const Ticks deadline = Clock::Real().Now() + timeout;
    core_->CheckNotInIoThread();
    PACELINE_ASSIGN_OR_RETURN(const std::vector<TcpEndpoint> endpoints, ResolveTcp(address, false));
    TransportCore::Ways ways;
    for (const TcpEndpoint& endpoint : endpoints) {
      ways.streams.push_back([&](IoThread& io) {
        return TcpWire::Dial(PollerOf(io), endpoint, address,
                             core_->shared().options.user_timeout_ms);
      });
    }
    ways.here = boot_;
    ways.local = [&](IoThread& io, const LocalOffer& offer) {
      return UnixWire::Dial(PollerOf(io), offer.socket, address);
    };
    return core_->Dial(address, ways, self, key, sink, deadline);
  }

  TransportStats stats() const override { return core_->stats(); }

 private:
  const std::optional<BootId> boot_;
  const std::shared_ptr<TransportCore> core_;
};

}  // namespace

std::unique_ptr<Transport> NewTcpTransport(const TransportOptions& options) {
  return std::make_unique<TcpTransport>(options, std::nullopt);
}

std::unique_ptr<Transport> NewHostTransport(const TransportOptions& options) {
  const absl::StatusOr<BootId> boot = CurrentBoot();
  return std::make_unique<TcpTransport>(options, boot.ok() ? std::optional(*boot) : std::nullopt);
}

}  // namespace paceline
