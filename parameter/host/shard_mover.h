// Gives chunks to their new owners: keeps each until the other end has it whole, over as many
// connections as that takes.
//
// Thread rule: every method may be called from any thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/runtime/mutex.h"
#include "parameter/job_shards.h"
#include "plan/plan.h"
#include "transport/channel.h"

namespace paceline {

struct ShardMoverOptions {
  NodeId self;
  Incarnation incarnation;
  SecretKey key{};
  Transport* transport = nullptr;  // null: nothing is ever given
  std::function<void(NodeId peer, Ticks since, const std::string& cause)> on_link_down;
};

class ShardMover final : public FrameSink {
 public:
  explicit ShardMover(ShardMoverOptions options);
  ~ShardMover() override { Stop(); }

  void Give(OutgoingChunk chunk) EXCLUDES(mutex_);
  // The job ended: what is still to be given of it is not.
  void Forget(JobId job) EXCLUDES(mutex_);
  // Idempotent. The transport is not used afterwards.
  void Stop() EXCLUDES(mutex_);

  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) override;
  void OnClosed(Channel& channel, const absl::Status& cause) override;

 private:
  // Of a chunk's bytes, as large as a message may be.
  struct Part {
    uint64_t offset = 0;
    uint64_t length = 0;
    bool sent = false;
    bool taken = false;
  };
  struct Parcel {
    OutgoingChunk chunk;
    std::vector<std::byte> bytes;    // of chunk.state
    std::map<uint64_t, Part> parts;  // by sequence
    bool said_refused = false;
  };
  // Channels are per job: that is what a handshake proves.
  using Destination = std::pair<JobId, NodeId>;
  struct Link {
    ServerInfo to;
    std::shared_ptr<Channel> channel;
    std::deque<std::shared_ptr<Parcel>> parcels;
    uint64_t last_sequence = 0;
    Ticks next_try;
    uint32_t tries = 0;
    Ticks down_since;  // 0: up, or nothing waits
    bool said_down = false;
  };

  void Run();
  bool HasWork() const REQUIRES(mutex_);
  void Open(const Destination& at) EXCLUDES(mutex_);
  void SendParts() EXCLUDES(mutex_);
  void OnReply(Link& link, const FrameHeader& header) REQUIRES(mutex_);

  const ShardMoverOptions options_;
  Mutex mutex_;
  CondVar wake_;
  std::map<Destination, Link> links_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline
