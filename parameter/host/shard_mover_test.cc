// Chunks between two routers over loopback, and a mover whose destination misbehaves.
#include "parameter/host/shard_mover.h"

#include <algorithm>
#include <set>

#include "parameter/host/router_test_util.h"

namespace paceline {
namespace {

using ::testing::ElementsAre;

constexpr NodeId kOther(2);
constexpr ChunkKey kChunk{TensorId(0), ChunkIndex(0)};
constexpr uint64_t kBigElements = (3u << 20) / sizeof(float);

// An owner at the other end that answers as it is told.
class Taker final : public FrameSink, public KeyStore {
 public:
  explicit Taker(std::shared_ptr<LoopbackNetwork> network)
      : transport_(NewLoopbackTransport(std::move(network), {})) {
    listener_ = *transport_->Listen("127.0.0.1:0", this, this);
  }
  ~Taker() override {
    listener_.reset();
    transport_.reset();
  }
  std::string address() const { return listener_->address(); }

  absl::StatusOr<ChannelKey> Find(const PeerIdentity& peer) const override {
    return KeyOf(peer.node.value());
  }
  void OnAccepted(std::shared_ptr<Channel> channel) override {
    MutexLock lock(&mutex_);
    channels_[channel.get()] = channel;
    ++opened_;
    changed_.SignalAll();
    if (close_at_once_) {
      for (auto& [key, c] : channels_) c->Close(absl::CancelledError("as told"));
    }
  }
  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) override {
    MutexLock lock(&mutex_);
    bytes_ += payload.bytes().size();
    if (header.offset + header.length < header.total) return absl::OkStatus();
    ++messages_;
    if (status_ == FrameStatus::kOk) {
      taken_ = std::max<uint64_t>(taken_, header.step.value() + header.total);
      total_ = header.samples.value();
      moves_.insert(header.origin_step.value());
    }
    changed_.SignalAll();
    FrameHeader reply = header;
    reply.reply = true;
    reply.status = status_;
    reply.total = reply.offset = 0;
    reply.length = 0;
    channels_.at(&channel)->Send(reply, {}, 0, [](const absl::Status&) {});
    return absl::OkStatus();
  }
  void OnClosed(Channel& channel, const absl::Status&) override {
    MutexLock lock(&mutex_);
    channels_.erase(&channel);
  }

  void Answer(FrameStatus status, bool close_at_once = false) {
    MutexLock lock(&mutex_);
    status_ = status;
    close_at_once_ = close_at_once;
  }
  template <typename Is>
  bool Await(const Is& is) {
    MutexLock lock(&mutex_);
    while (!is(*this)) {
      if (!changed_.WaitFor(&mutex_, kPatience)) return false;
    }
    return true;
  }
  bool AwaitWhole() {
    return Await([](const Taker& t)
                     NO_THREAD_SAFETY_ANALYSIS { return t.total_ > 0 && t.taken_ == t.total_; });
  }
  bool AwaitMessages(uint64_t count) {
    return Await([count](const Taker& t)
                     NO_THREAD_SAFETY_ANALYSIS { return t.messages_ >= count; });
  }
  bool AwaitOpened(uint64_t count) {
    return Await([count](const Taker& t) NO_THREAD_SAFETY_ANALYSIS { return t.opened_ >= count; });
  }
  uint64_t bytes() {
    MutexLock lock(&mutex_);
    return bytes_;
  }
  std::set<uint64_t> moves() {
    MutexLock lock(&mutex_);
    return moves_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<const Channel*, std::shared_ptr<Channel>> channels_ GUARDED_BY(mutex_);
  FrameStatus status_ GUARDED_BY(mutex_) = FrameStatus::kOk;
  bool close_at_once_ GUARDED_BY(mutex_) = false;
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t messages_ GUARDED_BY(mutex_) = 0;
  uint64_t opened_ GUARDED_BY(mutex_) = 0;
  uint64_t taken_ GUARDED_BY(mutex_) = 0;
  uint64_t total_ GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> moves_ GUARDED_BY(mutex_);
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Listener> listener_;
};

class ShardMoverTest : public ::testing::Test {
 protected:
  ~ShardMoverTest() override {
    mover_.Stop();
    transport_.reset();  // its channels tell the mover when they close
  }

  OutgoingChunk Chunk(uint64_t generation, uint64_t move) {
    OutgoingChunk chunk{kJob, JobGeneration(generation), move, kChunk, {}, {}};
    chunk.to.node = kOther;
    chunk.to.name = "other";
    chunk.to.data_address = address_;
    SharedFloats weights(kBigElements);
    std::ranges::fill(weights.writable(), 1.0f);
    chunk.state.arrays.emplace_back("weights", std::move(weights));
    return chunk;
  }
  static Plan PlanWith(uint64_t generation, uint64_t move, std::vector<ChunkMove> moves) {
    Plan plan;
    plan.job = kJob;
    plan.generation = JobGeneration(generation);
    plan.move = move;
    plan.moves = std::move(moves);
    return plan;
  }
  ShardMoverOptions Options() {
    ShardMoverOptions options;
    options.self = kServer;
    options.incarnation = Incarnation(1);
    options.key = KeyOf(kServer.value());
    options.transport = transport_.get();
    options.on_link_down = [this](NodeId peer, Ticks since, const std::string& cause) {
      MutexLock lock(&mutex_);
      outages_.push_back({peer, since, cause});
      changed_.SignalAll();
    };
    options.on_returned = [this](ReturnedChunk chunk) {
      MutexLock lock(&mutex_);
      returned_.push_back(std::move(chunk));
    };
    return options;
  }
  struct Outage {
    NodeId peer;
    Ticks since;
    std::string cause;
  };
  Outage AwaitOutage() {
    MutexLock lock(&mutex_);
    while (outages_.empty()) {
      if (!changed_.WaitFor(&mutex_, kPatience)) return {};
    }
    return outages_.back();
  }

  std::shared_ptr<LoopbackNetwork> network_ = NewLoopbackNetwork();
  Taker taker_{network_};
  std::string address_ = taker_.address();
  Mutex mutex_;
  CondVar changed_;
  std::vector<Outage> outages_ GUARDED_BY(mutex_);
  std::vector<ReturnedChunk> returned_ GUARDED_BY(mutex_);
  std::unique_ptr<Transport> transport_ = NewLoopbackTransport(network_, {});
  ShardMover mover_{Options()};
};

TEST_F(ShardMoverTest, ARefusalCostsAPieceNotAChunk) {
  taker_.Answer(FrameStatus::kNotYet);
  mover_.Give(Chunk(2, 7));
  ASSERT_TRUE(taker_.AwaitMessages(4));
  EXPECT_LE(taker_.bytes(), 6 * kPieceBytes) << "of 3 MiB";
  taker_.Answer(FrameStatus::kOk);
  ASSERT_TRUE(taker_.AwaitWhole());
  EXPECT_THAT(taker_.moves(), ElementsAre(7));
  MutexLock lock(&mutex_);
  EXPECT_TRUE(outages_.empty()) << "the plan is on its way";
}

TEST_F(ShardMoverTest, AChannelThatIsLostAtOnceIsOpenedAgain) {
  taker_.Answer(FrameStatus::kOk, /*close_at_once=*/true);
  mover_.Give(Chunk(2, 7));
  ASSERT_TRUE(taker_.AwaitOpened(3));
  taker_.Answer(FrameStatus::kOk);
  EXPECT_TRUE(taker_.AwaitWhole());
}

TEST_F(ShardMoverTest, WhatTheNewestPlanDoesNotListIsDropped) {
  taker_.Answer(FrameStatus::kNotYet);
  mover_.Give(Chunk(2, 7));
  ASSERT_TRUE(taker_.AwaitMessages(1));
  // Another move of the same chunk to the same owner: the older bytes are not those.
  mover_.Follow(PlanWith(4, 9, {{kChunk, kServer, kOther}}));
  mover_.Give(Chunk(4, 9));
  mover_.Give(Chunk(2, 7));  // a shard thread that was late
  taker_.Answer(FrameStatus::kOk);
  ASSERT_TRUE(taker_.AwaitWhole());
  EXPECT_THAT(taker_.moves(), ElementsAre(9));
}

TEST_F(ShardMoverTest, AnOwnerThatStartedAgainElsewhereIsGivenItThere) {
  taker_.Answer(FrameStatus::kNotYet);
  mover_.Give(Chunk(2, 7));
  ASSERT_TRUE(taker_.AwaitMessages(1));
  Taker again(network_);
  Plan plan = PlanWith(4, 7, {{kChunk, kServer, kOther}});
  plan.servers = {Chunk(2, 7).to};
  plan.servers[0].data_address = again.address();
  plan.servers[0].incarnation = Incarnation(2);
  mover_.Follow(plan);
  EXPECT_TRUE(again.AwaitWhole());
  mover_.Stop();
}

TEST_F(ShardMoverTest, WhatIsGivenBackReturns) {
  taker_.Answer(FrameStatus::kNotYet);
  mover_.Give(Chunk(2, 7));
  ASSERT_TRUE(taker_.AwaitMessages(1));
  mover_.Follow(PlanWith(4, 9, {{kChunk, kServer, kServer}}));
  mover_.Give(Chunk(2, 7));
  MutexLock lock(&mutex_);
  ASSERT_THAT(returned_, SizeIs(2));
  for (const ReturnedChunk& chunk : returned_) {
    EXPECT_EQ(chunk.move, 9u);
    absl::StatusOr<Handover> state = DecodeHandover(chunk.bytes, kBigElements);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_THAT(state->arrays.at(0).second.values(), Each(Eq(1.0f)));
  }
}

TEST_F(ShardMoverTest, ALastingRefusalIsToldAsAnOutage) {
  taker_.Answer(FrameStatus::kQuota);
  mover_.Give(Chunk(2, 7));
  const Outage outage = AwaitOutage();
  EXPECT_EQ(outage.peer, kOther);
  EXPECT_GE(outage.since, Seconds(1));
  EXPECT_EQ(outage.cause, "chunk 0/0 is refused: quota");
}

TEST_F(ShardMoverTest, OneDarkDestinationHoldsUpNoOther) {
  OutgoingChunk dark = Chunk(2, 7);
  dark.to.node = NodeId(9);
  dark.to.data_address = "127.0.0.1:9999";  // nobody listens
  mover_.Give(std::move(dark));
  EXPECT_EQ(AwaitOutage().peer, NodeId(9));
  mover_.Give(Chunk(2, 7));
  EXPECT_TRUE(taker_.AwaitWhole());
}

// ---- Two routers ------------------------------------------------------------------------------

TEST_F(RouterTest, AChunkOfSeveralPiecesGoesToAnotherServerBeforeThatKnows) {
  constexpr uint64_t kBytes = 1u << 20;
  Plan plan = PlanOf({{0}}, {"sgd", {{"learning_rate", 1}, {"momentum", 0.5}}});
  plan.spec.chunk_bytes = kBytes;
  plan.tensors[0].spec.shape = {kBytes / sizeof(float)};
  plan.tensors[0].owners = {kServer};
  for (const NodeId node : {kServer, kOther}) {
    ServerInfo server;
    server.node = node;
    server.name = node == kServer ? "one" : "other";
    server.incarnation = Incarnation(1);
    server.key = KeyOf(node.value());
    plan.servers.push_back(server);
  }
  Mutex mutex;
  CondVar changed;
  std::vector<uint64_t> arrived;
  RouterOptions other_options;
  other_options.self = kOther;
  other_options.on_arrived = [&](JobId, uint64_t move, const std::vector<ChunkKey>& missing) {
    MutexLock lock(&mutex);
    EXPECT_TRUE(missing.empty());
    arrived.push_back(move);
    changed.SignalAll();
  };
  std::unique_ptr<Router> other = NewRouter(other_options);
  std::unique_ptr<Transport> other_transport = NewLoopbackTransport(network_, {});
  auto listener = other_transport->Listen("127.0.0.1:0", other.get(), other.get());
  ASSERT_TRUE(listener.ok());
  plan.servers[1].data_address = (*listener)->address();

  RouterOptions options;
  options.incarnation = Incarnation(1);
  options.key = KeyOf(kServer.value());
  options.transport = transport_.get();
  Start(plan, options);
  other->ApplyPlan(plan, nullptr);
  Worker& worker = Add(0);
  const std::vector<float> ones(kBytes / sizeof(float), 1.0f);
  ASSERT_EQ(worker.Call(worker.Header(FrameKind::kInit), ones).header.status, FrameStatus::kOk);
  router_->Seal({kJob, {TensorId(0)}}, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  EXPECT_THAT(worker.Call(worker.Header(FrameKind::kPushPull), ones).values, Each(Eq(0.0f)));

  Plan moved = plan;
  moved.generation = JobGeneration(2);
  moved.tensors[0].sealed = true;
  moved.tensors[0].owners = {kOther};
  moved.move = 44;
  moved.moves = {{kChunk, kServer, kOther}};
  router_->ApplyPlan(moved, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  other->ApplyPlan(moved, nullptr);
  {
    MutexLock lock(&mutex);
    while (arrived.empty()) ASSERT_TRUE(changed.WaitFor(&mutex, kPatience));
    EXPECT_THAT(arrived, ElementsAre(44));
  }
  Worker at_other(transport_.get(), (*listener)->address(), MemberOf(0));
  ASSERT_TRUE(at_other.Connect().ok());
  FrameHeader push = at_other.Header(FrameKind::kPushPull, 1);
  push.version.count = 1;
  // Momentum 0.5 * 1 + 1.
  EXPECT_THAT(at_other.Call(push, ones).values, Each(Eq(-1.5f)));
  at_other.Disconnect();
  at_other.AwaitClosed().IgnoreError();
  router_->StopMoving();
  listener->reset();
  other_transport.reset();
}

}  // namespace
}  // namespace paceline
