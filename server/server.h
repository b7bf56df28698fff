// A parameter server: transport, router and agent wired together, for main.cc and for tests.
// Thread rule: Start and Stop from one thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "control/control_client.h"
#include "parameter/host/router.h"
#include "server/agent.h"
#include "transport/channel.h"

namespace paceline {

struct ServerOptions {
  ServerAgentOptions agent;
  RouterOptions router;
  std::string bind = "127.0.0.1:0";
  // Turns the address that was bound into the one told to workers; empty = as bound.
  std::function<std::string(const std::string& bound)> advertise;
};

// Stands in the listener for a router that is made only once the scheduler has said which node this
// is. Until then no peer is known, so that none gets past the handshake.
class RouterGate final : public FrameSink, public KeyStore {
 public:
  void Open(Router* router) { router_ = router; }

  absl::StatusOr<ChannelKey> Find(const PeerIdentity& peer) const override;
  void OnAccepted(std::shared_ptr<Channel> channel) override;
  absl::StatusOr<std::span<std::byte>> OnHeader(Channel& channel,
                                                const FrameHeader& header) override;
  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) override;
  bool AbsorbsInPlace() const override { return true; }  // as the router
  void OnClosed(Channel& channel, const absl::Status& cause) override;

 private:
  std::atomic<Router*> router_ = nullptr;
};

class Server {
 public:
  Server(ServerOptions options, std::unique_ptr<ControlClient> control,
         std::unique_ptr<Transport> transport, std::function<void(const absl::Status&)> on_lost);
  ~Server();

  // Listens, joins, serves. Errors name the address.
  absl::Status Start();
  void Stop();

  // Asks every shard thread something; returns, with true, when all have answered.
  bool Answers();

  std::string data_address() const { return data_address_; }

 private:
  ServerOptions options_;
  const std::unique_ptr<ControlClient> control_;
  std::unique_ptr<Transport> transport_;
  const std::function<void(const absl::Status&)> on_lost_;
  RouterGate gate_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<ServerAgent> agent_;
  std::string data_address_;
};

}  // namespace paceline
