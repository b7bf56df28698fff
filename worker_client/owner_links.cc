#include "worker_client/owner_links.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"

namespace paceline {
namespace {

constexpr Ticks kConnectTimeout = Seconds(2);
constexpr Ticks kFirstRetry = Milliseconds(20);
constexpr Ticks kLongestRetry = Seconds(1);
constexpr Ticks kResendPause = Milliseconds(5);

Ticks RetryPause(uint32_t tries) {
  return std::min(kLongestRetry, Ticks(kFirstRetry.value() << std::min(tries, 6u)));
}

}  // namespace

OwnerLinks::OwnerLinks(Transport* transport, const PeerIdentity& self, const ChannelKey& key,
                       std::string self_name, Listener* listener)
    : transport_(transport),
      self_(self),
      key_(key),
      self_name_(std::move(self_name)),
      listener_(listener),
      thread_([this] { Run(); }) {}

OwnerLinks::~OwnerLinks() { Shutdown(absl::CancelledError("the session was closed")); }

void OwnerLinks::SetOwners(const std::vector<ServerInfo>& owners) {
  MutexLock lock(&mutex_);
  for (const ServerInfo& info : owners) {
    Link& link = links_[info.node];
    if (link.info == info) continue;
    if (link.channel != nullptr) {
      link.channel->Close(absl::AbortedError("the owner moved to another address"));
    }
    link.info = info;
    link.next_try = Ticks();
  }
  wanted_ = true;
  wake_.Signal();
}

void OwnerLinks::Issue(std::shared_ptr<ChunkOp> op) {
  std::vector<Outgoing> outgoing;
  Finished finished;
  {
    MutexLock lock(&mutex_);
    op->finished = false;
    op->needs_send = true;
    op->received = 0;
    op->collected.clear();
    auto it = links_.find(op->owner);
    if (stopping_ || it == links_.end()) {
      finished.emplace_back(
          op, stopping_ ? stopped_with_
                        : absl::InternalError(absl::StrCat(
                              "the plan names owner ", op->owner.value(), " but not its address")));
    } else {
      op->queued = true;
      op->sequence = Sequence(++it->second.last_sequence);
      it->second.pending.emplace(op->sequence.value(), op);
      if (it->second.channel != nullptr) {
        outgoing = CollectSends();
      } else {
        wanted_ = true;
        wake_.Signal();
      }
    }
  }
  SendAll(std::move(outgoing));
  Tell(finished);
}

std::vector<OwnerLinks::Outgoing> OwnerLinks::CollectSends() {
  std::vector<Outgoing> outgoing;
  for (auto& [node, link] : links_) {
    if (link.channel == nullptr) continue;
    for (auto& [sequence, op] : link.pending) {
      if (!op->needs_send || op->sends > 0 || op->finished) continue;
      op->needs_send = false;
      ++op->sends;
      FrameHeader header = op->header;
      header.job = self_.job;
      header.sender = self_.node;
      header.incarnation = self_.incarnation;
      header.sequence = op->sequence;
      // Replies come in any order; everything below the oldest pending one is here.
      header.acknowledged = Sequence(link.pending.begin()->first - 1);
      outgoing.push_back({link.channel, op, header});
    }
  }
  return outgoing;
}

void OwnerLinks::SendAll(std::vector<Outgoing> outgoing) {
  for (Outgoing& out : outgoing) {
    auto op = out.op;
    const Channel* channel = out.channel.get();
    out.channel->Send(out.header, op->payload, op->priority,
                      [this, op, channel](absl::Status status) { OnSent(op, channel, status); });
  }
}

void OwnerLinks::OnSent(const std::shared_ptr<ChunkOp>& op, const Channel* channel,
                        const absl::Status& status) {
  Finished finished;
  {
    MutexLock lock(&mutex_);
    PACELINE_CHECK(op->sends > 0);
    --op->sends;
    if (!status.ok() && !op->finished) {
      // The channel was full or closed. A full one drains; a closed one is opened again, also
      // when it closed before Connect had returned it and OnClosed could not know it.
      op->needs_send = true;
      Link* link = Find(*channel);
      if (link != nullptr && !absl::IsResourceExhausted(status)) Lose(*link, status, &finished);
      wanted_ = true;
      wake_.Signal();
    }
    ReleaseIfFree(op, &finished);
  }
  Tell(finished);
}

void OwnerLinks::Abandon(const std::shared_ptr<ChunkOp>& op, const absl::Status& cause) {
  Finished finished;
  std::shared_ptr<Channel> to_close;
  {
    MutexLock lock(&mutex_);
    if (!op->queued) return;
    if (op->sends > 0 || op->receiving) {
      auto it = links_.find(op->owner);
      if (it != links_.end()) to_close = it->second.channel;
    }
    Finish(op, cause, &finished);
  }
  if (to_close != nullptr) to_close->Close(cause);
  Tell(finished);
}

void OwnerLinks::Shutdown(const absl::Status& cause) {
  std::vector<std::shared_ptr<Channel>> channels;
  Finished finished;
  {
    MutexLock lock(&mutex_);
    if (!stopping_) {
      stopping_ = true;
      stopped_with_ = cause;
    }
    for (auto& [node, link] : links_) {
      if (link.channel != nullptr) channels.push_back(link.channel);
      const auto pending = link.pending;
      for (const auto& [sequence, op] : pending) Finish(op, cause, &finished);
    }
    wake_.SignalAll();
  }
  for (auto& channel : channels) channel->Close(cause);
  Tell(finished);
  if (thread_.joinable()) thread_.join();
}

void OwnerLinks::Finish(const std::shared_ptr<ChunkOp>& op, absl::Status status, Finished* out) {
  if (op->finished) return;
  op->finished = true;
  op->status = std::move(status);
  auto it = links_.find(op->owner);
  if (it != links_.end()) it->second.pending.erase(op->sequence.value());
  ReleaseIfFree(op, out);
}

void OwnerLinks::ReleaseIfFree(const std::shared_ptr<ChunkOp>& op, Finished* out) {
  if (!op->queued || !op->finished || op->sends > 0 || op->receiving) return;
  op->queued = false;
  out->emplace_back(op, op->status);
}

void OwnerLinks::Tell(const Finished& finished) {
  for (const auto& [op, status] : finished) listener_->OnOutcome(op, status);
}

OwnerLinks::Link* OwnerLinks::Find(const Channel& channel) {
  for (auto& [node, link] : links_) {
    if (link.channel.get() == &channel) return &link;
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<ChunkOp>> OwnerLinks::FindOp(const Channel& channel,
                                                            const FrameHeader& header) {
  Link* link = Find(channel);
  if (link == nullptr || !header.reply) return std::shared_ptr<ChunkOp>();
  auto it = link->pending.find(header.sequence.value());
  if (it == link->pending.end()) return std::shared_ptr<ChunkOp>();
  const std::shared_ptr<ChunkOp>& op = it->second;
  if (header.total > 0 && !op->collect && header.total != op->out.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(link->info.name, " answered ", Absl(Name(op->header.kind)), " of tensor ",
                     op->header.tensor.value(), " chunk ", op->header.chunk.value(), " with ",
                     header.total, " bytes, expected ", op->out.size()));
  }
  return op;
}

absl::StatusOr<std::span<std::byte>> OwnerLinks::OnHeader(Channel& channel,
                                                          const FrameHeader& header) {
  MutexLock lock(&mutex_);
  PACELINE_ASSIGN_OR_RETURN(std::shared_ptr<ChunkOp> op, FindOp(channel, header));
  if (op == nullptr) return std::span<std::byte>();  // read and thrown away
  op->receiving = true;
  Find(channel)->receiving = op;
  if (op->collect) {
    if (op->collected.size() != header.total) op->collected.resize(header.total);
    return std::span<std::byte>(op->collected).subspan(header.offset, header.length);
  }
  return op->out.subspan(header.offset, header.length);
}

absl::Status OwnerLinks::OnFrame(Channel& channel, const FrameHeader& header, Payload payload) {
  Finished finished;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    // Before anything else: whose memory it was may be given up by now.
    if (Link* link = Find(channel)) EndReceiving(*link, &finished);
    absl::StatusOr<std::shared_ptr<ChunkOp>> op = FindOp(channel, header);
    status = op.status();
    if (op.ok() && *op != nullptr && ((*op)->received += header.length) >= header.total) {
      (*op)->reply = header;
      Finish(*op, absl::OkStatus(), &finished);
    }
  }
  Tell(finished);
  return status;
}

void OwnerLinks::OnClosed(Channel& channel, const absl::Status& cause) {
  Finished finished;
  {
    MutexLock lock(&mutex_);
    if (Link* link = Find(channel)) Lose(*link, cause, &finished);
  }
  Tell(finished);
}

void OwnerLinks::EndReceiving(Link& link, Finished* out) {
  if (link.receiving == nullptr) return;
  const std::shared_ptr<ChunkOp> op = std::exchange(link.receiving, nullptr);
  op->receiving = false;
  ReleaseIfFree(op, out);
}

void OwnerLinks::Lose(Link& link, const absl::Status& cause, Finished* out) {
  const ChannelStats stats = link.channel->stats();
  closed_bytes_in_ += stats.bytes_in;
  closed_bytes_out_ += stats.bytes_out;
  if (!stopping_) {
    LogWarning("worker", self_name_, ": lost ", link.info.name, " at ", link.info.data_address,
               ": ", cause.message());
  }
  link.channel.reset();
  link.last_error = cause;
  link.next_try = Ticks();
  EndReceiving(link, out);
  for (auto& [sequence, op] : link.pending) {
    op->received = 0;
    op->needs_send = true;
  }
  wanted_ = true;
  wake_.Signal();
}

void OwnerLinks::Run() {
  while (true) {
    std::vector<Outgoing> outgoing;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && !wanted_) wake_.Wait(&mutex_);
      if (stopping_) return;
      wanted_ = false;
    }
    OpenMissing();
    bool more = false;
    {
      MutexLock lock(&mutex_);
      outgoing = CollectSends();
      for (auto& [node, link] : links_) {
        for (auto& [sequence, op] : link.pending) more = more || op->needs_send;
        more = more || link.channel == nullptr;
      }
    }
    SendAll(std::move(outgoing));
    if (!more) continue;
    MutexLock lock(&mutex_);
    if (!stopping_) wake_.WaitFor(&mutex_, kResendPause);
    wanted_ = true;
  }
}

void OwnerLinks::OpenMissing() {
  std::vector<ServerInfo> missing;
  {
    MutexLock lock(&mutex_);
    const Ticks now = Clock::Real().Now();
    for (const auto& [node, link] : links_) {
      if (link.channel == nullptr && link.next_try <= now) missing.push_back(link.info);
    }
  }
  for (const ServerInfo& info : missing) {
    auto channel = transport_->Connect(info.data_address, self_, key_, this, kConnectTimeout);
    MutexLock lock(&mutex_);
    if (stopping_) {
      if (channel.ok()) (*channel)->Close(stopped_with_);
      return;
    }
    Link& link = links_[info.node];
    if (!(link.info == info)) {  // it moved meanwhile
      if (channel.ok()) (*channel)->Close(absl::AbortedError("the owner moved to another address"));
      continue;
    }
    if (channel.ok()) {
      link.channel = *std::move(channel);
      link.tries = 0;
      link.last_error = absl::OkStatus();
    } else {
      link.last_error = channel.status();
      link.next_try = Clock::Real().Now() + RetryPause(link.tries++);
    }
  }
}

std::string OwnerLinks::Describe(NodeId owner) const {
  MutexLock lock(&mutex_);
  auto it = links_.find(owner);
  if (it == links_.end()) return absl::StrCat("node ", owner.value());
  const Link& link = it->second;
  if (link.channel != nullptr) return absl::StrCat(link.info.name, " at ", link.info.data_address);
  return absl::StrCat(link.info.name, " at ", link.info.data_address,
                      " (not connected: ", link.last_error.message(), ")");
}

std::vector<std::string> OwnerLinks::Transports() const {
  MutexLock lock(&mutex_);
  std::vector<std::string> lines;
  for (const auto& [node, link] : links_) {
    lines.push_back(absl::StrCat(link.info.name, ": ",
                                 link.channel ? link.channel->transport() : "not connected"));
  }
  return lines;
}

uint64_t OwnerLinks::bytes_in() const {
  MutexLock lock(&mutex_);
  uint64_t bytes = closed_bytes_in_;
  for (const auto& [node, link] : links_) {
    if (link.channel) bytes += link.channel->stats().bytes_in;
  }
  return bytes;
}

uint64_t OwnerLinks::bytes_out() const {
  MutexLock lock(&mutex_);
  uint64_t bytes = closed_bytes_out_;
  for (const auto& [node, link] : links_) {
    if (link.channel) bytes += link.channel->stats().bytes_out;
  }
  return bytes;
}

}  // namespace paceline
