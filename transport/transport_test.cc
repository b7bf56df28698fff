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
    const std::vector<std::byte> message = Pattern(size, 5);
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

  const std::vector<std::byte> reply = Pattern(1000, 9);
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

}  // namespace

INSTANTIATE_TEST_SUITE_P(Over, TransportTest, testing::Values("tcp", "loopback"),
                         [](const auto& info) { return info.param; });

}  // namespace paceline
