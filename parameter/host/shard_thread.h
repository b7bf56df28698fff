// A thread that owns shards, its queue, and the channels its replies go to.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <variant>

#include "common/runtime/mutex.h"
#include "parameter/host/router.h"
#include "parameter/job_shards.h"
#include "transport/channel.h"

namespace paceline {

// Counters that I/O and shard threads share.
struct RouterCounters {
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> bytes_out{0};
  std::atomic<int64_t> connections{0};
};

class ShardThread {
 public:
  struct Frame {
    FrameHeader header;
    Payload payload;
    const Channel* channel = nullptr;  // only compared: it may be closed by now
    std::shared_ptr<BoundaryAnswer> boundary;
  };
  using Task = std::function<void(ShardThread&)>;
  // Takes the answer to a question of another thread of this owner.
  using LocalReply = std::function<void(const FrameHeader& header,
                                        const std::shared_ptr<const std::vector<std::byte>>&)>;
  static constexpr uint64_t kLocalRoute = std::numeric_limits<uint64_t>::max();

  ShardThread(const RouterOptions& options, uint32_t index, RouterCounters* counters,
              LocalReply local_reply);
  ~ShardThread();

  // ---- From any thread.
  // False when kMaxFrames wait already: the peer is told by the end of its channel.
  bool Post(Frame&& frame) EXCLUDES(mutex_);
  // Runs on the shard thread, in order with frames. Tasks are few: directives and connections.
  void Post(Task task) EXCLUDES(mutex_);
  uint32_t index() const { return index_; }
  uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }

  // ---- On the shard thread, from tasks.
  void Open(std::shared_ptr<Channel> channel);
  void Close(const Channel* channel);
  // Null for a job this thread does not know.
  JobShards* Find(JobId job);
  JobShards& FindOrAdd(JobId job);
  void EndJob(JobId job);
  bool HasEnded(JobId job) const { return ended_.contains(job); }
  std::vector<JobAtServer> Report() const;
  Ticks Now() const;
  // Sends what a task or frame of `job` gave rise to.
  void Send(JobId job, ParameterShard::Replies& replies);

 private:
  static constexpr size_t kMaxFrames = 1u << 16;
  static constexpr size_t kMaxEndedJobs = 1024;
  static constexpr size_t kPoolBytes = 256u << 20;
  using Item = std::variant<Frame, Task>;

  void Run();
  void Take(Frame& frame);
  void SendReply(JobId job, const JobShards* shards, const Reply& reply);

  const RouterOptions options_;
  const uint32_t index_;
  RouterCounters* const counters_;
  const LocalReply local_reply_;

  Mutex mutex_;
  CondVar not_empty_;
  std::deque<Item> items_ GUARDED_BY(mutex_);
  size_t frames_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;

  // Of the shard thread.
  FloatPool pool_{kPoolBytes};
  std::map<JobId, JobShards> jobs_;
  std::set<JobId> ended_;
  // By route, in the order in which they opened.
  std::map<uint64_t, std::shared_ptr<Channel>> channels_;
  std::map<const Channel*, uint64_t> routes_;
  uint64_t last_route_ = 0;
  ParameterShard::Replies replies_;

  std::atomic<uint64_t> busy_ns_{0};
  std::thread thread_;
};

}  // namespace paceline
