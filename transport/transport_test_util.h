// What the tests of the transports share: sinks that record, keys, patterns, and a raw peer that
// speaks the handshake and then sends whatever bytes a test wants.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "transport/authentication.h"
#include "transport/channel.h"
#include "transport/loopback_wire.h"
#include "transport/tcp_wire.h"
#include "transport/unix_wire.h"

namespace paceline {

inline constexpr Ticks kPatience = Seconds(20);

inline std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> out(bytes);
  uint32_t state = seed * 2654435761u + 1;
  for (std::byte& b : out) {
    state = state * 1664525u + 1013904223u;
    b = static_cast<std::byte>(state >> 24);
  }
  return out;
}

// Payloads that stay until their senders are gone. Declared before the transports of a test.
class Messages {
 public:
  const std::vector<std::byte>& New(size_t bytes, uint32_t seed) {
    return kept_.emplace_back(Pattern(bytes, seed));
  }

 private:
  std::deque<std::vector<std::byte>> kept_;
};

inline ChannelKey KeyOf(uint8_t fill) {
  ChannelKey key;
  key.fill(fill);
  return key;
}

inline PeerIdentity WorkerIdentity(uint32_t node, uint64_t incarnation = 11) {
  return {.job = JobId(3),
          .node = NodeId(node),
          .incarnation = Incarnation(incarnation),
          .role = PeerRole::kWorker};
}

inline FrameHeader HeaderFrom(const PeerIdentity& self) {
  FrameHeader header;
  header.kind = FrameKind::kPush;
  header.job = self.job;
  header.sender = self.node;
  header.incarnation = self.incarnation;
  return header;
}

// Waits until a condition over guarded state holds.
class Monitor {
 public:
  template <typename F>
  void Change(F&& change) {
    MutexLock lock(&mutex_);
    change();
    changed_.SignalAll();
  }
  template <typename F>
  bool Await(F&& condition, Ticks timeout = kPatience) {
    const Ticks deadline = Clock::Real().Now() + timeout;
    MutexLock lock(&mutex_);
    while (!condition()) {
      const Ticks left = deadline - Clock::Real().Now();
      if (left <= Ticks(0)) return false;
      changed_.WaitFor(&mutex_, left);
    }
    return true;
  }
  template <typename F>
  auto Read(F&& read) {
    MutexLock lock(&mutex_);
    return read();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
};

class TestKeys final : public KeyStore {
 public:
  void Set(const PeerIdentity& peer, const ChannelKey& key) {
    MutexLock lock(&mutex_);
    keys_[peer] = key;
  }
  void Fence(const PeerIdentity& peer) {
    MutexLock lock(&mutex_);
    fenced_.push_back(peer);
  }
  absl::StatusOr<ChannelKey> Find(const PeerIdentity& peer) const override {
    asked_.fetch_add(1);
    MutexLock lock(&mutex_);
    for (const PeerIdentity& fenced : fenced_) {
      if (fenced == peer) return absl::PermissionDeniedError("this incarnation was fenced");
    }
    const auto found = keys_.find(peer);
    if (found == keys_.end()) return absl::UnavailableError("not known yet");
    return found->second;
  }
  int asked() const { return asked_.load(); }

 private:
  mutable Mutex mutex_;
  std::map<PeerIdentity, ChannelKey> keys_ GUARDED_BY(mutex_);
  std::vector<PeerIdentity> fenced_ GUARDED_BY(mutex_);
  mutable std::atomic<int> asked_ = 0;
};

struct Seen {
  FrameHeader header;
  std::vector<std::byte> bytes;
};

// Records everything; may keep payloads, name destinations, refuse.
class RecordingSink final : public FrameSink {
 public:
  void OnAccepted(std::shared_ptr<Channel> channel) override {
    monitor.Change([&] { accepted.push_back(std::move(channel)); });
  }
  absl::StatusOr<std::span<std::byte>> OnHeader(Channel& channel,
                                                const FrameHeader& header) override {
    if (on_header) return on_header(channel, header);
    return std::span<std::byte>();
  }
  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) override {
    if (on_frame) {
      if (absl::Status status = on_frame(channel, header); !status.ok()) return status;
    }
    monitor.Change([&] {
      frame_bytes += payload.bytes().size();
      if (record) {
        seen.push_back({header, {payload.bytes().begin(), payload.bytes().end()}});
      }
      ++frames;
      if (keep.load()) kept.push_back(std::move(payload));
    });
    return absl::OkStatus();
  }
  void OnClosed(Channel& channel, const absl::Status& cause) override {
    monitor.Change([&] {
      closed.push_back(cause);
      closed_channels.push_back(&channel);
    });
  }

  bool AbsorbsInPlace() const override { return in_place; }

  bool AwaitFrames(size_t n) {
    return monitor.Await([&] { return frames >= n; });
  }
  bool AwaitClosed(size_t n = 1) {
    return monitor.Await([&] { return closed.size() >= n; });
  }
  std::shared_ptr<Channel> AwaitAccepted(size_t n = 1) {
    if (!monitor.Await([&] { return accepted.size() >= n; })) return nullptr;
    return monitor.Read([&] { return accepted[n - 1]; });
  }
  absl::Status Cause(size_t i = 0) {
    return monitor.Read([&] { return closed[i]; });
  }
  size_t Frames() {
    return monitor.Read([&] { return frames; });
  }

  // Set before traffic.
  std::function<absl::StatusOr<std::span<std::byte>>(Channel&, const FrameHeader&)> on_header;
  std::function<absl::Status(Channel&, const FrameHeader&)> on_frame;
  bool record = true;
  bool in_place = false;
  std::atomic<bool> keep = false;

  Monitor monitor;
  std::vector<std::shared_ptr<Channel>> accepted;
  std::vector<Seen> seen;
  std::vector<Payload> kept;
  std::vector<absl::Status> closed;
  std::vector<const Channel*> closed_channels;
  size_t frames = 0;
  uint64_t frame_bytes = 0;
};

// Completions of sends.
class Completions {
 public:
  Channel::Completion Next() {
    const size_t index = issued_.fetch_add(1);
    return [this, index](absl::Status status) {
      monitor_.Change([&] { done_.emplace_back(index, std::move(status)); });
    };
  }
  bool Await(size_t n) {
    return monitor_.Await([&] { return done_.size() >= n; });
  }
  std::vector<std::pair<size_t, absl::Status>> Done() {
    return monitor_.Read([&] { return done_; });
  }

 private:
  std::atomic<size_t> issued_ = 0;
  Monitor monitor_;
  std::vector<std::pair<size_t, absl::Status>> done_;
};

// A peer under the control of the test, one byte at a time if need be.
class RawPeer {
 public:
  explicit RawPeer(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {}

  Wire& wire() { return *wire_; }

  // False when the stream ended first.
  bool Write(std::span<const std::byte> bytes, Ticks timeout = kPatience) {
    const Ticks deadline = Clock::Real().Now() + timeout;
    while (!bytes.empty()) {
      const iovec part = {.iov_base = const_cast<std::byte*>(bytes.data()),
                          .iov_len = bytes.size()};
      const auto n = wire_->Write({&part, 1});
      if (!n.ok() || Clock::Real().Now() > deadline) return false;
      bytes = bytes.subspan(*n);
      if (*n == 0) std::this_thread::yield();
    }
    return true;
  }

  // Bytes that come, until there are some or the stream ends (empty).
  std::vector<std::byte> Read(Ticks timeout = kPatience) {
    std::vector<std::byte> bytes(4096);
    const iovec part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
    const Ticks deadline = Clock::Real().Now() + timeout;
    while (Clock::Real().Now() < deadline) {
      const auto n = wire_->Read({&part, 1});
      if (!n.ok()) break;
      if (*n == 0) {
        std::this_thread::yield();
        continue;
      }
      bytes.resize(*n);
      return bytes;
    }
    return {};
  }

  // Whether the other end closes.
  bool AwaitEnd(Ticks timeout = kPatience) {
    const Ticks deadline = Clock::Real().Now() + timeout;
    while (Clock::Real().Now() < deadline) {
      if (Read(deadline - Clock::Real().Now()).empty()) return Clock::Real().Now() < deadline;
    }
    return false;
  }

  // Where the server says it can be met within the host.
  std::string LocalSocketFor(const PeerIdentity& self, const ChannelKey& key) {
    const auto boot = CurrentBoot();
    if (!boot.ok()) return "";
    ClientHandshake handshake(self, key, RandomNonce(), *boot);
    if (!Write(handshake.TakeOutput())) return "";
    while (handshake.state() == Handshake::State::kRunning) {
      const std::vector<std::byte> bytes = Read();
      if (bytes.empty()) return "";
      handshake.Consume(bytes);
    }
    return handshake.state() == Handshake::State::kElsewhere ? handshake.offer().socket : "";
  }

  bool Authenticate(const PeerIdentity& self, const ChannelKey& key) {
    ClientHandshake handshake(self, key, RandomNonce());
    while (handshake.state() == Handshake::State::kRunning) {
      if (!Write(handshake.TakeOutput())) return false;
      const std::vector<std::byte> bytes = Read();
      if (bytes.empty()) return false;
      handshake.Consume(bytes);
    }
    return handshake.state() == Handshake::State::kDone;
  }

 private:
  std::unique_ptr<Wire> wire_;
};

// A transport by name, and raw access to what it listens on.
class TestFabric {
 public:
  explicit TestFabric(std::string name) : name_(std::move(name)) {
    if (name_ == "loopback") network_ = NewLoopbackNetwork();
  }
  std::unique_ptr<Transport> New(const TransportOptions& options = {}) {
    if (network_ != nullptr) return NewLoopbackTransport(network_, options);
    return name_ == "shm" ? NewHostTransport(options) : NewTcpTransport(options);
  }
  std::string AnyAddress() const { return "127.0.0.1:0"; }
  std::unique_ptr<RawPeer> Dial(const std::string& address) {
    if (network_ != nullptr) {
      auto wire = network_->Dial(address, nullptr);
      if (!wire.ok()) return nullptr;
      return std::make_unique<RawPeer>(*std::move(wire));
    }
    const auto endpoints = ResolveTcp(address, false);
    if (!endpoints.ok()) return nullptr;
    auto wire = TcpWire::Dial(nullptr, endpoints->front(), address, 0);
    if (!wire.ok()) return nullptr;
    auto peer = std::make_unique<RawPeer>(*std::move(wire));
    if (name_ != "shm") return peer;
    const std::string local = peer->LocalSocketFor(known_, known_key_);
    if (local.empty()) return nullptr;
    auto local_wire = UnixWire::Dial(nullptr, local, address);
    if (!local_wire.ok()) return nullptr;
    return std::make_unique<RawPeer>(*std::move(local_wire));
  }
  // A peer the server knows: a raw peer on shared memory asks as it for the way there.
  void Know(const PeerIdentity& peer, const ChannelKey& key) {
    known_ = peer;
    known_key_ = key;
  }

 private:
  PeerIdentity known_;
  ChannelKey known_key_{};
  const std::string name_;
  std::shared_ptr<LoopbackNetwork> network_;
};

// Hangs in the handshake until it is told to go on.
class HangingKeys final : public KeyStore {
 public:
  absl::StatusOr<ChannelKey> Find(const PeerIdentity&) const override {
    monitor.Await([&] { return open; });
    return absl::PermissionDeniedError("too late");
  }
  mutable Monitor monitor;
  bool open = false;
};

}  // namespace paceline
