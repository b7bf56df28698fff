// What every transport does the same way: I/O threads, accepting under a limit, dialing with
// retries, ending.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/channel.h"
#include "transport/connection.h"
#include "transport/io_thread.h"
#include "transport/wire.h"

namespace paceline {

// Thread rule: any thread unless said otherwise.
class TransportCore {
 public:
  using MakePoller = std::function<std::shared_ptr<Poller>()>;
  // Makes the wire on the poller of `io`. Does not block.
  using MakeWire = std::function<absl::StatusOr<std::unique_ptr<Wire>>(IoThread& io)>;

  struct Acceptance {
    uint64_t listener = 0;
    FrameSink* sink = nullptr;
    const KeyStore* keys = nullptr;
    LocalOffer offer;    // told to those who dial
    bool local = false;  // what is accepted is within this host
  };

  // The ways to an address: its streams, in order; and, where this process looks for one, the
  // stream within the host that a server there offers.
  struct Ways {
    std::vector<MakeWire> streams;
    std::optional<BootId> here = std::nullopt;
    std::function<absl::StatusOr<std::unique_ptr<Wire>>(IoThread& io, const LocalOffer& offer)>
        local;
  };

  // `name` is for messages.
  TransportCore(const TransportOptions& options, std::string name, const MakePoller& make_poller);

  uint64_t NewListener() { return next_listener_.fetch_add(1); }
  // Takes in a connection that `who` opened to us; over the limit it is dropped and counted.
  void Accept(const Acceptance& acceptance, const std::string& who, const MakeWire& make_wire);
  // Ends what `listener` accepted; its sink is not called once this returned.
  void CloseAccepted(uint64_t listener);

  // Tries the ways to `address` in order; again, after growing waits, while the peer does not know
  // us yet.
  absl::StatusOr<std::shared_ptr<Channel>> Dial(const std::string& address, const Ways& ways,
                                                const PeerIdentity& self, const ChannelKey& key,
                                                FrameSink* sink, Ticks deadline);

  // Closes everything and joins the threads.
  void Stop();
  void CheckNotInIoThread() const;
  TransportStats stats() const;

  IoThread& accept_thread() { return *threads_.front(); }
  TransportShared& shared() { return *shared_; }

 private:
  struct Attempt {
    absl::StatusOr<std::shared_ptr<Channel>> channel;
    bool not_yet = false;
    std::optional<LocalOffer> offer = std::nullopt;
  };
  // Who dials whom, for how long.
  struct Call {
    const std::string& address;
    const PeerIdentity& self;
    const ChannelKey& key;
    FrameSink* sink = nullptr;
    Ticks deadline;
  };
  struct Attach {
    std::optional<BootId> here = std::nullopt;
    std::shared_ptr<ArenaLink> arena = nullptr;
    std::string reason = {};
  };
  Attempt TryOnce(const Call& call, const MakeWire& way, Attach attach);
  Attempt TryStream(const Call& call, const MakeWire& way, const Ways& ways);
  Attempt TryLocal(const Call& call, const LocalOffer& offer, const Ways& ways);
  Attempt TryEach(const Call& call, const Ways& ways);
  const std::shared_ptr<IoThread>& NextThread();

  const std::string name_;
  const std::shared_ptr<TransportShared> shared_;
  std::vector<std::shared_ptr<IoThread>> threads_;
  std::atomic<uint32_t> next_thread_ = 0;
  std::atomic<uint64_t> next_listener_ = 1;
};

}  // namespace paceline
