// What connections between owners have in common, whatever goes through them: a thread for each, so
// that an owner that is out of reach holds up no other; tried again with growing pauses; told when
// that lasts.
//
// Thread rule: LinkThreads: its owner's lock, or one thread; the rest are values.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "plan/plan.h"
#include "transport/channel.h"

namespace paceline {

struct PeerLinkOptions {
  NodeId self;
  Incarnation incarnation;
  SecretKey key{};
  Transport* transport = nullptr;  // null: no other owner is ever reached
  // `peer` was out of reach for `since`; said again every few seconds while it is so.
  std::function<void(NodeId peer, Ticks since, const std::string& cause)> on_link_down;
};

// Opens a channel of `job` to `to` (per job: that is what a handshake proves). Blocks for up to two
// seconds.
absl::StatusOr<std::shared_ptr<Channel>> Dial(const PeerLinkOptions& options, JobId job,
                                              const ServerInfo& to, FrameSink* sink);

// The cause of an outage of channels that were open.
inline constexpr std::string_view kClosesEachTime = "it closes each connection at once";

// 20 ms, doubled with each try up to a second.
Ticks PauseAfter(uint32_t tries);

// When to try next, and when to say for how long that was in vain.
class Reach {
 public:
  struct Outage {
    Ticks since;
    bool first = false;  // word of it
  };
  Ticks next_try() const { return next_try_; }
  // No channel could be opened. The outage when it is to be told: after a second, then every two.
  std::optional<Outage> Failed(Ticks now);
  // A channel was lost. Where nothing came through it, it was no better than none.
  void Lost(Ticks now);
  // A channel is open. The outage, to be told as above, when those before it were lost.
  std::optional<Outage> Opened(Ticks now);
  // It answered, or nobody wants to reach it any more: what comes is another outage.
  void Reset() { *this = Reach(); }

 private:
  void Count(Ticks now);
  std::optional<Outage> Word(Ticks now);

  Ticks next_try_;
  uint32_t tries_ = 0;
  bool lost_ = false;    // the last channel was open, and nothing came through it
  bool silent_ = false;  // nothing has come through this one yet
  Ticks down_since_;     // 0: it is not
  Ticks next_word_;
};

// The threads of links, which end one by one.
class LinkThreads {
 public:
  ~LinkThreads() { JoinAll(); }
  // Lets go of those that have ended.
  void Start(std::function<void()> run);
  // They have been told to end; called without a lock that they take.
  void JoinAll();

 private:
  struct One {
    std::atomic<bool> ended{false};
    std::thread thread;
  };
  std::list<One> threads_;
};

}  // namespace paceline
