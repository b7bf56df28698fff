// Asks lead owners for verdicts: repeats each question until it is answered, over as many
// connections as that takes, and takes the answer to the shard thread that asked.
//
// Thread rule: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/runtime/mutex.h"
#include "parameter/job_shards.h"
#include "transport/channel.h"

namespace paceline {

struct VerdictLinksOptions {
  NodeId self;
  Incarnation incarnation;
  SecretKey key{};
  Transport* transport = nullptr;  // null: only this owner itself can be asked
  std::function<void(NodeId peer, Ticks since, const std::string& cause)> on_link_down;
  // A question for a thread of this owner: answered by OnLocalReply.
  std::function<void(const FrameHeader& header, std::shared_ptr<const std::vector<std::byte>>)>
      ask_here;
  // An answer for the shard thread that asked.
  std::function<void(JobId, uint32_t thread, std::vector<std::byte> answer)> deliver;
};

class VerdictLinks final : public FrameSink {
 public:
  explicit VerdictLinks(VerdictLinksOptions options);
  ~VerdictLinks() override { Stop(); }

  // Takes the place of what the same thread asked about the same push.
  void Ask(uint32_t thread, OutgoingQuestion question) EXCLUDES(mutex_);
  void OnLocalReply(const FrameHeader& header,
                    const std::shared_ptr<const std::vector<std::byte>>& answer) EXCLUDES(mutex_);
  // The job ended: nobody waits for its answers.
  void Forget(JobId job) EXCLUDES(mutex_);
  // Idempotent. The transport is not used afterwards, and no function of the options called.
  void Stop() EXCLUDES(mutex_);

  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) override;
  void OnClosed(Channel& channel, const absl::Status& cause) override;

 private:
  struct Pending {
    uint32_t thread = 0;
    OutgoingQuestion question;
    bool sent = false;
    Ticks due;  // not sent before
  };
  // Channels are per job: that is what a handshake proves.
  using Destination = std::pair<JobId, NodeId>;
  struct Link {
    ServerInfo to;
    bool here = false;  // this owner itself
    std::shared_ptr<Channel> channel;
    uint64_t last_sequence = 0;
    std::map<uint64_t, Pending> pending;  // by sequence
    Ticks next_try;
    uint32_t tries = 0;
    Ticks down_since;  // 0: up, or nothing waits
    bool said_down = false;
  };
  struct Outgoing {
    std::shared_ptr<Channel> channel;  // null: here
    FrameHeader header;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };

  void Run();
  bool HasUnsent() const REQUIRES(mutex_);
  void Open(const Destination& at) EXCLUDES(mutex_);
  // What can be sent now.
  void Collect(const Destination& at, Link& link, std::vector<Outgoing>* out) REQUIRES(mutex_);
  void SendAll(const std::vector<Outgoing>& outgoing) EXCLUDES(mutex_);
  // True when the answer is for a thread of this owner.
  bool TakeReply(Link& link, const FrameHeader& header, uint32_t* thread) REQUIRES(mutex_);

  const VerdictLinksOptions options_;
  Mutex mutex_;
  CondVar wake_;
  std::map<Destination, Link> links_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline
