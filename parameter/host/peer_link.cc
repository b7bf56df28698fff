#include "parameter/host/peer_link.h"

#include <algorithm>
#include <utility>

namespace paceline {
namespace {

constexpr Ticks kConnectTimeout = Seconds(2);
constexpr Ticks kFirstRetry = Milliseconds(20);
constexpr Ticks kLongestRetry = Seconds(1);
constexpr Ticks kDownAfter = Seconds(1);
constexpr Ticks kDownAgainAfter = Seconds(2);

}  // namespace

absl::StatusOr<std::shared_ptr<Channel>> Dial(const PeerLinkOptions& options, JobId job,
                                              const ServerInfo& to, FrameSink* sink) {
  const PeerIdentity self{job, options.self, options.incarnation, PeerRole::kServer};
  return options.transport->Connect(to.data_address, self, options.key, sink, kConnectTimeout);
}

Ticks PauseAfter(uint32_t tries) {
  return std::min(kLongestRetry, Ticks(kFirstRetry.value() << std::min(tries, 6u)));
}

std::optional<Reach::Outage> Reach::Failed(Ticks now) {
  Count(now);
  lost_ = false;
  return Word(now);
}

void Reach::Lost(Ticks now) {
  Count(now);
  lost_ = std::exchange(silent_, false);
}

std::optional<Reach::Outage> Reach::Opened(Ticks now) {
  silent_ = true;
  return lost_ ? Word(now) : std::nullopt;
}

void Reach::Count(Ticks now) {
  if (down_since_ == Ticks()) {
    down_since_ = now;
    next_word_ = now + kDownAfter;
    tries_ = 0;
  }
  next_try_ = now + PauseAfter(tries_++);
}

std::optional<Reach::Outage> Reach::Word(Ticks now) {
  if (now < next_word_) return std::nullopt;
  const bool first = next_word_ == down_since_ + kDownAfter;
  next_word_ = now + kDownAgainAfter;
  return Outage{now - down_since_, first};
}

void LinkThreads::Start(std::function<void()> run) {
  threads_.remove_if([](One& one) {
    if (one.ended.load()) one.thread.join();
    return !one.thread.joinable();
  });
  One& one = threads_.emplace_back();
  one.thread = std::thread([&one, run = std::move(run)] {
    run();
    one.ended.store(true);
  });
}

void LinkThreads::JoinAll() {
  for (One& one : threads_) one.thread.join();
  threads_.clear();
}

}  // namespace paceline
