// The router behind real channels: loopback transport, real handshake, real threads.
#include "parameter/host/router.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/state_codec.h"
#include "plan/chunking.h"

namespace paceline {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::SizeIs;

constexpr Ticks kPatience = Seconds(20);
constexpr NodeId kServer(1);
constexpr JobId kJob(3);
constexpr uint64_t kElements = 200'000;  // chunks of 65536 floats: three and a part
constexpr uint64_t kChunkBytes = 256u << 10;

SecretKey KeyOf(uint32_t node) {
  SecretKey key;
  key.fill(static_cast<uint8_t>(node));
  return key;
}

Member MemberOf(uint32_t number, uint64_t incarnation = 1) {
  Member member;
  member.node = NodeId(100 + number);
  member.name = "w" + std::to_string(number);
  member.incarnation = Incarnation(incarnation);
  member.rank = JobRank(number);
  member.key = KeyOf(100 + number);
  return member;
}

Plan PlanOf(std::vector<std::vector<uint32_t>> groups,
            NamedSpec optimizer = {"sgd", {{"learning_rate", 1}}}) {
  Plan plan;
  plan.job = kJob;
  plan.spec.name = "test";
  plan.spec.optimizer = std::move(optimizer);
  plan.spec.chunk_bytes = kChunkBytes;
  plan.state = JobState::kRunning;
  plan.generation = JobGeneration(1);
  plan.init_writer = NodeId(100);
  for (uint32_t g = 0; g < groups.size(); ++g) {
    GroupPlan group;
    group.id = GroupId(g);
    group.generation = GroupGeneration(1);
    for (const uint32_t number : groups[g]) group.members.push_back(MemberOf(number));
    group.planned_members = static_cast<uint32_t>(group.members.size());
    plan.groups.push_back(std::move(group));
  }
  TensorPlan tensor;
  tensor.spec = {.name = "w", .shape = {kElements}, .dtype = DType::kF32, .whole = false};
  tensor.owners.assign(CutIntoChunks(tensor.spec, kChunkBytes).size(), kServer);
  plan.tensors.push_back(std::move(tensor));
  return plan;
}

// Waits for the callbacks of directives.
class Waiter {
 public:
  Router::Done Next() {
    MutexLock lock(&mutex_);
    ++expected_;
    return [this](absl::Status status) {
      MutexLock done_lock(&mutex_);
      statuses_.push_back(std::move(status));
      changed_.SignalAll();
    };
  }
  absl::Status Wait() {
    MutexLock lock(&mutex_);
    while (statuses_.size() < expected_) {
      if (!changed_.WaitFor(&mutex_, kPatience)) return absl::DeadlineExceededError("no callback");
    }
    return statuses_.back();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  size_t expected_ GUARDED_BY(mutex_) = 0;
  std::vector<absl::Status> statuses_ GUARDED_BY(mutex_);
};

struct Answer {
  FrameHeader header;
  std::vector<float> values;
  std::vector<std::byte> bytes;
};

// One worker's end of a channel: sends operations, collects replies by sequence.
class Worker final : public FrameSink {
 public:
  Worker(Transport* transport, std::string address, Member member)
      : transport_(transport), address_(std::move(address)), member_(std::move(member)) {}

  absl::Status Connect() {
    const PeerIdentity self{kJob, member_.node, member_.incarnation, PeerRole::kWorker};
    auto channel = transport_->Connect(address_, self, member_.key, this, kPatience);
    if (channel.ok()) channel_ = *std::move(channel);
    return channel.status();
  }
  void Disconnect() { channel_->Close(absl::CancelledError("the test cuts the link")); }

  FrameHeader Header(FrameKind kind, uint64_t step = 0, uint32_t chunk = 0) {
    FrameHeader header;
    header.kind = kind;
    header.job = kJob;
    header.job_generation = JobGeneration(1);
    header.group = group;
    header.group_generation = generation;
    header.step = header.origin_step = Step(step);
    header.chunk = ChunkIndex(chunk);
    header.sender = member_.node;
    header.incarnation = member_.incarnation;
    header.sequence = Sequence(++sequence_);
    header.samples = Samples(1);
    return header;
  }

  Sequence Send(FrameHeader header, std::vector<float> values = {}) {
    auto kept = std::make_shared<std::vector<float>>(std::move(values));
    channel_->Send(header, std::as_bytes(std::span<const float>(*kept)), 0,
                   [kept](const absl::Status&) {});
    return header.sequence;
  }
  Sequence SendBytes(FrameHeader header, std::vector<std::byte> bytes) {
    auto kept = std::make_shared<std::vector<std::byte>>(std::move(bytes));
    channel_->Send(header, *kept, 0, [kept](const absl::Status&) {});
    return header.sequence;
  }

  // Fails the test when the reply does not come.
  Answer Await(Sequence sequence) {
    MutexLock lock(&mutex_);
    while (!complete_.contains(sequence)) {
      if (!changed_.WaitFor(&mutex_, kPatience)) {
        ADD_FAILURE() << member_.name << " has no reply to " << sequence;
        return {};
      }
    }
    Answer answer = std::move(complete_.at(sequence));
    complete_.erase(sequence);
    answer.values.resize(answer.bytes.size() / sizeof(float));
    if (!answer.values.empty()) {
      std::memcpy(answer.values.data(), answer.bytes.data(), answer.values.size() * sizeof(float));
    }
    return answer;
  }
  Answer Call(FrameHeader header, std::vector<float> values = {}) {
    return Await(Send(header, std::move(values)));
  }
  absl::Status AwaitClosed() {
    MutexLock lock(&mutex_);
    while (closed_.empty()) {
      if (!changed_.WaitFor(&mutex_, kPatience)) return absl::DeadlineExceededError("still open");
    }
    return closed_.back();
  }

  absl::Status OnFrame(Channel&, const FrameHeader& header, Payload payload) override {
    MutexLock lock(&mutex_);
    Answer& answer = partial_[header.sequence];
    answer.header = header;
    answer.bytes.insert(answer.bytes.end(), payload.bytes().begin(), payload.bytes().end());
    if (answer.bytes.size() == header.total) {
      complete_[header.sequence] = std::move(answer);
      partial_.erase(header.sequence);
      changed_.SignalAll();
    }
    return absl::OkStatus();
  }
  void OnClosed(Channel&, const absl::Status& cause) override {
    MutexLock lock(&mutex_);
    closed_.push_back(cause);
    changed_.SignalAll();
  }

  GroupId group;
  GroupGeneration generation{1};

 private:
  Transport* const transport_;
  const std::string address_;
  const Member member_;
  std::shared_ptr<Channel> channel_;
  uint64_t sequence_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::map<Sequence, Answer> partial_ GUARDED_BY(mutex_);
  std::map<Sequence, Answer> complete_ GUARDED_BY(mutex_);
  std::vector<absl::Status> closed_ GUARDED_BY(mutex_);
};

class RouterTest : public ::testing::Test {
 protected:
  void Start(Plan plan, RouterOptions options = {}) {
    options.self = kServer;
    plan_ = std::move(plan);
    router_ = NewRouter(options);
    router_->ApplyPlan(plan_, waiter_.Next());
    ASSERT_TRUE(waiter_.Wait().ok());
    auto listener = transport_->Listen("127.0.0.1:0", router_.get(), router_.get());
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  Worker& Add(uint32_t number, uint32_t group = 0, uint64_t incarnation = 1) {
    workers_.push_back(std::make_unique<Worker>(transport_.get(), listener_->address(),
                                                MemberOf(number, incarnation)));
    workers_.back()->group = GroupId(group);
    EXPECT_TRUE(workers_.back()->Connect().ok());
    return *workers_.back();
  }

  uint64_t ChunkElements(uint32_t chunk) const {
    return CutIntoChunks(plan_.tensors[0].spec, kChunkBytes)[chunk].length;
  }
  uint32_t Chunks() const { return static_cast<uint32_t>(plan_.tensors[0].owners.size()); }

  void InitAndSeal(Worker& writer, float value) {
    for (uint32_t c = 0; c < Chunks(); ++c) {
      const Answer answer = writer.Call(writer.Header(FrameKind::kInit, 0, c),
                                        std::vector<float>(ChunkElements(c), value));
      ASSERT_EQ(answer.header.status, FrameStatus::kOk);
    }
    router_->Seal({kJob, {TensorId(0)}}, waiter_.Next());
    ASSERT_TRUE(waiter_.Wait().ok());
  }

  // Destroyed first to last in reverse: workers and listener before what they call.
  std::shared_ptr<LoopbackNetwork> network_ = NewLoopbackNetwork();
  Plan plan_;
  Waiter waiter_;
  std::unique_ptr<Router> router_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Transport> transport_ = NewLoopbackTransport(network_, {});
  std::unique_ptr<Listener> listener_;
};

TEST_F(RouterTest, InitPullPushPullBoundaryOverEveryChunk) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  Worker& b = Add(1);
  const Sequence early = b.Send(b.Header(FrameKind::kPull));  // waits for the seal
  InitAndSeal(a, 10);
  const Answer pulled = b.Await(early);
  EXPECT_EQ(pulled.header.status, FrameStatus::kOk);
  EXPECT_THAT(pulled.values, SizeIs(ChunkElements(0)));
  EXPECT_THAT(pulled.values, Each(Eq(10.0f)));

  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<std::pair<Sequence, Sequence>> sent;
    for (uint32_t c = 0; c < Chunks(); ++c) {  // b goes through the chunks the other way round
      FrameHeader ha = a.Header(FrameKind::kPushPull, step, c);
      FrameHeader hb = b.Header(FrameKind::kPushPull, step, Chunks() - 1 - c);
      ha.version.count = hb.version.count = step;
      ha.acknowledged = Sequence(ha.sequence.value() - c - 1);
      const uint64_t n = ChunkElements(Chunks() - 1 - c);
      sent.emplace_back(a.Send(ha, std::vector<float>(ChunkElements(c), 1)),
                        b.Send(hb, std::vector<float>(n, 3)));
    }
    const float expected = 10 - 2.0f * static_cast<float>(step + 1);  // (1 + 3) / 2 samples
    for (const auto& [sa, sb] : sent) {
      const Answer answer = a.Await(sa);
      EXPECT_EQ(answer.header.status, FrameStatus::kOk);
      EXPECT_EQ(answer.header.version.count, step + 1);
      EXPECT_EQ(answer.header.samples, Samples(2));
      EXPECT_THAT(answer.values, Each(Eq(expected)));
      EXPECT_THAT(b.Await(sb).values, Each(Eq(expected)));
    }
    EXPECT_EQ(a.Call(a.Header(FrameKind::kBoundary, step)).header.status, FrameStatus::kOk);
    EXPECT_EQ(b.Call(b.Header(FrameKind::kBoundary, step)).header.status, FrameStatus::kOk);
  }

  const ServerReport report = router_->Report();
  EXPECT_EQ(report.connections, 2u);
  ASSERT_THAT(report.jobs, SizeIs(1));
  EXPECT_TRUE(report.jobs[0].lead);
  EXPECT_EQ(report.jobs[0].updates, 5u);
  EXPECT_EQ(report.jobs[0].refused_frames, 0u);
  EXPECT_EQ(report.bytes_in.value(), kElements * 4 * (1 + 2 * 5));
  EXPECT_EQ(report.bytes_out.value(), kElements * 4 * (2 * 5) + ChunkElements(0) * 4);
  ASSERT_THAT(report.jobs[0].workers, SizeIs(2));
  EXPECT_EQ(report.jobs[0].workers[0].applied, Samples(5));
  EXPECT_EQ(report.jobs[0].groups[0].tau.count, 5u);
  EXPECT_EQ(report.jobs[0].groups[0].tau.sum, 0u);
}

TEST_F(RouterTest, AMemberThatSkipsATensorIsCoveredByItsBoundary) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  Worker& b = Add(1);
  InitAndSeal(a, 0);
  const Sequence push =
      a.Send(a.Header(FrameKind::kPushPull), std::vector<float>(ChunkElements(0), 4));
  EXPECT_EQ(b.Call(b.Header(FrameKind::kBoundary)).header.status, FrameStatus::kOk);
  EXPECT_THAT(a.Await(push).values, Each(Eq(-4.0f)));
}

TEST_F(RouterTest, ARetryAfterALostLinkIsAppliedOnce) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  Worker& b = Add(1);
  InitAndSeal(a, 0);
  const FrameHeader push = a.Header(FrameKind::kPushPull);
  const std::vector<float> gradient(ChunkElements(0), 2);
  a.Send(push, gradient);
  // Wait until the first attempt is in: a second message on the same channel and chunk is answered.
  a.Call(a.Header(FrameKind::kPull));
  a.Disconnect();
  a.AwaitClosed().IgnoreError();
  ASSERT_TRUE(a.Connect().ok());
  const Sequence again = a.Send(push, gradient);
  b.Call(b.Header(FrameKind::kPushPull), gradient);
  const Answer answer = a.Await(again);
  EXPECT_EQ(answer.header.version.count, 1u);
  EXPECT_THAT(answer.values, Each(Eq(-2.0f)));
  // The reply is lost as well: it is kept.
  const Answer kept = a.Call(push, gradient);
  EXPECT_EQ(kept.header.version.count, 1u);
  EXPECT_THAT(kept.values, Each(Eq(-2.0f)));
}

TEST_F(RouterTest, RefusalsAreTyped) {
  Start(PlanOf({{0}, {1}}));
  Worker& a = Add(0);
  Worker& b = Add(1, 1);
  EXPECT_EQ(b.Call(b.Header(FrameKind::kInit), std::vector<float>(ChunkElements(0))).header.status,
            FrameStatus::kNotWriter);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kInit), std::vector<float>(7)).header.status,
            FrameStatus::kBadRequest);
  InitAndSeal(a, 0);
  FrameHeader header = a.Header(FrameKind::kPushPull);
  header.tensor = TensorId(9);
  EXPECT_EQ(a.Call(header, {1}).header.status, FrameStatus::kUnknownTensor);
  header = a.Header(FrameKind::kPushPull, 0, 99);
  EXPECT_EQ(a.Call(header, {1}).header.status, FrameStatus::kBadRequest);
  header = a.Header(FrameKind::kPushPull);
  header.group_generation = GroupGeneration(0);
  const Answer old = a.Call(header, std::vector<float>(ChunkElements(0)));
  EXPECT_EQ(old.header.status, FrameStatus::kOldGeneration);
  EXPECT_EQ(old.header.group_generation, GroupGeneration(1));
  EXPECT_EQ(router_->Report().jobs[0].refused_frames, 5u);
  // What no owner takes ends the channel, with the reason.
  a.Send(a.Header(FrameKind::kPeerPiece));
  EXPECT_FALSE(a.AwaitClosed().ok());
  EXPECT_EQ(b.Call(b.Header(FrameKind::kPull)).header.status, FrameStatus::kOk);
}

TEST_F(RouterTest, AFenceReleasesTheSurvivorsAndRefusesTheDead) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  Worker& b = Add(1);
  InitAndSeal(a, 0);
  const std::vector<float> gradient(ChunkElements(0), 2);
  const Sequence waiting = a.Send(a.Header(FrameKind::kPushPull), gradient);
  FenceDirective fence{1, kJob, {NodeId(101), Incarnation(1)}, {plan_.groups[0]}, "w1 died"};
  fence.groups[0].generation = GroupGeneration(2);
  fence.groups[0].members.pop_back();
  a.Call(a.Header(FrameKind::kPull));  // the push is in
  router_->Fence(fence, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  const Answer told = a.Await(waiting);
  EXPECT_EQ(told.header.status, FrameStatus::kOldGeneration);
  EXPECT_EQ(told.header.group_generation, GroupGeneration(2));
  a.generation = GroupGeneration(2);
  EXPECT_THAT(a.Call(a.Header(FrameKind::kPushPull), gradient).values, Each(Eq(-2.0f)));
  EXPECT_EQ(b.Call(b.Header(FrameKind::kPushPull), gradient).header.status, FrameStatus::kFenced);
  EXPECT_EQ(b.Call(b.Header(FrameKind::kBoundary)).header.status, FrameStatus::kFenced);
  b.Disconnect();
  EXPECT_EQ(b.Connect().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(RouterTest, FramesOfAGenerationThatIsNotKnownYetWaitForIt) {
  Start(PlanOf({{0}}));
  Worker& a = Add(0);
  InitAndSeal(a, 0);
  PrepareDirective prepare{.change = 1, .job = kJob, .groups = plan_.groups, .reason = ""};
  prepare.groups[0].generation = GroupGeneration(2);
  prepare.groups[0].members.push_back(MemberOf(1));
  router_->Prepare(prepare, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  Worker& b = Add(1);  // its key came with the preparation
  b.generation = GroupGeneration(2);
  const std::vector<float> gradient(ChunkElements(0), 2);
  const Sequence parked = b.Send(b.Header(FrameKind::kPushPull, 7), gradient);
  const Sequence boundary = b.Send(b.Header(FrameKind::kBoundary, 6));
  CommitDirective commit{.change = 1, .job = kJob, .groups = prepare.groups, .reason = ""};
  commit.groups[0].activation_step = Step(7);
  router_->Commit(commit, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  EXPECT_EQ(b.Await(boundary).header.status, FrameStatus::kOk);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kPushPull, 6), gradient).header.status, FrameStatus::kOk);
  a.generation = GroupGeneration(2);
  FrameHeader push = a.Header(FrameKind::kPushPull, 7);
  push.version.count = 1;
  EXPECT_EQ(a.Call(push, gradient).header.status, FrameStatus::kOk);
  EXPECT_THAT(b.Await(parked).values, Each(Eq(-4.0f)));
}

TEST_F(RouterTest, ParkedBytesAreBounded) {
  RouterOptions options;
  options.max_parked_bytes = 600'000;  // two threads: one message of a chunk each
  Start(PlanOf({{0}}), options);
  Worker& a = Add(0);
  const std::vector<float> chunk(ChunkElements(0));
  a.Send(a.Header(FrameKind::kPushPull), chunk);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kPushPull, 1), chunk).header.status, FrameStatus::kNotYet);
}

TEST_F(RouterTest, ACutHoldsLaterStepsAndHandsOverExactlyTheseSteps) {
  Start(PlanOf({{0}, {1}}, {"momentum", {{"learning_rate", 1}}}));
  Worker& a = Add(0);
  Worker& b = Add(1, 1);
  InitAndSeal(a, 0);
  const auto push = [this](Worker& w, uint64_t step, uint64_t base) {
    std::vector<Sequence> sent;
    for (uint32_t c = 0; c < Chunks(); ++c) {
      FrameHeader header = w.Header(FrameKind::kPushPull, step, c);
      header.version.count = base;
      sent.push_back(w.Send(header, std::vector<float>(ChunkElements(c), 1)));
    }
    return sent;
  };
  for (const Sequence s : push(a, 0, 0)) a.Await(s);

  Waiter collected;
  std::map<GroupId, Step> steps;
  const Router::Done done = collected.Next();
  router_->CutCollect(kJob, [&steps, done](std::map<GroupId, Step> found) {
    steps = std::move(found);
    done(absl::OkStatus());
  });
  ASSERT_TRUE(collected.Wait().ok());
  EXPECT_EQ(steps, (std::map<GroupId, Step>{{GroupId(0), Step(0)}}));

  // Group 1 was in no step yet; its first is held, as is the second of group 0.
  const std::vector<Sequence> held_b = push(b, 0, 0);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kBoundary, 0)).header.status, FrameStatus::kOk);
  const std::vector<Sequence> held_a = push(a, 1, 1);
  std::vector<ChunkSnapshot> chunks;
  const Router::Done copied = collected.Next();
  router_->CutAt(kJob, steps, [&chunks, copied](absl::StatusOr<std::vector<ChunkSnapshot>> cut) {
    if (cut.ok()) chunks = *std::move(cut);
    copied(cut.status());
  });
  ASSERT_TRUE(collected.Wait().ok());
  ASSERT_THAT(chunks, SizeIs(Chunks()));
  for (uint32_t c = 0; c < Chunks(); ++c) {
    EXPECT_EQ(chunks[c].key.chunk, ChunkIndex(c));
    EXPECT_EQ(chunks[c].version.count, 1u);
    EXPECT_EQ(chunks[c].applied_steps, 1u);
    EXPECT_THAT(chunks[c].arrays.at("weights"), Each(Eq(-1.0f)));
    EXPECT_THAT(chunks[c].arrays.at("momentum"), Each(Eq(1.0f)));
  }
  for (const Sequence s : held_a) EXPECT_EQ(a.Await(s).header.status, FrameStatus::kOk);
  for (const Sequence s : held_b) EXPECT_EQ(b.Await(s).header.status, FrameStatus::kOk);
}

TEST_F(RouterTest, StatesAreReadAndWrittenByChunk) {
  Start(PlanOf({{0}}, {"momentum", {{"learning_rate", 1}}}));
  Worker& a = Add(0);
  InitAndSeal(a, 5);
  a.Call(a.Header(FrameKind::kPushPull), std::vector<float>(ChunkElements(0), 1));
  const Answer read = a.Call(a.Header(FrameKind::kReadState));
  auto state = DecodeState(read.bytes, ChunkElements(0));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->version.count, 1u);
  EXPECT_THAT(state->arrays[0].second, Each(Eq(4.0f)));
  EXPECT_EQ(state->arrays[1].first, "momentum");
  for (float& w : state->arrays[0].second) w = 9;
  const Answer wrote = a.Await(a.SendBytes(a.Header(FrameKind::kWriteState), EncodeState(*state)));
  EXPECT_EQ(wrote.header.status, FrameStatus::kOk);
  EXPECT_EQ(wrote.header.version, (Version{1, 1}));
  EXPECT_THAT(a.Call(a.Header(FrameKind::kPull)).values, Each(Eq(9.0f)));
}

TEST_F(RouterTest, TheEndOfAJobAnswersWhoeverWaits) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  InitAndSeal(a, 0);
  const Sequence waiting =
      a.Send(a.Header(FrameKind::kPushPull), std::vector<float>(ChunkElements(0), 1));
  a.Call(a.Header(FrameKind::kPull));
  router_->EndJob({kJob, false, "done"}, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  EXPECT_EQ(a.Await(waiting).header.status, FrameStatus::kJobEnded);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kPull)).header.status, FrameStatus::kJobEnded);
  EXPECT_THAT(router_->Report().jobs, SizeIs(0));
}

TEST_F(RouterTest, AJobBeyondItsQuotaIsRefusedByNumber) {
  RouterOptions options;
  options.self = kServer;
  options.job_memory_quota = 1000;
  router_ = NewRouter(options);
  router_->ApplyPlan(PlanOf({{0}}), waiter_.Next());
  const absl::Status status = waiter_.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("1000 bytes"));
}

TEST_F(RouterTest, AnUnknownOptimizerFailsThePlan) {
  RouterOptions options;
  options.self = kServer;
  router_ = NewRouter(options);
  router_->ApplyPlan(PlanOf({{0}}, {"lamb", {}}), waiter_.Next());
  EXPECT_EQ(waiter_.Wait().code(), absl::StatusCode::kInvalidArgument);
}

// Four workers in two groups for many steps, each from its own thread: what is applied is what was
// sent, whatever the interleaving.
TEST_F(RouterTest, GroupsThatRunFreelyLoseNothing) {
  Start(PlanOf({{0, 1}, {2, 3}}));
  InitAndSeal(Add(0), 0);
  std::vector<Worker*> workers = {workers_[0].get(), &Add(1), &Add(2, 1), &Add(3, 1)};
  constexpr uint64_t kSteps = 50;
  std::vector<std::thread> threads;
  for (Worker* const worker : workers) {
    threads.emplace_back([this, worker] {
      std::vector<uint64_t> base(Chunks(), 0);
      uint64_t acknowledged = 0;
      for (uint64_t step = 0; step < kSteps; ++step) {
        std::vector<Sequence> sent;
        for (uint32_t c = 0; c < Chunks(); ++c) {
          FrameHeader header = worker->Header(FrameKind::kPushPull, step, c);
          header.version.count = base[c];
          header.acknowledged = Sequence(acknowledged);
          sent.push_back(worker->Send(header, std::vector<float>(ChunkElements(c), 1)));
        }
        for (uint32_t c = 0; c < Chunks(); ++c) {
          const Answer answer = worker->Await(sent[c]);
          ASSERT_EQ(answer.header.status, FrameStatus::kOk);
          // Every update subtracts one: weights and version must be of one moment.
          ASSERT_EQ(answer.values.front(), -static_cast<float>(answer.header.version.count));
          ASSERT_EQ(answer.values.back(), answer.values.front());
          base[c] = answer.header.version.count;
        }
        acknowledged = sent.back().value();
        ASSERT_EQ(worker->Call(worker->Header(FrameKind::kBoundary, step)).header.status,
                  FrameStatus::kOk);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const JobAtServer job = router_->Report().jobs.at(0);
  EXPECT_EQ(job.updates, 2 * kSteps);
  ASSERT_THAT(job.groups, SizeIs(2));
  for (const GroupStaleness& group : job.groups) {
    EXPECT_EQ(group.tau.count, kSteps);
    EXPECT_EQ(
        static_cast<int64_t>(group.tau.sum),
        static_cast<int64_t>(group.last - group.first_base - group.tau.count) - group.base_gaps);
  }
  for (const WorkerStaleness& worker : job.workers) EXPECT_EQ(worker.applied, Samples(kSteps));
}

}  // namespace
}  // namespace paceline
