// What an authenticated or unknown peer may send: anything. It costs that peer its connection, with
// a typed error and a count, and nobody else anything.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/transport_test_util.h"

namespace paceline {
namespace {

std::vector<std::byte> FrameOf(FrameHeader header, const std::vector<std::byte>& payload) {
  header.total = payload.size();
  header.length = static_cast<uint32_t>(payload.size());
  header.checksum = Checksum(payload);
  EncodedHeader encoded;
  EncodeHeader(header, encoded);
  std::vector<std::byte> out(encoded.begin(), encoded.end());
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}

void Reseal(std::vector<std::byte>& frame) {
  const uint64_t sum = Checksum(std::span(frame).first(184));
  for (size_t i = 0; i < 8; ++i) frame[184 + i] = static_cast<std::byte>(sum >> (8 * i));
}

std::vector<std::byte> Text(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

class HostileTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { Listen({}); }
  void Listen(const TransportOptions& options) {
    keys_.Set(self_, key_);
    keys_.Set(good_, key_);
    fabric_.Know(self_, key_);
    server_ = fabric_.New(options);
    client_ = fabric_.New();
    auto listener = server_->Listen(fabric_.AnyAddress(), &sink_, &keys_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    auto working = client_->Connect(listener_->address(), good_, key_, &client_sink_, kPatience);
    ASSERT_TRUE(working.ok()) << working.status();
    working_ = *std::move(working);
  }
  void TearDown() override {
    client_.reset();
    listener_.reset();
    server_.reset();
  }

  // Authenticates, sends `bytes`, hangs up unless the server does. Says why the server closed.
  absl::Status CauseAfter(std::span<const std::byte> bytes) {
    const size_t before = Closed();
    {
      auto peer = fabric_.Dial(listener_->address());
      if (peer == nullptr || !peer->Authenticate(self_, key_)) {
        return absl::UnknownError("the handshake failed");
      }
      peer->Write(bytes);
    }
    if (!sink_.AwaitClosed(before + 1)) return absl::UnknownError("the server did not close");
    return sink_.Cause(before);
  }
  size_t Closed() {
    return sink_.monitor.Read([&] { return sink_.closed.size(); });
  }
  void ExpectTheOtherChannelWorks() {
    const size_t before = sink_.Frames();
    working_->Send(HeaderFrom(good_), {}, 0, nullptr);
    EXPECT_TRUE(sink_.AwaitFrames(before + 1));
    EXPECT_TRUE(client_sink_.monitor.Read([&] { return client_sink_.closed.empty(); }));
  }

  const PeerIdentity self_ = WorkerIdentity(7);
  const PeerIdentity good_ = WorkerIdentity(8);
  const ChannelKey key_ = KeyOf(1);
  TestFabric fabric_{GetParam()};
  TestKeys keys_;
  RecordingSink sink_;
  RecordingSink client_sink_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
  std::unique_ptr<Listener> listener_;
  std::shared_ptr<Channel> working_;
};

TEST_P(HostileTest, AFrameCutAtEveryByteIsNeverDelivered) {
  const std::vector<std::byte> frame = FrameOf(HeaderFrom(self_), Pattern(40, 1));
  ASSERT_EQ(frame.size(), 232u);
  for (size_t n = 0; n < frame.size(); ++n) {
    const absl::Status cause = CauseAfter(std::span(frame).first(n));
    ASSERT_EQ(cause.code(), absl::StatusCode::kUnavailable) << n << " " << cause;
  }
  EXPECT_EQ(sink_.Frames(), 0u);
  EXPECT_EQ(server_->stats().protocol_errors, 0u);
  EXPECT_EQ(CauseAfter(frame).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(sink_.Frames(), 1u);
  ExpectTheOtherChannelWorks();
}

TEST_P(HostileTest, AFrameInSingleBytesIsDelivered) {
  auto peer = fabric_.Dial(listener_->address());
  ASSERT_TRUE(peer->Authenticate(self_, key_));
  const std::vector<std::byte> payload = Pattern(40, 1);
  for (const std::byte byte : FrameOf(HeaderFrom(self_), payload)) {
    ASSERT_TRUE(peer->Write({&byte, 1}));
  }
  ASSERT_TRUE(sink_.AwaitFrames(1));
  sink_.monitor.Read([&] { EXPECT_EQ(sink_.seen[0].bytes, payload); });
}

TEST_P(HostileTest, AnyFlippedBitOfAHeaderEndsTheChannelWithATypedError) {
  const std::vector<std::byte> good = FrameOf(HeaderFrom(self_), Pattern(40, 1));
  for (size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    const absl::Status cause = CauseAfter(bad);
    ASSERT_EQ(cause.code(), absl::StatusCode::kInvalidArgument) << "bit " << bit << " " << cause;
  }
  EXPECT_EQ(sink_.Frames(), 0u);
  EXPECT_EQ(server_->stats().protocol_errors, 1536u);
  ExpectTheOtherChannelWorks();
}

TEST_P(HostileTest, AFlippedBitOfAPayloadIsFoundBeforeTheSinkSeesIt) {
  const std::vector<std::byte> good = FrameOf(HeaderFrom(self_), Pattern(40, 1));
  for (size_t bit = 8 * kFrameHeaderBytes; bit < 8 * good.size(); ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_EQ(CauseAfter(bad).code(), absl::StatusCode::kDataLoss) << "bit " << bit;
  }
  EXPECT_EQ(sink_.Frames(), 0u);
}

TEST_P(HostileTest, LengthsBeyondTheLimitsAreRefusedBeforeAnyMemoryIsTaken) {
  const std::vector<std::byte> good = FrameOf(HeaderFrom(self_), {});
  for (const size_t position : {size_t{120}, size_t{128}}) {  // total, offset
    std::vector<std::byte> bad = good;
    std::memset(bad.data() + position, 0xff, 8);  // 2^64 - 1
    Reseal(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(CauseAfter(bad)));
  }
  std::vector<std::byte> bad = good;
  std::memset(bad.data() + 136, 0xff, 4);  // length 2^32 - 1
  Reseal(bad);
  EXPECT_TRUE(absl::IsInvalidArgument(CauseAfter(bad)));
  ExpectTheOtherChannelWorks();
}

TEST_P(HostileTest, HandshakeMessagesAfterTheHandshakeEndTheChannel) {
  for (const FrameKind kind : {FrameKind::kHello, FrameKind::kAuth, FrameKind::kRefuse}) {
    FrameHeader header = HeaderFrom(self_);
    header.kind = kind;
    EXPECT_TRUE(absl::IsInvalidArgument(CauseAfter(FrameOf(header, {}))));
  }
}

TEST_P(HostileTest, GarbageOnThePortIsRefusedWhileAnotherChannelWorks) {
  const std::vector<std::vector<std::byte>> garbage = {
      Text("GET / HTTP/1.1\r\nHost: paceline\r\nUser-Agent: a scanner with a long name\r\n"
           "Accept: */*\r\nX-Filler: 0123456789012345678901234567890123456789012345678901234567890"
           "12345678901234567890123456789012345678901234567890123456789012345678901234567890\r\n\r"
           "\n"),
      std::vector<std::byte>(4096), Pattern(100000, 8),
      FrameOf(HeaderFrom(self_), Pattern(40, 1))};  // a frame before the handshake
  for (size_t i = 0; i < garbage.size(); ++i) {
    auto peer = fabric_.Dial(listener_->address());
    peer->Write(garbage[i]);
    EXPECT_TRUE(peer->AwaitEnd()) << i;
    peer.reset();
    ExpectTheOtherChannelWorks();
  }
  EXPECT_EQ(server_->stats().refused, garbage.size());
  EXPECT_EQ(server_->stats().accepted, 1u);
  EXPECT_EQ(sink_.Frames(), garbage.size());  // those of the other channel
}

TEST_P(HostileTest, AHandshakeThatDoesNotComeIsCutOffAtItsDeadline) {
  TearDown();
  client_sink_.closed.clear();  // no lock: nobody else is left
  Listen({.handshake_timeout_ms = 50});
  auto silent = fabric_.Dial(listener_->address());
  EXPECT_TRUE(silent->AwaitEnd());
  auto half = fabric_.Dial(listener_->address());
  ClientHandshake handshake(self_, key_, RandomNonce());
  const std::vector<std::byte> hello = handshake.TakeOutput();
  ASSERT_TRUE(half->Write(std::span(hello).first(100)));
  EXPECT_TRUE(half->AwaitEnd());
  ExpectTheOtherChannelWorks();
}

TEST_P(HostileTest, AServerThatNeverAnswersIsADeadlineThatNamesAddressAndTime) {
  HangingKeys keys;  // stand for a server that hangs
  auto server = fabric_.New();
  auto listener = server->Listen(fabric_.AnyAddress(), &sink_, &keys);
  ASSERT_TRUE(listener.ok());
  const auto channel =
      client_->Connect((*listener)->address(), self_, key_, &client_sink_, Milliseconds(60));
  EXPECT_TRUE(absl::IsDeadlineExceeded(channel.status())) << channel.status();
  EXPECT_NE(channel.status().message().find((*listener)->address()), absl::string_view::npos);
  EXPECT_NE(channel.status().message().find(" ms"), absl::string_view::npos);
  keys.monitor.Change([&] { keys.open = true; });
  listener->reset();
}

INSTANTIATE_TEST_SUITE_P(Over, HostileTest, testing::Values("tcp", "loopback", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace paceline
