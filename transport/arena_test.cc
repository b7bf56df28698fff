// What only shared memory has: arenas, honest and hostile, tickets, the end of a peer's process,
// and how the transport is chosen.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "transport/arena_heap.h"
#include "transport/arena_link.h"
#include "transport/channel.h"
#include "transport/transport_test_util.h"

namespace paceline {
namespace {

constexpr int kBothSeals = F_SEAL_SHRINK | F_SEAL_GROW;

class ArenaTest : public testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t node : {7u, 8u}) keys_.Set(WorkerIdentity(node), key_);
    fabric_.Know(self_, key_);
    Start({});
  }
  void Start(const TransportOptions& options) {
    server_ = NewHostTransport(options);
    client_ = NewHostTransport({});
    auto listener = server_->Listen("127.0.0.1:0", &sink_, &keys_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  void TearDown() override {
    client_.reset();
    listener_.reset();
    server_.reset();
  }
  std::shared_ptr<Channel> Connect(uint32_t node) {
    auto channel = client_->Connect(listener_->address(), WorkerIdentity(node), key_, &client_sink_,
                                    kPatience);
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.ok() ? *channel : nullptr;
  }
  std::unique_ptr<RawPeer> Authenticated() {
    auto peer = fabric_.Dial(listener_->address());
    return peer != nullptr && peer->Authenticate(self_, key_) ? std::move(peer) : nullptr;
  }
  static std::vector<std::byte> Encoded(FrameHeader header, bool checksum) {
    if (checksum) header.checksum = Checksum({});
    EncodedHeader encoded;
    EncodeHeader(header, encoded);
    return {encoded.begin(), encoded.end()};
  }
  static std::vector<std::byte> Announcement(uint64_t bytes = ArenaLink::kArenaBytes,
                                             uint32_t number = 1) {
    FrameHeader header;
    header.kind = FrameKind::kArena;
    header.placement = {.arena = number, .ticket = 0, .offset = bytes};
    return Encoded(header, true);
  }
  std::vector<std::byte> Placed(const Placement& placement, uint32_t length = 10000,
                                uint64_t checksum = 0) const {
    FrameHeader header = HeaderFrom(self_);
    header.total = header.length = length;
    header.placement = placement;
    header.checksum = checksum;
    return Encoded(header, false);
  }
  static std::vector<std::byte> Credit(uint64_t tickets) {
    FrameHeader header;
    header.kind = FrameKind::kCredit;
    header.placement.offset = tickets;
    return Encoded(header, true);
  }

  // Authenticates, passes `fd`, sends the frames. Says why the server closed.
  absl::Status CauseAfter(int fd, const std::vector<std::vector<std::byte>>& frames) {
    const size_t before = sink_.monitor.Read([&] { return sink_.closed.size(); });
    {
      auto peer = Authenticated();
      if (peer == nullptr) return absl::UnknownError("the handshake failed");
      if (fd >= 0) peer->wire().PassDescriptor(fd);
      for (const auto& frame : frames) peer->Write(frame);
    }
    if (!sink_.AwaitClosed(before + 1)) return absl::UnknownError("the server did not close");
    return sink_.Cause(before);
  }
  void ExpectRefused(int fd, const std::vector<std::vector<std::byte>>& frames,
                     const std::string& words) {
    const absl::Status cause = CauseAfter(fd, frames);
    EXPECT_TRUE(absl::IsInvalidArgument(cause)) << cause;
    EXPECT_NE(std::string(cause.message()).find(words), std::string::npos) << cause;
  }
  void ExpectOthersWork() {
    const size_t before = sink_.Frames();
    const auto channel = Connect(8);
    ASSERT_NE(channel, nullptr);
    const std::vector<std::byte>& message = messages_.New(100000, 3);
    channel->Send(HeaderFrom(WorkerIdentity(8)), message, 0, nullptr);
    EXPECT_TRUE(sink_.AwaitFrames(before + 1));
    EXPECT_EQ(sink_.monitor.Read([&] { return sink_.seen.back().bytes; }), message);
  }

  const PeerIdentity self_ = WorkerIdentity(7);
  const ChannelKey key_ = KeyOf(1);
  Messages messages_;
  TestFabric fabric_{"shm"};
  TestKeys keys_;
  RecordingSink sink_;
  RecordingSink client_sink_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
  std::unique_ptr<Listener> listener_;
};

FileDescriptor Memory(uint64_t bytes, int seals) {
  FileDescriptor fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

// ---- Memory of the peer -------------------------------------------------------------------------

TEST_F(ArenaTest, MemoryThatCouldBeCutOffOrRunOutIsRefused) {
  const uint64_t bytes = ArenaLink::kArenaBytes;
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW}) {
    ExpectRefused(Memory(bytes, seals).get(), {Announcement()}, "not sealed");
  }
  ExpectRefused(Memory(bytes - 1, kBothSeals).get(), {Announcement()}, "has 33554431");
  ExpectRefused(Memory(0, kBothSeals).get(), {Announcement()}, "has 0");
  const FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  ExpectRefused(null.get(), {Announcement()}, "not sealed");
  ExpectRefused(Memory(bytes, kBothSeals).get(), {Announcement(bytes - 1)}, "33554431 bytes");
  ExpectRefused(Memory(bytes, kBothSeals).get(), {Announcement(bytes, 2)}, "number 2");
  ExpectRefused(Memory(bytes, kBothSeals).get(), {Announcement(), Announcement()}, "not number 2");
  ExpectRefused(-1, {Announcement()}, "no descriptor");
  const absl::Status read_only =
      CauseAfter(Memory(bytes, kBothSeals | F_SEAL_WRITE).get(), {Announcement()});
  EXPECT_TRUE(absl::IsPermissionDenied(read_only)) << read_only;
  EXPECT_EQ(sink_.Frames(), 0u);
  ExpectOthersWork();
}

TEST_F(ArenaTest, PagesThatAreNotOrdinaryMemoryAreRefused) {
  FileDescriptor fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd.valid()) return;  // this system has none to offer
  ASSERT_EQ(ftruncate(fd.get(), ArenaLink::kArenaBytes), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kBothSeals), 0);
  ExpectRefused(fd.get(), {Announcement()}, "not ordinary memory");
}

TEST_F(ArenaTest, TheSizeOfAnArenaCannotChange) {
  const auto memory = SharedMemory::Create(1 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(ftruncate((*memory)->descriptor(), 4096), -1);
  EXPECT_EQ(ftruncate((*memory)->descriptor(), 2 << 20), -1);
  EXPECT_EQ((*memory)->bytes().size(), size_t{1} << 20);
}

TEST_F(ArenaTest, PlacesOutsideAndTicketsThatAreOutEndTheChannel) {
  const FileDescriptor memory = Memory(ArenaLink::kArenaBytes, kBothSeals);
  const uint64_t half = ArenaLink::kHalfBytes;
  const auto refused = [&](const Placement& at, uint32_t length, const std::string& words) {
    ExpectRefused(memory.get(), {Announcement(), Placed(at, length)}, words);
  };
  refused({.arena = 1, .ticket = 0, .offset = half - 9999}, 10000, "exceed 16777216");
  refused({.arena = 1, .ticket = 0, .offset = half}, 1, "exceed 16777216");
  refused({.arena = 1, .ticket = 0, .offset = ~uint64_t{0}}, 10000, "exceed 16777216");
  refused({.arena = 1, .ticket = 0, .offset = ~uint64_t{0} - 9999}, 10000, "exceed 16777216");
  refused({.arena = 1, .ticket = 64, .offset = 0}, 10000, "ticket 64");
  refused({.arena = 1, .ticket = ~uint32_t{0}, .offset = 0}, 10000, "ticket 4294967295");
  refused({.arena = 2, .ticket = 0, .offset = 0}, 10000, "number 2");
  refused({.arena = 1, .ticket = 0, .offset = 0}, 0, "a payload of 0 bytes");
  ExpectRefused(memory.get(), {Announcement(), Placed({.arena = 1}, 100, 1)}, "checksum");
  ExpectRefused(-1, {Placed({.arena = 1})}, "before it was announced");
  EXPECT_EQ(sink_.Frames(), 0u);
  // The last byte of the half is still within.
  const absl::Status fits = CauseAfter(
      memory.get(),
      {Announcement(), Placed({.arena = 1, .ticket = 63, .offset = half - 10000}, 10000)});
  EXPECT_TRUE(absl::IsUnavailable(fits)) << fits;
  EXPECT_EQ(sink_.Frames(), 1u);
  ExpectOthersWork();
}

TEST_F(ArenaTest, ATicketIsUsedAgainOnlyOnceItWasGivenBack) {
  sink_.in_place = true;
  sink_.keep = true;
  const FileDescriptor memory = Memory(ArenaLink::kArenaBytes, kBothSeals);
  ExpectRefused(memory.get(), {Announcement(), Placed({.arena = 1}), Placed({.arena = 1})},
                "ticket 0 is out already");
  sink_.monitor.Change([&] { sink_.kept.clear(); });
}

TEST_F(ArenaTest, CreditForTicketsThatAreNotOutEndsTheChannel) {
  for (const uint64_t tickets : {uint64_t{1}, uint64_t{1} << 63, ~uint64_t{0}}) {
    ExpectRefused(-1, {Credit(tickets)}, "not out");
  }
  ExpectOthersWork();
}

TEST_F(ArenaTest, ATcpChannelKnowsNoArena) {
  TestFabric tcp("tcp");
  for (const auto& frame : {Announcement(), Credit(1), Placed({.arena = 1})}) {
    const size_t before = sink_.monitor.Read([&] { return sink_.closed.size(); });
    auto peer = tcp.Dial(listener_->address());
    ASSERT_TRUE(peer->Authenticate(self_, key_));
    ASSERT_TRUE(peer->Write(frame));
    ASSERT_TRUE(sink_.AwaitClosed(before + 1));
    EXPECT_TRUE(absl::IsInvalidArgument(sink_.Cause(before))) << sink_.Cause(before);
    EXPECT_NE(std::string(sink_.Cause(before).message()).find("without shared memory"),
              std::string::npos);
  }
}

TEST_F(ArenaTest, WhatTheSinkSeesDoesNotChangeWhileThePeerWritesIt) {
  std::atomic<bool> stop = false;
  std::atomic<size_t> torn = 0;
  class DoubleReader final : public FrameSink {
   public:
    explicit DoubleReader(std::atomic<size_t>* torn) : torn_(torn) {}
    absl::Status OnFrame(Channel&, const FrameHeader&, Payload payload) override {
      const std::vector<std::byte> first(payload.bytes().begin(), payload.bytes().end());
      for (int i = 0; i < 20; ++i) {
        torn_->fetch_add(!std::equal(first.begin(), first.end(), payload.bytes().begin()));
      }
      monitor.Change([&] { ++frames; });
      return absl::OkStatus();
    }
    void OnClosed(Channel&, const absl::Status&) override {}
    Monitor monitor;
    size_t frames = 0;

   private:
    std::atomic<size_t>* const torn_;
  } sink(&torn);
  auto listener = server_->Listen("127.0.0.1:0", &sink, &keys_);
  ASSERT_TRUE(listener.ok());
  auto peer = fabric_.Dial((*listener)->address());
  ASSERT_TRUE(peer != nullptr && peer->Authenticate(self_, key_));
  auto memory = SharedMemory::Create(ArenaLink::kArenaBytes);
  ASSERT_TRUE(memory.ok());
  std::thread writer([&] {
    // Through the system, so that only the server's reading is a race.
    std::vector<std::byte> bytes(10000);
    for (uint8_t round = 0; !stop.load(); ++round) {
      std::memset(bytes.data(), round, bytes.size());
      EXPECT_EQ(pwrite((*memory)->descriptor(), bytes.data(), bytes.size(), 0),
                static_cast<ssize_t>(bytes.size()));
    }
  });
  peer->wire().PassDescriptor((*memory)->descriptor());
  ASSERT_TRUE(peer->Write(Announcement()));
  for (uint32_t ticket = 0; ticket < 12; ++ticket) {
    ASSERT_TRUE(peer->Write(Placed({.arena = 1, .ticket = ticket, .offset = 0})));
  }
  EXPECT_TRUE(sink.monitor.Await([&] { return sink.frames == 12; }));
  stop = true;
  writer.join();
  EXPECT_EQ(torn.load(), 0u);
  listener->reset();
}

// ---- Tickets ------------------------------------------------------------------------------------

TEST_F(ArenaTest, ASinkThatAbsorbsInPlaceReadsTheSendersArena) {
  sink_.in_place = true;
  sink_.keep = true;
  const auto channel = Connect(7);
  ASSERT_NE(channel, nullptr);
  const std::vector<std::byte>& message = messages_.New(40u << 20, 5);  // 160 pieces
  Completions completions;
  channel->Send(HeaderFrom(self_), message, 0, completions.Next());
  ASSERT_TRUE(sink_.AwaitFrames(64));  // all tickets are with the sink
  // Another peer is not held up by it.
  const auto other = Connect(8);
  ASSERT_NE(other, nullptr);
  other->Send(HeaderFrom(WorkerIdentity(8)), {}, 0, nullptr);
  ASSERT_TRUE(sink_.AwaitFrames(65));
  EXPECT_EQ(sink_.Frames(), 65u);
  EXPECT_TRUE(completions.Done().empty());
  // Urgent small messages of the same peer pass.
  channel->Send(HeaderFrom(self_), {}, 1, nullptr);
  ASSERT_TRUE(sink_.AwaitFrames(66));

  const auto let_go = [&](size_t count) {
    std::vector<Payload> back;
    sink_.monitor.Change([&] {
      for (; count > 0 && !sink_.kept.empty(); --count) {
        back.push_back(std::move(sink_.kept.front()));
        sink_.kept.erase(sink_.kept.begin());
      }
    });
  };
  let_go(16);
  ASSERT_TRUE(sink_.AwaitFrames(82));
  EXPECT_EQ(sink_.Frames(), 82u);
  sink_.keep = false;
  let_go(1000);
  ASSERT_TRUE(completions.Await(1));
  ASSERT_TRUE(sink_.AwaitFrames(162));
  std::vector<std::byte> arrived;
  sink_.monitor.Read([&] {
    for (const Seen& piece : sink_.seen) {
      arrived.insert(arrived.end(), piece.bytes.begin(), piece.bytes.end());
    }
  });
  EXPECT_EQ(arrived, message);
  EXPECT_EQ(channel->stats().bytes_queued, 0u);
  EXPECT_GE(channel->stats().bytes_out, message.size());
}

// ---- Memory of the channel's own ----------------------------------------------------------------

TEST_F(ArenaTest, AllocatedMemoryIsReadWhereItIs) {
  sink_.in_place = true;
  sink_.keep = true;
  const auto channel = Connect(7);
  ASSERT_NE(channel, nullptr);
  constexpr size_t kBytes = 20u << 20;  // 80 pieces
  const std::shared_ptr<std::byte[]> memory = channel->Allocate(kBytes);
  const std::vector<std::byte> pattern = Pattern(kBytes, 9);
  std::copy(pattern.begin(), pattern.end(), memory.get());
  Completions completions;
  channel->Send(HeaderFrom(self_), {memory.get(), kBytes}, 0, completions.Next());
  ASSERT_TRUE(sink_.AwaitFrames(64));
  // What the sink holds is this memory.
  memory[0] ^= std::byte{0xff};
  sink_.monitor.Read([&] { EXPECT_EQ(sink_.kept[0].bytes()[0], memory[0]); });
  memory[0] ^= std::byte{0xff};
  EXPECT_TRUE(completions.Done().empty());
  sink_.keep = false;
  std::vector<Payload> back;
  sink_.monitor.Change([&] { back.swap(sink_.kept); });
  back.clear();
  ASSERT_TRUE(completions.Await(1));
  EXPECT_TRUE(completions.Done()[0].second.ok());
  ASSERT_TRUE(sink_.AwaitFrames(80));
  std::vector<std::byte> arrived;
  sink_.monitor.Read([&] {
    for (const Seen& piece : sink_.seen) {
      arrived.insert(arrived.end(), piece.bytes.begin(), piece.bytes.end());
    }
  });
  EXPECT_EQ(arrived, pattern);
}

TEST_F(ArenaTest, ASendFromAllocatedMemoryEndsOnlyOnceThePeerHasLetGoOfIt) {
  sink_.in_place = true;
  sink_.keep = true;
  const auto channel = Connect(7);
  ASSERT_NE(channel, nullptr);
  const std::shared_ptr<std::byte[]> memory = channel->Allocate(1 << 20);
  std::memset(memory.get(), 1, 1 << 20);
  Completions completions;
  channel->Send(HeaderFrom(self_), {memory.get(), 1 << 20}, 0, completions.Next());
  ASSERT_TRUE(sink_.AwaitFrames(4));
  channel->Close(absl::AbortedError("closed by the test"));
  ASSERT_TRUE(client_sink_.AwaitClosed());
  ASSERT_TRUE(sink_.AwaitClosed());
  EXPECT_TRUE(completions.Done().empty());  // the sink still reads it
  std::vector<Payload> back;
  sink_.monitor.Change([&] { back.swap(sink_.kept); });
  back.clear();
  ASSERT_TRUE(completions.Await(1));
  EXPECT_TRUE(absl::IsAborted(completions.Done()[0].second)) << completions.Done()[0].second;
}

TEST_F(ArenaTest, MemoryThatWasGivenBackIsUsedAgain) {
  ArenaHeap heap;
  const std::byte* const first = heap.Allocate(40u << 20).get();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(heap.Allocate(40u << 20).get(), first);
  EXPECT_EQ(heap.extents(), 1u);
  const auto held = heap.Allocate(40u << 20);
  const auto second = heap.Allocate(40u << 20);
  EXPECT_EQ(heap.extents(), 2u);
  EXPECT_EQ(heap.Find({held.get(), 40u << 20})->offset, 0u);
  EXPECT_EQ(heap.Find({second.get() + 64, 64})->number, 3u);
  EXPECT_EQ(heap.Find({second.get() + 64, 64})->offset, 64u);
  EXPECT_FALSE(heap.Find({held.get() + 1, 64u << 20}).has_value());
  const std::vector<std::byte> other(64);
  EXPECT_FALSE(heap.Find(other).has_value());
  std::vector<std::shared_ptr<std::byte[]>> all;
  while (auto more = heap.Allocate(60u << 20)) all.push_back(std::move(more));
  EXPECT_EQ(heap.extents(), 14u);
}

TEST_F(ArenaTest, HeapArenasOfAPeerAreBoundedAndComeInOrder) {
  const FileDescriptor channel = Memory(ArenaLink::kArenaBytes, kBothSeals);
  const auto refused = [&](const FileDescriptor& heap, const std::vector<std::byte>& frame,
                           const std::string& words) {
    const size_t before = sink_.monitor.Read([&] { return sink_.closed.size(); });
    auto peer = Authenticated();
    ASSERT_NE(peer, nullptr);
    peer->wire().PassDescriptor(channel.get());
    ASSERT_TRUE(peer->Write(Announcement()));
    peer->wire().PassDescriptor(heap.get());
    ASSERT_TRUE(peer->Write(frame));
    ASSERT_TRUE(sink_.AwaitClosed(before + 1));
    EXPECT_TRUE(absl::IsInvalidArgument(sink_.Cause(before))) << sink_.Cause(before);
    EXPECT_NE(std::string(sink_.Cause(before).message()).find(words), std::string::npos)
        << sink_.Cause(before);
  };
  const FileDescriptor heap = Memory(1 << 20, kBothSeals);
  refused(heap, Announcement(uint64_t{1} << 50, 2), "at most 17179869184");
  refused(heap, Announcement(~uint64_t{0}, 2), "at most 17179869184");
  refused(heap, Announcement(1 << 20, 3), "number 3");
  refused(heap, Announcement(1 << 20, 0), "place 1048576 of ticket 0 in no arena");
  refused(heap, Announcement((1 << 20) + 1, 2), "has 1048576");
  refused(Memory(1 << 20, 0), Announcement(1 << 20, 2), "not sealed");
  ExpectOthersWork();
}

TEST_F(ArenaTest, AnIdleChannelTakesNoTime) {
  const auto channel = Connect(7);
  ASSERT_NE(channel, nullptr);
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return Ticks((usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000'000 +
                 (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000);
  };
  const Ticks before = cpu();
  EXPECT_FALSE(sink_.monitor.Await([&] { return !sink_.closed.empty(); }, Seconds(1)));
  EXPECT_LT(cpu() - before, Milliseconds(10));
}

// ---- Death --------------------------------------------------------------------------------------

// The connection of a process that this one starts; it lives on in this one when that is gone.
class Child {
 public:
  explicit Child(const std::string& socket_name) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path + 1, socket_name.data(), socket_name.size());
    const auto length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + socket_name.size());
    pid_ = fork();
    if (pid_ == 0) Run(pair[1], to, length);
    close(pair[1]);
    UnixWire from_child(nullptr, FileDescriptor(pair[0]), "child");
    std::byte byte{};
    const iovec part = {.iov_base = &byte, .iov_len = 1};
    EXPECT_TRUE(from_child.Read({&part, 1}).ok());
    std::vector<FileDescriptor> passed = from_child.TakeDescriptors();
    EXPECT_EQ(passed.size(), 1u);
    if (!passed.empty()) socket_ = std::move(passed[0]);
    EXPECT_EQ(fcntl(socket_.get(), F_SETFL, O_NONBLOCK), 0);
  }
  ~Child() { Kill(); }
  FileDescriptor TakeSocket() { return std::move(socket_); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  // After fork: system calls only.
  [[noreturn]] static void Run(int parent, const sockaddr_un& to, socklen_t length) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to), length) != 0) _exit(1);
    union {
      cmsghdr align;
      char bytes[CMSG_SPACE(sizeof(int))];
    } control{};
    char byte = 'x';
    iovec part = {.iov_base = &byte, .iov_len = 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    cmsghdr* const passed = CMSG_FIRSTHDR(&message);
    passed->cmsg_level = SOL_SOCKET;
    passed->cmsg_type = SCM_RIGHTS;
    passed->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(passed), &fd, sizeof(int));
    if (sendmsg(parent, &message, 0) != 1) _exit(1);
    while (true) pause();
  }

  pid_t pid_ = 0;
  FileDescriptor socket_;
};

TEST_F(ArenaTest, TheEndOfAPeersProcessEndsItsChannelThoughItsSocketLivesOn) {
  TestFabric tcp("tcp");
  const std::string name = tcp.Dial(listener_->address())->LocalSocketFor(self_, key_);
  ASSERT_FALSE(name.empty());
  Child child(name);
  RawPeer peer(std::make_unique<UnixWire>(nullptr, child.TakeSocket(), "server"));
  ASSERT_TRUE(peer.Authenticate(self_, key_));
  ASSERT_NE(sink_.AwaitAccepted(), nullptr);
  FrameHeader header = HeaderFrom(self_);
  ASSERT_TRUE(peer.Write(Encoded(header, true)));
  ASSERT_TRUE(sink_.AwaitFrames(1));
  EXPECT_TRUE(sink_.monitor.Read([&] { return sink_.closed.empty(); }));
  child.Kill();
  ASSERT_TRUE(sink_.AwaitClosed());
  EXPECT_NE(std::string(sink_.Cause().message()).find("process has ended"), std::string::npos)
      << sink_.Cause();
}

// ---- The choice ---------------------------------------------------------------------------------

TEST_F(ArenaTest, TheTransportIsChosenByItselfAndSaysWhy) {
  const auto channel = Connect(7);
  ASSERT_NE(channel, nullptr);
  EXPECT_EQ(channel->transport(), "shm");
  EXPECT_EQ(channel->transport_reason(), "same host");
  // A server without shared memory is met over tcp, and so is one met by a client without.
  auto plain = NewTcpTransport({});
  auto listener = plain->Listen("127.0.0.1:0", &sink_, &keys_);
  ASSERT_TRUE(listener.ok());
  const auto to_plain =
      client_->Connect((*listener)->address(), WorkerIdentity(8), key_, &client_sink_, kPatience);
  ASSERT_TRUE(to_plain.ok()) << to_plain.status();
  EXPECT_EQ((*to_plain)->transport(), "tcp");
  EXPECT_EQ((*to_plain)->transport_reason(), "the server offers no shared memory");
  const auto from_plain =
      plain->Connect(listener_->address(), WorkerIdentity(8), key_, &client_sink_, kPatience);
  ASSERT_TRUE(from_plain.ok()) << from_plain.status();
  EXPECT_EQ((*from_plain)->transport(), "tcp");
  (*from_plain)->Send(HeaderFrom(WorkerIdentity(8)), {}, 0, nullptr);
  EXPECT_TRUE(sink_.AwaitFrames(1));
  plain.reset();
}

// Speaks for a server: the handshake over plain sockets, offering what the test says.
class OfferingServer {
 public:
  OfferingServer(const KeyStore* keys, LocalOffer offer) : keys_(keys), offer_(std::move(offer)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket_ = FileDescriptor(socket(AF_INET, SOCK_STREAM, 0));
    socklen_t length = sizeof(any);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&any), length), 0);
    EXPECT_EQ(listen(socket_.get(), 8), 0);
    EXPECT_EQ(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&any), &length), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(any.sin_port));
    thread_ = std::thread([this] { Run(); });
  }
  ~OfferingServer() {
    shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  void Run() {
    std::vector<FileDescriptor> open;
    while (true) {
      FileDescriptor peer(accept(socket_.get(), nullptr, nullptr));
      if (!peer.valid()) return;
      ServerHandshake handshake(keys_, RandomNonce(), offer_);
      while (handshake.state() == Handshake::State::kRunning) {
        std::array<std::byte, 4096> bytes;
        const ssize_t n = read(peer.get(), bytes.data(), bytes.size());
        if (n <= 0) break;
        handshake.Consume(std::span(bytes).first(static_cast<size_t>(n)));
        const std::vector<std::byte> out = handshake.TakeOutput();
        EXPECT_EQ(write(peer.get(), out.data(), out.size()), static_cast<ssize_t>(out.size()));
      }
      open.push_back(std::move(peer));
    }
  }

  const KeyStore* const keys_;
  const LocalOffer offer_;
  FileDescriptor socket_;
  std::string address_;
  std::thread thread_;
};

TEST_F(ArenaTest, AnotherHostIsMetOverTcp) {
  LocalOffer elsewhere = {.boot = *CurrentBoot(), .socket = "paceline-somewhere-else"};
  elsewhere.boot[0] ^= std::byte{1};
  OfferingServer server(&keys_, elsewhere);
  const auto channel = client_->Connect(server.address(), self_, key_, &client_sink_, kPatience);
  ASSERT_TRUE(channel.ok()) << channel.status();
  EXPECT_EQ((*channel)->transport(), "tcp");
  EXPECT_EQ((*channel)->transport_reason(), "another host");
  client_.reset();
}

TEST_F(ArenaTest, AServerWhoseSocketCannotBeReachedIsMetOverTcp) {
  OfferingServer server(&keys_, {.boot = *CurrentBoot(), .socket = "paceline-nobody-listens"});
  const auto channel = client_->Connect(server.address(), self_, key_, &client_sink_, kPatience);
  ASSERT_TRUE(channel.ok()) << channel.status();
  EXPECT_EQ((*channel)->transport(), "tcp");
  EXPECT_NE((*channel)->transport_reason().find("its Unix socket"), std::string::npos)
      << (*channel)->transport_reason();
  client_.reset();
}

}  // namespace
}  // namespace paceline
