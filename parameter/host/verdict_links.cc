#include "parameter/host/verdict_links.h"

#include <algorithm>
#include <limits>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"

namespace paceline {
namespace {

// A group waits for the answer; gradients do not.
constexpr int32_t kPriority = std::numeric_limits<int32_t>::max();

Ticks Now() { return Clock::Real().Now(); }

void CloseWith(const std::shared_ptr<Channel>& channel, const char* cause) {
  if (channel != nullptr) channel->Close(absl::CancelledError(cause));
}

}  // namespace

// ---- Questions ----------------------------------------------------------------------------------

void VerdictLinks::Ask(uint32_t thread, OutgoingQuestion question) {
  std::vector<Outgoing> outgoing;
  std::shared_ptr<Channel> past;
  LinkPtr link;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    const JobId job = question.job;
    if (const auto it = links_.find(job); it != links_.end()) {
      VerdictLead& known = it->second->lead;
      if (question.lead.IsSame(known)) {
        known.generation = std::max(known.generation, question.lead.generation);
      } else if (question.lead.generation < known.generation) {
        return;
      } else {
        past = End(job);
      }
    }
    LinkPtr& current = links_[job];
    if (current == nullptr) {
      current = std::make_shared<Link>();
      current->job = job;
      current->lead = question.lead;
      current->here = question.lead.owner.node == options_.self;
      threads_.Start([this, started = current] { Run(started); });
    }
    link = current;
    std::erase_if(link->pending, [&](const auto& entry) {
      return entry.second.thread == thread && entry.second.question.push == question.push;
    });
    link->pending[++last_sequence_] = {thread, std::move(question), false, Ticks()};
    outgoing = Collect(*link);
    if (outgoing.empty()) wake_.SignalAll();
  }
  CloseWith(past, "another is the lead owner now");
  SendAll(link, outgoing);
}

void VerdictLinks::Follow(JobId job, const VerdictLead& lead) {
  std::shared_ptr<Channel> past;
  {
    MutexLock lock(&mutex_);
    const auto it = links_.find(job);
    if (it == links_.end() || lead.generation <= it->second->lead.generation) return;
    if (lead.IsSame(it->second->lead)) {
      it->second->lead.generation = lead.generation;
    } else {
      past = End(job);
    }
  }
  CloseWith(past, "another is the lead owner now");
}

std::vector<VerdictLinks::Outgoing> VerdictLinks::Collect(Link& link) {
  std::vector<Outgoing> out;
  if (!link.here && link.channel == nullptr) return out;
  const Ticks now = Now();
  for (auto& [sequence, pending] : link.pending) {
    if (pending.sent || pending.due > now) continue;
    pending.sent = true;
    const OutgoingQuestion& question = pending.question;
    FrameHeader header;
    header.kind = FrameKind::kVerdict;
    header.job = link.job;
    header.job_generation = question.lead.generation;
    header.version.lineage = question.lead.lineage;
    header.group = question.push.group;
    header.step = header.origin_step = question.push.step;
    header.tensor = question.chunk.tensor;
    header.chunk = question.chunk.chunk;
    header.sender = options_.self;
    header.incarnation = options_.incarnation;
    header.sequence = sequence;
    out.push_back({link.channel, header, question.bytes});
  }
  return out;
}

void VerdictLinks::SendAll(const LinkPtr& link, const std::vector<Outgoing>& outgoing) {
  for (const Outgoing& out : outgoing) {
    if (out.channel == nullptr) {
      options_.ask_here(out.header, out.bytes);
      continue;
    }
    out.channel->Send(out.header, *out.bytes, kPriority,
                      [this, link, channel = out.channel.get(), sequence = out.header.sequence,
                       bytes = out.bytes](const absl::Status& status) {
                        if (!status.ok()) NotSent(*link, channel, sequence, status);
                      });
  }
}

void VerdictLinks::NotSent(Link& link, const Channel* channel, Sequence sequence,
                           const absl::Status& cause) {
  MutexLock lock(&mutex_);
  // A channel that was closed before it was stored says so here only.
  if (!absl::IsResourceExhausted(cause)) return Lose(link, channel);
  const auto it = link.pending.find(sequence);
  if (it == link.pending.end()) return;
  it->second.sent = false;
  it->second.due = Now() + PauseAfter(0);
  wake_.SignalAll();
}

// ---- Answers ------------------------------------------------------------------------------------

std::optional<VerdictLinks::Pending> VerdictLinks::TakeReply(Link& link,
                                                             const FrameHeader& header) {
  const auto it = link.pending.find(header.sequence);
  if (it == link.pending.end()) return std::nullopt;  // another question took its place
  link.reach.Reset();
  if (header.status == FrameStatus::kNotYet) {
    it->second.sent = false;
    it->second.due = Now() + PauseAfter(0);
    wake_.SignalAll();
    return std::nullopt;
  }
  Pending pending = std::move(it->second);
  link.pending.erase(it);
  switch (header.status) {
    case FrameStatus::kOk:
      return pending;
    // One that is not the lead any more is not asked again: the thread that asked follows its plan.
    case FrameStatus::kNotOwner:
    case FrameStatus::kJobEnded:
      break;
    default:
      LogError("verdicts", link.lead.owner.name, " does not answer about step ",
               header.step.value(), " of group ", header.group.value(), " of job ",
               header.job.value(), ": ", Absl(Name(header.status)));
  }
  return std::nullopt;
}

void VerdictLinks::OnLocalReply(const FrameHeader& header,
                                const std::shared_ptr<const std::vector<std::byte>>& answer) {
  std::optional<Pending> asked;
  {
    MutexLock lock(&mutex_);
    const auto it = links_.find(header.job);
    if (it != links_.end()) asked = TakeReply(*it->second, header);
  }
  if (!asked || answer == nullptr) return;
  options_.deliver(header.job, asked->thread, asked->question.lead.lineage, *answer);
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
  std::optional<Pending> asked;
  {
    MutexLock lock(&mutex_);
    for (auto& [id, link] : links_) {
      if (link->channel.get() != &channel) continue;
      job = id;
      asked = TakeReply(*link, header);
    }
  }
  if (!asked) return absl::OkStatus();
  options_.deliver(job, asked->thread, asked->question.lead.lineage,
                   {payload.bytes().begin(), payload.bytes().end()});
  return absl::OkStatus();
}

// ---- Connections --------------------------------------------------------------------------------

void VerdictLinks::Run(const LinkPtr& link) {
  while (true) {
    std::vector<Outgoing> outgoing;
    bool open = false;
    {
      MutexLock lock(&mutex_);
      while (!link->gone) {
        const std::optional<Ticks> at = NextWork(*link);
        const Ticks now = Now();
        if (at && *at <= now) break;
        if (at) {
          wake_.WaitFor(&mutex_, *at - now);
        } else {
          wake_.Wait(&mutex_);
        }
      }
      if (link->gone) return;
      open = !link->here && link->channel == nullptr;
      outgoing = Collect(*link);
    }
    if (open) Open(*link);
    SendAll(link, outgoing);
  }
}

std::optional<Ticks> VerdictLinks::NextWork(const Link& link) const {
  if (!link.here && link.channel == nullptr) {
    if (link.pending.empty() || options_.transport == nullptr) return std::nullopt;
    return link.reach.next_try();
  }
  std::optional<Ticks> at;
  for (const auto& [sequence, pending] : link.pending) {
    if (!pending.sent) at = std::min(at.value_or(pending.due), pending.due);
  }
  return at;
}

void VerdictLinks::Open(Link& link) {
  // `lead.owner` and `job` of a link never change.
  auto channel = Dial(options_, link.job, link.lead.owner, this);
  std::optional<Reach::Outage> outage;
  bool gone = false;
  {
    MutexLock lock(&mutex_);
    gone = link.gone;
    if (!gone && channel.ok()) link.channel = *channel;
    if (!gone) outage = channel.ok() ? link.reach.Opened(Now()) : link.reach.Failed(Now());
  }
  if (gone && channel.ok()) return CloseWith(*channel, "nothing is to be asked any more");
  if (!outage) return;
  const std::string cause(channel.ok() ? kClosesEachTime : Std(channel.status().message()));
  if (outage->first) {
    LogWarning("verdicts", "the lead owner ", link.lead.owner.name, " cannot be asked: ", cause);
  }
  if (options_.on_link_down) options_.on_link_down(link.lead.owner.node, outage->since, cause);
}

void VerdictLinks::OnClosed(Channel& channel, const absl::Status& /*cause*/) {
  MutexLock lock(&mutex_);
  for (auto& [job, link] : links_) Lose(*link, &channel);
}

void VerdictLinks::Lose(Link& link, const Channel* channel) {
  if (link.channel.get() != channel) return;
  link.channel.reset();
  if (link.pending.empty()) {
    link.reach.Reset();
  } else {
    link.reach.Lost(Now());
  }
  for (auto& [sequence, pending] : link.pending) pending.sent = false;
  wake_.SignalAll();
}

std::shared_ptr<Channel> VerdictLinks::End(JobId job) {
  const auto it = links_.find(job);
  if (it == links_.end()) return nullptr;
  const LinkPtr link = it->second;
  links_.erase(it);
  link->gone = true;
  link->pending.clear();
  wake_.SignalAll();
  return std::move(link->channel);
}

void VerdictLinks::Forget(JobId job) {
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(&mutex_);
    channel = End(job);
  }
  CloseWith(channel, "the job ended");
}

void VerdictLinks::Stop() {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    while (!links_.empty()) channels.push_back(End(links_.begin()->first));
  }
  for (const auto& channel : channels) CloseWith(channel, "this owner is ending");
  threads_.JoinAll();
}

}  // namespace paceline
