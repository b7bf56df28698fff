// From a process's configuration to its session: what a training program calls first. A library of
// its own, because it needs gRPC and worker_client does not.
// Thread rule: no state.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/config/config.h"
#include "worker_client/session.h"

namespace paceline {

// Joins the job that `config` names, over gRPC and TCP, and blocks until all its workers have
// joined. WorkerConfigFromEnvironment() gives the configuration of a process that `pacelinectl run`
// started; a program sets what only it knows, as job.sample_count. Errors: those of
// Session::Connect, and NotFound for a TLS file that cannot be read (names it).
// `stop`: see SessionOptions.
absl::StatusOr<std::unique_ptr<Session>> ConnectToJob(const WorkerConfig& config,
                                                      std::function<bool()> stop = {});

}  // namespace paceline
