#include "parameter/host/verdict_links.h"

#include <algorithm>
#include <limits>

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
// A group waits for the answer; gradients do not.
constexpr int32_t kPriority = std::numeric_limits<int32_t>::max();

Ticks Now() { return Clock::Real().Now(); }

}  // namespace

VerdictLinks::VerdictLinks(VerdictLinksOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

void VerdictLinks::Ask(uint32_t thread, OutgoingQuestion question) {
  std::vector<Outgoing> outgoing;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    for (auto& [at, link] : links_) {
      if (at.first != question.job) continue;
      std::erase_if(link.pending, [&](const auto& entry) {
        return entry.second.thread == thread && entry.second.question.push == question.push;
      });
    }
    const Destination at{question.job, question.to.node};
    Link& link = links_[at];
    link.to = question.to;
    link.here = question.to.node == options_.self;
    link.pending[++link.last_sequence] = {thread, std::move(question), false, Ticks()};
    Collect(at, link, &outgoing);
    if (outgoing.empty()) wake_.Signal();
  }
  SendAll(outgoing);
}

void VerdictLinks::Collect(const Destination& at, Link& link, std::vector<Outgoing>* out) {
  if (!link.here && link.channel == nullptr) return;
  const Ticks now = Now();
  for (auto& [sequence, pending] : link.pending) {
    if (pending.sent || pending.due > now) continue;
    pending.sent = true;
    const OutgoingQuestion& question = pending.question;
    FrameHeader header;
    header.kind = FrameKind::kVerdict;
    header.job = at.first;
    header.job_generation = question.generation;
    header.group = question.push.group;
    header.step = header.origin_step = question.push.step;
    header.tensor = question.lead.tensor;
    header.chunk = question.lead.chunk;
    header.sender = options_.self;
    header.incarnation = options_.incarnation;
    header.sequence = Sequence(sequence);
    out->push_back({link.channel, header, question.bytes});
  }
}

void VerdictLinks::SendAll(const std::vector<Outgoing>& outgoing) {
  for (const Outgoing& out : outgoing) {
    if (out.channel == nullptr) {
      options_.ask_here(out.header, out.bytes);
    } else {
      // What the channel loses is sent again when it has closed.
      out.channel->Send(out.header, *out.bytes, kPriority,
                        [bytes = out.bytes](const absl::Status&) {});
    }
  }
}

// ---- Answers ------------------------------------------------------------------------------------

bool VerdictLinks::TakeReply(Link& link, const FrameHeader& header, uint32_t* thread) {
  const auto it = link.pending.find(header.sequence.value());
  if (it == link.pending.end()) return false;  // another question took its place
  if (header.status == FrameStatus::kNotYet) {
    it->second.sent = false;
    it->second.due = Now() + kFirstRetry;
    wake_.Signal();
    return false;
  }
  *thread = it->second.thread;
  link.pending.erase(it);
  // One that is not the lead any more is not asked again: the thread that asked follows its plan.
  if (header.status == FrameStatus::kOk) return true;
  if (header.status != FrameStatus::kNotOwner && header.status != FrameStatus::kJobEnded) {
    LogError("verdicts", link.to.name, " does not answer about step ", header.step.value(),
             " of group ", header.group.value(), " of job ", header.job.value(), ": ",
             Absl(Name(header.status)));
  }
  return false;
}

void VerdictLinks::OnLocalReply(const FrameHeader& header,
                                const std::shared_ptr<const std::vector<std::byte>>& answer) {
  uint32_t thread = 0;
  {
    MutexLock lock(&mutex_);
    const auto it = links_.find({header.job, options_.self});
    if (stopping_ || it == links_.end() || !TakeReply(it->second, header, &thread)) return;
  }
  if (answer != nullptr) options_.deliver(header.job, thread, *answer);
}

absl::Status VerdictLinks::OnFrame(Channel& channel, const FrameHeader& header, Payload payload) {
  if (!header.reply || header.kind != FrameKind::kVerdict) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a lead owner sends no ", Absl(Name(header.kind)), header.reply ? " replies" : " frames"));
  }
  if (header.total != payload.bytes().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a verdict of ", header.total, " bytes; it has to fit one piece"));
  }
  JobId job;
  uint32_t thread = 0;
  bool taken = false;
  {
    MutexLock lock(&mutex_);
    for (auto& [at, link] : links_) {
      if (link.channel.get() != &channel) continue;
      job = at.first;
      taken = TakeReply(link, header, &thread);
    }
    if (stopping_) return absl::OkStatus();
  }
  if (taken) options_.deliver(job, thread, {payload.bytes().begin(), payload.bytes().end()});
  return absl::OkStatus();
}

void VerdictLinks::OnClosed(Channel& channel, const absl::Status& /*cause*/) {
  MutexLock lock(&mutex_);
  for (auto& [at, link] : links_) {
    if (link.channel.get() != &channel) continue;
    link.channel.reset();
    for (auto& [sequence, pending] : link.pending) pending.sent = false;
  }
  wake_.Signal();
}

// ---- Connections --------------------------------------------------------------------------------

bool VerdictLinks::HasUnsent() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& entry) {
    return std::any_of(entry.second.pending.begin(), entry.second.pending.end(),
                       [](const auto& pending) { return !pending.second.sent; });
  });
}

void VerdictLinks::Run() {
  while (true) {
    std::vector<Destination> closed;
    std::vector<Outgoing> outgoing;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && !HasUnsent()) wake_.Wait(&mutex_);
      if (stopping_) return;
      const Ticks now = Now();
      for (auto& [at, link] : links_) {
        const bool wanted = !link.here && link.channel == nullptr && !link.pending.empty();
        if (wanted && link.next_try <= now && options_.transport != nullptr) closed.push_back(at);
        Collect(at, link, &outgoing);
      }
    }
    SendAll(outgoing);
    for (const Destination& at : closed) Open(at);
    MutexLock lock(&mutex_);
    if (!stopping_ && closed.empty()) wake_.WaitFor(&mutex_, kPause);
  }
}

void VerdictLinks::Open(const Destination& at) {
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
      if (channel.ok()) (*channel)->Close(absl::CancelledError("nothing is to be asked any more"));
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
  LogWarning("verdicts", "the lead owner ", to.name, " cannot be asked: ", cause);
  if (options_.on_link_down) options_.on_link_down(at.second, down, cause);
}

void VerdictLinks::Forget(JobId job) {
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

void VerdictLinks::Stop() {
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

}  // namespace paceline
