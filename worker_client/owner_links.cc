#include "worker_client/owner_links.h"

#include <algorithm>
#include <cstring>
#include <new>
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
// A connection that breaks is opened again well within this.
constexpr Ticks kDownAfter = Seconds(1);

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
  std::vector<std::shared_ptr<Channel>> unwanted;
  {
    MutexLock lock(&mutex_);
    for (auto& [node, link] : links_) link.gone = true;
    for (const ServerInfo& info : owners) {
      Link& link = links_[info.node];
      link.gone = false;
      if (link.info == info) continue;
      if (link.channel != nullptr) unwanted.push_back(link.channel);
      link.info = info;
      link.next_try = Ticks();
    }
    wanted_ = true;
    wake_.Signal();
  }
  for (const auto& channel : unwanted) {
    channel->Close(absl::AbortedError("the owner moved to another address"));
  }
}

void OwnerLinks::Issue(std::shared_ptr<ChunkOp> op) {
  std::vector<Outgoing> outgoing;
  Finished finished;
  {
    MutexLock lock(&mutex_);
    op->finished = false;
    op->received = 0;
    op->collected.clear();
    auto it = links_.find(op->owner);
    if (stopping_) {
      finished.emplace_back(op, stopped_with_);
    } else if (it == links_.end() || it->second.gone) {
      op->reply = {};
      op->reply.status = FrameStatus::kNotOwner;
      finished.emplace_back(op, absl::OkStatus());
    } else {
      op->queued = true;
      op->sequence = Sequence(++it->second.last_sequence);
      it->second.pending.emplace(op->sequence.value(), op);
      if (it->second.channel != nullptr) {
        outgoing.push_back(Prepare(it->second, op));
      } else {
        it->second.unsent.insert(op->sequence.value());
        wanted_ = true;
        wake_.Signal();
      }
    }
  }
  SendAll(std::move(outgoing));
  Tell(finished);
}

OwnerLinks::Outgoing OwnerLinks::Prepare(Link& link, const std::shared_ptr<ChunkOp>& op) {
  ++op->sends;
  op->sent_on = link.channel;
  FrameHeader header = op->header;
  header.job = self_.job;
  header.sender = self_.node;
  header.incarnation = self_.incarnation;
  header.sequence = op->sequence;
  // Replies come in any order; everything below the oldest pending one is here.
  header.acknowledged = Sequence(link.pending.begin()->first - 1);
  return {link.channel, op, header};
}

void OwnerLinks::CollectSends(Link& link, std::vector<Outgoing>* out) {
  if (link.channel == nullptr) return;
  for (auto it = link.unsent.begin(); it != link.unsent.end();) {
    const std::shared_ptr<ChunkOp>& op = link.pending.at(*it);
    if (op->sends > 0) {  // an earlier channel still holds its memory
      ++it;
      continue;
    }
    out->push_back(Prepare(link, op));
    it = link.unsent.erase(it);
  }
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
    if (absl::IsOutOfRange(status)) {
      Finish(op, status, &finished);  // no channel would take it
    } else if (!status.ok() && !op->finished) {
      // The channel was full or closed. A full one drains; a closed one is opened again, also
      // when it closed before Connect had returned it and OnClosed could not know it.
      links_.at(op->owner).unsent.insert(op->sequence.value());
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
    if (op->sends > 0 || op->receiving) to_close = op->sent_on.lock();
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
  std::vector<std::thread> openers;  // nobody starts one any more
  {
    MutexLock lock(&mutex_);
    for (auto& [node, link] : links_) {
      if (link.opener.joinable()) openers.push_back(std::move(link.opener));
    }
  }
  for (std::thread& opener : openers) opener.join();
}

void OwnerLinks::Finish(const std::shared_ptr<ChunkOp>& op, absl::Status status, Finished* out) {
  if (op->finished) return;
  op->finished = true;
  op->status = std::move(status);
  auto it = links_.find(op->owner);
  if (it != links_.end()) {
    it->second.pending.erase(op->sequence.value());
    it->second.unsent.erase(op->sequence.value());
  }
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
  const bool fits = op->collect_limit > 0
                        ? header.total <= op->collect_limit &&
                              (header.offset == 0 || header.total == op->collected.size())
                        : header.total == 0 || header.total == op->out.size();
  if (fits && header.offset == op->received) return op;
  return absl::InvalidArgumentError(
      absl::StrCat(link->info.name, " answered ", Absl(Name(op->header.kind)), " of tensor ",
                   op->header.tensor.value(), " chunk ", op->header.chunk.value(), " with byte ",
                   header.offset, " of ", header.total, ", expected byte ", op->received, " of ",
                   op->collect_limit > 0 ? absl::StrCat("at most ", op->collect_limit)
                                         : absl::StrCat(op->out.size())));
}

absl::StatusOr<std::span<std::byte>> OwnerLinks::OnHeader(Channel& channel,
                                                          const FrameHeader& header) {
  MutexLock lock(&mutex_);
  PACELINE_ASSIGN_OR_RETURN(std::shared_ptr<ChunkOp> op, FindOp(channel, header));
  if (op == nullptr) return std::span<std::byte>();  // read and thrown away
  op->receiving = true;
  Find(channel)->receiving = op;
  if (op->collect_limit > 0) {
    op->collected.resize(header.total);
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
  if (!stopping_ && !link.gone) {
    LogWarning("worker", self_name_, ": lost ", link.info.name, " at ", link.info.data_address,
               ": ", cause.message());
  }
  link.channel.reset();
  link.last_error = cause;
  link.next_try = Ticks();
  EndReceiving(link, out);
  for (auto& [sequence, op] : link.pending) {
    op->received = 0;
    link.unsent.insert(sequence);
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
    DropGone();
    OpenMissing();
    TellOfOutages();
    bool more = false;
    {
      MutexLock lock(&mutex_);
      for (auto& [node, link] : links_) {
        CollectSends(link, &outgoing);
        more = more || link.channel == nullptr || !link.unsent.empty();
      }
    }
    SendAll(std::move(outgoing));
    if (!more) continue;
    MutexLock lock(&mutex_);
    if (!stopping_) wake_.WaitFor(&mutex_, kResendPause);
    wanted_ = true;
  }
}

// Each in a thread of its own: one that does not answer keeps no other waiting.
void OwnerLinks::OpenMissing() {
  MutexLock lock(&mutex_);
  const Ticks now = Clock::Real().Now();
  for (auto& [node, link] : links_) {
    const bool missing = link.channel == nullptr && !link.gone && !link.opening;
    if (stopping_ || !missing || link.next_try > now) continue;
    if (link.opener.joinable()) link.opener.join();  // its last act was to say that it is done
    link.opening = true;
    link.opener = std::thread([this, info = link.info] { Open(info); });
  }
}

void OwnerLinks::Open(const ServerInfo& info) {
  absl::StatusOr<std::shared_ptr<Channel>> channel =
      transport_->Connect(info.data_address, self_, key_, this, kConnectTimeout);
  std::vector<Outgoing> outgoing;
  absl::Status unwanted;
  {
    MutexLock lock(&mutex_);
    Link& link = links_.at(info.node);
    if (stopping_) {
      unwanted = stopped_with_;
    } else if (link.gone || !(link.info == info)) {
      unwanted = absl::AbortedError("the owner moved to another address");
    } else if (channel.ok()) {
      link.channel = *channel;
      link.tries = 0;
      link.last_error = absl::OkStatus();
      CollectSends(link, &outgoing);
    } else {
      link.last_error = channel.status();
      link.next_try = Clock::Real().Now() + RetryPause(link.tries++);
    }
  }
  if (!unwanted.ok() && channel.ok()) (*channel)->Close(unwanted);
  SendAll(std::move(outgoing));
  MutexLock lock(&mutex_);
  links_.at(info.node).opening = false;
  wanted_ = true;
  wake_.Signal();
}

void OwnerLinks::DropGone() {
  std::vector<std::shared_ptr<Channel>> channels;
  Finished finished;
  {
    MutexLock lock(&mutex_);
    for (auto it = links_.begin(); it != links_.end();) {
      Link& link = it->second;
      if (!link.gone) {
        ++it;
        continue;
      }
      const auto pending = link.pending;
      for (const auto& [sequence, op] : pending) AnswerNotOwner(op, &finished);
      if (link.channel != nullptr) channels.push_back(link.channel);
      if (link.channel != nullptr || link.opening) {
        ++it;  // until that has come to its end
        continue;
      }
      if (link.opener.joinable()) link.opener.join();
      it = links_.erase(it);
    }
  }
  for (auto& channel : channels) channel->Close(absl::CancelledError("it owns nothing any more"));
  Tell(finished);
}

void OwnerLinks::AnswerNotOwner(const std::shared_ptr<ChunkOp>& op, Finished* out) {
  op->reply = {};
  op->reply.status = FrameStatus::kNotOwner;
  Finish(op, absl::OkStatus(), out);
}

void OwnerLinks::TellOfOutages() {
  struct Outage {
    ServerInfo peer;
    Ticks since;
    std::string cause;
  };
  std::vector<Outage> outages;
  {
    MutexLock lock(&mutex_);
    const Ticks now = Clock::Real().Now();
    for (auto& [node, link] : links_) {
      if (link.channel != nullptr || link.pending.empty()) {
        link.down_since = Ticks();
        link.said_down = false;
        continue;
      }
      if (link.down_since == Ticks()) link.down_since = now;
      const Ticks since = now - link.down_since;
      if (since < kDownAfter || std::exchange(link.said_down, true)) continue;
      outages.push_back({link.info, since, std::string(link.last_error.message())});
    }
  }
  for (const Outage& outage : outages) {
    listener_->OnLinkDown(outage.peer, outage.since, outage.cause);
  }
}

std::shared_ptr<std::byte[]> OwnerLinks::Allocate(size_t bytes) const {
  MutexLock lock(&mutex_);
  std::shared_ptr<Channel> best;
  for (const auto& [node, link] : links_) {
    if (link.channel == nullptr) continue;
    if (best == nullptr || link.channel->transport() == "shm") best = link.channel;
  }
  if (best != nullptr) return best->Allocate(bytes);
  constexpr std::align_val_t kAlignment{64};
  return {static_cast<std::byte*>(::operator new[](bytes, kAlignment)),
          [](std::byte* memory) { ::operator delete[](memory, kAlignment); }};
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

Ticks OwnerLinks::DownFor(NodeId owner) const {
  MutexLock lock(&mutex_);
  const auto it = links_.find(owner);
  if (it == links_.end() || it->second.down_since == Ticks()) return Ticks(0);
  return Clock::Real().Now() - it->second.down_since;
}

std::vector<std::string> OwnerLinks::Transports() const {
  MutexLock lock(&mutex_);
  std::vector<std::string> lines;
  for (const auto& [node, link] : links_) {
    std::string how = "not connected";
    if (link.channel != nullptr) {
      how = link.channel->transport();
      const std::string why = link.channel->transport_reason();
      if (!why.empty()) absl::StrAppend(&how, " (", why, ")");
    }
    lines.push_back(absl::StrCat(link.info.name, ": ", how));
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
