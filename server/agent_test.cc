// The agent between a scheduler and a router that both do as they are told.
#include "server/agent.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace paceline {
namespace {

// What the scheduler does and was told; shared by the clients that speak with it.
class FakeScheduler {
 public:
  absl::Status Call(const NodeRequest& request) {
    MutexLock lock(&mutex_);
    tried_.push_back(request);
    changed_.SignalAll();
    while (held_) changed_.Wait(&mutex_);
    if (away_) return absl::UnavailableError("away");
    taken_.push_back(request);
    changed_.SignalAll();
    return absl::OkStatus();
  }
  void SetAway(bool away) {
    MutexLock lock(&mutex_);
    away_ = away;
  }
  // Answers nobody until Release.
  void Hold() {
    MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() {
    MutexLock lock(&mutex_);
    held_ = false;
    changed_.SignalAll();
  }
  template <typename Request>
  void AwaitTried() {
    MutexLock lock(&mutex_);
    while (Of<Request>(tried_).empty()) changed_.Wait(&mutex_);
  }
  // Waits until one more of them has come than by now.
  template <typename Request>
  void AwaitAnother() {
    MutexLock lock(&mutex_);
    const size_t before = Of<Request>(taken_).size();
    while (Of<Request>(taken_).size() == before) changed_.Wait(&mutex_);
  }
  template <typename Request>
  std::vector<Request> Taken() {
    MutexLock lock(&mutex_);
    return Of<Request>(taken_);
  }
  void Opened() {
    MutexLock lock(&mutex_);
    ++streams_;
    changed_.SignalAll();
  }
  void AwaitStreams(int count) {
    MutexLock lock(&mutex_);
    while (streams_ < count) changed_.Wait(&mutex_);
  }
  int streams() {
    MutexLock lock(&mutex_);
    return streams_;
  }

 private:
  template <typename Request>
  static std::vector<Request> Of(const std::vector<NodeRequest>& requests) {
    std::vector<Request> found;
    for (const NodeRequest& request : requests) {
      if (const auto* one = std::get_if<Request>(&request)) found.push_back(*one);
    }
    return found;
  }

  Mutex mutex_;
  CondVar changed_;
  bool away_ GUARDED_BY(mutex_) = false;
  bool held_ GUARDED_BY(mutex_) = false;
  int streams_ GUARDED_BY(mutex_) = 0;
  std::vector<NodeRequest> tried_ GUARDED_BY(mutex_);
  std::vector<NodeRequest> taken_ GUARDED_BY(mutex_);
};

class FakeControl final : public ControlClient {
 public:
  explicit FakeControl(FakeScheduler* scheduler) : scheduler_(scheduler) {}
  ~FakeControl() override { StopWatch(); }

  absl::StatusOr<JoinReply> Join(const JoinRequest&, Ticks) override {
    JoinReply reply;
    reply.self = {NodeId(1), Incarnation(1)};
    reply.heartbeat_interval_ms = 60'000;
    return reply;
  }
  absl::StatusOr<NodeReply> Call(NodeRef, const NodeRequest& request, Ticks) override {
    const absl::Status status = scheduler_->Call(request);
    if (!status.ok()) return status;
    return NodeReply(Empty{});
  }
  absl::StatusOr<OperatorReply> Operate(const OperatorRequest&, Ticks) override {
    return absl::UnimplementedError("not asked here");
  }
  void Watch(NodeRef, std::function<void(Directive)> on_directive,
             std::function<void(absl::Status)> on_closed) override {
    StopWatch();
    send = std::move(on_directive);
    on_closed_ = std::move(on_closed);
    scheduler_->Opened();
  }
  void StopWatch() override {
    if (on_closed_) std::exchange(on_closed_, nullptr)(absl::CancelledError("stopped"));
  }
  std::unique_ptr<ControlClient> Another() const override {
    return std::make_unique<FakeControl>(scheduler_);
  }
  std::string Peer() const override { return "fake"; }

  std::function<void(Directive)> send;

 private:
  FakeScheduler* const scheduler_;
  std::function<void(absl::Status)> on_closed_;
};

// Keeps what it is to call back.
class FakeRouter final : public Router {
 public:
  void ApplyPlan(const Plan&, Done done) override { applied = std::move(done); }
  void Prepare(const PrepareDirective&, Done) override {}
  void Commit(const CommitDirective&, Done) override {}
  void Abort(const AbortDirective&, Done) override {}
  void Fence(const FenceDirective&, Done) override {}
  void Seal(const SealedDirective&, Done) override {}
  void EndJob(const EndJobDirective&, Done) override {}
  void CutCollect(JobId, std::function<void(std::map<GroupId, Step>)>) override {}
  void CutAt(JobId, const std::map<GroupId, Step>&,
             std::function<void(absl::StatusOr<std::vector<ChunkSnapshot>>)> done) override {
    copied = std::move(done);
  }
  void CutAbort(JobId) override {}
  void StopMoving() override {}
  void FindAwaitingRestore(JobId, std::function<void(std::vector<ChunkKey>)>) override {}
  void Restore(JobId, uint32_t, std::vector<RestoredChunk>, Done) override {}
  ServerReport Report() override { return {}; }
  void AwaitThreads() override {}

  absl::StatusOr<ChannelKey> Find(const PeerIdentity&) const override {
    return absl::UnavailableError("nobody");
  }
  absl::Status OnFrame(Channel&, const FrameHeader&, Payload) override { return absl::OkStatus(); }
  void OnClosed(Channel&, const absl::Status&) override {}

  Done applied;
  std::function<void(absl::StatusOr<std::vector<ChunkSnapshot>>)> copied;
};

class ServerAgentTest : public testing::Test {
 protected:
  ServerAgentTest() : control_(&scheduler_) {
    ServerAgentOptions options;
    options.name = "server-0";
    agent_ = std::make_unique<ServerAgent>(options, &control_, [](const absl::Status&) {});
    EXPECT_TRUE(agent_->Join().ok());
    agent_->Follow(&router_);
  }

  FakeScheduler scheduler_;
  FakeControl control_;
  FakeRouter router_;
  std::unique_ptr<ServerAgent> agent_;
};

TEST_F(ServerAgentTest, ShardThreadsMayAnswerAfterItHasStopped) {
  PlanDirective plan;
  plan.change = 1;
  plan.plan.restore_from = "/nowhere";
  control_.send({1, Term(1), plan});
  CutDirective cut;
  cut.cut = 2;
  cut.collect = false;
  cut.directory = "/nowhere";
  control_.send({2, Term(1), cut});
  agent_->Stop();
  EXPECT_EQ(scheduler_.Taken<LeaveRequest>().size(), 1u);
  router_.applied(absl::OkStatus());
  router_.copied(std::vector<ChunkSnapshot>{});
  EXPECT_TRUE(scheduler_.Taken<AckRequest>().empty());
}

TEST_F(ServerAgentTest, OfEachLinkThatIsDownTheNewestWordGoesOut) {
  scheduler_.Hold();
  scheduler_.AwaitTried<ServerReport>();  // which the agent now waits for
  for (uint32_t s = 1; s <= 100; ++s) {
    agent_->OnLinkDown(NodeId(7), Seconds(2 * s), "refused");
    agent_->OnLinkDown(NodeId(8), Seconds(s), "refused");
  }
  scheduler_.Release();
  scheduler_.AwaitAnother<ServerReport>();
  scheduler_.AwaitAnother<ServerReport>();
  EXPECT_EQ(scheduler_.Taken<LinkDownRequest>(),
            (std::vector<LinkDownRequest>{{NodeId(7), 200'000, "refused"},
                                          {NodeId(8), 100'000, "refused"}}));
}

// The link may be up again by then; if it is not, that is said again.
TEST_F(ServerAgentTest, ALinkThatWasDownWhileTheSchedulerWasAwayIsNoNews) {
  scheduler_.SetAway(true);
  agent_->OnLinkDown(NodeId(7), Seconds(2), "refused");
  scheduler_.AwaitTried<LinkDownRequest>();
  scheduler_.SetAway(false);
  scheduler_.AwaitAnother<ServerReport>();
  scheduler_.AwaitAnother<ServerReport>();
  EXPECT_TRUE(scheduler_.Taken<LinkDownRequest>().empty());
  agent_->OnLinkDown(NodeId(7), Seconds(4), "refused");
  scheduler_.AwaitAnother<ServerReport>();
  scheduler_.AwaitAnother<ServerReport>();
  EXPECT_EQ(scheduler_.Taken<LinkDownRequest>(),
            (std::vector<LinkDownRequest>{{NodeId(7), 4000, "refused"}}));
}

TEST_F(ServerAgentTest, MoreAnswersThanItKeepsBeginAStreamInWhichAllIsAskedAgain) {
  scheduler_.SetAway(true);
  for (uint64_t move = 1; move <= 5000; ++move) agent_->OnArrived(move, {});
  scheduler_.SetAway(false);
  scheduler_.AwaitStreams(2);
  scheduler_.AwaitAnother<ServerReport>();
  scheduler_.AwaitAnother<ServerReport>();
  EXPECT_EQ(scheduler_.streams(), 2) << "and no third one";
  const std::vector<AckRequest> acks = scheduler_.Taken<AckRequest>();
  ASSERT_FALSE(acks.empty());
  EXPECT_LE(acks.size(), 4096u);
  EXPECT_EQ(acks.back().id, 5000u);
}

}  // namespace
}  // namespace paceline
