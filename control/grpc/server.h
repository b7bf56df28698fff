// Serves a ControlService over gRPC, with health checking and reflection. No gRPC header here, so
// that who starts it does not compile gRPC.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "control/control_service.h"
#include "control/grpc/security.h"

namespace paceline {

// Thread rule: one thread starts and stops it. `service` outlives it.
// Shutdown in order: stop the service first (it answers what is pending), then this.
class GrpcControlServer {
 public:
  // `listen` is "host:port"; port 0 takes any free one. Unavailable when the address cannot be
  // bound, NotFound when a PEM file cannot be read.
  static absl::StatusOr<std::unique_ptr<GrpcControlServer>> Start(const std::string& listen,
                                                                  const GrpcSecurity& security,
                                                                  ControlService* service);
  ~GrpcControlServer();

  // With the port that was bound.
  const std::string& address() const { return address_; }

  // Refuses new calls and ends, after a second, those that still run.
  void Stop();

 private:
  struct Impl;
  GrpcControlServer(std::unique_ptr<Impl> impl, std::string address);

  std::unique_ptr<Impl> impl_;
  const std::string address_;
};

}  // namespace paceline
