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

// `kind` is what "-----BEGIN" has to be followed by: "CERTIFICATE", "PRIVATE KEY". gRPC itself says
// of a file of something else only that it cannot listen, or cannot connect.
inline absl::StatusOr<std::string> ReadPem(const std::string& path, const std::string& kind) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::NotFoundError(
        absl::StrCat("tls file \"", path, "\" cannot be read; give the path of a PEM file"));
  }
  const size_t begin = text.str().find("-----BEGIN ");
  if (begin == std::string::npos || text.str().find(kind + "-----", begin) == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("tls file \"", path, "\" holds no ", kind, " in PEM form"));
  }
  return text.str();
}

}  // namespace paceline
