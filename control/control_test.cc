#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/runtime/mutex.h"
#include "control/in_memory.h"

namespace paceline {
namespace {

// A service whose answers the test gives by hand.
class FakeService final : public ControlService {
 public:
  void Join(JoinRequest request, std::function<void(absl::StatusOr<JoinReply>)> done) override {
    if (silent) {
      kept.push_back(std::move(done));
      return;
    }
    JoinReply reply;
    reply.self = {NodeId(7), Incarnation(request.name.size())};
    done(reply);
  }
  void Call(NodeRef from, NodeRequest request,
            std::function<void(absl::StatusOr<NodeReply>)> done) override {
    if (from.incarnation != Incarnation(3)) {
      done(absl::FailedPreconditionError("fenced"));
      return;
    }
    // Answered from another thread, as an event loop does.
    if (answering.joinable()) answering.join();
    answering = std::thread([request = std::move(request), done = std::move(done)] {
      DrawSamplesReply reply;
      reply.ranges = {{Epoch(1), 0, std::get<DrawSamplesRequest>(request).wanted.value()}};
      done(NodeReply(reply));
    });
  }
  void Operate(OperatorRequest, std::function<void(absl::StatusOr<OperatorReply>)> done) override {
    ClusterView view;
    view.cluster = "test";
    done(OperatorReply(view));
  }
  void OpenWatch(NodeRef from, std::shared_ptr<DirectiveSink> sink) override {
    sinks[from.node] = std::move(sink);
  }
  void CloseWatch(NodeRef from, const DirectiveSink* sink) override {
    if (sinks[from.node].get() == sink) sinks.erase(from.node);
  }
  ~FakeService() override {
    if (answering.joinable()) answering.join();
  }

  bool silent = false;
  std::vector<std::function<void(absl::StatusOr<JoinReply>)>> kept;
  std::map<NodeId, std::shared_ptr<DirectiveSink>> sinks;
  std::thread answering;
};

// What a watcher saw, in order.
class Seen {
 public:
  void Add(Directive directive) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    sequences_.push_back(directive.sequence);
    changed_.SignalAll();
  }
  void Closed(absl::Status cause) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    causes_.push_back(std::move(cause));
    changed_.SignalAll();
  }
  absl::Status WaitClosed() EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    while (causes_.empty()) changed_.Wait(&mutex_);
    return causes_.front();
  }
  std::vector<uint64_t> sequences() EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    return sequences_;
  }
  size_t times_closed() EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    return causes_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<uint64_t> sequences_ GUARDED_BY(mutex_);
  std::vector<absl::Status> causes_ GUARDED_BY(mutex_);
};

void OpenWatch(InMemoryControlClient& client, NodeRef self, Seen& seen) {
  client.Watch(
      self, [&seen](Directive d) { seen.Add(std::move(d)); },
      [&seen](absl::Status s) { seen.Closed(std::move(s)); });
}

Directive Numbered(uint64_t sequence) {
  Directive directive;
  directive.sequence = sequence;
  directive.body = RecallSamplesDirective{JobId(1)};
  return directive;
}

TEST(InMemoryControlTest, CarriesRequestsAndReplies) {
  FakeService service;
  InMemoryControlClient client(&service);
  JoinRequest join;
  join.name = "abc";
  const auto joined = client.Join(join, Seconds(10));
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->self, (NodeRef{NodeId(7), Incarnation(3)}));

  const auto drawn =
      client.Call(joined->self, DrawSamplesRequest{Samples(64), {}, {}}, Seconds(10));
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  const SampleRange expected{Epoch(1), 0, 64};
  EXPECT_EQ(std::get<DrawSamplesReply>(*drawn).ranges, std::vector<SampleRange>{expected});

  const auto view = client.Operate(StatusQuery{}, Seconds(10));
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(std::get<ClusterView>(*view).cluster, "test");
  EXPECT_EQ(client.Peer(), "in-memory");
}

TEST(InMemoryControlTest, PassesOnTheSchedulersError) {
  FakeService service;
  InMemoryControlClient client(&service);
  const auto reply = client.Call({NodeId(7), Incarnation(2)}, Heartbeat{}, Seconds(10));
  EXPECT_EQ(reply.status(), absl::FailedPreconditionError("fenced"));
}

TEST(InMemoryControlTest, DeadlineEndsACallAndALateReplyIsDropped) {
  FakeService service;
  service.silent = true;
  {
    InMemoryControlClient client(&service);
    const auto reply = client.Join(JoinRequest{}, Milliseconds(20));
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(reply.status().message(),
              "the scheduler (in-memory) did not answer the join within 20 ms");
  }
  ASSERT_EQ(service.kept.size(), 1u);
  service.kept[0](JoinReply{});
}

TEST(InMemoryControlTest, DeliversDirectivesInOrderThenTheCause) {
  FakeService service;
  InMemoryControlClient client(&service);
  const NodeRef self{NodeId(1), Incarnation(1)};
  Seen seen;
  OpenWatch(client, self, seen);
  for (uint64_t i = 1; i <= 100; ++i) service.sinks[self.node]->Send(Numbered(i));
  service.sinks[self.node]->Close(absl::AbortedError("replaced"));
  EXPECT_EQ(seen.WaitClosed(), absl::AbortedError("replaced"));
  std::vector<uint64_t> expected;
  for (uint64_t i = 1; i <= 100; ++i) expected.push_back(i);
  EXPECT_EQ(seen.sequences(), expected);
}

TEST(InMemoryControlTest, StopWatchClosesOnceAndLeavesNothingBehind) {
  FakeService service;
  InMemoryControlClient client(&service);
  const NodeRef self{NodeId(1), Incarnation(1)};
  Seen seen;
  OpenWatch(client, self, seen);
  std::shared_ptr<DirectiveSink> sink = service.sinks[self.node];
  client.StopWatch();
  client.StopWatch();
  EXPECT_EQ(seen.times_closed(), 1u);
  EXPECT_EQ(seen.WaitClosed().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(service.sinks.empty());
  sink->Send(Numbered(1));  // was on its way
  EXPECT_TRUE(seen.sequences().empty());
}

TEST(InMemoryControlTest, AStreamMayBeOpenedAgain) {
  FakeService service;
  InMemoryControlClient client(&service);
  const NodeRef self{NodeId(1), Incarnation(1)};
  Seen first, second;
  OpenWatch(client, self, first);
  service.sinks[self.node]->Close(absl::UnavailableError("gone"));
  EXPECT_EQ(first.WaitClosed(), absl::UnavailableError("gone"));
  OpenWatch(client, self, second);
  service.sinks[self.node]->Send(Numbered(9));
  service.sinks[self.node]->Close(absl::UnavailableError("gone again"));
  EXPECT_EQ(second.WaitClosed(), absl::UnavailableError("gone again"));
  EXPECT_EQ(second.sequences(), std::vector<uint64_t>{9});
  EXPECT_EQ(first.times_closed(), 1u);
}

TEST(InMemoryControlTest, AStreamThatLagsIsClosedNotGrown) {
  FakeService service;
  InMemoryControlClient client(&service);
  const NodeRef self{NodeId(1), Incarnation(1)};
  Mutex gate;
  size_t delivered = 0;
  Seen seen;
  gate.Lock();  // holds the first callback
  client.Watch(
      self,
      [&](Directive) {
        MutexLock lock(&gate);
        ++delivered;
      },
      [&seen](absl::Status s) { seen.Closed(std::move(s)); });
  const size_t sent = InMemoryControlClient::kMaxQueuedDirectives + 10;
  for (size_t i = 0; i < sent; ++i) service.sinks[self.node]->Send(Numbered(i));
  gate.Unlock();
  EXPECT_EQ(seen.WaitClosed().code(), absl::StatusCode::kResourceExhausted);
  MutexLock lock(&gate);
  EXPECT_GE(delivered, InMemoryControlClient::kMaxQueuedDirectives);
  EXPECT_LE(delivered, InMemoryControlClient::kMaxQueuedDirectives + 1);
}

}  // namespace
}  // namespace paceline
