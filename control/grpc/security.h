// How a gRPC connection is secured, and the limits both ends agree on. No gRPC header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace paceline {

// Paths of PEM files. All empty: plaintext (whether that is allowed, the caller decided: see
// CheckExposure of common/config). Otherwise all three are needed: both ends prove themselves.
struct GrpcSecurity {
  std::string certificate;
  std::string key;
  std::string ca;

  bool enabled() const { return !certificate.empty() || !key.empty() || !ca.empty(); }
};

inline constexpr size_t kMaxRequestBytes = 16u << 20;  // what a node may send
inline constexpr size_t kMaxReplyBytes = 64u << 20;    // plans and cluster views
inline constexpr int kKeepaliveMs = 5000;              // ping when a connection is silent so long
inline constexpr int kKeepaliveTimeoutMs = 5000;       // closed when a ping is not answered so long

}  // namespace paceline
