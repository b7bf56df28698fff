#include "server/server.h"

#include <utility>

#include "common/base/status.h"

namespace paceline {

absl::StatusOr<ChannelKey> RouterGate::Find(const PeerIdentity& peer) const {
  const Router* router = router_;
  if (router == nullptr) return absl::UnavailableError("this server has not joined yet");
  return router->Find(peer);
}

// Whoever comes further was found above, so the router is there.
void RouterGate::OnAccepted(std::shared_ptr<Channel> channel) {
  router_.load()->OnAccepted(std::move(channel));
}

absl::StatusOr<std::span<std::byte>> RouterGate::OnHeader(Channel& channel,
                                                          const FrameHeader& header) {
  return router_.load()->OnHeader(channel, header);
}

absl::Status RouterGate::OnFrame(Channel& channel, const FrameHeader& header, Payload payload) {
  return router_.load()->OnFrame(channel, header, std::move(payload));
}

void RouterGate::OnClosed(Channel& channel, const absl::Status& cause) {
  router_.load()->OnClosed(channel, cause);
}

Server::Server(ServerOptions options, std::unique_ptr<ControlClient> control,
               std::unique_ptr<Transport> transport,
               std::function<void(const absl::Status&)> on_lost)
    : options_(std::move(options)),
      control_(std::move(control)),
      transport_(std::move(transport)),
      on_lost_(std::move(on_lost)) {}

Server::~Server() { Stop(); }

absl::Status Server::Start() {
  PACELINE_ASSIGN_OR_RETURN(listener_, transport_->Listen(options_.bind, &gate_, &gate_));
  const std::string bound = listener_->address();
  data_address_ = options_.advertise ? options_.advertise(bound) : bound;
  options_.agent.data_address = data_address_;
  agent_ = std::make_unique<ServerAgent>(options_.agent, control_.get(), on_lost_);
  PACELINE_RETURN_IF_ERROR(agent_->Join());
  options_.router.self = agent_->self().node;
  options_.router.incarnation = agent_->self().incarnation;
  options_.router.key = agent_->key();
  options_.router.transport = transport_.get();
  options_.router.on_arrived = [this](JobId, uint64_t move, std::vector<ChunkKey> missing) {
    agent_->OnArrived(move, std::move(missing));
  };
  options_.router.on_link_down = [this](NodeId peer, Ticks since, const std::string& cause) {
    agent_->OnLinkDown(peer, since, cause);
  };
  router_ = NewRouter(options_.router);
  gate_.Open(router_.get());
  agent_->Follow(router_.get());
  return absl::OkStatus();
}

bool Server::Answers() {
  router_->AwaitThreads();
  return true;
}

// Shard threads may still owe the agent an answer, and channels the router a frame: each goes only
// after those that call it.
void Server::Stop() {
  if (agent_ != nullptr) agent_->Stop();
  if (router_ != nullptr) router_->StopMoving();
  listener_.reset();
  transport_.reset();
  router_.reset();
  agent_.reset();
}

}  // namespace paceline
