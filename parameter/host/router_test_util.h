// A router behind real channels, and the workers at their other ends: loopback transport, real
// handshake, real threads.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parameter/host/router.h"
#include "parameter/state_codec.h"
#include "plan/chunking.h"

namespace paceline {

using ::testing::Each;
using ::testing::Eq;
using ::testing::SizeIs;

inline constexpr Ticks kPatience = Seconds(20);
inline constexpr NodeId kServer(1);
inline constexpr JobId kJob(3);
inline constexpr uint64_t kElements = 200'000;  // chunks of 65536 floats: three and a part
inline constexpr uint64_t kChunkBytes = 256u << 10;

inline SecretKey KeyOf(uint32_t node) {
  SecretKey key;
  key.fill(static_cast<uint8_t>(node));
  return key;
}

inline Member MemberOf(uint32_t number, uint64_t incarnation = 1) {
  Member member;
  member.node = NodeId(100 + number);
  member.name = "w" + std::to_string(number);
  member.incarnation = Incarnation(incarnation);
  member.rank = JobRank(number);
  member.key = KeyOf(100 + number);
  return member;
}

inline Plan PlanOf(std::vector<std::vector<uint32_t>> groups,
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

}  // namespace paceline
