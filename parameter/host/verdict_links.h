// Asks lead owners for verdicts: repeats each question until it is answered, over as many
// connections as that takes, and takes the answer to the shard thread that asked.
//
// A job has one lead at a time, and here one link to it, with a thread that connects. When a plan
// names another lead, the same one after it started again, or a later lineage, the link is of the
// past with all that was asked through it: every thread asks anew under its plan.
// Thread rule: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/runtime/mutex.h"
#include "parameter/host/peer_link.h"
#include "parameter/job_shards.h"
#include "transport/channel.h"

namespace paceline {

// Without a transport only this owner itself can be asked.
struct VerdictLinksOptions : PeerLinkOptions {
  // A question for a thread of this owner: answered by OnLocalReply.
  std::function<void(const FrameHeader& header, std::shared_ptr<const std::vector<std::byte>>)>
      ask_here;
  // An answer for the shard thread that asked in `lineage`.
  std::function<void(JobId, uint32_t thread, uint32_t lineage, std::vector<std::byte> answer)>
      deliver;
};

class VerdictLinks final : public FrameSink {
 public:
  explicit VerdictLinks(VerdictLinksOptions options) : options_(std::move(options)) {}
  ~VerdictLinks() override { Stop(); }

  // Takes the place of what the same thread asked about the same push; so no more wait than pushes
  // are open. One to a lead of the past is dropped.
  void Ask(uint32_t thread, OutgoingQuestion question) EXCLUDES(mutex_);
  // A shard thread has this plan now.
  void Follow(JobId job, const VerdictLead& lead) EXCLUDES(mutex_);
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
  struct Link {
    JobId job;
    VerdictLead lead;
    bool here = false;  // this owner itself
    std::shared_ptr<Channel> channel;
    std::map<Sequence, Pending> pending;
    Reach reach;
    bool gone = false;
  };
  struct Outgoing {
    std::shared_ptr<Channel> channel;  // null: here
    FrameHeader header;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };
  using LinkPtr = std::shared_ptr<Link>;

  void Run(const LinkPtr& link) EXCLUDES(mutex_);
  // When there is a channel to open or a question to send.
  std::optional<Ticks> NextWork(const Link& link) const REQUIRES(mutex_);
  void Open(Link& link) EXCLUDES(mutex_);
  // What can be sent now.
  std::vector<Outgoing> Collect(Link& link) REQUIRES(mutex_);
  void SendAll(const LinkPtr& link, const std::vector<Outgoing>& outgoing) EXCLUDES(mutex_);
  void NotSent(Link& link, const Channel* channel, Sequence sequence, const absl::Status& cause)
      EXCLUDES(mutex_);
  void Lose(Link& link, const Channel* channel) REQUIRES(mutex_);
  // The question whose answer this is; none when it is refused or of the past.
  std::optional<Pending> TakeReply(Link& link, const FrameHeader& header) REQUIRES(mutex_);
  // The link of the job is of the past. The channel to close, if any.
  std::shared_ptr<Channel> End(JobId job) REQUIRES(mutex_);

  const VerdictLinksOptions options_;
  Mutex mutex_;
  CondVar wake_;
  std::map<JobId, LinkPtr> links_ GUARDED_BY(mutex_);
  Sequence last_sequence_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  LinkThreads threads_;  // started under mutex_
};

}  // namespace paceline
