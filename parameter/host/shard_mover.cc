#include "parameter/host/shard_mover.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"

namespace paceline {
namespace {

constexpr Ticks kConnectTimeout = Seconds(2);
constexpr Ticks kFirstRetry = Milliseconds(20);
constexpr Ticks kLongestRetry = Seconds(1);
constexpr Ticks kPause = Milliseconds(5);
constexpr Ticks kDownAfter = Seconds(1);
// A multiple of a piece, well below what a message may have.
constexpr uint64_t kPartBytes = 64u << 20;

Ticks Now() { return Clock::Real().Now(); }

}  // namespace

ShardMover::ShardMover(ShardMoverOptions options) : options_(std::move(options)) {
  if (options_.transport != nullptr) thread_ = std::thread([this] { Run(); });
}

void ShardMover::Give(OutgoingChunk chunk) {
  auto parcel = std::make_shared<Parcel>();
  parcel->chunk = std::move(chunk);
  MutexLock lock(&mutex_);
  Link& link = links_[{parcel->chunk.job, parcel->chunk.to.node}];
  link.to = parcel->chunk.to;
  link.parcels.push_back(std::move(parcel));
  wake_.Signal();
}

void ShardMover::Forget(JobId job) {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    MutexLock lock(&mutex_);
    for (auto it = links_.begin(); it != links_.end();) {
      if (it->first.first != job) {
        ++it;
        continue;
      }
      if (it->second.channel != nullptr) channels.push_back(std::move(it->second.channel));
      it = links_.erase(it);
    }
  }
  for (auto& channel : channels) channel->Close(absl::CancelledError("the job ended"));
}

void ShardMover::Stop() {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    for (auto& [at, link] : links_) {
      if (link.channel != nullptr) channels.push_back(std::move(link.channel));
    }
    links_.clear();
    wake_.SignalAll();
  }
  for (auto& channel : channels) channel->Close(absl::CancelledError("this owner is ending"));
  if (thread_.joinable()) thread_.join();
}

bool ShardMover::HasWork() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& entry) { return !entry.second.parcels.empty(); });
}

void ShardMover::Run() {
  while (true) {
    std::vector<Destination> closed;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && !HasWork()) wake_.Wait(&mutex_);
      if (stopping_) return;
      const Ticks now = Now();
      for (const auto& [at, link] : links_) {
        if (link.channel == nullptr && !link.parcels.empty() && link.next_try <= now) {
          closed.push_back(at);
        }
      }
    }
    for (const Destination& at : closed) Open(at);
    SendParts();
    MutexLock lock(&mutex_);
    if (!stopping_) wake_.WaitFor(&mutex_, kPause);
  }
}

void ShardMover::Open(const Destination& at) {
  ServerInfo to;
  {
    MutexLock lock(&mutex_);
    const auto it = links_.find(at);
    if (it == links_.end()) return;
    to = it->second.to;
  }
  const PeerIdentity self{at.first, options_.self, options_.incarnation, PeerRole::kServer};
  auto channel =
      options_.transport->Connect(to.data_address, self, options_.key, this, kConnectTimeout);
  std::string cause;
  Ticks down;
  {
    MutexLock lock(&mutex_);
    const auto it = links_.find(at);
    if (it == links_.end()) {
      if (channel.ok()) (*channel)->Close(absl::CancelledError("nothing is to be given any more"));
      return;
    }
    Link& link = it->second;
    if (channel.ok()) {
      link.channel = *std::move(channel);
      link.tries = 0;
      link.down_since = Ticks();
      link.said_down = false;
      return;
    }
    const Ticks now = Now();
    if (link.down_since == Ticks()) link.down_since = now;
    link.next_try =
        now + std::min(kLongestRetry, Ticks(kFirstRetry.value() << std::min(link.tries++, 6u)));
    down = now - link.down_since;
    if (down < kDownAfter || std::exchange(link.said_down, true)) return;
    cause = std::string(channel.status().message());
  }
  LogWarning("mover", "chunks cannot be given to ", to.name, ": ", cause);
  if (options_.on_link_down) options_.on_link_down(at.second, down, cause);
}

void ShardMover::SendParts() {
  struct Outgoing {
    std::shared_ptr<Channel> channel;
    std::shared_ptr<Parcel> parcel;
    FrameHeader header;
    std::span<const std::byte> bytes;
  };
  std::vector<Outgoing> outgoing;
  {
    MutexLock lock(&mutex_);
    for (auto& [at, link] : links_) {
      if (link.channel == nullptr) continue;
      for (const std::shared_ptr<Parcel>& parcel : link.parcels) {
        if (parcel->bytes.empty()) {
          parcel->bytes = Encode(parcel->chunk.state);
          parcel->chunk.state = {};
          for (uint64_t offset = 0; offset < parcel->bytes.size(); offset += kPartBytes) {
            const uint64_t length = std::min(kPartBytes, parcel->bytes.size() - offset);
            parcel->parts[++link.last_sequence] = {offset, length, false, false};
          }
        }
        for (auto& [sequence, part] : parcel->parts) {
          if (part.sent || part.taken) continue;
          part.sent = true;
          FrameHeader header;
          header.kind = FrameKind::kMoveShard;
          header.job = at.first;
          header.job_generation = parcel->chunk.generation;
          header.tensor = parcel->chunk.chunk.tensor;
          header.chunk = parcel->chunk.chunk.chunk;
          header.sender = options_.self;
          header.incarnation = options_.incarnation;
          header.sequence = Sequence(sequence);
          header.step = Step(part.offset);
          header.samples = Samples(parcel->bytes.size());
          outgoing.push_back({link.channel, parcel, header,
                              std::span(parcel->bytes).subspan(part.offset, part.length)});
        }
      }
    }
  }
  for (Outgoing& out : outgoing) {
    // The parcel lives as long as the channel reads its bytes.
    out.channel->Send(out.header, out.bytes, 0,
                      [this, parcel = out.parcel,
                       sequence = out.header.sequence.value()](const absl::Status& status) {
                        if (status.ok()) return;
                        MutexLock lock(&mutex_);
                        parcel->parts.at(sequence).sent = false;
                      });
  }
}

absl::Status ShardMover::OnFrame(Channel& channel, const FrameHeader& header, Payload /*payload*/) {
  if (!header.reply || header.kind != FrameKind::kMoveShard) {
    return absl::InvalidArgumentError(absl::StrCat("a new owner sends no ", Absl(Name(header.kind)),
                                                   header.reply ? " replies" : " frames"));
  }
  MutexLock lock(&mutex_);
  for (auto& [at, link] : links_) {
    if (link.channel.get() == &channel) OnReply(link, header);
  }
  return absl::OkStatus();
}

void ShardMover::OnReply(Link& link, const FrameHeader& header) {
  for (auto it = link.parcels.begin(); it != link.parcels.end(); ++it) {
    Parcel& parcel = **it;
    const auto part = parcel.parts.find(header.sequence.value());
    if (part == parcel.parts.end()) continue;
    if (header.status == FrameStatus::kOk) {
      part->second.taken = true;
    } else {
      const bool odd = header.status != FrameStatus::kNotYet;
      if (odd && !std::exchange(parcel.said_refused, true)) {
        LogError("mover", link.to.name, " does not take chunk ", header.tensor.value(), "/",
                 header.chunk.value(), " of job ", header.job.value(), ": ",
                 Absl(Name(header.status)), "; trying again");
      }
      // Whatever was taken of it may be gone with the refusal.
      for (auto& [sequence, other] : parcel.parts) other.sent = other.taken = false;
    }
    const bool whole = std::all_of(parcel.parts.begin(), parcel.parts.end(),
                                   [](const auto& entry) { return entry.second.taken; });
    if (whole) link.parcels.erase(it);
    return;
  }
}

void ShardMover::OnClosed(Channel& channel, const absl::Status& /*cause*/) {
  MutexLock lock(&mutex_);
  for (auto& [at, link] : links_) {
    if (link.channel.get() != &channel) continue;
    link.channel.reset();
    for (const std::shared_ptr<Parcel>& parcel : link.parcels) {
      for (auto& [sequence, part] : parcel->parts) part.sent = false;
    }
  }
}

}  // namespace paceline
