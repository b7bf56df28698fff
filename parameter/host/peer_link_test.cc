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
  reach.Opened();
  EXPECT_FALSE(reach.Failed(Seconds(20)).has_value()) << "the next outage begins";
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
