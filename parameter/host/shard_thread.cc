#include "parameter/host/shard_thread.h"

#include <utility>

#include "common/runtime/clock.h"
#include "parameter/contribution.h"
#include "parameter/host/frame_codec.h"

namespace paceline {

ShardThread::ShardThread(const RouterOptions& options, uint32_t index, RouterCounters* counters,
                         LocalReply local_reply)
    : options_(options),
      index_(index),
      counters_(counters),
      local_reply_(std::move(local_reply)),
      thread_([this] { Run(); }) {}

ShardThread::~ShardThread() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    not_empty_.SignalAll();
  }
  thread_.join();
}

bool ShardThread::Post(Frame&& frame) {
  MutexLock lock(&mutex_);
  if (closed_ || frames_ >= kMaxFrames) return false;
  ++frames_;
  items_.emplace_back(std::move(frame));
  if (items_.size() == 1) not_empty_.Signal();
  return true;
}

void ShardThread::Post(Task task) {
  MutexLock lock(&mutex_);
  items_.emplace_back(std::move(task));
  if (items_.size() == 1) not_empty_.Signal();
}

void ShardThread::Run() {
  std::deque<Item> batch;
  while (true) {
    {
      MutexLock lock(&mutex_);
      while (items_.empty() && !closed_) not_empty_.Wait(&mutex_);
      if (items_.empty()) return;
      batch.swap(items_);
      frames_ = 0;
    }
    const Ticks begin = Now();
    while (!batch.empty()) {
      if (auto* const frame = std::get_if<Frame>(&batch.front())) {
        Take(*frame);
      } else {
        std::get<Task>(batch.front())(*this);
      }
      batch.pop_front();  // gives the credit of the payload back
    }
    busy_ns_.fetch_add(static_cast<uint64_t>((Now() - begin).value()), std::memory_order_relaxed);
  }
}

Ticks ShardThread::Now() const { return Clock::Real().Now(); }

void ShardThread::Open(std::shared_ptr<Channel> channel) {
  routes_[channel.get()] = ++last_route_;
  channels_[last_route_] = std::move(channel);
}

void ShardThread::Close(const Channel* channel) {
  const auto route = routes_.find(channel);
  if (route == routes_.end()) return;
  for (auto& [id, job] : jobs_) job.CloseRoute(route->second);
  channels_.erase(route->second);
  routes_.erase(route);
}

void ShardThread::Take(Frame& frame) {
  const auto route = routes_.find(frame.channel);
  const std::optional<Operation> operation =
      ToOperation(frame.header, route == routes_.end() ? 0 : route->second);
  if (!operation) return;  // refused where it came in
  const Piece piece{frame.header.offset, frame.payload.bytes()};
  replies_.clear();
  JobShards* const job = Find(frame.header.job);
  if (job == nullptr) {
    // Only after the end of a job: channels of jobs without a plan are not authenticated.
    if (!IsLast(*operation, piece)) return;
    if (frame.boundary != nullptr && frame.boundary->outstanding.fetch_sub(1) != 1) return;
    Reply reply;
    reply.to = *operation;
    reply.status = OperationStatus::kJobEnded;
    return SendReply(frame.header.job, nullptr, reply);
  }
  job->OnOperation(*operation, piece, std::move(frame.boundary), Now(), &replies_);
  Send(frame.header.job, replies_);
}

void ShardThread::Send(JobId job, ParameterShard::Replies& replies) {
  JobShards* const shards = Find(job);
  for (const Reply& reply : replies) {
    if (shards != nullptr && reply.status != OperationStatus::kOk) {
      shards->CountRefusal(reply.status);
    }
    SendReply(job, shards, reply);
  }
  replies.clear();
}

void ShardThread::SendReply(JobId job, const JobShards* shards, const Reply& reply) {
  if (reply.to.route == kLocalRoute) {
    FrameHeader header = ToHeader(reply);
    header.job = job;
    return local_reply_(header, reply.state);
  }
  const auto it = channels_.find(reply.to.route);
  if (it == channels_.end()) return;  // it will ask again on another channel
  Channel& channel = *it->second;
  FrameHeader header = ToHeader(reply);
  header.job = job;
  header.sender = options_.self;
  if (shards != nullptr) {
    header.job_generation = shards->plan()->generation;
    header.group_generation = shards->GenerationFor(reply.to.group, reply.to.step);
  }
  // What the next forward pass needs first is first.
  const auto priority = -static_cast<int32_t>(reply.to.chunk.tensor.value() & 0x7fffffff);
  if (reply.state != nullptr) {
    counters_->bytes_out += reply.state->size();
    channel.Send(header, *reply.state, priority, [state = reply.state](const absl::Status&) {});
  } else if (!reply.values || reply.values.size() == 0) {
    channel.Send(header, {}, priority, [](const absl::Status&) {});
  } else if (reply.to.dtype == DType::kF32) {
    const std::span<const std::byte> bytes = std::as_bytes(reply.values.values());
    counters_->bytes_out += bytes.size();
    channel.Send(header, bytes, priority, [values = reply.values](const absl::Status&) {});
  } else {
    auto halves = std::make_shared<const std::vector<uint16_t>>(
        ToHalves(reply.values.values(), reply.to.dtype));
    counters_->bytes_out += halves->size() * sizeof(uint16_t);
    channel.Send(header, std::as_bytes(std::span<const uint16_t>(*halves)), priority,
                 [halves](const absl::Status&) {});
  }
}

JobShards* ShardThread::Find(JobId job) {
  const auto it = jobs_.find(job);
  return it == jobs_.end() ? nullptr : &it->second;
}

JobShards& ShardThread::FindOrAdd(JobId job) {
  return jobs_
      .try_emplace(job, options_.self, index_, options_.threads,
                   options_.max_parked_bytes / options_.threads, &pool_)
      .first->second;
}

void ShardThread::EndJob(JobId job) {
  ended_.insert(job);
  if (ended_.size() > kMaxEndedJobs) ended_.erase(ended_.begin());
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  ParameterShard::Replies replies;
  it->second.End(&replies);
  Send(job, replies);
  jobs_.erase(it);
}

std::vector<JobAtServer> ShardThread::Report() const {
  std::vector<JobAtServer> out;
  for (const auto& [id, job] : jobs_) out.push_back(job.Report());
  return out;
}

}  // namespace paceline
