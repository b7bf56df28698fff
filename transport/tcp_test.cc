// What only sockets have: addresses, names, IPv6, descriptors that run out, links.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/tcp_address.h"
#include "transport/transport_test_util.h"

namespace paceline {
namespace {

TEST(TcpAddress, AnythingButHostAndPortIsAnError) {
  for (const char* address : {"", "host", "host:", "host:x", "host:-1", "host:65536", "host:80x",
                              "[::1]", "[::1:80", "::1:80", ":80"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ResolveTcp(address, false).status())) << address;
  }
}

TEST(TcpAddress, LiteralsComeBackAsTheyWere) {
  for (const char* address : {"127.0.0.1:80", "[::1]:65535", "10.1.2.3:0"}) {
    const auto endpoints = ResolveTcp(address, false);
    ASSERT_TRUE(endpoints.ok()) << endpoints.status();
    EXPECT_EQ(endpoints->front().ToString(), address);
  }
  const auto any = ResolveTcp(":80", true);
  EXPECT_TRUE(any.ok()) << any.status();
}

TEST(TcpAddress, AnUnknownNameIsUnavailableAndNamed) {
  const auto endpoints = ResolveTcp("no-such-host.invalid:80", false);
  EXPECT_TRUE(absl::IsUnavailable(endpoints.status()));
  EXPECT_NE(endpoints.status().message().find("no-such-host.invalid:80"), absl::string_view::npos);
}

class TcpTest : public testing::Test {
 protected:
  void SetUp() override { keys_.Set(self_, key_); }
  void TearDown() override {
    client_.reset();
    listener_.reset();
    server_.reset();
  }
  void Start(const std::string& address, const TransportOptions& options = {}) {
    server_ = NewTcpTransport(options);
    client_ = NewTcpTransport(options);
    auto listener = server_->Listen(address, &sink_, &keys_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string& address) {
    return client_->Connect(address, self_, key_, &client_sink_, kPatience);
  }
  std::string Port() const {
    const std::string address = listener_->address();
    return address.substr(address.rfind(':'));
  }

  const PeerIdentity self_ = WorkerIdentity(7);
  const ChannelKey key_ = KeyOf(1);
  Messages messages_;
  TestKeys keys_;
  RecordingSink sink_, client_sink_;
  std::unique_ptr<Transport> server_, client_;
  std::unique_ptr<Listener> listener_;
};

TEST_F(TcpTest, Ipv6) {
  Start("[::1]:0");
  EXPECT_TRUE(listener_->address().starts_with("[::1]:"));
  const auto channel = Connect(listener_->address());
  ASSERT_TRUE(channel.ok()) << channel.status();
  (*channel)->Send(HeaderFrom(self_), {}, 0, nullptr);
  EXPECT_TRUE(sink_.AwaitFrames(1));
}

TEST_F(TcpTest, AHostNameIsTriedAtEachOfItsAddresses) {
  Start("127.0.0.1:0");
  const auto channel = Connect("localhost" + Port());  // ::1 may come first and refuses
  ASSERT_TRUE(channel.ok()) << channel.status();
}

// Not beside the undefined behaviour sanitizer: it looks at objects through a pipe, and takes a
// pipe that it cannot open for a bad object.
#if !defined(__SANITIZE_ADDRESS__)
TEST_F(TcpTest, WithoutDescriptorsNewPeersWaitAndOldOnesGoOn) {
  Start("127.0.0.1:0");
  const auto first = Connect(listener_->address());
  ASSERT_TRUE(first.ok());
  // The client's end exists already; it connects when there is nothing left for the server's.
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  const auto endpoints = ResolveTcp(listener_->address(), false);
  ASSERT_TRUE(socket.valid() && endpoints.ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<int> taken;
  for (int fd = dup(0); fd >= 0 && taken.size() < 4096; fd = dup(0)) {
    taken.push_back(fd);
    if (taken.size() == 1) {
      rlimit low = before;
      low.rlim_cur = static_cast<rlim_t>(fd) + 16;
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    }
  }
  ASSERT_EQ(connect(socket.get(), endpoints->front().get(), endpoints->front().length), 0);
  ASSERT_EQ(fcntl(socket.get(), F_SETFL, O_NONBLOCK), 0);
  (*first)->Send(HeaderFrom(self_), {}, 0, nullptr);
  EXPECT_TRUE(sink_.AwaitFrames(1));
  EXPECT_EQ(server_->stats().connections, 1u);
  for (const int fd : taken) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  RawPeer waiting(std::make_unique<TcpWire>(nullptr, std::move(socket), "server", 0));
  ASSERT_TRUE(waiting.Authenticate(self_, key_));
  EXPECT_NE(sink_.AwaitAccepted(2), nullptr);
}
#endif

// The system's own user timeout would end this channel: its window is shut for longer.
TEST_F(TcpTest, APeerThatDoesNotReadForLongerThanTheLinkTimeoutIsKept) {
  Start("127.0.0.1:0", {.max_receive_bytes = 1 << 20, .user_timeout_ms = 300});
  sink_.keep = true;
  sink_.record = false;
  const auto channel = Connect(listener_->address());
  ASSERT_TRUE(channel.ok());
  const std::vector<std::byte>& message = messages_.New(64 << 20, 1);
  Completions completions;
  (*channel)->Send(HeaderFrom(self_), message, 0, completions.Next());
  ASSERT_TRUE(sink_.AwaitFrames(4));
  EXPECT_FALSE(
      client_sink_.monitor.Await([&] { return !client_sink_.closed.empty(); }, Seconds(2)));
  sink_.keep = false;
  std::vector<Payload> back;
  sink_.monitor.Change([&] { back.swap(sink_.kept); });
  back.clear();
  ASSERT_TRUE(completions.Await(1));
  EXPECT_TRUE(completions.Done()[0].second.ok()) << completions.Done()[0].second;
}

}  // namespace
}  // namespace paceline
