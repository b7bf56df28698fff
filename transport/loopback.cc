// The loopback transport: the shared machinery over pipes in memory.
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "transport/channel.h"
#include "transport/loopback_wire.h"
#include "transport/transport_core.h"

namespace paceline {
namespace {

// Stands between the network and the core, so that nothing is accepted once closed.
class LoopbackAcceptor {
 public:
  LoopbackAcceptor(std::shared_ptr<TransportCore> core, TransportCore::Acceptance acceptance)
      : core_(std::move(core)), acceptance_(acceptance) {}

  bool Accept(const std::shared_ptr<LoopbackPipe>& in, const std::shared_ptr<LoopbackPipe>& out,
              const std::string& from) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (closed_) return false;
    core_->Accept(acceptance_, from, [&](IoThread& io) -> absl::StatusOr<std::unique_ptr<Wire>> {
      return std::make_unique<LoopbackWire>(std::static_pointer_cast<LoopbackPoller>(io.poller()),
                                            in, out, from);
    });
    return true;
  }

  void Close() EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    closed_ = true;
  }

 private:
  const std::shared_ptr<TransportCore> core_;
  const TransportCore::Acceptance acceptance_;
  Mutex mutex_;
  bool closed_ GUARDED_BY(mutex_) = false;
};

class LoopbackListener final : public Listener {
 public:
  LoopbackListener(std::shared_ptr<LoopbackNetwork> network, std::shared_ptr<TransportCore> core,
                   std::shared_ptr<LoopbackAcceptor> acceptor, std::string name, uint64_t id)
      : network_(std::move(network)),
        core_(std::move(core)),
        acceptor_(std::move(acceptor)),
        name_(std::move(name)),
        id_(id) {}
  ~LoopbackListener() override {
    network_->StopListening(name_);
    acceptor_->Close();
    core_->CloseAccepted(id_);
  }
  std::string address() const override { return name_; }

 private:
  const std::shared_ptr<LoopbackNetwork> network_;
  const std::shared_ptr<TransportCore> core_;
  const std::shared_ptr<LoopbackAcceptor> acceptor_;
  const std::string name_;
  const uint64_t id_;
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackNetwork> network, const TransportOptions& options)
      : network_(std::move(network)),
        core_(std::make_shared<TransportCore>(options, "loopback",
                                              [] { return std::make_shared<LoopbackPoller>(); })) {}
  ~LoopbackTransport() override { core_->Stop(); }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, FrameSink* sink,
                                                   const KeyStore* keys) override {
    const uint64_t id = core_->NewListener();
    auto acceptor = std::make_shared<LoopbackAcceptor>(
        core_, TransportCore::Acceptance{.listener = id, .sink = sink, .keys = keys, .offer = {}});
    PACELINE_ASSIGN_OR_RETURN(
        std::string name, network_->Listen(address, [acceptor](std::shared_ptr<LoopbackPipe> in,
                                                               std::shared_ptr<LoopbackPipe> out,
                                                               const std::string& from) {
          return acceptor->Accept(in, out, from);
        }));
    return std::make_unique<LoopbackListener>(network_, core_, acceptor, std::move(name), id);
  }

  absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string& address,
                                                   const PeerIdentity& self, const ChannelKey& key,
                                                   FrameSink* sink, Ticks timeout) override {
    const Ticks deadline = Clock::Real().Now() + timeout;
    const TransportCore::MakeWire way = [&](IoThread& io) {
      return network_->Dial(address, std::static_pointer_cast<LoopbackPoller>(io.poller()));
    };
    return core_->Dial(address, {.streams = {way}, .here = std::nullopt, .local = nullptr}, self,
                       key, sink, deadline);
  }

  TransportStats stats() const override { return core_->stats(); }

 private:
  const std::shared_ptr<LoopbackNetwork> network_;
  const std::shared_ptr<TransportCore> core_;
};

}  // namespace

std::shared_ptr<LoopbackNetwork> NewLoopbackNetwork() {
  return std::make_shared<LoopbackNetwork>();
}

std::unique_ptr<Transport> NewLoopbackTransport(std::shared_ptr<LoopbackNetwork> network,
                                                const TransportOptions& options) {
  return std::make_unique<LoopbackTransport>(std::move(network), options);
}

}  // namespace paceline
