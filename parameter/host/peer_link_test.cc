#include "parameter/host/peer_link.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paceline {
namespace {

using ::testing::ElementsAre;

TEST(ReachTest, PausesGrowUpToASecond) {
  Reach reach;
  std::vector<int64_t> pauses_ms;
  for (int i = 0; i < 8; ++i) {
    const Ticks now = Seconds(10 + i);
    reach.Failed(now);
    pauses_ms.push_back((reach.next_try() - now).value() / 1'000'000);
  }
  EXPECT_THAT(pauses_ms, ElementsAre(20, 40, 80, 160, 320, 640, 1000, 1000));
  reach.Reset();
  reach.Lost(Seconds(30));
  EXPECT_EQ(reach.next_try(), Seconds(30) + Milliseconds(20));
}

TEST(ReachTest, AnOutageIsToldAfterASecondAndEveryTwo) {
  Reach reach;
  std::vector<int64_t> told_ms;
  for (int i = 0; i <= 60; ++i) {  // ten times a second
    const auto outage = reach.Failed(Seconds(5) + Milliseconds(100 * i));
    if (!outage) continue;
    EXPECT_EQ(outage->first, told_ms.empty());
    told_ms.push_back(outage->since.value() / 1'000'000);
  }
  EXPECT_THAT(told_ms, ElementsAre(1000, 3000, 5000));
  EXPECT_FALSE(reach.Opened(Seconds(19)).has_value()) << "it is over, or so it seems";
  reach.Reset();
  EXPECT_FALSE(reach.Failed(Seconds(20)).has_value()) << "the next outage begins";
}

// Its queue is full, or something between the two takes connections in its place.
TEST(ReachTest, APeerThatTakesAChannelAndClosesItIsOutOfReach) {
  Reach reach;
  std::vector<int64_t> told_ms;
  for (int i = 0; i <= 40; ++i) {
    const Ticks now = Seconds(5) + Milliseconds(100 * i);
    if (const auto outage = reach.Opened(now)) told_ms.push_back(outage->since.value() / 1'000'000);
    reach.Lost(now);
  }
  EXPECT_THAT(told_ms, ElementsAre(1000, 3000));
}

TEST(ReachTest, AChannelThatCarriedSomethingIsNoOutageWhenItIsLost) {
  Reach reach;
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(reach.Opened(Seconds(10 * i + 1)).has_value()) << i;
    reach.Reset();
    reach.Lost(Seconds(10 * i + 9));
    EXPECT_EQ(reach.next_try(), Seconds(10 * i + 9) + Milliseconds(20));
  }
}

TEST(LinkThreadsTest, JoinsThoseThatRun) {
  std::atomic<int> ran{0};
  {
    LinkThreads threads;
    for (int i = 0; i < 5; ++i) threads.Start([&ran] { ++ran; });
  }
  EXPECT_EQ(ran.load(), 5);
}

}  // namespace
}  // namespace paceline
