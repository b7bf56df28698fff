#include <arpa/inet.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/text_value.h"

namespace paceline {
namespace {

// The host part of "host", "host:port", "[v6]:port" or "v6".
std::string HostOf(std::string_view address) {
  if (address.starts_with('[')) {
    return std::string(address.substr(1, address.find(']') - 1));
  }
  const size_t colon = address.find(':');
  if (colon != std::string_view::npos && address.find(':', colon + 1) == std::string_view::npos) {
    address = address.substr(0, colon);
  }
  return std::string(address);
}

absl::Status NoAddress(std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", Absl(text), "\" is not host:port (like 127.0.0.1:4300, [::1]:4300 or node7:4300)"));
}

}  // namespace

bool IsLoopback(std::string_view address) {
  const std::string host = HostOf(address);
  if (host == "localhost") return true;
  in6_addr v6;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  in_addr v4;
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

absl::Status CheckExposure(std::string_view key, std::string_view address, const TlsConfig& tls,
                           bool insecure) {
  if (IsLoopback(address) || tls.enabled() || insecure) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      Absl(key), ": ", Absl(address),
      " is beyond loopback and TLS is off; set tls.cert, tls.key and tls.ca, or insecure: true if "
      "everyone who reaches this network may read and change the job"));
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  HostPort result;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t close = text.find("]:");
    if (close == std::string_view::npos) return NoAddress(text);
    result.host = text.substr(1, close - 1);
    in6_addr v6;
    if (inet_pton(AF_INET6, result.host.c_str(), &v6) != 1) return NoAddress(text);
    port = text.substr(close + 2);
  } else {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos || colon == 0) return NoAddress(text);
    result.host = text.substr(0, colon);
    if (!IsName(result.host)) return NoAddress(text);
    port = text.substr(colon + 1);
  }
  const absl::StatusOr<uint64_t> number = ParseWhole(port);
  if (!number.ok()) return NoAddress(text);
  if (*number > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Absl(text), "\" has port ", *number, "; a port is 0 .. 65535"));
  }
  result.port = static_cast<uint16_t>(*number);
  return result;
}

std::string ToString(const HostPort& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", address.host, v6 ? "]:" : ":", address.port);
}

std::string AdvertisedAddress(std::string_view advertise, std::string_view bound) {
  if (advertise.empty()) return std::string(bound);
  if (ParseHostPort(advertise).ok()) return std::string(advertise);
  const absl::StatusOr<HostPort> local = ParseHostPort(bound);
  return ToString(HostPort{HostOf(advertise), local.ok() ? local->port : uint16_t{0}});
}

}  // namespace paceline
