// The byte streams of the loopback transport: bounded pipes in memory, with the edges a socket in
// epoll would report.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/runtime/mutex.h"
#include "transport/wire.h"

namespace paceline {

class LoopbackPoller final : public Poller {
 public:
  void Wait(Ticks timeout, std::vector<IoEvent>& events) override EXCLUDES(mutex_);
  void Wake() override EXCLUDES(mutex_);
  void Report(const IoEvent& event) EXCLUDES(mutex_);  // any thread

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, IoEvent> events_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;
};

// One direction. Thread rule: any thread.
class LoopbackPipe {
 public:
  static constexpr size_t kCapacity = 256u << 10;

  struct End {
    std::shared_ptr<LoopbackPoller> poller;  // null: nobody waits
    uint64_t token = 0;
  };
  void AttachReader(End end) EXCLUDES(mutex_);
  void AttachWriter(End end) EXCLUDES(mutex_);
  absl::StatusOr<size_t> Read(std::span<const iovec> parts) EXCLUDES(mutex_);
  absl::StatusOr<size_t> Write(std::span<const iovec> parts) EXCLUDES(mutex_);
  void CloseReader() EXCLUDES(mutex_);
  void CloseWriter() EXCLUDES(mutex_);

 private:
  void TellReader() REQUIRES(mutex_);
  void TellWriter() REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<std::byte> ring_ GUARDED_BY(mutex_);
  size_t begin_ GUARDED_BY(mutex_) = 0;
  size_t size_ GUARDED_BY(mutex_) = 0;
  bool reader_closed_ GUARDED_BY(mutex_) = false;
  bool writer_closed_ GUARDED_BY(mutex_) = false;
  bool writer_waits_ GUARDED_BY(mutex_) = false;
  End reader_ GUARDED_BY(mutex_);
  End writer_ GUARDED_BY(mutex_);
};

class LoopbackWire final : public Wire {
 public:
  // `poller` may be null: a test that polls by itself.
  LoopbackWire(std::shared_ptr<LoopbackPoller> poller, std::shared_ptr<LoopbackPipe> in,
               std::shared_ptr<LoopbackPipe> out, std::string peer_address)
      : poller_(std::move(poller)),
        in_(std::move(in)),
        out_(std::move(out)),
        peer_address_(std::move(peer_address)) {}
  ~LoopbackWire() override;

  absl::Status Attach(uint64_t token) override;
  absl::Status FinishConnect() override { return absl::OkStatus(); }
  absl::StatusOr<size_t> Read(std::span<const iovec> parts) override { return in_->Read(parts); }
  absl::StatusOr<size_t> Write(std::span<const iovec> parts) override { return out_->Write(parts); }
  void ShutdownWrite() override { out_->CloseWriter(); }
  absl::Status CheckLink() override { return absl::OkStatus(); }
  const std::string& peer_address() const override { return peer_address_; }
  std::string_view transport() const override { return "loopback"; }

 private:
  const std::shared_ptr<LoopbackPoller> poller_;
  const std::shared_ptr<LoopbackPipe> in_;
  const std::shared_ptr<LoopbackPipe> out_;
  const std::string peer_address_;
};

// Names and who listens under them.
// Thread rule: any thread.
class LoopbackNetwork {
 public:
  // Takes the server's end of a new stream; false when it does not listen any more.
  using OnDial = std::function<bool(std::shared_ptr<LoopbackPipe> in,
                                    std::shared_ptr<LoopbackPipe> out, const std::string& from)>;

  // The name that was taken: an address that ends in ":0" gets a number of its own.
  absl::StatusOr<std::string> Listen(const std::string& address, OnDial on_dial) EXCLUDES(mutex_);
  void StopListening(const std::string& name) EXCLUDES(mutex_);
  // The client's end, on `poller`.
  absl::StatusOr<std::unique_ptr<Wire>> Dial(const std::string& name,
                                             std::shared_ptr<LoopbackPoller> poller)
      EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::map<std::string, OnDial> listening_ GUARDED_BY(mutex_);
  uint64_t next_port_ GUARDED_BY(mutex_) = 1;
  uint64_t next_client_ GUARDED_BY(mutex_) = 1;
};

}  // namespace paceline
