// Links over channels that the test drives by hand: what is sent again, and when memory is free.
#include "worker_client/owner_links.h"

#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "common/runtime/clock.h"

namespace paceline {
namespace {

constexpr Ticks kPatience = Seconds(20);
constexpr NodeId kOwner(7);

class HandChannel final : public Channel {
 public:
  struct Message {
    FrameHeader header;
    Completion done;
  };

  explicit HandChannel(FrameSink* sink) : sink_(sink) {}

  void Send(const FrameHeader& header, std::span<const std::byte>, int32_t,
            Completion done) override EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    messages_.push_back({header, std::move(done)});
    changed_.SignalAll();
  }
  std::shared_ptr<std::byte[]> Allocate(size_t bytes) override {
    return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
  }
  void Close(absl::Status) override EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    close_asked_ = true;
    changed_.SignalAll();
  }
  const PeerIdentity& peer() const override { return peer_; }
  std::string peer_address() const override { return "by hand"; }
  std::string transport() const override { return "hand"; }
  ChannelStats stats() const override { return {}; }

  // The next message the links have sent, in order; its completion is the test's to call.
  Message Next() EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    while (messages_.empty()) {
      if (!changed_.WaitFor(&mutex_, kPatience)) {
        ADD_FAILURE() << "nothing was sent";
        return {{}, [](const absl::Status&) {}};
      }
    }
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  bool close_asked() const EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    return close_asked_;
  }
  FrameSink& sink() { return *sink_; }

 private:
  FrameSink* const sink_;
  const PeerIdentity peer_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Message> messages_ GUARDED_BY(mutex_);
  bool close_asked_ GUARDED_BY(mutex_) = false;
};

class HandTransport final : public Transport {
 public:
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string&, FrameSink*,
                                                   const KeyStore*) override {
    return absl::UnimplementedError("not needed here");
  }
  absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string&, const PeerIdentity&,
                                                   const ChannelKey&, FrameSink* sink,
                                                   Ticks) override EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    channels_.push_back(std::make_shared<HandChannel>(sink));
    changed_.SignalAll();
    return std::shared_ptr<Channel>(channels_.back());
  }
  TransportStats stats() const override { return {}; }

  std::shared_ptr<HandChannel> ChannelNumber(size_t number) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    while (channels_.size() <= number) {
      if (!changed_.WaitFor(&mutex_, kPatience)) {
        ADD_FAILURE() << "channel " << number << " was never opened";
        return std::make_shared<HandChannel>(nullptr);
      }
    }
    return channels_[number];
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<HandChannel>> channels_ GUARDED_BY(mutex_);
};

class OwnerLinksTest : public testing::Test, protected OwnerLinks::Listener {
 protected:
  OwnerLinksTest() {
    ServerInfo info;
    info.node = kOwner;
    info.name = "server-0";
    info.data_address = "by hand";
    links_.SetOwners({info});
  }
  ~OwnerLinksTest() override { links_.Shutdown(absl::CancelledError("the test is over")); }

  void OnOutcome(const std::shared_ptr<ChunkOp>& op, const absl::Status& status) override {
    MutexLock lock(&mutex_);
    outcomes_.emplace_back(op, status);
  }
  void OnLinkDown(const ServerInfo& peer, Ticks since, const std::string& cause) override {
    MutexLock lock(&mutex_);
    outages_.push_back(absl::StrCat(peer.name, ": ", cause));
  }
  std::vector<std::pair<std::shared_ptr<ChunkOp>, absl::Status>> outcomes() {
    MutexLock lock(&mutex_);
    return outcomes_;
  }

  std::shared_ptr<ChunkOp> Issue(std::span<float> out = {}) {
    auto op = std::make_shared<ChunkOp>();
    op->owner = kOwner;
    op->header.kind = FrameKind::kPushPull;
    op->out = std::as_writable_bytes(out);
    links_.Issue(op);
    return op;
  }
  static FrameHeader ReplyTo(const FrameHeader& header, uint64_t bytes) {
    FrameHeader reply = header;
    reply.reply = true;
    reply.total = reply.length = bytes;
    reply.offset = 0;
    return reply;
  }

  HandTransport transport_;
  OwnerLinks links_{&transport_, PeerIdentity{}, ChannelKey{}, "w0", this};
  Mutex mutex_;
  std::vector<std::pair<std::shared_ptr<ChunkOp>, absl::Status>> outcomes_ GUARDED_BY(mutex_);
  std::vector<std::string> outages_ GUARDED_BY(mutex_);
};

TEST_F(OwnerLinksTest, ABrokenChannelsOperationsAreSentOnTheNextOne) {
  auto first = transport_.ChannelNumber(0);
  const auto waits_for_reply = Issue();
  HandChannel::Message sent = first->Next();
  sent.done(absl::OkStatus());
  const auto still_in_queue = Issue();
  HandChannel::Message queued = first->Next();

  // In this order a connection ends: what is queued completes, then the sink is told.
  queued.done(absl::UnavailableError("cut"));
  first->sink().OnClosed(*first, absl::UnavailableError("cut"));

  auto second = transport_.ChannelNumber(1);
  EXPECT_EQ(second->Next().header.sequence, sent.header.sequence);
  EXPECT_EQ(second->Next().header.sequence, queued.header.sequence);
  EXPECT_TRUE(outcomes().empty());
}

TEST_F(OwnerLinksTest, AFullChannelStaysOpen) {
  auto channel = transport_.ChannelNumber(0);
  Issue();
  HandChannel::Message message = channel->Next();
  message.done(absl::ResourceExhaustedError("full"));
  EXPECT_EQ(channel->Next().header.sequence, message.header.sequence);
}

TEST_F(OwnerLinksTest, AReplyEndsItsOperation) {
  auto channel = transport_.ChannelNumber(0);
  std::vector<float> weights(4);
  const auto op = Issue(weights);
  HandChannel::Message message = channel->Next();
  const FrameHeader reply = ReplyTo(message.header, 16);
  const auto space = channel->sink().OnHeader(*channel, reply);
  ASSERT_TRUE(space.ok());
  EXPECT_EQ(reinterpret_cast<float*>(space->data()), weights.data());
  ASSERT_TRUE(channel->sink().OnFrame(*channel, reply, Payload(*space, nullptr)).ok());
  EXPECT_TRUE(outcomes().empty()) << "the channel still holds the payload of the request";
  message.done(absl::OkStatus());
  ASSERT_EQ(outcomes().size(), 1u);
  EXPECT_TRUE(outcomes()[0].second.ok());
}

TEST_F(OwnerLinksTest, AReplyOfAnotherSizeIsAnError) {
  auto channel = transport_.ChannelNumber(0);
  std::vector<float> weights(4);
  Issue(weights);
  HandChannel::Message message = channel->Next();
  const auto space = channel->sink().OnHeader(*channel, ReplyTo(message.header, 12));
  EXPECT_TRUE(absl::IsInvalidArgument(space.status())) << space.status();
  message.done(absl::OkStatus());
}

// Each piece of a reply comes once and in order; what a peer says to be larger than it can be
// reserves no memory.
TEST_F(OwnerLinksTest, PiecesThatAreNotTheNextOrAreTooManyAreErrors) {
  auto channel = transport_.ChannelNumber(0);
  std::vector<float> weights(4);
  Issue(weights);
  HandChannel::Message message = channel->Next();
  message.done(absl::OkStatus());
  FrameHeader piece = ReplyTo(message.header, 16);
  piece.length = 8;
  piece.offset = 8;
  EXPECT_TRUE(absl::IsInvalidArgument(channel->sink().OnHeader(*channel, piece).status()));
  piece.offset = 0;
  const auto space = channel->sink().OnHeader(*channel, piece);
  ASSERT_TRUE(space.ok()) << space.status();
  ASSERT_TRUE(channel->sink().OnFrame(*channel, piece, Payload(*space, nullptr)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(channel->sink().OnHeader(*channel, piece).status()));
  EXPECT_TRUE(outcomes().empty());

  auto state = std::make_shared<ChunkOp>();
  state->owner = kOwner;
  state->header.kind = FrameKind::kReadState;
  state->collect_limit = 100;
  links_.Issue(state);
  message = channel->Next();
  message.done(absl::OkStatus());
  const FrameHeader more = ReplyTo(message.header, 101);
  EXPECT_TRUE(absl::IsInvalidArgument(channel->sink().OnHeader(*channel, more).status()));
  EXPECT_TRUE(channel->sink().OnHeader(*channel, ReplyTo(message.header, 100)).ok());
  EXPECT_EQ(state->collected.size(), 100u);
}

// What no channel would take, such as a message that is too large, costs no connection.
TEST_F(OwnerLinksTest, AMessageThatCannotBeSentEndsItsOperation) {
  auto channel = transport_.ChannelNumber(0);
  Issue();
  channel->Next().done(absl::OutOfRangeError("too large"));
  ASSERT_EQ(outcomes().size(), 1u);
  EXPECT_EQ(outcomes()[0].second, absl::OutOfRangeError("too large"));
  Issue();
  channel->Next();  // on the same channel
}

// One wrong reply costs its channel; what else was queued there goes on the next one.
TEST_F(OwnerLinksTest, AChannelThatClosesForAWrongFrameFailsNoOtherOperation) {
  auto first = transport_.ChannelNumber(0);
  Issue();
  HandChannel::Message queued = first->Next();
  queued.done(absl::InvalidArgumentError("a reply of another size"));
  first->sink().OnClosed(*first, absl::InvalidArgumentError("a reply of another size"));
  EXPECT_EQ(transport_.ChannelNumber(1)->Next().header.sequence, queued.header.sequence);
  EXPECT_TRUE(outcomes().empty());
}

TEST_F(OwnerLinksTest, GivingUpClosesTheChannelThatHoldsTheMemoryAndNoOther) {
  auto first = transport_.ChannelNumber(0);
  const auto op = Issue();
  HandChannel::Message held = first->Next();
  first->sink().OnClosed(*first, absl::UnavailableError("cut"));
  auto second = transport_.ChannelNumber(1);
  links_.Abandon(op, absl::DeadlineExceededError("late"));
  EXPECT_TRUE(first->close_asked());
  EXPECT_FALSE(second->close_asked());
  held.done(absl::UnavailableError("cut"));
  ASSERT_EQ(outcomes().size(), 1u);
}

// Memory that a channel may be writing into is given back when it no longer can, and then it is.
TEST_F(OwnerLinksTest, AnOperationGivenUpWhileItsReplyArrivesEndsWithTheChannel) {
  auto channel = transport_.ChannelNumber(0);
  std::vector<float> weights(4);
  const auto op = Issue(weights);
  HandChannel::Message message = channel->Next();
  message.done(absl::OkStatus());
  ASSERT_TRUE(channel->sink().OnHeader(*channel, ReplyTo(message.header, 16)).ok());

  links_.Abandon(op, absl::DeadlineExceededError("late"));
  EXPECT_TRUE(outcomes().empty());
  EXPECT_TRUE(channel->close_asked());
  channel->sink().OnClosed(*channel, absl::DeadlineExceededError("late"));
  ASSERT_EQ(outcomes().size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(outcomes()[0].second));
}

TEST_F(OwnerLinksTest, AnOperationGivenUpWhileItsReplyArrivesEndsWithThePiece) {
  auto channel = transport_.ChannelNumber(0);
  std::vector<float> weights(4);
  const auto op = Issue(weights);
  HandChannel::Message message = channel->Next();
  message.done(absl::OkStatus());
  const FrameHeader reply = ReplyTo(message.header, 16);
  const auto space = channel->sink().OnHeader(*channel, reply);
  ASSERT_TRUE(space.ok());
  links_.Abandon(op, absl::DeadlineExceededError("late"));
  ASSERT_TRUE(channel->sink().OnFrame(*channel, reply, Payload(*space, nullptr)).ok());
  ASSERT_EQ(outcomes().size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(outcomes()[0].second));
}

TEST_F(OwnerLinksTest, OneThatOwnsNothingAnswersNotOwnerHere) {
  auto op = std::make_shared<ChunkOp>();
  op->owner = NodeId(99);
  links_.Issue(op);
  ASSERT_EQ(outcomes().size(), 1u);
  EXPECT_TRUE(outcomes()[0].second.ok());
  EXPECT_EQ(op->reply.status, FrameStatus::kNotOwner);
}

// A drained server is left: what waits for it is asked of the new owner.
TEST_F(OwnerLinksTest, WhatWaitsForAnOwnerThatIsNoneAnyMoreIsGivenBack) {
  auto channel = transport_.ChannelNumber(0);
  const auto op = Issue();
  HandChannel::Message message = channel->Next();
  message.done(absl::OkStatus());
  links_.SetOwners({});
  while (outcomes().empty() || !channel->close_asked()) std::this_thread::yield();
  ASSERT_EQ(outcomes().size(), 1u);
  EXPECT_TRUE(outcomes()[0].second.ok());
  EXPECT_EQ(op->reply.status, FrameStatus::kNotOwner);
  channel->sink().OnClosed(*channel, absl::CancelledError("closed"));
}

}  // namespace
}  // namespace paceline
