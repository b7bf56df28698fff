#include "transport/tcp_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace paceline {
namespace {

struct HostPort {
  std::string host;
  std::string port;
};

absl::Status NotAnAddress(const std::string& address, const char* why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tcp address \"", address, "\": ", why, "; write host:port or [ipv6]:port"));
}

absl::StatusOr<HostPort> Split(const std::string& address) {
  HostPort out;
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return NotAnAddress(address, "no port");
  out.host = address.substr(0, colon);
  out.port = address.substr(colon + 1);
  if (out.host.starts_with('[')) {
    if (!out.host.ends_with(']')) return NotAnAddress(address, "no closing bracket");
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find(':') != std::string::npos) {
    return NotAnAddress(address, "an IPv6 address needs brackets");
  }
  uint16_t port = 0;
  const char* end = out.port.data() + out.port.size();
  const auto [parsed, error] = std::from_chars(out.port.data(), end, port);
  if (error != std::errc() || parsed != end) {
    return NotAnAddress(address, "the port is not a number of 0..65535");
  }
  return out;
}

}  // namespace

std::string TcpEndpoint::ToString() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET6) {
    sockaddr_in6 in6;
    std::memcpy(&in6, &storage, sizeof(in6));
    inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof(host));
    return absl::StrCat("[", host, "]:", ntohs(in6.sin6_port));
  }
  sockaddr_in in4;
  std::memcpy(&in4, &storage, sizeof(in4));
  inet_ntop(AF_INET, &in4.sin_addr, host, sizeof(host));
  return absl::StrCat(host, ":", ntohs(in4.sin_port));
}

absl::StatusOr<std::vector<TcpEndpoint>> ResolveTcp(const std::string& address, bool passive) {
  PACELINE_ASSIGN_OR_RETURN(const HostPort split, Split(address));
  if (split.host.empty() && !passive) return NotAnAddress(address, "no host");
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(split.host.empty() ? nullptr : split.host.c_str(),
                                split.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("tcp ", address, ": cannot resolve the host name: ", gai_strerror(error)));
  }
  std::vector<TcpEndpoint> endpoints;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    TcpEndpoint endpoint;
    std::memcpy(&endpoint.storage, one->ai_addr, one->ai_addrlen);
    endpoint.length = one->ai_addrlen;
    endpoints.push_back(endpoint);
  }
  freeaddrinfo(found);
  if (endpoints.empty()) {
    return absl::UnavailableError(absl::StrCat("tcp ", address, ": no IPv4 or IPv6 address"));
  }
  return endpoints;
}

}  // namespace paceline
