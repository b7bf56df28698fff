// "host:port" and "[address]:port" to what the system calls take, and back.
// Thread rule: functions without state. ResolveTcp may block on name look-ups: never from an I/O
// thread.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace paceline {

struct TcpEndpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string ToString() const;  // "10.0.0.1:80", "[::1]:80"
};

// All endpoints of an address, in the order to try. InvalidArgument: not host:port. Unavailable:
// the name is not known (now). `passive`: to listen on; an empty host is then every interface.
absl::StatusOr<std::vector<TcpEndpoint>> ResolveTcp(const std::string& address, bool passive);

}  // namespace paceline
