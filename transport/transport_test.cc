// What holds for every transport: the same tests over tcp and loopback.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "transport/channel.h"
#include "transport/transport_test_util.h"

namespace paceline {
namespace {

class TransportTest : public testing::TestWithParam<std::string> {
 protected:
  // Destroyed in reverse: transports before the sinks they call.
  void SetUp() override {
    keys_.Set(self_, key_);
    server_ = fabric_.New(options_);
    client_ = fabric_.New(options_);
    auto listener = server_->Listen(fabric_.AnyAddress(), &server_sink_, &keys_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  void TearDown() override {
    client_.reset();
    listener_.reset();
    server_.reset();
  }

  std::shared_ptr<Channel> Connect(FrameSink* sink) { return ConnectAs(self_, key_, sink); }
  std::shared_ptr<Channel> ConnectAs(const PeerIdentity& self, const ChannelKey& key,
                                     FrameSink* sink) {
    auto channel = client_->Connect(listener_->address(), self, key, sink, kPatience);
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.ok() ? *std::move(channel) : nullptr;
  }

  const PeerIdentity self_ = WorkerIdentity(7);
  const ChannelKey key_ = KeyOf(1);
  Messages messages_;
  TransportOptions options_;
  TestFabric fabric_{GetParam()};
  TestKeys keys_;
  RecordingSink server_sink_;
  RecordingSink client_sink_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
  std::unique_ptr<Listener> listener_;
};

// The messages of one kind, put together from their pieces in order of arrival.
std::vector<std::byte> Joined(const std::vector<Seen>& seen) {
  std::vector<std::byte> out;
  for (const Seen& piece : seen) {
    EXPECT_EQ(piece.header.offset, out.size());
    EXPECT_EQ(piece.header.length, piece.bytes.size());
    out.insert(out.end(), piece.bytes.begin(), piece.bytes.end());
  }
  return out;
}

TEST_P(TransportTest, MessagesOfEverySizeArriveWholeInPiecesOfAtMost256K) {
  const auto channel = Connect(&client_sink_);
  ASSERT_NE(channel, nullptr);
  Completions completions;
  size_t sent = 0, frames = 0;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{3}, size_t{262143}, size_t{262144},
                            size_t{262145}, size_t{5000000}}) {
    server_sink_.monitor.Change([&] { server_sink_.seen.clear(); });
    const std::vector<std::byte>& message = messages_.New(size, 5);
    FrameHeader header = HeaderFrom(self_);
    header.sequence = Sequence(sent + 1);
    channel->Send(header, message, 0, completions.Next());
    frames += std::max<size_t>(1, (size + 262143) / 262144);
    ASSERT_TRUE(server_sink_.AwaitFrames(frames)) << size;
    ASSERT_TRUE(completions.Await(++sent));
    server_sink_.monitor.Read([&] {
      EXPECT_EQ(Joined(server_sink_.seen), message) << size;
      for (const Seen& piece : server_sink_.seen) {
        EXPECT_EQ(piece.header.total, size);
        EXPECT_LE(piece.header.length, 262144u);
        EXPECT_EQ(piece.header.sequence, header.sequence);
      }
    });
  }
  for (const auto& [index, status] : completions.Done()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(server_sink_.Frames(), frames);
}

TEST_P(TransportTest, BothEndsSendAndKnowTheirPeer) {
  const auto channel = Connect(&client_sink_);
  ASSERT_NE(channel, nullptr);
  const auto accepted = server_sink_.AwaitAccepted();
  ASSERT_NE(accepted, nullptr);
  EXPECT_EQ(accepted->peer(), self_);
  EXPECT_EQ(channel->transport(), GetParam());
  EXPECT_EQ(channel->peer_address(), listener_->address());

  const std::vector<std::byte>& reply = messages_.New(1000, 9);
  FrameHeader header = HeaderFrom(self_);
  header.reply = true;
  header.sender = NodeId(99);
  accepted->Send(header, reply, 0, nullptr);
  ASSERT_TRUE(client_sink_.AwaitFrames(1));
  client_sink_.monitor.Read([&] {
    EXPECT_EQ(client_sink_.seen[0].bytes, reply);
    EXPECT_TRUE(client_sink_.seen[0].header.reply);
  });
}

TEST_P(TransportTest, PayloadGoesStraightWhereTheSinkWants) {
  std::vector<std::byte> destination(600000);
  server_sink_.on_header = [&](Channel&, const FrameHeader& header) {
    return std::span(destination).subspan(header.offset, header.length);
  };
  const auto channel = Connect(&client_sink_);
  ASSERT_NE(channel, nullptr);
  const std::vector<std::byte>& message = messages_.New(destination.size(), 6);
  channel->Send(HeaderFrom(self_), message, 0, nullptr);
  ASSERT_TRUE(server_sink_.AwaitFrames(3));
  server_sink_.monitor.Read([&] {
    for (const Seen& piece : server_sink_.seen) EXPECT_EQ(piece.bytes.size(), piece.header.length);
  });
  EXPECT_EQ(destination, message);
}

TEST_P(TransportTest, ASinkThatRefusesAHeaderEndsTheChannelWithItsError) {
  server_sink_.on_header = [](Channel&, const FrameHeader&) {
    return absl::FailedPreconditionError("tensor 5 is not registered");
  };
  const auto channel = Connect(&client_sink_);
  ASSERT_NE(channel, nullptr);
  const std::vector<std::byte>& message = messages_.New(10, 6);
  channel->Send(HeaderFrom(self_), message, 0, nullptr);
  ASSERT_TRUE(server_sink_.AwaitClosed());
  EXPECT_EQ(server_sink_.Cause().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client_sink_.AwaitClosed());
  EXPECT_EQ(client_sink_.Cause().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_sink_.Frames(), 0u);
}

TEST_P(TransportTest, AWrongKeyIsDenied) {
  const auto channel =
      client_->Connect(listener_->address(), self_, KeyOf(2), &client_sink_, kPatience);
  EXPECT_EQ(channel.status().code(), absl::StatusCode::kPermissionDenied) << channel.status();
  EXPECT_EQ(server_->stats().refused, 1u);
  EXPECT_EQ(server_->stats().accepted, 0u);
  EXPECT_TRUE(client_sink_.monitor.Read([&] { return client_sink_.closed.empty(); }));
}

TEST_P(TransportTest, AFencedIncarnationIsDenied) {
  keys_.Fence(self_);
  const auto channel =
      client_->Connect(listener_->address(), self_, key_, &client_sink_, kPatience);
  EXPECT_EQ(channel.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(channel.status().message().find("fenced"), absl::string_view::npos);
}

TEST_P(TransportTest, APeerThatBecomesKnownMeanwhileConnects) {
  const PeerIdentity late = WorkerIdentity(8);
  absl::StatusOr<std::shared_ptr<Channel>> channel = absl::UnknownError("");
  std::thread connecting([&] {
    channel = client_->Connect(listener_->address(), late, key_, &client_sink_, kPatience);
  });
  const Ticks deadline = Clock::Real().Now() + kPatience;
  while (keys_.asked() < 3 && Clock::Real().Now() < deadline) std::this_thread::yield();
  keys_.Set(late, key_);
  connecting.join();
  ASSERT_TRUE(channel.ok()) << channel.status();
  EXPECT_GE(keys_.asked(), 3);
  ASSERT_NE(server_sink_.AwaitAccepted(), nullptr);
  EXPECT_EQ(server_sink_.AwaitAccepted()->peer(), late);
}

TEST_P(TransportTest, APeerThatStaysUnknownIsUnavailableAfterTheTimeout) {
  const auto channel = client_->Connect(listener_->address(), WorkerIdentity(8), key_,
                                        &client_sink_, Milliseconds(100));
  EXPECT_EQ(channel.status().code(), absl::StatusCode::kUnavailable) << channel.status();
  EXPECT_NE(channel.status().message().find("node 8"), absl::string_view::npos);
  EXPECT_GE(keys_.asked(), 2);
}

TEST_P(TransportTest, NobodyThereIsUnavailableAndNamesTheAddress) {
  const std::string address = listener_->address();
  listener_.reset();
  const auto channel = client_->Connect(address, self_, key_, &client_sink_, kPatience);
  EXPECT_EQ(channel.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(channel.status().message().find(address), absl::string_view::npos) << channel.status();
}

TEST_P(TransportTest, ATakenAddressAlreadyExistsAndIsNamed) {
  const auto second = server_->Listen(listener_->address(), &server_sink_, &keys_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists) << second.status();
  EXPECT_NE(second.status().message().find(listener_->address()), absl::string_view::npos);
}

TEST_P(TransportTest, FramesOfAnotherIdentityEndTheChannel) {
  const std::vector<std::pair<std::string, FrameHeader>> wrong = [&] {
    FrameHeader job = HeaderFrom(self_), node = HeaderFrom(self_), incarnation = HeaderFrom(self_);
    job.job = JobId(4);
    node.sender = NodeId(6);
    incarnation.incarnation = Incarnation(10);
    return std::vector<std::pair<std::string, FrameHeader>>{
        {"job 4", job}, {"node 6", node}, {"incarnation 10", incarnation}};
  }();
  for (size_t i = 0; i < wrong.size(); ++i) {
    const auto channel = Connect(&client_sink_);
    ASSERT_NE(channel, nullptr);
    channel->Send(wrong[i].second, {}, 0, nullptr);
    ASSERT_TRUE(server_sink_.AwaitClosed(i + 1));
    EXPECT_EQ(server_sink_.Cause(i).code(), absl::StatusCode::kPermissionDenied);
    EXPECT_NE(server_sink_.Cause(i).message().find(wrong[i].first), absl::string_view::npos)
        << server_sink_.Cause(i);
  }
  EXPECT_EQ(server_sink_.Frames(), 0u);
  EXPECT_EQ(server_->stats().protocol_errors, 3u);
}

TEST_P(TransportTest, AServerIsBoundToTheNodeOfItsFirstFrame) {
  const auto channel = Connect(&client_sink_);
  ASSERT_NE(channel, nullptr);
  const auto accepted = server_sink_.AwaitAccepted();
  ASSERT_NE(accepted, nullptr);
  FrameHeader header = HeaderFrom(self_);
  header.sender = NodeId(99);
  accepted->Send(header, {}, 0, nullptr);
  accepted->Send(header, {}, 0, nullptr);
  header.sender = NodeId(98);
  accepted->Send(header, {}, 0, nullptr);
  ASSERT_TRUE(client_sink_.AwaitClosed());
  EXPECT_EQ(client_sink_.Frames(), 2u);
  EXPECT_EQ(client_sink_.Cause().code(), absl::StatusCode::kPermissionDenied);
}

TEST_P(TransportTest, CloseCompletesQueuedSendsWithItsCauseAndTellsBothEnds) {
  server_sink_.keep = true;  // so that sends stay queued once credit is used up
  const auto channel = Connect(&client_sink_);
  ASSERT_NE(channel, nullptr);
  const std::vector<std::byte>& message = messages_.New(20u << 20, 1);
  Completions completions;
  for (int i = 0; i < 10; ++i) channel->Send(HeaderFrom(self_), message, 0, completions.Next());
  ASSERT_TRUE(server_sink_.AwaitFrames(1));
  channel->Close(absl::AbortedError("the session ends"));
  channel->Close(absl::InternalError("too late to matter"));
  ASSERT_TRUE(completions.Await(10));
  ASSERT_TRUE(client_sink_.AwaitClosed());
  ASSERT_TRUE(server_sink_.AwaitClosed());
  EXPECT_EQ(client_sink_.Cause(), absl::AbortedError("the session ends"));
  EXPECT_EQ(server_sink_.Cause().code(), absl::StatusCode::kUnavailable);
  size_t aborted = 0;
  for (const auto& [index, status] : completions.Done()) aborted += absl::IsAborted(status);
  EXPECT_GE(aborted, 6u);  // at most 64 MB of credit and what is on the way got through
  EXPECT_EQ(channel->stats().bytes_queued, 0u);

  channel->Send(HeaderFrom(self_), message, 0, completions.Next());
  ASSERT_TRUE(completions.Await(11));
  EXPECT_TRUE(absl::IsAborted(completions.Done()[10].second));
  EXPECT_EQ(client_sink_.monitor.Read([&] { return client_sink_.closed.size(); }), 1u);
}

TEST_P(TransportTest, AChannelAndItsPayloadsOutliveTheTransport) {
  server_sink_.keep = true;
  const auto channel = Connect(&client_sink_);
  ASSERT_NE(channel, nullptr);
  const std::vector<std::byte>& message = messages_.New(300000, 1);
  channel->Send(HeaderFrom(self_), message, 0, nullptr);
  ASSERT_TRUE(server_sink_.AwaitFrames(2));
  client_.reset();
  listener_.reset();
  server_.reset();
  EXPECT_EQ(client_sink_.closed.size(), 1u);  // no lock: nobody else is left
  EXPECT_EQ(server_sink_.closed.size(), 1u);
  Completions completions;
  channel->Send(HeaderFrom(self_), message, 0, completions.Next());
  ASSERT_TRUE(completions.Await(1));
  EXPECT_FALSE(completions.Done()[0].second.ok());
  channel->Close(absl::OkStatus());
  EXPECT_EQ(server_sink_.kept[0].bytes()[0], message[0]);
  server_sink_.kept.clear();
}

TEST_P(TransportTest, DestroyingAListenerEndsWhatItAcceptedAndNothingElse) {
  RecordingSink second_sink;
  auto second = server_->Listen(fabric_.AnyAddress(), &second_sink, &keys_);
  ASSERT_TRUE(second.ok());
  const auto first_channel = Connect(&client_sink_);
  RecordingSink second_client_sink;
  const auto second_channel =
      client_->Connect((*second)->address(), self_, key_, &second_client_sink, kPatience);
  ASSERT_TRUE(second_channel.ok());
  ASSERT_NE(second_sink.AwaitAccepted(), nullptr);
  second->reset();
  EXPECT_EQ(second_sink.closed.size(), 1u);
  ASSERT_TRUE(second_client_sink.AwaitClosed());
  first_channel->Send(HeaderFrom(self_), {}, 0, nullptr);
  EXPECT_TRUE(server_sink_.AwaitFrames(1));
  client_.reset();  // before the sink of its second channel
}

TEST_P(TransportTest, AllocatedMemoryIsAligned) {
  const auto channel = Connect(&client_sink_);
  ASSERT_NE(channel, nullptr);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{1} << 20}) {
    const auto memory = channel->Allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0u);
  }
}

TEST_P(TransportTest, SixtyFourChannelsAtOnce) {
  constexpr uint32_t kChannels = 64, kMessages = 20;
  server_sink_.record = false;
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<PeerIdentity> peers;
  for (uint32_t i = 0; i < kChannels; ++i) {
    peers.push_back(WorkerIdentity(100 + i, 1000 + i));
    keys_.Set(peers.back(), KeyOf(static_cast<uint8_t>(i)));
    channels.push_back(ConnectAs(peers.back(), KeyOf(static_cast<uint8_t>(i)), &client_sink_));
    ASSERT_NE(channels.back(), nullptr);
  }
  const std::vector<std::byte>& message = messages_.New(70000, 3);
  Completions completions;
  for (uint32_t m = 0; m < kMessages; ++m) {
    for (uint32_t i = 0; i < kChannels; ++i) {
      channels[i]->Send(HeaderFrom(peers[i]), message, 0, completions.Next());
    }
  }
  ASSERT_TRUE(server_sink_.AwaitFrames(kChannels * kMessages));
  ASSERT_TRUE(completions.Await(kChannels * kMessages));
  EXPECT_EQ(server_sink_.monitor.Read([&] { return server_sink_.frame_bytes; }),
            uint64_t{kChannels} * kMessages * message.size());
  EXPECT_EQ(server_->stats().connections, kChannels);
}

TEST_P(TransportTest, DestructionUnderLoadIsClean) {
  for (int round = 0; round < 5; ++round) {
    RecordingSink sink;
    sink.record = false;
    auto transport = fabric_.New({.io_threads = 2});
    std::vector<std::shared_ptr<Channel>> channels;
    for (int i = 0; i < 4; ++i) {
      auto channel = transport->Connect(listener_->address(), self_, key_, &sink, kPatience);
      ASSERT_TRUE(channel.ok()) << channel.status();
      channels.push_back(*std::move(channel));
    }
    const std::vector<std::byte>& message = messages_.New(100000, 3);
    Completions completions;
    std::atomic<bool> stop = false;
    std::atomic<size_t> sent = 0;
    std::thread sender([&] {
      while (!stop.load()) {
        for (const auto& channel : channels) {
          channel->Send(HeaderFrom(self_), message, 0, completions.Next());
          sent.fetch_add(1);
        }
        std::this_thread::yield();
      }
    });
    ASSERT_TRUE(completions.Await(20));
    transport.reset();
    EXPECT_EQ(sink.closed.size(), 4u);
    stop = true;
    sender.join();
    EXPECT_TRUE(completions.Await(sent.load()));  // each exactly once
    EXPECT_EQ(completions.Done().size(), sent.load());
  }
}

TEST_P(TransportTest, OverTheConnectionLimitOthersAreDroppedAndCounted) {
  auto small = fabric_.New({.max_connections = 2});
  auto listener = small->Listen(fabric_.AnyAddress(), &server_sink_, &keys_);
  ASSERT_TRUE(listener.ok());
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < 2; ++i) {
    auto channel = client_->Connect((*listener)->address(), self_, key_, &client_sink_, kPatience);
    ASSERT_TRUE(channel.ok()) << channel.status();
    channels.push_back(*std::move(channel));
  }
  EXPECT_EQ(client_->Connect((*listener)->address(), self_, key_, &client_sink_, kPatience)
                .status()
                .code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(small->stats().over_limit, 1u);
  channels[0]->Send(HeaderFrom(self_), {}, 0, nullptr);
  EXPECT_TRUE(server_sink_.AwaitFrames(1));
  channels[0]->Close(absl::OkStatus());
  ASSERT_TRUE(server_sink_.AwaitClosed());
  EXPECT_TRUE(client_->Connect((*listener)->address(), self_, key_, &client_sink_, kPatience).ok());
  small.reset();
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Over, TransportTest, testing::Values("tcp", "loopback", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace paceline
