// Speaks with a scheduler over gRPC. No gRPC header here, so that who uses it does not compile
// gRPC.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "control/control_client.h"
#include "control/grpc/security.h"

namespace paceline {

// `scheduler` is "host:port". Connects on the first call and again by itself after a loss; calls
// made meanwhile fail at once with Unavailable that names the address. NotFound when a PEM file
// cannot be read.
absl::StatusOr<std::unique_ptr<ControlClient>> MakeGrpcControlClient(const std::string& scheduler,
                                                                     const GrpcSecurity& security);

}  // namespace paceline
