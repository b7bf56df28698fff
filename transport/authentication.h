// The handshake that begins every connection: both ends prove that they hold the key the scheduler
// issued for (job, node, incarnation, role) without sending it (docs/wire_format.md, "Handshake").
//
//   client                                    server
//   Hello {identity, wire version, nonce}  ->
//                                          <- Hello {nonce}, or Refuse {status, reason}
//   Auth {HMAC-SHA256}                     ->
//                                          <- Auth {HMAC-SHA256}, or Refuse {status, reason}
//
// Each code covers both Hello messages whole and the direction, so that nothing in them can be
// changed, replayed or reflected.
//
// These are state machines without I/O: bytes in, bytes out, a result. Deadlines are the caller's.
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "transport/channel.h"
#include "transport/frame.h"

namespace paceline {

using HandshakeNonce = std::array<uint8_t, 32>;

// What the system calls the time from its last start to its end; names a host.
using BootId = std::array<std::byte, 16>;

// Where a server can be met by peers on its own host: the boot it runs in and the name of a Unix
// socket. Whoever answers there has to prove itself again, so it need not be proven.
struct LocalOffer {
  BootId boot{};
  std::string socket;  // empty: nowhere

  bool operator==(const LocalOffer&) const = default;
};
inline constexpr size_t kMaxLocalSocket = 64;
inline constexpr size_t kMaxHandshakePayload = 256;

// 32 bytes of the operating system's generator.
HandshakeNonce RandomNonce();

class Handshake {
 public:
  // kElsewhere: a client that looks for a way within its host was told one.
  enum class State { kRunning, kDone, kFailed, kElsewhere };
  virtual ~Handshake() = default;

  // Takes the bytes at the front of `in` that belong to the handshake and says how many; what
  // follows the last message is the channel's. Takes none once the state is not kRunning.
  size_t Consume(std::span<const std::byte> in);

  // What has to be sent, also after a failure (the Refuse). Moves it out.
  std::vector<std::byte> TakeOutput() { return std::exchange(output_, {}); }

  State state() const { return state_; }
  // Why it failed. InvalidArgument: not a handshake of ours. PermissionDenied: wrong key or
  // identity. Unavailable: the server does not know the client yet.
  const absl::Status& status() const { return status_; }
  // The failure is only that the server does not know the client yet.
  bool not_yet() const { return not_yet_; }

 protected:
  struct Message {
    FrameHeader header;
    std::span<const std::byte> payload;
    std::span<const std::byte> whole;
  };
  virtual void OnMessage(const Message& message) = 0;
  virtual void OnMalformed(const absl::Status& status) { Fail(status); }

  // Adds a message to the output and gives its bytes, valid until the next call.
  std::span<const std::byte> Emit(FrameHeader header, std::span<const std::byte> payload);
  void Succeed() { state_ = State::kDone; }
  void GoElsewhere() { state_ = State::kElsewhere; }
  void Fail(absl::Status status, bool not_yet = false);

 private:
  void Parse();

  State state_ = State::kRunning;
  absl::Status status_;
  bool not_yet_ = false;
  std::vector<std::byte> output_;
  std::array<std::byte, kFrameHeaderBytes + kMaxHandshakePayload> message_;
  size_t have_ = 0;
  size_t want_ = kFrameHeaderBytes;
};

class ServerHandshake final : public Handshake {
 public:
  // `keys` is asked once, when the Hello has come. `offer` is told to every client that is known.
  ServerHandshake(const KeyStore* keys, const HandshakeNonce& nonce, LocalOffer offer = {});

  // Who the client is; proven only in State::kDone.
  const PeerIdentity& peer() const { return peer_; }

 private:
  void OnMessage(const Message& message) override;
  void OnMalformed(const absl::Status& status) override;
  void OnHello(const Message& message);
  void OnAuth(const Message& message);
  void Refuse(FrameStatus reason, absl::Status status);

  const KeyStore* const keys_;
  const HandshakeNonce nonce_;
  const LocalOffer offer_;
  bool greeted_ = false;
  PeerIdentity peer_;
  ChannelKey key_{};
  std::vector<std::byte> transcript_;  // both Hello messages
};

class ClientHandshake final : public Handshake {
 public:
  // `here`: the boot this process runs in. Stops when the server offers a way within the same.
  ClientHandshake(const PeerIdentity& self, const ChannelKey& key, const HandshakeNonce& nonce,
                  std::optional<BootId> here = std::nullopt);

  // What the server offered, unproven.
  const LocalOffer& offer() const { return offer_; }

 private:
  void OnMessage(const Message& message) override;
  void OnHello(const Message& message);
  void OnAuth(const Message& message);
  void OnRefuse(const Message& message);

  const PeerIdentity self_;
  const ChannelKey key_;
  const std::optional<BootId> here_;
  LocalOffer offer_;
  bool greeted_ = false;
  std::vector<std::byte> transcript_;
};

}  // namespace paceline
