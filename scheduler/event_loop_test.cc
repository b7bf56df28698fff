// The loop around a scripted core: what matters here is order, not what is decided.
#include "scheduler/event_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "control/in_memory.h"

namespace paceline {

// Stands in for scheduler/core. Each Join gets the next node id and one journal entry; each Ack
// sends its id back as a directive without an entry; who leaves is sent directive 2000 and is not
// known any more; a Barrier is never answered.
class Core::Impl {
 public:
  uint64_t index = 0;
  uint64_t ticks = 0;
  std::set<NodeRef> joined;
  Ready ready;
  Ticks now;
};

Core::Core(CoreOptions) : impl_(std::make_unique<Impl>()) {}
Core::~Core() = default;

absl::Status Core::Recover(const std::vector<JournalEntry>& entries) {
  for (const JournalEntry& entry : entries) {
    if (entry.bytes == "unreadable") return absl::DataLossError("entry cannot be read");
    impl_->index = entry.index;
    impl_->joined.insert({NodeId(static_cast<uint32_t>(entry.index)), Incarnation(entry.index)});
  }
  return absl::OkStatus();
}

void Core::Step(Ticks now, SchedulerEvent event) {
  impl_->now = now;
  Ready& ready = impl_->ready;
  if (auto* join = std::get_if<JoinEvent>(&event)) {
    const uint64_t i = ++impl_->index;
    JoinReply reply;
    reply.self = {NodeId(static_cast<uint32_t>(i)), Incarnation(i)};
    reply.key = join->key;
    impl_->joined.insert(reply.self);
    ready.entries.push_back({i, join->join.name});
    ready.decisions.push_back({i, 0, now, "", "join", join->join.name});
    ready.replies.push_back({join->request, {reply}});
  } else if (auto* node = std::get_if<NodeEvent>(&event)) {
    if (auto* ack = std::get_if<AckRequest>(&node->body)) {
      Directive directive;
      directive.sequence = ack->id;
      directive.body = RecallSamplesDirective{JobId(1)};
      ready.directives.push_back({node->from, directive});
    }
    if (std::holds_alternative<LeaveRequest>(node->body)) {
      impl_->joined.erase(node->from);
      Directive last;
      last.sequence = 2000;
      ready.directives.push_back({node->from, last});
    }
    if (!std::holds_alternative<BarrierRequest>(node->body)) {
      ready.replies.push_back({node->request, {NodeReply(Empty{})}});
    }
  } else if (auto* watch = std::get_if<WatchEvent>(&event)) {
    Directive full;
    full.sequence = 1000;
    ready.directives.push_back({watch->from, full});
  } else if (auto* ask = std::get_if<OperatorEvent>(&event)) {
    if (std::holds_alternative<EventsQuery>(ask->body)) {
      std::vector<DecisionRecord> records(1);
      records[0].sequence = 1;
      ready.replies.push_back({ask->request, {OperatorReply(records)}});
    } else {
      ClusterView view;
      view.uptime_ms = static_cast<uint64_t>(now.value()) / 1'000'000;
      ready.replies.push_back({ask->request, {OperatorReply(view)}});
    }
  }
}

Ready Core::TakeReady() { return std::exchange(impl_->ready, {}); }
absl::Status Core::CheckNode(NodeRef node) const {
  if (impl_->joined.contains(node)) return absl::OkStatus();
  return absl::FailedPreconditionError("not the newest incarnation");
}
JournalEntry Core::Compacted() const { return {impl_->index, "compacted"}; }
std::string Core::Snapshot() const { return ""; }
Term Core::term() const { return Term(1); }

namespace {

// Lets a test wait until the loop has looked at the time.
class WatchedClock final : public Clock {
 public:
  Ticks Now() const override {
    const Ticks now = clock_.Now();
    ++looks_;
    return now;
  }
  int64_t UnixTimeMs() const override { return clock_.UnixTimeMs(); }
  void Advance(Ticks by) { clock_.Advance(by); }
  void AdvanceAndAwaitLook(Ticks by) {
    clock_.Advance(by);
    for (const uint64_t before = looks_; looks_ == before;) std::this_thread::yield();
  }

 private:
  ManualClock clock_;
  mutable std::atomic<uint64_t> looks_{0};
};

class EventLoopTest : public testing::Test {
 protected:
  void Start(EventLoopOptions options = {}) {
    options.tick_interval = Milliseconds(5);
    options.on_failed = [this](const absl::Status& s) { failed_.set_value(s); };
    auto loop = EventLoop::Make(std::move(options), std::make_unique<Core>(CoreOptions{}),
                                InMemoryJournal::Entries(*store_),
                                std::make_unique<InMemoryJournal>(store_), &clock_);
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
    loop_->Start();
    client_ = std::make_unique<InMemoryControlClient>(loop_.get());
  }
  void TearDown() override {
    InMemoryJournal::Hold(*store_, false);
    client_.reset();
    loop_.reset();
  }
  NodeRef Join(const std::string& name) {
    JoinRequest request;
    request.name = name;
    const auto reply = client_->Join(request, Seconds(30));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? reply->self : NodeRef{};
  }

  WatchedClock clock_;
  std::shared_ptr<InMemoryJournal::Store> store_ = InMemoryJournal::MakeStore();
  std::promise<absl::Status> failed_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<InMemoryControlClient> client_;
};

// Sequences of the directives of one stream, and its end.
struct Watched {
  std::vector<uint64_t> sequences;  // written by the stream's thread before `closed` is set
  std::promise<absl::Status> closed;
  std::promise<void> first;
  bool seen = false;
  ControlClient* watching = nullptr;

  ~Watched() {
    if (watching != nullptr) watching->StopWatch();
  }

  void Open(ControlClient& client, NodeRef self) {
    watching = &client;
    client.Watch(
        self,
        [this](Directive d) {
          sequences.push_back(d.sequence);
          if (!std::exchange(seen, true)) first.set_value();
        },
        [this](absl::Status s) { closed.set_value(std::move(s)); });
  }
};

TEST_F(EventLoopTest, NothingIsToldBeforeItIsDurable) {
  Start();
  const NodeRef first = Join("first");
  Watched watched;
  watched.Open(*client_, first);
  watched.first.get_future().wait();
  InMemoryJournal::Hold(*store_, true);

  std::atomic<bool> joined = false;
  std::promise<absl::StatusOr<JoinReply>> reply;
  loop_->Join(JoinRequest{}, [&](absl::StatusOr<JoinReply> r) {
    joined = true;
    reply.set_value(std::move(r));
  });
  // Has nothing to append, was asked later: waits its turn.
  std::promise<bool> acknowledged_after_join;
  loop_->Call(first, AckRequest{7, {}, {}, ""}, [&](absl::StatusOr<NodeReply> r) {
    EXPECT_TRUE(r.ok());
    acknowledged_after_join.set_value(joined);
  });
  auto acknowledged = acknowledged_after_join.get_future();
  EXPECT_EQ(acknowledged.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_FALSE(joined);

  InMemoryJournal::Hold(*store_, false);
  EXPECT_TRUE(acknowledged.get());
  EXPECT_TRUE(reply.get_future().get().ok());
  EXPECT_EQ(InMemoryJournal::Entries(*store_).size(), 2u);
}

TEST_F(EventLoopTest, EachJoinGetsAKeyOfItsOwn) {
  Start();
  const auto a = client_->Join(JoinRequest{}, Seconds(30));
  const auto b = client_->Join(JoinRequest{}, Seconds(30));
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->key, SecretKey{});
  EXPECT_NE(a->key, b->key);
}

TEST_F(EventLoopTest, RecoversWhatTheOneBeforeAppended) {
  Start();
  Join("first");
  Join("second");
  TearDown();
  Start();
  EXPECT_EQ(Join("third").node, NodeId(3));
  EXPECT_EQ(InMemoryJournal::Entries(*store_).size(), 3u);
}

TEST_F(EventLoopTest, AJournalTheCoreCannotReadIsAnError) {
  {
    InMemoryJournal journal(store_);
    journal.Append({{1, "unreadable"}}, [](absl::Status) {});
  }
  const auto loop =
      EventLoop::Make({}, std::make_unique<Core>(CoreOptions{}), InMemoryJournal::Entries(*store_),
                      std::make_unique<InMemoryJournal>(store_), &clock_);
  EXPECT_EQ(loop.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(loop.status().message(), "recovery from the journal: entry cannot be read");
}

TEST_F(EventLoopTest, AFullQueueRefusesRequestsButNotHeartbeats) {
  EventLoopOptions options;
  options.max_queued = 4;
  options.max_batches_in_flight = 1;
  Start(options);
  InMemoryJournal::Hold(*store_, true);
  std::atomic<int> answered = 0, refused = 0;
  const auto count = [&](const auto& reply) {
    ++answered;
    if (reply.status().code() == absl::StatusCode::kResourceExhausted) ++refused;
  };
  // The first fills the journal's window; of those that follow the loop takes none.
  loop_->Join(JoinRequest{}, count);
  int sent = 1;
  while (refused == 0 && sent < 1000) {
    loop_->Operate(StatusQuery{}, count);
    ++sent;
  }
  EXPECT_EQ(refused, 1);
  loop_->Call({NodeId(1), Incarnation(1)}, Heartbeat{}, count);
  EXPECT_EQ(refused, 1);
  InMemoryJournal::Hold(*store_, false);
  // Refused, as it should be, until the loop has taken what is queued.
  absl::Status status = absl::ResourceExhaustedError("");
  while (absl::IsResourceExhausted(status)) {
    status = client_->Operate(StatusQuery{}, Seconds(30)).status();
  }
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(answered, sent + 1);
}

// A disk that stalls keeps the loop from hearing anybody: nobody is silent for that.
TEST_F(EventLoopTest, NoTimePassesForLeasesWhileTheJournalsWindowIsFull) {
  EventLoopOptions options;
  options.max_batches_in_flight = 1;
  Start(options);
  const auto uptime_ms = [this] {
    const auto reply = client_->Operate(StatusQuery{}, Seconds(30));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? std::get<ClusterView>(*reply).uptime_ms : 0;
  };
  const uint64_t before = uptime_ms();
  InMemoryJournal::Hold(*store_, true);
  std::promise<void> joined;
  loop_->Join(JoinRequest{}, [&](const auto&) { joined.set_value(); });
  // The first look may be that of the step which fills the window.
  for (int i = 0; i < 20; ++i) clock_.AdvanceAndAwaitLook(Seconds(1));
  InMemoryJournal::Hold(*store_, false);
  joined.get_future().wait();
  EXPECT_LE(uptime_ms() - before, 2'000u);
}

TEST_F(EventLoopTest, WaitingRequestsAreBounded) {
  EventLoopOptions options;
  options.max_pending = 2;
  Start(options);
  const NodeRef self = Join("a");
  for (int i = 0; i < 2; ++i) {
    loop_->Call(self, BarrierRequest{"b"}, [](absl::StatusOr<NodeReply>) {});
  }
  EXPECT_EQ(client_->Call(self, Heartbeat{}, Seconds(30)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(EventLoopTest, StopAnswersEverythingAndClosesStreams) {
  Start();
  const NodeRef self = Join("a");
  Watched watched;
  watched.Open(*client_, self);
  std::promise<absl::Status> barrier;
  loop_->Call(self, BarrierRequest{"b"},
              [&](absl::StatusOr<NodeReply> r) { barrier.set_value(r.status()); });
  watched.first.get_future().wait();
  loop_->Stop();
  EXPECT_EQ(barrier.get_future().get().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(watched.closed.get_future().get().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_->Join(JoinRequest{}, Seconds(30)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(EventLoopTest, AJournalThatFailsStopsTheScheduler) {
  Start();
  InMemoryJournal::Fail(*store_, absl::UnavailableError("disk full"));
  const auto reply = client_->Join(JoinRequest{}, Seconds(30));
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(reply.status().message().find("disk full"), std::string::npos) << reply.status();
  EXPECT_EQ(failed_.get_future().get(), absl::UnavailableError("disk full"));
  EXPECT_FALSE(client_->Operate(StatusQuery{}, Seconds(30)).ok());
}

TEST_F(EventLoopTest, AStreamBeginsWithFullStateAndAnotherTakesItsPlace) {
  Start();
  const NodeRef self = Join("a");
  InMemoryControlClient other(loop_.get());
  Watched first, second;
  first.Open(*client_, self);
  first.first.get_future().wait();
  second.Open(other, self);
  EXPECT_EQ(first.closed.get_future().get().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(client_->Call(self, AckRequest{5, {}, {}, ""}, Seconds(30)).ok());
  loop_->Stop();
  second.closed.get_future().wait();
  EXPECT_EQ(first.sequences, std::vector<uint64_t>{1000});
  EXPECT_EQ(second.sequences, (std::vector<uint64_t>{1000, 5}));
}

// The end of the first comes after the second was asked for and before that one can begin.
TEST_F(EventLoopTest, TheEndOfAStreamThatIsBeingReplacedIsNotTheNodes) {
  std::atomic<int> opened = 0, ended = 0;
  std::promise<void> asked;
  EventLoopOptions options;
  options.trace = [&](Ticks, const SchedulerEvent& event) {
    opened += std::holds_alternative<WatchEvent>(event);
    ended += std::holds_alternative<WatchClosedEvent>(event);
    const auto* node = std::get_if<NodeEvent>(&event);
    if (node != nullptr && std::holds_alternative<AckRequest>(node->body)) asked.set_value();
  };
  Start(options);
  const NodeRef self = Join("a");
  InMemoryControlClient other(loop_.get());
  Watched first, second;
  first.Open(*client_, self);
  first.first.get_future().wait();
  InMemoryJournal::Hold(*store_, true);
  loop_->Join(JoinRequest{}, [](const absl::StatusOr<JoinReply>&) {});
  second.Open(other, self);
  client_->StopWatch();
  loop_->Call(self, AckRequest{5, {}, {}, ""}, [](const absl::StatusOr<NodeReply>&) {});
  asked.get_future().wait();
  EXPECT_EQ(opened, 2);
  EXPECT_EQ(ended, 0);
  InMemoryJournal::Hold(*store_, false);
  second.first.get_future().wait();
}

TEST_F(EventLoopTest, AStreamOfAnUnknownIncarnationIsRefused) {
  Start();
  Watched watched;
  watched.Open(*client_, {NodeId(9), Incarnation(9)});
  EXPECT_EQ(watched.closed.get_future().get().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(EventLoopTest, TheStreamOfANodeThatIsNoMemberAnyMoreIsClosed) {
  Start();
  const NodeRef self = Join("a");
  Watched watched;
  watched.Open(*client_, self);
  watched.first.get_future().wait();
  ASSERT_TRUE(client_->Call(self, LeaveRequest{}, Seconds(30)).ok());
  clock_.Advance(Milliseconds(5));
  EXPECT_EQ(watched.closed.get_future().get().code(), absl::StatusCode::kFailedPrecondition);
}

// A tick that is due in the turn in which a node leaves must not cut off what it is told last.
TEST_F(EventLoopTest, WhatIsDecidedWithTheLeaveReachesTheNodeBeforeItsStreamIsClosed) {
  std::promise<void> reached, proceed;
  EventLoopOptions options;
  options.trace = [&](Ticks, const SchedulerEvent& event) {
    const auto* node = std::get_if<NodeEvent>(&event);
    if (node == nullptr || !std::holds_alternative<AckRequest>(node->body)) return;
    reached.set_value();
    proceed.get_future().wait();
  };
  Start(options);
  const NodeRef self = Join("a");
  Watched watched;
  watched.Open(*client_, self);
  watched.first.get_future().wait();
  loop_->Call(self, AckRequest{5, {}, {}, ""}, [](const absl::StatusOr<NodeReply>&) {});
  reached.get_future().wait();
  clock_.Advance(Milliseconds(10));
  loop_->Call(self, LeaveRequest{}, [](const absl::StatusOr<NodeReply>&) {});
  proceed.set_value();
  EXPECT_EQ(watched.closed.get_future().get().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(watched.sequences, (std::vector<uint64_t>{1000, 5, 2000}));
}

TEST_F(EventLoopTest, TimeThatPassedWhileItDidNotRunIsNotTheNodes) {
  Start();
  clock_.Advance(Seconds(3600));
  const auto view = client_->Operate(StatusQuery{}, Seconds(30));
  ASSERT_TRUE(view.ok());
  EXPECT_LE(std::get<ClusterView>(*view).uptime_ms, 1001u);
}

TEST_F(EventLoopTest, DecisionsCarryTheWallClock) {
  Start();
  clock_.Advance(Milliseconds(250));
  Join("a");
  const auto events = client_->Operate(EventsQuery{}, Seconds(30));
  ASSERT_TRUE(events.ok());
  EXPECT_EQ(std::get<std::vector<DecisionRecord>>(*events)[0].unix_time_ms, 250);
}

TEST_F(EventLoopTest, CompactsAfterSoManyEntries) {
  EventLoopOptions options;
  options.compact_after_entries = 3;
  Start(options);
  for (int i = 0; i < 4; ++i) Join("n");
  client_.reset();
  loop_.reset();
  const std::vector<JournalEntry> entries = InMemoryJournal::Entries(*store_);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].index, 3u);
  EXPECT_EQ(entries[0].bytes, "compacted");
  EXPECT_EQ(entries[1].index, 4u);
}

}  // namespace
}  // namespace paceline
