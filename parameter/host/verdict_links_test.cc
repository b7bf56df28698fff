// Questions about pushes over loopback, to leads that answer, are silent, or are gone.
#include "parameter/host/verdict_links.h"

#include <algorithm>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paceline {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr Ticks kPatience = Seconds(20);
constexpr NodeId kSelf(1);
constexpr NodeId kLead(2);
constexpr char kDark[] = "127.0.0.1:9";

SecretKey KeyOf(NodeId node) {
  SecretKey key;
  key.fill(static_cast<uint8_t>(node.value()));
  return key;
}

// Waits for what a test counts.
class Tally {
 public:
  void Add(uint64_t value) {
    MutexLock lock(&mutex_);
    values_.push_back(value);
    changed_.SignalAll();
  }
  // The first `count`, or what has come of them when no more does.
  std::vector<uint64_t> Await(size_t count) {
    MutexLock lock(&mutex_);
    while (values_.size() < count) {
      if (!changed_.WaitFor(&mutex_, kPatience)) break;
    }
    return values_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<uint64_t> values_ GUARDED_BY(mutex_);
};

// The owner of a lead chunk.
class Lead final : public FrameSink, public KeyStore {
 public:
  explicit Lead(std::shared_ptr<LoopbackNetwork> network)
      : transport_(NewLoopbackTransport(std::move(network), {})) {
    listener_ = *transport_->Listen("127.0.0.1:0", this, this);
  }
  ~Lead() override {
    listener_.reset();
    transport_.reset();
  }
  std::string address() const { return listener_->address(); }
  void AnswerAll() {
    MutexLock lock(&mutex_);
    answers_ = true;
  }
  void CloseNext() {
    MutexLock lock(&mutex_);
    closes_ = true;
  }

  absl::StatusOr<ChannelKey> Find(const PeerIdentity& peer) const override {
    return KeyOf(peer.node);
  }
  void OnAccepted(std::shared_ptr<Channel> channel) override {
    MutexLock lock(&mutex_);
    channels_[channel.get()] = channel;
  }
  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload) override {
    asked.Add(header.step.value());
    MutexLock lock(&mutex_);
    if (std::exchange(closes_, false)) return absl::InternalError("as told");
    if (!answers_) return absl::OkStatus();
    FrameHeader reply = header;
    reply.reply = true;
    static constexpr std::byte kAnswer[3] = {};
    channels_.at(&channel)->Send(reply, kAnswer, 0, [](const absl::Status&) {});
    return absl::OkStatus();
  }
  void OnClosed(Channel& channel, const absl::Status&) override {
    MutexLock lock(&mutex_);
    channels_.erase(&channel);
    closed.Add(1);
  }

  Tally asked;  // steps
  Tally closed;

 private:
  Mutex mutex_;
  std::map<const Channel*, std::shared_ptr<Channel>> channels_ GUARDED_BY(mutex_);
  bool answers_ GUARDED_BY(mutex_) = false;
  bool closes_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Listener> listener_;
};

// Connects to kDark until it is told otherwise, as to a host that is off.
class DarkTransport final : public Transport {
 public:
  explicit DarkTransport(std::unique_ptr<Transport> real) : real_(std::move(real)) {}
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address, FrameSink* sink,
                                                   const KeyStore* keys) override {
    return real_->Listen(address, sink, keys);
  }
  absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string& address,
                                                   const PeerIdentity& self, const ChannelKey& key,
                                                   FrameSink* sink, Ticks timeout) override {
    if (address != kDark) return real_->Connect(address, self, key, sink, timeout);
    dialled.Add(self.job.value());
    MutexLock lock(&mutex_);
    while (!over_) over_changed_.Wait(&mutex_);
    return absl::DeadlineExceededError("dark");
  }
  TransportStats stats() const override { return real_->stats(); }
  void GiveUp() {
    MutexLock lock(&mutex_);
    over_ = true;
    over_changed_.SignalAll();
  }

  Tally dialled;  // jobs

 private:
  const std::unique_ptr<Transport> real_;
  Mutex mutex_;
  CondVar over_changed_;
  bool over_ GUARDED_BY(mutex_) = false;
};

class VerdictLinksTest : public testing::Test {
 protected:
  ~VerdictLinksTest() override {
    transport_.GiveUp();
    links_.Stop();
  }
  static VerdictLead LeadAt(const std::string& address, uint64_t generation) {
    VerdictLead lead{JobGeneration(generation), 0, {}};
    lead.owner.node = kLead;
    lead.owner.name = "lead";
    lead.owner.data_address = address;
    return lead;
  }
  void Ask(uint32_t job, const VerdictLead& lead, uint64_t step) {
    links_.Ask(0, {JobId(job),
                   lead,
                   {},
                   {GroupId(0), Step(step)},
                   std::make_shared<const std::vector<std::byte>>(2)});
  }
  VerdictLinksOptions Options() {
    VerdictLinksOptions options;
    options.self = kSelf;
    options.incarnation = Incarnation(1);
    options.key = KeyOf(kSelf);
    options.transport = &transport_;
    options.deliver = [this](JobId job, uint32_t, uint32_t, const std::vector<std::byte>& answer) {
      EXPECT_THAT(answer, SizeIs(3));
      delivered_.Add(job.value());
    };
    return options;
  }

  std::shared_ptr<LoopbackNetwork> network_ = NewLoopbackNetwork();
  Lead lead_{network_};
  Lead next_{network_};
  Tally delivered_;
  VerdictLinks links_{Options()};
  DarkTransport transport_{NewLoopbackTransport(network_, {})};
};

TEST_F(VerdictLinksTest, OneDarkLeadHoldsUpNoOtherJob) {
  lead_.AnswerAll();
  Ask(3, LeadAt(kDark, 1), 1);
  ASSERT_THAT(transport_.dialled.Await(1), ElementsAre(3));
  Ask(4, LeadAt(lead_.address(), 1), 1);
  EXPECT_THAT(delivered_.Await(1), ElementsAre(4));
}

TEST_F(VerdictLinksTest, ALeadThatStartedAgainIsAskedWhereItIsNow) {
  Ask(3, LeadAt(lead_.address(), 1), 7);
  ASSERT_THAT(lead_.asked.Await(1), ElementsAre(7));
  next_.AnswerAll();
  links_.Follow(JobId(3), LeadAt(next_.address(), 2));
  EXPECT_THAT(lead_.closed.Await(1), SizeIs(1)) << "nothing is to be heard from it";
  Ask(3, LeadAt(lead_.address(), 1), 8);  // a thread that has not seen the plan
  Ask(3, LeadAt(next_.address(), 2), 7);
  EXPECT_THAT(delivered_.Await(1), ElementsAre(3));
  EXPECT_THAT(next_.asked.Await(1), ElementsAre(7));
}

TEST_F(VerdictLinksTest, AThreadThatIsBehindAsksNoLeadOfThePast) {
  next_.AnswerAll();
  Ask(3, LeadAt(next_.address(), 2), 7);
  EXPECT_THAT(delivered_.Await(1), ElementsAre(3));
  Ask(3, LeadAt(lead_.address(), 1), 8);
  Ask(3, LeadAt(next_.address(), 2), 9);
  EXPECT_THAT(next_.asked.Await(2), ElementsAre(7, 9));
  EXPECT_THAT(delivered_.Await(2), ElementsAre(3, 3));
}

// A plan of another lead drops the question to the dead one, whoever has nothing more to ask.
TEST_F(VerdictLinksTest, ADeadLeadIsGivenUp) {
  Ask(3, LeadAt(kDark, 1), 1);
  ASSERT_THAT(transport_.dialled.Await(1), ElementsAre(3));
  VerdictLead here = LeadAt("", 2);
  here.owner.node = kSelf;
  links_.Follow(JobId(3), here);
  transport_.GiveUp();
  Ask(4, LeadAt(kDark, 1), 1);
  // Tried again and again, the one of job 4 only.
  const std::vector<uint64_t> dialled = transport_.dialled.Await(4);
  EXPECT_EQ(std::count(dialled.begin(), dialled.end(), 3), 1);
}

TEST_F(VerdictLinksTest, AChannelThatIsLostWithTheQuestionIsOpenedAgain) {
  lead_.AnswerAll();
  lead_.CloseNext();
  Ask(3, LeadAt(lead_.address(), 1), 7);
  EXPECT_THAT(delivered_.Await(1), ElementsAre(3));
  EXPECT_THAT(lead_.asked.Await(2), ElementsAre(7, 7));
}

}  // namespace
}  // namespace paceline
