// In a build without gRPC (PACELINE_WITH_GRPC=OFF) the program has its --standalone side only.
#include "worker_client/connect/connect.h"

namespace paceline {

absl::StatusOr<std::unique_ptr<Session>> ConnectToJob(const WorkerConfig&) {
  return absl::UnimplementedError(
      "this build cannot reach a scheduler; build with -DPACELINE_WITH_GRPC=ON, or use "
      "--standalone");
}

}  // namespace paceline
