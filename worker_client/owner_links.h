// A worker's channels to the owners: opens them, opens them again when they break, matches replies
// with operations, and never lets go of the caller's memory while a channel may still touch it.
//
// Thread rule: every method may be called from any thread. Listener calls come from I/O threads or
// the link threads, with no lock held.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "common/runtime/mutex.h"
#include "plan/plan.h"
#include "transport/channel.h"

namespace paceline {

// One operation on one chunk, from issue to reply. The fields above the line are set by the
// issuer; the rest belongs to OwnerLinks until the listener is called.
struct ChunkOp {
  FrameHeader header;  // sender, incarnation, sequence and acknowledged are filled at each send
  NodeId owner;
  std::span<const std::byte> payload;
  std::span<std::byte> out;    // where the reply's payload goes
  uint64_t collect_limit = 0;  // not 0: a reply of up to so many bytes goes to `collected` instead
  int32_t priority = 0;
  std::vector<std::byte> collected;
  uint64_t tag = 0;    // the issuer's
  uint32_t index = 0;  // the issuer's
  uint32_t again = 0;  // the issuer's: how often it was answered "not now" in a row

  // ----
  bool queued = false;  // known to its link; not finished
  uint32_t sends = 0;   // given to a channel, completion outstanding
  std::weak_ptr<Channel> sent_on;
  bool receiving = false;  // a channel is writing into `out`
  uint64_t received = 0;   // bytes of the reply
  Sequence sequence;
  bool finished = false;  // an outcome is known; the listener is told when the memory is free
  FrameHeader reply;
  absl::Status status;
};

class OwnerLinks final : public FrameSink {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // Once per issued operation. OK: `op->reply` is the owner's answer (whatever its status
    // field says) and its payload is in `out`. Not OK: given up, with the cause.
    virtual void OnOutcome(const std::shared_ptr<ChunkOp>& op, const absl::Status& status) = 0;
    // Operations wait for an owner that cannot be reached since so long; once per outage.
    virtual void OnLinkDown(const ServerInfo& peer, Ticks since, const std::string& cause) = 0;
  };

  OwnerLinks(Transport* transport, const PeerIdentity& self, const ChannelKey& key,
             std::string self_name, Listener* listener);
  ~OwnerLinks() override;

  // All that own a chunk. What waits for one that is not among them is answered kNotOwner.
  void SetOwners(const std::vector<ServerInfo>& owners);
  void Issue(std::shared_ptr<ChunkOp> op);
  // Gives an operation up; its outcome is `cause` once no channel holds its memory.
  void Abandon(const std::shared_ptr<ChunkOp>& op, const absl::Status& cause);
  // Gives everything up and closes the channels. Nothing can be issued afterwards.
  void Shutdown(const absl::Status& cause);

  // 64-byte aligned, from where the channels send most cheaply.
  std::shared_ptr<std::byte[]> Allocate(size_t bytes) const;

  // "server-0 at 127.0.0.1:4301 (not connected: ...)".
  std::string Describe(NodeId owner) const;
  // How long operations have waited for an owner that cannot be reached; 0 when none do.
  Ticks DownFor(NodeId owner) const;
  std::vector<std::string> Transports() const;  // "server-0: tcp", a line a link
  uint64_t bytes_in() const;
  uint64_t bytes_out() const;

  absl::StatusOr<std::span<std::byte>> OnHeader(Channel& channel,
                                                const FrameHeader& header) override;
  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) override;
  void OnClosed(Channel& channel, const absl::Status& cause) override;

 private:
  struct Link {
    ServerInfo info;
    std::shared_ptr<Channel> channel;
    absl::Status last_error = absl::UnavailableError("not connected yet");
    uint64_t last_sequence = 0;
    std::map<uint64_t, std::shared_ptr<ChunkOp>> pending;  // by sequence
    std::set<uint64_t> unsent;  // of the pending: to be given to the channel, once more or first
    // The channel is writing into it; may be finished, and pending no more.
    std::shared_ptr<ChunkOp> receiving;
    Ticks next_try;
    uint32_t tries = 0;
    bool opening = false;  // a thread of its own is in Connect
    std::thread opener;
    bool gone = false;  // owns nothing any more
    Ticks down_since;   // 0: up, or nothing waits
    bool said_down = false;
  };
  struct Outgoing {
    std::shared_ptr<Channel> channel;
    std::shared_ptr<ChunkOp> op;
    FrameHeader header;
  };
  using Finished = std::vector<std::pair<std::shared_ptr<ChunkOp>, absl::Status>>;

  void Run();
  void OpenMissing() EXCLUDES(mutex_);
  void Open(const ServerInfo& info) EXCLUDES(mutex_);
  void DropGone() EXCLUDES(mutex_);
  void TellOfOutages() EXCLUDES(mutex_);
  void AnswerNotOwner(const std::shared_ptr<ChunkOp>& op, Finished* out) REQUIRES(mutex_);
  Outgoing Prepare(Link& link, const std::shared_ptr<ChunkOp>& op) REQUIRES(mutex_);
  // What of `link` can be sent now.
  void CollectSends(Link& link, std::vector<Outgoing>* out) REQUIRES(mutex_);
  void SendAll(std::vector<Outgoing> outgoing) EXCLUDES(mutex_);
  void OnSent(const std::shared_ptr<ChunkOp>& op, const Channel* channel,
              const absl::Status& status) EXCLUDES(mutex_);
  Link* Find(const Channel& channel) REQUIRES(mutex_);
  // The channel of `link` is gone: what awaits a reply on it is sent again on the next one.
  void Lose(Link& link, const absl::Status& cause, Finished* out) REQUIRES(mutex_);
  // The channel of `link` writes into no operation's memory any more.
  void EndReceiving(Link& link, Finished* out) REQUIRES(mutex_);
  absl::StatusOr<std::shared_ptr<ChunkOp>> FindOp(const Channel& channel, const FrameHeader& header)
      REQUIRES(mutex_);
  void Finish(const std::shared_ptr<ChunkOp>& op, absl::Status status, Finished* out)
      REQUIRES(mutex_);
  void ReleaseIfFree(const std::shared_ptr<ChunkOp>& op, Finished* out) REQUIRES(mutex_);
  void Tell(const Finished& finished) EXCLUDES(mutex_);

  Transport* const transport_;
  const PeerIdentity self_;
  const ChannelKey key_;
  const std::string self_name_;
  Listener* const listener_;

  mutable Mutex mutex_;
  CondVar wake_;
  std::map<NodeId, Link> links_ GUARDED_BY(mutex_);
  bool wanted_ GUARDED_BY(mutex_) = false;  // the link thread has something to do
  bool stopping_ GUARDED_BY(mutex_) = false;
  absl::Status stopped_with_ GUARDED_BY(mutex_);
  uint64_t closed_bytes_in_ GUARDED_BY(mutex_) = 0;
  uint64_t closed_bytes_out_ GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace paceline
