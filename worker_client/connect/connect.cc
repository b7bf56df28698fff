#include "worker_client/connect/connect.h"

#include <utility>

#include "common/base/status.h"
#include "control/grpc/client.h"

namespace paceline {

absl::StatusOr<std::unique_ptr<Session>> ConnectToJob(const WorkerConfig& config,
                                                      std::function<bool()> stop) {
  PACELINE_ASSIGN_OR_RETURN(
      auto control,
      MakeGrpcControlClient(config.scheduler, {config.tls.cert, config.tls.key, config.tls.ca}));
  TransportOptions transport;
  transport.max_send_bytes = config.max_bytes_in_flight;
  SessionOptions options;
  options.job = config.job;
  options.worker_name = config.name;
  options.index = config.index;
  options.host = config.host;
  options.labels = config.labels;
  options.deadline = Milliseconds(config.operation_timeout_ms);
  options.start_deadline = Milliseconds(config.join_timeout_ms);
  options.stop = std::move(stop);
  return Session::Connect(options, std::move(control), NewHostTransport(transport));
}

}  // namespace paceline
