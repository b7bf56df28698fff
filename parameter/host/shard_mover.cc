#include "parameter/host/shard_mover.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"

namespace paceline {
namespace {

constexpr Ticks kDownAfter = Seconds(1);
constexpr Ticks kDownAgainAfter = Seconds(2);
// A multiple of a piece, well below what a message may have.
constexpr uint64_t kPartBytes = 64u << 20;
// Of the chunks for one destination so much is encoded ahead, and so much is on its way; one more
// chunk or part is whatever its size.
constexpr uint64_t kAheadBytes = 64u << 20;

Ticks Now() { return Clock::Real().Now(); }

}  // namespace

void ShardMover::Parcel::Rewind(Ticks at) {
  sent = taken;
  outstanding.clear();
  probing = true;
  next_try = at;
}

// ---- What is to be given --------------------------------------------------------------------

bool ShardMover::IsWanted(const OutgoingChunk& chunk) const {
  const auto newest = newest_.find(chunk.job);
  if (newest == newest_.end() || newest->second.generation <= chunk.generation) return true;
  const auto to = newest->second.to.find(chunk.chunk);
  return newest->second.move == chunk.move && to != newest->second.to.end() &&
         to->second == chunk.to.node;
}

bool ShardMover::IsReturned(const OutgoingChunk& chunk) const {
  const auto newest = newest_.find(chunk.job);
  if (newest == newest_.end() || newest->second.generation <= chunk.generation) return false;
  const auto to = newest->second.to.find(chunk.chunk);
  return to != newest->second.to.end() && to->second == options_.self;
}

ReturnedChunk ShardMover::Return(Parcel& parcel) const {
  const OutgoingChunk& chunk = parcel.chunk;
  ReturnedChunk returned{chunk.job, newest_.at(chunk.job).move, chunk.chunk, {}};
  returned.bytes = parcel.bytes != nullptr ? *parcel.bytes : Encode(chunk.state);
  return returned;
}

ServerInfo ShardMover::AddressOf(const OutgoingChunk& chunk) const {
  const auto newest = newest_.find(chunk.job);
  if (newest == newest_.end() || newest->second.generation <= chunk.generation) return chunk.to;
  const auto server = newest->second.servers.find(chunk.to.node);
  return server == newest->second.servers.end() ? chunk.to : server->second;
}

std::shared_ptr<Channel> ShardMover::Redirect(Link& link, const ServerInfo& to) {
  if (link.to == to) return nullptr;
  link.to = to;
  std::shared_ptr<Channel> channel = link.channel;
  if (channel != nullptr) Lose(link, channel.get());
  link.reach.Reset();
  wake_.SignalAll();
  return channel;
}

void ShardMover::Give(OutgoingChunk chunk) {
  if (options_.transport == nullptr) return;
  auto parcel = std::make_shared<Parcel>();
  parcel->chunk = std::move(chunk);
  std::optional<ReturnedChunk> returned;
  std::shared_ptr<Channel> past;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    if (IsReturned(parcel->chunk)) {
      returned = Return(*parcel);
    } else if (IsWanted(parcel->chunk)) {
      std::shared_ptr<Link>& link = links_[{parcel->chunk.job, parcel->chunk.to.node}];
      if (link == nullptr) {
        link = std::make_shared<Link>();
        link->at = {parcel->chunk.job, parcel->chunk.to.node};
        link->to = AddressOf(parcel->chunk);
        threads_.Start([this, started = link] { Run(started); });
      }
      past = Redirect(*link, AddressOf(parcel->chunk));
      link->parcels.push_back(std::move(parcel));
      wake_.SignalAll();
    }
  }
  if (past != nullptr) past->Close(absl::CancelledError("this owner is elsewhere now"));
  if (returned && options_.on_returned) options_.on_returned(*std::move(returned));
}

void ShardMover::Follow(const Plan& plan) {
  std::vector<ReturnedChunk> returned;
  std::vector<std::shared_ptr<Channel>> past;
  {
    MutexLock lock(&mutex_);
    Newest& newest = newest_[plan.job];
    if (plan.generation < newest.generation) return;
    newest = {plan.generation, plan.move, {}, {}};
    for (const ServerInfo& server : plan.servers) newest.servers[server.node] = server;
    for (const ChunkMove& move : plan.moves) {
      if (move.from == options_.self) newest.to[move.chunk] = move.to;
    }
    for (auto& [at, link] : links_) {
      if (at.first != plan.job) continue;
      for (auto it = link->parcels.begin(); it != link->parcels.end();) {
        const bool back = IsReturned((*it)->chunk);
        if (back) returned.push_back(Return(**it));
        it = back || !IsWanted((*it)->chunk) ? link->parcels.erase(it) : it + 1;
      }
      if (link->parcels.empty()) link->reach.Reset();
      const auto server = newest.servers.find(at.second);
      if (server == newest.servers.end()) continue;
      if (auto channel = Redirect(*link, server->second)) past.push_back(std::move(channel));
    }
  }
  for (auto& channel : past) channel->Close(absl::CancelledError("this owner is elsewhere now"));
  if (!options_.on_returned) return;
  for (ReturnedChunk& chunk : returned) options_.on_returned(std::move(chunk));
}

std::map<JobId, Bytes> ShardMover::Memory() {
  std::map<JobId, Bytes> memory;
  MutexLock lock(&mutex_);
  for (const auto& [at, link] : links_) {
    for (const std::shared_ptr<Parcel>& parcel : link->parcels) {
      if (parcel->bytes != nullptr) memory[at.first] += Bytes(parcel->bytes->size());
    }
  }
  return memory;
}

// ---- Ends -----------------------------------------------------------------------------------

void ShardMover::End(Link& link, std::vector<std::shared_ptr<Channel>>* channels) {
  link.gone = true;
  link.parcels.clear();
  if (link.channel != nullptr) channels->push_back(std::move(link.channel));
  wake_.SignalAll();
}

void ShardMover::Forget(JobId job) {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    MutexLock lock(&mutex_);
    newest_.erase(job);
    for (auto it = links_.begin(); it != links_.end();) {
      if (it->first.first != job) {
        ++it;
        continue;
      }
      End(*it->second, &channels);
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
    for (auto& [at, link] : links_) End(*link, &channels);
    links_.clear();
  }
  for (auto& channel : channels) channel->Close(absl::CancelledError("this owner is ending"));
  threads_.JoinAll();
}

// ---- A destination's thread -----------------------------------------------------------------

void ShardMover::Run(const std::shared_ptr<Link>& link) {
  while (WaitForWork(*link)) {
    bool open = false;
    {
      MutexLock lock(&mutex_);
      open = link->channel != nullptr;
    }
    if (!open) {
      Open(*link);
      continue;
    }
    EncodeNext(*link);
    SendParts(link);
  }
}

uint64_t ShardMover::InFlight(const Link& link) const {
  uint64_t bytes = 0;
  for (const std::shared_ptr<Parcel>& parcel : link.parcels) bytes += parcel->sent - parcel->taken;
  return bytes;
}

std::optional<Ticks> ShardMover::NextPart(const Link& link, Ticks now) const {
  std::optional<Ticks> at;
  uint64_t ahead = 0;
  const bool full = InFlight(link) >= kAheadBytes;
  for (const std::shared_ptr<Parcel>& parcel : link.parcels) {
    if (parcel->bytes == nullptr) return ahead < kAheadBytes ? now : at;
    ahead += parcel->bytes->size();
    const bool waits = parcel->probing && !parcel->outstanding.empty();
    if (full || waits || parcel->sent == parcel->bytes->size()) continue;
    at = std::min(at.value_or(parcel->next_try), parcel->next_try);
  }
  return at;
}

bool ShardMover::WaitForWork(Link& link) {
  MutexLock lock(&mutex_);
  while (!link.gone) {
    const Ticks now = Now();
    std::optional<Ticks> at;
    if (link.channel == nullptr) {
      if (!link.parcels.empty()) at = link.reach.next_try();
    } else {
      at = NextPart(link, now);
    }
    if (!at) {
      wake_.Wait(&mutex_);
    } else if (*at > now) {
      wake_.WaitFor(&mutex_, *at - now);
    } else {
      return true;
    }
  }
  return false;
}

void ShardMover::Open(Link& link) {
  ServerInfo to;
  {
    MutexLock lock(&mutex_);
    to = link.to;
  }
  auto channel = Dial(options_, link.at.first, to, this);
  std::optional<Reach::Outage> outage;
  bool wanted = false;
  {
    MutexLock lock(&mutex_);
    wanted = !link.gone && (channel.ok() ? link.to == to : !link.parcels.empty());
    if (wanted && channel.ok()) link.channel = *channel;
    if (wanted) outage = channel.ok() ? link.reach.Opened(Now()) : link.reach.Failed(Now());
  }
  if (!wanted && channel.ok()) {
    (*channel)->Close(absl::CancelledError("nothing is to be given any more"));
  }
  if (!outage) return;
  const std::string why(channel.ok() ? kClosesEachTime : Std(channel.status().message()));
  if (outage->first) LogWarning("mover", "chunks cannot be given to ", to.name, ": ", why);
  if (options_.on_link_down) options_.on_link_down(link.at.second, outage->since, why);
}

// Copies of hundreds of megabytes: neither shard threads nor replies wait for them.
void ShardMover::EncodeNext(Link& link) {
  uint64_t ahead = 0;
  for (size_t i = 0;; ++i) {
    std::shared_ptr<Parcel> parcel;
    {
      MutexLock lock(&mutex_);
      if (i >= link.parcels.size()) return;
      parcel = link.parcels[i];
      if (parcel->bytes != nullptr) {
        ahead += parcel->bytes->size();
        continue;
      }
    }
    if (ahead >= kAheadBytes) return;
    auto bytes = std::make_shared<const std::vector<std::byte>>(Encode(parcel->chunk.state));
    ahead += bytes->size();
    MutexLock lock(&mutex_);
    parcel->bytes = std::move(bytes);
    parcel->chunk.state = {};
  }
}

void ShardMover::AddParts(Link& link, const std::shared_ptr<Parcel>& parcel,
                          std::vector<Outgoing>* outgoing) {
  const uint64_t size = parcel->bytes->size();
  uint64_t in_flight = InFlight(link);
  while (parcel->sent < size && !(parcel->probing && !parcel->outstanding.empty()) &&
         in_flight < kAheadBytes) {
    const uint64_t most = parcel->probing ? kPieceBytes : kPartBytes;
    const uint64_t length = std::min(most, size - parcel->sent);
    FrameHeader header;
    header.kind = FrameKind::kMoveShard;
    header.job = link.at.first;
    header.job_generation = parcel->chunk.generation;
    header.origin_step = Step(parcel->chunk.move);
    header.tensor = parcel->chunk.chunk.tensor;
    header.chunk = parcel->chunk.chunk.chunk;
    header.sender = options_.self;
    header.incarnation = options_.incarnation;
    header.sequence = Sequence(++link.last_sequence);
    header.step = Step(parcel->sent);
    header.samples = Samples(size);
    outgoing->push_back({link.channel, header, parcel, parcel->bytes,
                         std::span(*parcel->bytes).subspan(parcel->sent, length)});
    parcel->sent += length;
    in_flight += length;
    parcel->outstanding[header.sequence] = parcel->sent;
  }
}

void ShardMover::SendParts(const std::shared_ptr<Link>& link) {
  std::vector<Outgoing> outgoing;
  {
    MutexLock lock(&mutex_);
    if (link->channel == nullptr) return;
    const Ticks now = Now();
    for (const std::shared_ptr<Parcel>& parcel : link->parcels) {
      if (parcel->bytes == nullptr) break;
      if (parcel->next_try <= now) AddParts(*link, parcel, &outgoing);
    }
  }
  for (Outgoing& out : outgoing) {
    out.channel->Send(out.header, out.part, 0,
                      [this, link, channel = out.channel.get(), parcel = out.parcel,
                       bytes = out.bytes](const absl::Status& status) {
                        if (!status.ok()) NotSent(*link, channel, *parcel, status);
                      });
  }
}

void ShardMover::NotSent(Link& link, const Channel* channel, Parcel& parcel,
                         const absl::Status& cause) {
  MutexLock lock(&mutex_);
  if (absl::IsResourceExhausted(cause)) {
    parcel.Rewind(Now() + PauseAfter(parcel.tries++));
  } else {
    // A channel that was closed before it was stored says so here only.
    Lose(link, channel);
  }
}

// ---- Replies --------------------------------------------------------------------------------

absl::Status ShardMover::OnFrame(Channel& channel, const FrameHeader& header, Payload /*payload*/) {
  if (!header.reply || header.kind != FrameKind::kMoveShard) {
    return absl::InvalidArgumentError(absl::StrCat("a new owner sends no ", Absl(Name(header.kind)),
                                                   header.reply ? " replies" : " frames"));
  }
  Ticks refused;
  NodeId peer;
  {
    MutexLock lock(&mutex_);
    for (auto& [at, link] : links_) {
      if (link->channel.get() != &channel) continue;
      refused = OnReply(*link, header);
      peer = at.second;
    }
  }
  if (refused > Ticks() && options_.on_link_down) {
    options_.on_link_down(peer, refused,
                          absl::StrCat("chunk ", header.tensor.value(), "/", header.chunk.value(),
                                       " is refused: ", Absl(Name(header.status))));
  }
  return absl::OkStatus();
}

Ticks ShardMover::OnReply(Link& link, const FrameHeader& header) {
  link.reach.Reset();
  for (auto it = link.parcels.begin(); it != link.parcels.end(); ++it) {
    Parcel& parcel = **it;
    const auto message = parcel.outstanding.find(header.sequence);
    if (message == parcel.outstanding.end()) continue;
    wake_.SignalAll();
    if (header.status != FrameStatus::kOk) return OnRefused(link, parcel, header);
    parcel.taken = message->second;
    parcel.outstanding.erase(message);
    parcel.probing = false;
    parcel.tries = 0;
    parcel.refused_since = Ticks();
    if (parcel.taken == parcel.bytes->size()) link.parcels.erase(it);
    return Ticks();
  }
  return Ticks();
}

Ticks ShardMover::OnRefused(Link& link, Parcel& parcel, const FrameHeader& header) {
  const Ticks now = Now();
  parcel.taken = 0;  // it may be gone with the refusal
  parcel.Rewind(now + PauseAfter(parcel.tries++));
  if (header.status == FrameStatus::kNotYet) return Ticks();
  if (!std::exchange(parcel.said_refused, true)) {
    LogError("mover", link.to.name, " does not take chunk ", header.tensor.value(), "/",
             header.chunk.value(), " of job ", header.job.value(), ": ", Absl(Name(header.status)),
             "; trying again");
  }
  if (parcel.refused_since == Ticks()) {
    parcel.refused_since = now;
    parcel.next_word = now + kDownAfter;
  }
  if (now < parcel.next_word) return Ticks();
  parcel.next_word = now + kDownAgainAfter;
  return now - parcel.refused_since;
}

void ShardMover::OnClosed(Channel& channel, const absl::Status& /*cause*/) {
  MutexLock lock(&mutex_);
  for (auto& [at, link] : links_) Lose(*link, &channel);
}

void ShardMover::Lose(Link& link, const Channel* channel) {
  if (link.channel.get() != channel) return;
  link.channel.reset();
  const Ticks now = Now();
  if (link.parcels.empty()) {
    link.reach.Reset();
  } else {
    link.reach.Lost(now);
  }
  for (const std::shared_ptr<Parcel>& parcel : link.parcels) parcel->Rewind(now);
  wake_.SignalAll();
}

}  // namespace paceline
