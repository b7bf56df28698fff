// Joins the job that the configuration names. Its own file, because it alone needs gRPC.
// Thread rule: no state.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/config/config.h"
#include "worker_client/session.h"

namespace paceline {

absl::StatusOr<std::unique_ptr<Session>> ConnectToJob(const WorkerConfig& config);

}  // namespace paceline
