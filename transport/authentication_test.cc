#include "transport/authentication.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "transport/transport_test_util.h"

namespace paceline {
namespace {

HandshakeNonce NonceOf(uint8_t fill) {
  HandshakeNonce nonce;
  nonce.fill(fill);
  return nonce;
}

class HandshakeTest : public testing::Test {
 protected:
  void SetUp() override { keys_.Set(self_, KeyOf(1)); }

  const PeerIdentity self_ = WorkerIdentity(7);
  TestKeys keys_;
};

// Moves what one side says to the other until neither has anything to say.
void Converse(Handshake& client, Handshake& server) {
  while (true) {
    const std::vector<std::byte> up = client.TakeOutput();
    server.Consume(up);
    const std::vector<std::byte> down = server.TakeOutput();
    client.Consume(down);
    if (up.empty() && down.empty()) return;
  }
}

TEST_F(HandshakeTest, BothEndsThatHoldTheKeyFinish) {
  ClientHandshake client(self_, KeyOf(1), NonceOf(3));
  ServerHandshake server(&keys_, NonceOf(4));
  Converse(client, server);
  EXPECT_EQ(client.state(), Handshake::State::kDone) << client.status();
  EXPECT_EQ(server.state(), Handshake::State::kDone) << server.status();
  EXPECT_EQ(server.peer(), self_);
}

// Messages as docs/wire_format.md gives them.
TEST_F(HandshakeTest, MessagesAreLaidOutAsTheFormatSays) {
  ClientHandshake client(self_, KeyOf(1), NonceOf(3));
  const std::vector<std::byte> hello = client.TakeOutput();
  ASSERT_EQ(hello.size(), 192u + 40);
  EXPECT_EQ(std::to_integer<int>(hello[5]), 1);        // Hello
  EXPECT_EQ(std::to_integer<int>(hello[16]), 3);       // job
  EXPECT_EQ(std::to_integer<int>(hello[80]), 7);       // node
  EXPECT_EQ(std::to_integer<int>(hello[88]), 11);      // incarnation
  EXPECT_EQ(std::to_integer<int>(hello[192]), 2);      // worker
  EXPECT_EQ(std::to_integer<int>(hello[192 + 8]), 3);  // nonce
  EXPECT_EQ(std::to_integer<int>(hello[192 + 39]), 3);
  ServerHandshake server(&keys_, NonceOf(4));
  server.Consume(hello);
  const std::vector<std::byte> answer = server.TakeOutput();
  ASSERT_EQ(answer.size(), 192u + 40);
  client.Consume(answer);
  const std::vector<std::byte> auth = client.TakeOutput();
  ASSERT_EQ(auth.size(), 192u + 32);
  EXPECT_EQ(std::to_integer<int>(auth[5]), 2);  // Auth
}

TEST_F(HandshakeTest, BytesAfterTheLastMessageAreLeftToTheChannel) {
  ClientHandshake client(self_, KeyOf(1), NonceOf(3));
  ServerHandshake server(&keys_, NonceOf(4));
  server.Consume(client.TakeOutput());
  client.Consume(server.TakeOutput());
  std::vector<std::byte> auth = client.TakeOutput();
  const size_t length = auth.size();
  auth.resize(length + 100);
  EXPECT_EQ(server.Consume(auth), length);
  EXPECT_EQ(server.state(), Handshake::State::kDone);
  EXPECT_EQ(server.Consume(auth), 0u);
}

TEST_F(HandshakeTest, AWrongKeyIsFoundByTheServer) {
  ClientHandshake client(self_, KeyOf(2), NonceOf(3));
  ServerHandshake server(&keys_, NonceOf(4));
  Converse(client, server);
  EXPECT_TRUE(absl::IsPermissionDenied(client.status())) << client.status();
  EXPECT_TRUE(absl::IsPermissionDenied(server.status())) << server.status();
  EXPECT_FALSE(client.not_yet());
}

TEST_F(HandshakeTest, AServerWithoutTheKeyIsFoundByTheClient) {
  ClientHandshake client(self_, KeyOf(1), NonceOf(3));
  ServerHandshake server(&keys_, NonceOf(4));
  server.Consume(client.TakeOutput());
  client.Consume(server.TakeOutput());
  const std::vector<std::byte> auth = client.TakeOutput();
  ASSERT_FALSE(auth.empty());
  client.Consume(auth);  // the client's own code sent back
  EXPECT_TRUE(absl::IsPermissionDenied(client.status())) << client.status();
}

TEST_F(HandshakeTest, UnknownIsNotYetAndFencedIsDenied) {
  {
    ClientHandshake client(WorkerIdentity(8), KeyOf(1), NonceOf(3));
    ServerHandshake server(&keys_, NonceOf(4));
    Converse(client, server);
    EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
    EXPECT_TRUE(client.not_yet() && server.not_yet());
  }
  keys_.Fence(self_);
  ClientHandshake client(self_, KeyOf(1), NonceOf(3));
  ServerHandshake server(&keys_, NonceOf(4));
  Converse(client, server);
  EXPECT_TRUE(absl::IsPermissionDenied(client.status())) << client.status();
  EXPECT_FALSE(client.not_yet());
}

TEST_F(HandshakeTest, ARecordedHandshakeCannotBeReplayed) {
  ClientHandshake client(self_, KeyOf(1), NonceOf(3));
  const std::vector<std::byte> hello = client.TakeOutput();
  ServerHandshake server(&keys_, NonceOf(4));
  server.Consume(hello);
  client.Consume(server.TakeOutput());
  const std::vector<std::byte> auth = client.TakeOutput();

  ServerHandshake again(&keys_, NonceOf(5));
  again.Consume(hello);
  again.Consume(auth);
  EXPECT_TRUE(absl::IsPermissionDenied(again.status()));
}

TEST_F(HandshakeTest, AnIdentityChangedOnTheWayIsFound) {
  const PeerIdentity other = WorkerIdentity(9);
  keys_.Set(other, KeyOf(1));  // even where both have the same key
  ClientHandshake client(self_, KeyOf(1), NonceOf(3));
  ClientHandshake disguise(other, KeyOf(1), NonceOf(3));
  ServerHandshake server(&keys_, NonceOf(4));
  client.TakeOutput();
  server.Consume(disguise.TakeOutput());
  client.Consume(server.TakeOutput());
  server.Consume(client.TakeOutput());
  EXPECT_TRUE(absl::IsPermissionDenied(server.status())) << server.status();
}

TEST_F(HandshakeTest, AnyFlippedBitOfAHelloOrAuthEndsInARefusal) {
  ClientHandshake client(self_, KeyOf(1), NonceOf(3));
  ServerHandshake server(&keys_, NonceOf(4));
  const std::vector<std::byte> hello = client.TakeOutput();
  server.Consume(hello);
  client.Consume(server.TakeOutput());
  const std::vector<std::byte> auth = client.TakeOutput();
  std::vector<std::byte> both = hello;
  both.insert(both.end(), auth.begin(), auth.end());
  for (size_t bit = 0; bit < 8 * both.size(); ++bit) {
    std::vector<std::byte> bad = both;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ServerHandshake target(&keys_, NonceOf(4));
    target.Consume(bad);
    ASSERT_EQ(target.state(), Handshake::State::kFailed) << "bit " << bit;
    ASSERT_FALSE(target.TakeOutput().empty());
  }
}

TEST_F(HandshakeTest, TextOfARefusalIsMadePrintable) {
  ClientHandshake client(self_, KeyOf(1), NonceOf(3));
  const std::string text = "bad\n\x1b[31mred";
  FrameHeader header;
  header.kind = FrameKind::kRefuse;
  header.status = FrameStatus::kDenied;
  header.total = text.size();
  header.length = static_cast<uint32_t>(text.size());
  const auto payload = std::as_bytes(std::span(text.data(), text.size()));
  header.checksum = Checksum(payload);
  EncodedHeader encoded;
  EncodeHeader(header, encoded);
  client.Consume(encoded);
  client.Consume(payload);
  EXPECT_EQ(client.status().message(), "refused (denied): bad??[31mred");
}

TEST(RandomNonce, DiffersEachTime) { EXPECT_NE(RandomNonce(), RandomNonce()); }

}  // namespace
}  // namespace paceline
