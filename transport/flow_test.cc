// Priority, back-pressure and bounds, over every transport and for the queue alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/send_queue.h"
#include "transport/transport_test_util.h"

namespace paceline {
namespace {

// The sequence numbers and offsets of what the queue writes, `limit` bytes at a time.
std::vector<std::pair<uint64_t, uint64_t>> WriteOne(SendQueue& queue,
                                                    std::vector<Channel::Completion>& done) {
  std::vector<std::pair<uint64_t, uint64_t>> out;
  size_t bytes = 0;
  for (const iovec& part : queue.Gather()) {
    bytes += part.iov_len;
    if (part.iov_len != kFrameHeaderBytes) continue;
    const auto header =
        DecodeHeader({static_cast<const std::byte*>(part.iov_base), kFrameHeaderBytes});
    if (header.ok()) out.emplace_back(header->sequence.value(), header->offset);
  }
  queue.Wrote(bytes, done);
  return out;
}

FrameHeader Numbered(uint64_t sequence) {
  FrameHeader header = HeaderFrom(WorkerIdentity(7));
  header.sequence = Sequence(sequence);
  return header;
}

TEST(SendQueue, UrgentMessagesPassBetweenPiecesAndEqualsKeepTheirOrder) {
  SendQueue queue(8 << 20);
  const std::vector<std::byte> large(3 * kMaxPieceBytes), small(1000);
  Channel::Completion none;
  std::vector<Channel::Completion> done;
  using Cut = std::vector<std::pair<uint64_t, uint64_t>>;
  ASSERT_TRUE(queue.Push(Numbered(1), large, 0, none).ok());
  ASSERT_TRUE(queue.Push(Numbered(2), small, 0, none).ok());
  EXPECT_EQ(WriteOne(queue, done), (Cut{{1, 0}}));
  ASSERT_TRUE(queue.Push(Numbered(3), small, 5, none).ok());
  ASSERT_TRUE(queue.Push(Numbered(4), small, 9, none).ok());
  ASSERT_TRUE(queue.Push(Numbered(5), small, 5, none).ok());
  ASSERT_TRUE(queue.Push(Numbered(6), small, -1, none).ok());
  EXPECT_EQ(WriteOne(queue, done), (Cut{{4, 0}, {3, 0}, {5, 0}}));
  EXPECT_EQ(WriteOne(queue, done), (Cut{{1, 262144}}));
  EXPECT_EQ(done.size(), 3u);  // not message 1 yet
  EXPECT_EQ(WriteOne(queue, done), (Cut{{1, 524288}}));
  EXPECT_EQ(WriteOne(queue, done), (Cut{{2, 0}, {6, 0}}));
  EXPECT_EQ(done.size(), 6u);
  EXPECT_TRUE(queue.Gather().empty());
  EXPECT_EQ(queue.queued_bytes(), 0u);
}

TEST(SendQueue, CountsHeadersAndRefusesWhatExceedsTheBound) {
  SendQueue queue(2 * (1000 + 192));
  const std::vector<std::byte> small(1000);
  Channel::Completion none;
  EXPECT_TRUE(queue.Push(Numbered(1), small, 0, none).ok());
  EXPECT_EQ(queue.queued_bytes(), 1192u);
  EXPECT_TRUE(queue.Push(Numbered(2), small, 0, none).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(queue.Push(Numbered(3), {}, 0, none)));
  std::vector<Channel::Completion> done;
  queue.Gather();
  EXPECT_EQ(queue.Wrote(192, done), 0u);  // the first header
  EXPECT_TRUE(queue.Push(Numbered(3), {}, 0, none).ok());
}

TEST(SendQueue, PartialWritesContinueWhereTheyStopped) {
  SendQueue queue(8 << 20);
  const std::vector<std::byte> message = Pattern(300000, 4);
  Channel::Completion none;
  ASSERT_TRUE(queue.Push(Numbered(1), message, 0, none).ok());
  std::vector<Channel::Completion> done;
  std::vector<std::byte> wire;
  while (true) {
    const auto parts = queue.Gather();
    if (parts.empty()) break;
    const size_t n = std::min<size_t>(parts[0].iov_len, 997);
    const auto* from = static_cast<const std::byte*>(parts[0].iov_base);
    wire.insert(wire.end(), from, from + n);
    queue.Wrote(n, done);
  }
  EXPECT_EQ(done.size(), 1u);
  ASSERT_EQ(wire.size(), 300000u + 2 * 192);
  EXPECT_TRUE(std::equal(message.begin(), message.begin() + 262144, wire.begin() + 192));
  EXPECT_TRUE(
      std::equal(message.begin() + 262144, message.end(), wire.begin() + 192 + 262144 + 192));
}

TEST(SendQueue, AMessageLargerThanTheFormatAllowsIsAnError) {
  SendQueue queue(uint64_t{1} << 40);
  const std::byte* nowhere = nullptr;
  Channel::Completion none;
  EXPECT_TRUE(
      absl::IsOutOfRange(queue.Push(Numbered(1), {nowhere, kMaxMessageBytes + 1}, 0, none)));
}

TEST(SendQueue, TheBoundHoldsBackWhatCanBeSentAgainAndNeverEverything) {
  SendQueue queue(1000);
  const std::vector<std::byte> bytes(5000);
  Channel::Completion none;
  EXPECT_TRUE(queue.Push(Numbered(1), bytes, 0, none).ok()) << "larger than the bound, but alone";
  EXPECT_TRUE(absl::IsResourceExhausted(queue.Push(Numbered(2), bytes, 0, none)));
  FrameHeader reply = Numbered(3);
  reply.reply = true;
  EXPECT_TRUE(queue.Push(reply, bytes, 0, none).ok()) << "nobody would ask for it again";
}

class FlowTest : public testing::TestWithParam<std::string> {
 protected:
  void Start(const TransportOptions& server, const TransportOptions& client) {
    for (uint32_t node : {7u, 8u}) keys_.Set(WorkerIdentity(node), key_);
    server_ = fabric_.New(server);
    client_ = fabric_.New(client);
    auto listener = server_->Listen(fabric_.AnyAddress(), &sink_, &keys_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  std::shared_ptr<Channel> Connect(uint32_t node) {
    auto channel = client_->Connect(listener_->address(), WorkerIdentity(node), key_, &client_sink_,
                                    kPatience);
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.ok() ? *channel : nullptr;
  }
  void TearDown() override {
    client_.reset();
    listener_.reset();
    server_.reset();
  }

  const ChannelKey key_ = KeyOf(1);
  Messages messages_;
  TestFabric fabric_{GetParam()};
  TestKeys keys_;
  RecordingSink sink_;
  RecordingSink client_sink_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
  std::unique_ptr<Listener> listener_;
};

TEST_P(FlowTest, ASinkThatKeepsPayloadsStopsItsPeerAndNobodyElse) {
  Start({.max_receive_bytes = 1 << 20}, {});
  sink_.record = false;
  sink_.on_frame = [&](Channel& channel, const FrameHeader&) {
    sink_.keep = channel.peer().node == NodeId(7);
    return absl::OkStatus();
  };
  const auto slow = Connect(7), other = Connect(8);
  ASSERT_TRUE(slow != nullptr && other != nullptr);
  const std::vector<std::byte>& message = messages_.New(16 << 20, 2);  // 64 pieces
  Completions completions;
  slow->Send(HeaderFrom(WorkerIdentity(7)), message, 0, completions.Next());
  ASSERT_TRUE(sink_.AwaitFrames(4));  // 4 × 256 KB are the whole credit

  const std::vector<std::byte>& small = messages_.New(1000, 2);
  for (int i = 0; i < 50; ++i) {
    other->Send(HeaderFrom(WorkerIdentity(8)), small, 0, nullptr);
    ASSERT_TRUE(sink_.AwaitFrames(static_cast<size_t>(4 + i + 1)));
  }
  EXPECT_EQ(sink_.Frames(), 54u);
  EXPECT_EQ(sink_.monitor.Read([&] { return sink_.kept.size(); }), 4u);

  // One payload given back lets exactly one more in.
  sink_.monitor.Change([&] { sink_.kept.pop_back(); });
  ASSERT_TRUE(sink_.AwaitFrames(55));
  other->Send(HeaderFrom(WorkerIdentity(8)), small, 0, nullptr);
  ASSERT_TRUE(sink_.AwaitFrames(56));
  EXPECT_EQ(sink_.monitor.Read([&] { return sink_.kept.size(); }), 4u);

  while (sink_.Frames() < 51 + 64) {
    std::vector<Payload> back;
    sink_.monitor.Change([&] { back.swap(sink_.kept); });
    back.clear();
    std::this_thread::yield();
  }
  ASSERT_TRUE(completions.Await(1));
  EXPECT_TRUE(completions.Done()[0].second.ok());
}

TEST_P(FlowTest, ASlowReaderBoundsTheMemoryOfItsSender) {
  constexpr uint64_t kBound = 4 << 20;
  Start({.max_receive_bytes = 1 << 20}, {.max_send_bytes = kBound});
  sink_.keep = true;
  sink_.record = false;
  const auto channel = Connect(7);
  ASSERT_NE(channel, nullptr);
  const std::vector<std::byte>& message = messages_.New(1 << 20, 2);
  Completions completions;
  bool exhausted = false;
  size_t sent = 0;
  const Ticks deadline = Clock::Real().Now() + kPatience;
  while (!exhausted && Clock::Real().Now() < deadline) {
    channel->Send(HeaderFrom(WorkerIdentity(7)), message, 0, completions.Next());
    ++sent;
    EXPECT_LE(channel->stats().bytes_queued, kBound);
    for (const auto& [index, status] : completions.Done()) {
      if (status.ok()) continue;
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      exhausted = true;
    }
  }
  EXPECT_TRUE(exhausted);
  // The channel is as good as before.
  sink_.keep = false;
  std::vector<Payload> back;
  sink_.monitor.Change([&] { back.swap(sink_.kept); });
  back.clear();
  EXPECT_TRUE(completions.Await(sent));
  channel->Send(HeaderFrom(WorkerIdentity(7)), message, 0, completions.Next());
  ASSERT_TRUE(completions.Await(sent + 1));
  EXPECT_TRUE(completions.Done().back().second.ok());
}

TEST_P(FlowTest, AnUrgentMessageOvertakesQueuedOnes) {
  Start({.max_receive_bytes = 1 << 20}, {});
  sink_.keep = true;  // holds the first messages until all are queued
  const auto channel = Connect(7);
  ASSERT_NE(channel, nullptr);
  const std::vector<std::byte>& large = messages_.New(20 << 20, 2);
  const std::vector<std::byte>& small = messages_.New(10, 2);
  channel->Send(Numbered(1), large, 0, nullptr);
  channel->Send(Numbered(2), large, 0, nullptr);
  ASSERT_TRUE(sink_.AwaitFrames(4));
  channel->Send(Numbered(3), small, 7, nullptr);
  sink_.keep = false;
  std::vector<Payload> back;
  sink_.monitor.Change([&] { back.swap(sink_.kept); });
  back.clear();
  ASSERT_TRUE(sink_.AwaitFrames(161));
  sink_.monitor.Read([&] {
    size_t urgent = 0, first_of_second = 0;
    for (size_t i = 0; i < sink_.seen.size(); ++i) {
      if (sink_.seen[i].header.sequence == Sequence(3)) urgent = i;
      if (sink_.seen[i].header.sequence == Sequence(2) && sink_.seen[i].header.offset == 0) {
        first_of_second = i;
      }
    }
    EXPECT_LT(urgent, first_of_second);
  });
}

TEST_P(FlowTest, SmallPayloadsAreChargedWhatTheyTake) {
  Start({.max_receive_bytes = 64 * 100}, {});
  sink_.keep = true;
  const auto channel = Connect(7);
  ASSERT_NE(channel, nullptr);
  const std::vector<std::byte>& small = messages_.New(10, 2);
  Completions completions;
  for (int i = 0; i < 300; ++i) channel->Send(Numbered(1), small, 0, completions.Next());
  ASSERT_TRUE(completions.Await(300));
  ASSERT_TRUE(sink_.AwaitFrames(100));  // 64 bytes each
  const auto other = Connect(8);
  FrameHeader header = HeaderFrom(WorkerIdentity(8));
  other->Send(header, {}, 0, nullptr);
  ASSERT_TRUE(sink_.AwaitFrames(101));
  EXPECT_EQ(sink_.Frames(), 101u);
}

INSTANTIATE_TEST_SUITE_P(Over, FlowTest, testing::Values("tcp", "loopback", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace paceline
