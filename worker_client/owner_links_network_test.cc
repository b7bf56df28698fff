// Links to owners that answer, and to some that do not.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "transport/transport_test_util.h"
#include "worker_client/owner_links.h"

namespace paceline {
namespace {

// Answers every operation, without payload.
class AnsweringSink final : public FrameSink {
 public:
  void OnAccepted(std::shared_ptr<Channel> channel) override {
    monitor.Change([&] { channels.push_back(std::move(channel)); });
  }
  absl::Status OnFrame(Channel& channel, const FrameHeader& header, Payload payload) override {
    if (header.offset + header.length < header.total) return absl::OkStatus();
    FrameHeader reply;
    reply.kind = header.kind;
    reply.reply = true;
    reply.job = header.job;
    reply.sender = NodeId(2);
    reply.sequence = header.sequence;
    channel.Send(reply, {}, 0, nullptr);
    return absl::OkStatus();
  }
  void OnClosed(Channel&, const absl::Status&) override {}

  Monitor monitor;
  std::vector<std::shared_ptr<Channel>> channels;
};

class OutcomeCounter final : public OwnerLinks::Listener {
 public:
  void OnLinkDown(const ServerInfo&, Ticks, const std::string&) override {}
  void OnOutcome(const std::shared_ptr<ChunkOp>& op, const absl::Status& status) override {
    monitor.Change([&] {
      ++outcomes;
      ok += status.ok() && op->reply.reply;
    });
  }
  bool Await(size_t n, Ticks timeout = kPatience) {
    return monitor.Await([&] { return outcomes >= n; }, timeout);
  }
  Monitor monitor;
  size_t outcomes = 0;
  size_t ok = 0;
};

class OwnerLinksNetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    keys_.Set(self_, key_);
    transport_ = NewLoopbackTransport(network_, {});
    server_ = NewLoopbackTransport(network_, {});
    hanging_server_ = NewLoopbackTransport(network_, {});
    listener_ = *server_->Listen("a:0", &sink_, &keys_);
    hanging_listener_ = *hanging_server_->Listen("b:0", &sink_, &hanging_keys_);
    links_ = std::make_unique<OwnerLinks>(transport_.get(), self_, key_, "w0", &outcomes_);
  }
  void TearDown() override {
    hanging_keys_.monitor.Change([&] { hanging_keys_.open = true; });
    links_->Shutdown(absl::CancelledError("the test is over"));
    transport_.reset();
    links_.reset();
    listener_.reset();
    hanging_listener_.reset();
  }
  static ServerInfo Info(uint32_t node, const std::string& address) {
    ServerInfo info;
    info.node = NodeId(node);
    info.name = "server-" + std::to_string(node);
    info.data_address = address;
    return info;
  }
  void Issue(uint32_t owner, std::span<const std::byte> payload = {}) {
    auto op = std::make_shared<ChunkOp>();
    op->owner = NodeId(owner);
    op->header.kind = FrameKind::kPush;
    op->payload = payload;
    links_->Issue(op);
  }

  const PeerIdentity self_ = WorkerIdentity(7);
  const ChannelKey key_ = KeyOf(1);
  std::shared_ptr<LoopbackNetwork> network_ = NewLoopbackNetwork();
  TestKeys keys_;
  HangingKeys hanging_keys_;
  AnsweringSink sink_;
  OutcomeCounter outcomes_;
  std::unique_ptr<Transport> transport_, server_, hanging_server_;
  std::unique_ptr<Listener> listener_, hanging_listener_;
  std::unique_ptr<OwnerLinks> links_;
};

// The one that hangs comes first, and its connection is given up only after two seconds.
TEST_F(OwnerLinksNetworkTest, AnOwnerThatDoesNotAnswerKeepsNoOtherWaiting) {
  links_->SetOwners({Info(1, hanging_listener_->address()), Info(2, listener_->address())});
  const Ticks began = Clock::Real().Now();
  Issue(1);
  for (int i = 0; i < 10; ++i) Issue(2);
  ASSERT_TRUE(outcomes_.Await(10));
  EXPECT_EQ(outcomes_.monitor.Read([&] { return outcomes_.ok; }), 10u);
  EXPECT_LT(Clock::Real().Now() - began, Milliseconds(1900));
}

TEST_F(OwnerLinksNetworkTest, EveryOperationOfALostChannelIsAnsweredOnTheNext) {
  links_->SetOwners({Info(2, listener_->address())});
  const std::vector<std::byte> payload(300000);
  for (int i = 0; i < 100; ++i) Issue(2, payload);
  std::shared_ptr<Channel> channel;
  ASSERT_TRUE(sink_.monitor.Await([&] { return !sink_.channels.empty(); }));
  sink_.monitor.Read([&] { channel = sink_.channels[0]; });
  channel->Close(absl::AbortedError("lost on purpose"));
  for (int i = 0; i < 100; ++i) Issue(2, payload);
  ASSERT_TRUE(outcomes_.Await(200));
  EXPECT_EQ(outcomes_.monitor.Read([&] { return outcomes_.ok; }), 200u);
}

}  // namespace
}  // namespace paceline
