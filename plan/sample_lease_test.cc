#include "plan/sample_lease.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

constexpr uint64_t kSeed = 11;
constexpr uint32_t kCount = 20;

std::vector<uint32_t> Positions(uint64_t epoch, uint32_t begin, uint32_t end) {
  const std::vector<uint32_t> order = EpochPermutation(kSeed, Epoch(epoch), kCount);
  return {order.begin() + begin, order.begin() + end};
}

TEST(SampleLease, HandsOutInDrawOrderAcrossRanges) {
  SampleLease lease(kSeed, kCount);
  lease.Add({{Epoch(0), 4, 7}, {Epoch(0), 10, 12}});
  EXPECT_EQ(lease.available(), 5u);
  const SampleLease::Batch batch = lease.Take(4);
  std::vector<uint32_t> expected = Positions(0, 4, 7);
  expected.push_back(Positions(0, 10, 11)[0]);
  EXPECT_EQ(batch.indices, expected);
  EXPECT_EQ(batch.ranges, (std::vector<SampleRange>{{Epoch(0), 4, 7}, {Epoch(0), 10, 11}}));
  EXPECT_EQ(lease.available(), 1u);
}

TEST(SampleLease, ABatchIsOfOneEpoch) {
  SampleLease lease(kSeed, kCount);
  lease.Add({{Epoch(2), 18, 20}, {Epoch(3), 0, 5}});
  const SampleLease::Batch last = lease.Take(10);
  EXPECT_EQ(last.epoch, Epoch(2));
  EXPECT_EQ(last.indices, Positions(2, 18, 20));
  const SampleLease::Batch first = lease.Take(10);
  EXPECT_EQ(first.epoch, Epoch(3));
  EXPECT_EQ(first.indices, Positions(3, 0, 5));
}

TEST(SampleLease, GivesBackEverythingThatIsLeft) {
  SampleLease lease(kSeed, kCount);
  lease.Add({{Epoch(0), 0, 6}, {Epoch(1), 0, 2}, {Epoch(1), 5, 5}});
  lease.Take(4);
  EXPECT_EQ(lease.TakeAll(), (std::vector<SampleRange>{{Epoch(0), 4, 6}, {Epoch(1), 0, 2}}));
  EXPECT_EQ(lease.available(), 0u);
  EXPECT_TRUE(lease.Take(1).indices.empty());
}

// What came back from others may be of the epoch before.
TEST(SampleLease, AnOlderEpochMayComeAgain) {
  SampleLease lease(kSeed, kCount);
  lease.Add({{Epoch(5), 0, 1}, {Epoch(6), 0, 1}, {Epoch(4), 3, 4}, {Epoch(6), 1, 2}});
  EXPECT_EQ(lease.Take(9).indices, Positions(5, 0, 1));
  EXPECT_EQ(lease.Take(9).indices, Positions(6, 0, 1));
  EXPECT_EQ(lease.Take(9).indices, Positions(4, 3, 4));
  EXPECT_EQ(lease.Take(9).indices, Positions(6, 1, 2));
}

}  // namespace
}  // namespace paceline
