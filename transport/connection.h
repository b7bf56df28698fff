// A channel over a wire: connect, handshake, frames in both directions, close. Shared by tcp,
// shared memory and loopback.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "transport/arena_link.h"
#include "transport/authentication.h"
#include "transport/channel.h"
#include "transport/frame_reader.h"
#include "transport/io_thread.h"
#include "transport/receive_credit.h"
#include "transport/send_queue.h"
#include "transport/wire.h"

namespace paceline {

// What the connections of one transport share.
// Thread rule: any thread.
struct TransportShared {
  explicit TransportShared(const TransportOptions& options)
      : options(options),
        pool(std::make_shared<BufferPool>(16 * std::max(1u, options.io_threads))),
        heap(std::make_shared<ArenaHeap>()),
        log("transport", 10) {}

  const TransportOptions options;
  const std::shared_ptr<BufferPool> pool;
  const std::shared_ptr<ArenaHeap> heap;
  LogLimiter log;
  std::atomic<uint32_t> connections = 0;
  std::atomic<uint64_t> accepted = 0;
  std::atomic<uint64_t> refused = 0;
  std::atomic<uint64_t> over_limit = 0;
  std::atomic<uint64_t> protocol_errors = 0;
};

// Hands the outcome of a dialed connection to the thread that waits in Connect.
// Thread rule: any thread.
class DialResult {
 public:
  struct Outcome {
    absl::Status status;
    bool not_yet = false;  // the server does not know us yet
    std::optional<LocalOffer> offer =
        std::nullopt;  // nothing was opened: there is a way within this host
  };
  // False when nobody waits any more: the connection must end without a word to the sink.
  bool Deliver(Outcome outcome) EXCLUDES(mutex_);
  // Empty when `deadline` passed first; Deliver then says false.
  std::optional<Outcome> WaitUntil(Ticks deadline) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<Outcome> outcome_ GUARDED_BY(mutex_);
  bool abandoned_ GUARDED_BY(mutex_) = false;
};

class Connection final : public Channel,
                         public IoHandler,
                         public std::enable_shared_from_this<Connection> {
 public:
  struct Setup {
    std::shared_ptr<TransportShared> shared;
    std::shared_ptr<IoThread> io;
    std::unique_ptr<Wire> wire;
    FrameSink* sink = nullptr;
    std::shared_ptr<ArenaLink> arena = nullptr;  // on shared memory
    std::string reason = {};                     // why this transport
  };
  static std::shared_ptr<Connection> Accepted(Setup setup, const KeyStore* keys, uint64_t listener,
                                              const LocalOffer& offer);
  // `here`: a way within this host is looked for.
  static std::shared_ptr<Connection> Dialed(Setup setup, const PeerIdentity& self,
                                            const ChannelKey& key, std::optional<BootId> here,
                                            std::shared_ptr<DialResult> result);
  ~Connection() override;

  // Begins; from the I/O thread.
  void Start();
  // Which listener accepted it; 0 when dialed.
  uint64_t listener() const { return listener_; }
  // Ends at once; from the I/O thread.
  void EndNow(const absl::Status& cause) { Finish(cause); }

  // Channel.
  void Send(const FrameHeader& header, std::span<const std::byte> payload, int32_t priority,
            Completion done) override;
  std::shared_ptr<std::byte[]> Allocate(size_t bytes) override;
  void Close(absl::Status cause) override EXCLUDES(mutex_);
  const PeerIdentity& peer() const override { return peer_; }
  std::string peer_address() const override { return address_; }
  std::string transport() const override { return transport_; }
  std::string transport_reason() const override { return reason_; }
  ChannelStats stats() const override;

  // IoHandler.
  void OnEvent(const IoEvent& event) override;
  void OnScheduled() override { Run(); }
  void OnTimer() override;
  void OnStop() override;

 private:
  // kDraining: closed, but the peer may still read payloads where they are; until its end of the
  // stream is closed.
  enum class Phase { kConnecting, kHandshake, kRefusing, kOpen, kDraining, kClosed };

  explicit Connection(Setup setup);
  void Run();
  void RunConnecting();
  void RunHandshake();
  void RunRefusing();
  void RunOpen();
  bool FlushHandshake();
  bool ReadHandshake(std::vector<std::byte>& beyond);
  void HandshakeFailed();
  void CountRefusal();
  void Open(std::span<const std::byte> beyond);
  void ReadFrames();
  void WriteFrames();
  void TakeDescriptors();
  void OpenArena();
  void AnnounceArenas();
  void RunDraining();
  void EndDraining();
  void AddCredit();
  void Complete(std::vector<Completion>& completions, const absl::Status& status);
  void RunRejected() EXCLUDES(mutex_);
  void ProtocolError(const absl::Status& status);
  void Finish(const absl::Status& cause);
  absl::Status AtPeer(const absl::Status& status) const;
  void StartLinkTimer();

  const std::shared_ptr<TransportShared> shared_;
  const std::shared_ptr<IoThread> io_;
  FrameSink* const sink_;
  const std::string address_;
  const std::string transport_;
  const std::shared_ptr<ArenaLink> arena_;  // null: no shared memory
  uint64_t listener_ = 0;
  // Set before the channel is handed out.
  PeerIdentity peer_;
  std::string reason_;

  SendQueue send_queue_;
  std::shared_ptr<ReceiveCredit> credit_;

  // Any thread.
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> bytes_in_ = 0;
  std::atomic<uint64_t> bytes_out_ = 0;
  std::atomic<uint64_t> frames_in_ = 0;
  std::atomic<uint64_t> frames_out_ = 0;
  Mutex mutex_;
  absl::Status close_cause_ GUARDED_BY(mutex_);
  std::vector<std::pair<Completion, absl::Status>> rejected_ GUARDED_BY(mutex_);

  // I/O thread only.
  Phase phase_ = Phase::kConnecting;
  std::shared_ptr<Wire> wire_;
  uint64_t token_ = 0;
  bool readable_ = false;
  bool writable_ = false;
  bool process_ended_ = false;  // the peer's; what it wrote is still read
  std::unique_ptr<Handshake> handshake_;
  std::vector<std::byte> handshake_out_;
  size_t handshake_written_ = 0;
  std::shared_ptr<DialResult> dial_;
  std::optional<FrameReader> reader_;
  std::vector<Completion> completions_;
  std::vector<Completion> held_;  // of messages that the peer may still read
  absl::Status drain_cause_;
};

}  // namespace paceline
