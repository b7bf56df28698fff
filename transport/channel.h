// Connections that carry frames, whatever is underneath (tcp, loopback; shared memory and RDMA
// are further implementations of the same interface).
//
// A connection begins with a handshake (transport/authentication.h): both ends prove that they hold
// the key the scheduler issued for (job, node, incarnation, role). No frame of an unauthenticated
// peer ever reaches a FrameSink. From then on the connection is that sender and no other: a frame
// whose sender or incarnation differs ends it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "transport/frame.h"

namespace paceline {

enum class PeerRole : uint8_t { kServer = 1, kWorker = 2 };
using ChannelKey = std::array<uint8_t, 32>;

// Who is at the other end, once authenticated.
struct PeerIdentity {
  JobId job;
  NodeId node;
  Incarnation incarnation;
  PeerRole role = PeerRole::kWorker;

  auto operator<=>(const PeerIdentity&) const = default;
};

// Bytes of a received piece. Either in memory the sink named (see FrameSink::OnHeader), or in a
// buffer of the channel that this object holds; destroying it gives the credit back to the sender's
// reader, so a sink that keeps many bounds its peer.
// Thread rule: may be moved to and destroyed on any thread, also after the channel is gone.
class Payload {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
  };

  Payload() = default;
  Payload(std::span<const std::byte> bytes, std::unique_ptr<Owner> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}
  Payload(Payload&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), owner_(std::move(other.owner_)) {}
  Payload& operator=(Payload&& other) noexcept {
    bytes_ = std::exchange(other.bytes_, {});
    owner_ = std::move(other.owner_);
    return *this;
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::unique_ptr<Owner> owner_;
};

struct ChannelStats {
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t frames_in = 0;
  uint64_t frames_out = 0;
  uint64_t bytes_queued = 0;  // accepted by Send, not yet given to the system
};

// Thread rule: every method may be called from any thread; none blocks.
class Channel {
 public:
  using Completion = std::function<void(absl::Status)>;

  virtual ~Channel() = default;

  // Queues one message: `header` (total, offset, length and checksum are filled here) and its whole
  // payload, cut into pieces. Higher `priority` first, first-in-first-out among equals; pieces of
  // one message stay in order, a more urgent message may pass between them. `payload` must stay
  // unchanged until `done` (called once, from an I/O thread, with OK when the bytes are no longer
  // needed, else with why the channel closed). ResourceExhausted through `done` when more than the
  // bound of bytes in flight would be queued.
  virtual void Send(const FrameHeader& header, std::span<const std::byte> payload, int32_t priority,
                    Completion done) = 0;

  // Memory from which sends are cheapest (an arena of shared memory, for all channels of the
  // transport; ordinary memory on tcp), 64-byte aligned. Freed with the returned pointer. The owner
  // reads it in place: `done` of a send from it comes when the peer has let go of it or is gone.
  virtual std::shared_ptr<std::byte[]> Allocate(size_t bytes) = 0;

  // Ends the connection; queued sends complete with `cause`. OnClosed follows. Idempotent.
  virtual void Close(absl::Status cause) = 0;

  // On the accepting end: who opened the channel. On the connecting end only the job is known: the
  // handshake proves that the other end holds our key; frames are bound to the node of the first.
  virtual const PeerIdentity& peer() const = 0;
  virtual std::string peer_address() const = 0;
  virtual std::string transport() const = 0;  // "tcp", "shm", "loopback"
  // Why it is this one: "same host", "another host".
  virtual std::string transport_reason() const { return ""; }
  virtual ChannelStats stats() const = 0;
};

// The receiving end of channels.
// Thread rule: the calls of one channel come one at a time, from an I/O thread; they must not
// block. Calls of different channels may come at once.
class FrameSink {
 public:
  virtual ~FrameSink() = default;

  // A channel that others opened to us is authenticated. Not called for channels we opened.
  virtual void OnAccepted(std::shared_ptr<Channel> channel) {}

  // The header of a piece with payload has come and is well formed. Returns where its bytes go:
  // exactly header.length bytes that stay valid until OnFrame or OnClosed, or an empty span to let
  // the channel use a buffer of its own. An error closes the channel with it.
  virtual absl::StatusOr<std::span<std::byte>> OnHeader(Channel& channel,
                                                        const FrameHeader& header) {
    return std::span<std::byte>();
  }

  // A whole piece has come and its checksum holds. An error closes the channel with it.
  virtual absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) = 0;

  // Whether OnFrame takes bytes that the peer may change while they are read (shared memory): it
  // reads each once, into memory of its own, and judges only what it copied. Else they are copied
  // before OnFrame.
  virtual bool AbsorbsInPlace() const { return false; }

  // Once per channel, after its last OnFrame.
  virtual void OnClosed(Channel& channel, const absl::Status& cause) = 0;
};

// Keys of peers that may open channels to us.
// Thread rule: called from I/O threads.
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  // Unavailable: not known yet, the peer may try again. PermissionDenied: fenced or never known.
  virtual absl::StatusOr<ChannelKey> Find(const PeerIdentity& peer) const = 0;
};

// Destroying it stops accepting and closes the channels it accepted; its sink and keys are not
// called afterwards. Not destroyed from a sink.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual std::string address() const = 0;  // with the port that was bound
};

struct TransportOptions {
  uint32_t io_threads = 1;
  uint64_t max_send_bytes = 256u << 20;    // queued per channel
  uint64_t max_receive_bytes = 64u << 20;  // in Payloads not yet destroyed, per channel
  // Shared memory: of a peer's buffers, each arena; what it touches of them may be charged to us.
  uint64_t max_arena_bytes = 16ull << 30;
  uint32_t max_connections = 4096;
  uint32_t handshake_timeout_ms = 5000;
  // A link is given up when bytes are outstanding and the peer's host acknowledges nothing for
  // this long. A peer that is alive and does not read is slow, not dead.
  uint32_t user_timeout_ms = 10000;
};

struct TransportStats {
  uint32_t connections = 0;      // now, with those in the handshake
  uint64_t accepted = 0;         // authenticated channels others opened to us
  uint64_t refused = 0;          // handshakes: wrong key, fenced, not a peer of ours
  uint64_t over_limit = 0;       // dropped at max_connections
  uint64_t protocol_errors = 0;  // channels closed for what came through them
};

// Owns I/O threads and everything opened through it: letting go of a channel does not close it,
// Close does. Destroying the transport closes all channels; no sink is called afterwards. Sinks
// outlive the transport, those of a listener at least the listener. Not destroyed from a sink.
// Thread rule: every method may be called from any thread.
class Transport {
 public:
  virtual ~Transport() = default;

  // `address`: "host:port", "[::1]:0"; port 0 takes a free one. `sink` and `keys` outlive the
  // listener. Errors name the address (port taken: AlreadyExists).
  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                           FrameSink* sink,
                                                           const KeyStore* keys) = 0;

  // Opens a channel as `self` and waits for the handshake. Unavailable: nobody there, or the peer
  // does not know us yet; PermissionDenied: wrong key or fenced; DeadlineExceeded names address and
  // time. Blocks up to `timeout`.
  virtual absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string& address,
                                                           const PeerIdentity& self,
                                                           const ChannelKey& key, FrameSink* sink,
                                                           Ticks timeout) = 0;

  virtual TransportStats stats() const = 0;
};

std::unique_ptr<Transport> NewTcpTransport(const TransportOptions& options);

// tcp, and shared memory between peers on one host where both ends have this transport: a listener
// has a Unix socket beside its port and tells those who dial it.
std::unique_ptr<Transport> NewHostTransport(const TransportOptions& options);

// In memory, for tests: addresses are names within one LoopbackNetwork. Same handshake, same
// frames, same threads as tcp, no sockets.
class LoopbackNetwork;
std::shared_ptr<LoopbackNetwork> NewLoopbackNetwork();
std::unique_ptr<Transport> NewLoopbackTransport(std::shared_ptr<LoopbackNetwork> network,
                                                const TransportOptions& options);

}  // namespace paceline
