#include "server/server.h"

#include <utility>

#include "common/base/status.h"

namespace paceline {

Server::Server(ServerOptions options, std::unique_ptr<ControlClient> control,
               std::unique_ptr<Transport> transport,
               std::function<void(const absl::Status&)> on_lost)
    : options_(std::move(options)),
      control_(std::move(control)),
      transport_(std::move(transport)),
      on_lost_(std::move(on_lost)),
      router_(NewRouter(options_.router)) {}

Server::~Server() { Stop(); }

absl::Status Server::Start() {
  PACELINE_ASSIGN_OR_RETURN(listener_,
                            transport_->Listen(options_.bind, router_.get(), router_.get()));
  const std::string bound = listener_->address();
  data_address_ = options_.advertise ? options_.advertise(bound) : bound;
  options_.agent.data_address = data_address_;
  agent_ = std::make_unique<ServerAgent>(options_.agent, control_.get(), router_.get(), on_lost_);
  return agent_->Start();
}

void Server::Stop() {
  agent_.reset();
  listener_.reset();
  transport_.reset();
}

}  // namespace paceline
