// gRPC details that client and server share. For control/grpc/*.cc only.
#pragma once

#include <grpcpp/support/status.h>

#include <fstream>
#include <sstream>
#include <string>

#include "common/base/status.h"

namespace paceline {

// The canonical codes have the same numbers on both sides. A message is bounded: it travels in a
// header.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(status.message().substr(0, 4096))};
}

// From now on gRPC's own complaints, which a peer can cause at will, are ours: limited in number.
void AdoptGrpcLog();

inline absl::StatusOr<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::NotFoundError(
        absl::StrCat("tls file \"", path, "\" cannot be read; give the path of a PEM file"));
  }
  return text.str();
}

}  // namespace paceline
