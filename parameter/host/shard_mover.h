// Gives chunks to their new owners: keeps each until the other end has it whole, over as many
// connections as that takes, or until a newer plan wants it elsewhere.
//
// Each destination has a thread of its own, so that one that is out of reach holds up no other. A
// chunk begins with one piece; the rest follows when that was taken, so a destination that does not
// know the plan yet costs little. Whatever is refused comes again with growing pauses.
// Thread rule: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/runtime/mutex.h"
#include "parameter/host/peer_link.h"
#include "parameter/job_shards.h"
#include "plan/plan.h"
#include "transport/channel.h"

namespace paceline {

// A chunk that the newest plan gives back to this owner: nobody else has it.
struct ReturnedChunk {
  JobId job;
  uint64_t move = 0;  // that gives it back
  ChunkKey chunk;
  std::vector<std::byte> bytes;
};

// Without a transport nothing is ever given. A chunk that is refused is told as a link down, too.
struct ShardMoverOptions : PeerLinkOptions {
  std::function<void(ReturnedChunk)> on_returned;
};

class ShardMover final : public FrameSink {
 public:
  explicit ShardMover(ShardMoverOptions options) : options_(std::move(options)) {}
  ~ShardMover() override { Stop(); }

  void Give(OutgoingChunk chunk) EXCLUDES(mutex_);
  // Chunks whose move is not in this plan are given up; those that it gives back go to on_returned,
  // as do such that come later for an older plan. Called after the shard threads were told of it.
  void Follow(const Plan& plan) EXCLUDES(mutex_);
  // The job ended: what is still to be given of it is not.
  void Forget(JobId job) EXCLUDES(mutex_);
  // Idempotent. The transport is not used afterwards.
  void Stop() EXCLUDES(mutex_);
  // What is kept in encoded form.
  std::map<JobId, Bytes> Memory() EXCLUDES(mutex_);

  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) override;
  void OnClosed(Channel& channel, const absl::Status& cause) override;

 private:
  struct Parcel {
    OutgoingChunk chunk;
    std::shared_ptr<const std::vector<std::byte>> bytes;  // null until it is its turn
    uint64_t taken = 0;                                   // by the other end, from the beginning on
    uint64_t sent = 0;
    std::map<Sequence, uint64_t> outstanding;  // where the message ends
    bool probing = true;                       // one piece at a time
    Ticks next_try;
    uint32_t tries = 0;
    bool said_refused = false;
    Ticks refused_since;  // 0: not, or only because the plan is still to come
    Ticks next_word;

    void Rewind(Ticks at);
  };
  // Channels are per job: that is what a handshake proves.
  using Destination = std::pair<JobId, NodeId>;
  struct Link {
    Destination at;
    ServerInfo to;
    std::shared_ptr<Channel> channel;
    std::deque<std::shared_ptr<Parcel>> parcels;
    uint64_t last_sequence = 0;
    Reach reach;
    bool gone = false;
  };
  struct Outgoing {
    std::shared_ptr<Channel> channel;
    FrameHeader header;
    std::shared_ptr<Parcel> parcel;
    std::shared_ptr<const std::vector<std::byte>> bytes;
    std::span<const std::byte> part;
  };
  // What the newest plan says of chunks that go from here.
  struct Newest {
    JobGeneration generation;
    uint64_t move = 0;
    std::map<ChunkKey, NodeId> to;
    std::map<NodeId, ServerInfo> servers;
  };

  void Run(const std::shared_ptr<Link>& link) EXCLUDES(mutex_);
  // False when the link has ended.
  bool WaitForWork(Link& link) EXCLUDES(mutex_);
  // When there is something to encode or to send; none while only replies are waited for.
  std::optional<Ticks> NextPart(const Link& link, Ticks now) const REQUIRES(mutex_);
  uint64_t InFlight(const Link& link) const REQUIRES(mutex_);
  void Open(Link& link) EXCLUDES(mutex_);
  void EncodeNext(Link& link) EXCLUDES(mutex_);
  void SendParts(const std::shared_ptr<Link>& link) EXCLUDES(mutex_);
  void AddParts(Link& link, const std::shared_ptr<Parcel>& parcel, std::vector<Outgoing>* outgoing)
      REQUIRES(mutex_);
  void NotSent(Link& link, const Channel* channel, Parcel& parcel, const absl::Status& cause)
      EXCLUDES(mutex_);
  // How long a chunk is refused, when that is to be told.
  Ticks OnReply(Link& link, const FrameHeader& header) REQUIRES(mutex_);
  Ticks OnRefused(Link& link, Parcel& parcel, const FrameHeader& header) REQUIRES(mutex_);
  void Lose(Link& link, const Channel* channel) REQUIRES(mutex_);
  bool IsWanted(const OutgoingChunk& chunk) const REQUIRES(mutex_);
  bool IsReturned(const OutgoingChunk& chunk) const REQUIRES(mutex_);
  ReturnedChunk Return(Parcel& parcel) const REQUIRES(mutex_);
  // Where the newest plan has the owner that the chunk goes to.
  ServerInfo AddressOf(const OutgoingChunk& chunk) const REQUIRES(mutex_);
  // A destination that started again is elsewhere. The channel to close, if any.
  std::shared_ptr<Channel> Redirect(Link& link, const ServerInfo& to) REQUIRES(mutex_);
  void End(Link& link, std::vector<std::shared_ptr<Channel>>* channels) REQUIRES(mutex_);

  const ShardMoverOptions options_;
  Mutex mutex_;
  CondVar wake_;
  std::map<Destination, std::shared_ptr<Link>> links_ GUARDED_BY(mutex_);
  std::map<JobId, Newest> newest_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  LinkThreads threads_;  // started under mutex_
};

}  // namespace paceline
