// Joins a job at a scheduler that is not there: everything of the SDK has to link and run for the
// error that comes back.
#include <cstdio>
#include <memory>
#include <utility>

#include "control/grpc/client.h"
#include "worker_client/session.h"

int main() {
  paceline::SessionOptions options;
  options.job.name = "consumer";
  options.worker_name = "worker-0";
  options.deadline = paceline::Seconds(1);
  options.start_deadline = paceline::Seconds(1);
  auto control = paceline::MakeGrpcControlClient("127.0.0.1:1", {});
  if (!control.ok()) {
    std::fprintf(stderr, "control: %s\n", control.status().ToString().c_str());
    return 1;
  }
  auto session = paceline::Session::Connect(
      options, *std::move(control), paceline::NewTcpTransport(paceline::TransportOptions{}));
  if (session.ok()) {
    std::fprintf(stderr, "joined a scheduler that does not exist\n");
    return 1;
  }
  std::printf("refused as it should be: %s\n", session.status().ToString().c_str());
  return 0;
}
