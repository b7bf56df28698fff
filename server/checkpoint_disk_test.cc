#include "server/checkpoint_disk.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace paceline {
namespace {

TEST(CheckpointDiskTest, AStopReachesWhatRunsAndWhatWaits) {
  std::vector<std::string> order;  // of the disk thread until it has ended
  CheckpointDisk disk;
  const auto run = [&order](const std::stop_token& stop) {
    while (!stop.stop_requested()) std::this_thread::yield();
    order.push_back("ran");
  };
  ASSERT_TRUE(disk.Post(run).ok());
  const auto wait = [&order](const std::stop_token& stop) {
    order.push_back(stop.stop_requested() ? "waited" : "not told");
  };
  ASSERT_TRUE(disk.Post(wait).ok());
  disk.RequestStop();
  EXPECT_TRUE(absl::IsCancelled(disk.Post(wait)));
  disk.Stop();
  EXPECT_EQ(order, (std::vector<std::string>{"ran", "waited"}));
}

TEST(CheckpointDiskTest, TakesAsManyTasksAsItSays) {
  CheckpointDisk disk;
  const auto wait = [](const std::stop_token& stop) {
    while (!stop.stop_requested()) std::this_thread::yield();
  };
  int taken = 0;
  while (taken < 100 && disk.Post(wait).ok()) ++taken;
  // 64 wait; the first of them may run already.
  EXPECT_GE(taken, 64);
  EXPECT_LE(taken, 65);
  EXPECT_TRUE(absl::IsResourceExhausted(disk.Post(wait)));
}

}  // namespace
}  // namespace paceline
