#include "server/checkpoint_part.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "common/checkpoint/manifest.h"
#include "common/safetensors/safetensors.h"

namespace paceline {
namespace {

class CheckpointPartTest : public testing::Test {
 protected:
  CheckpointPartTest()
      : directory_(testing::TempDir() + "checkpoint-part-" + std::to_string(getpid())) {}
  ~CheckpointPartTest() override { std::filesystem::remove_all(directory_); }

  const std::string directory_;
};

ChunkSnapshot SnapshotOf(uint32_t tensor, uint32_t chunk, std::vector<float> weights,
                         std::vector<float> momentum) {
  ChunkSnapshot snapshot;
  snapshot.key = {TensorId(tensor), ChunkIndex(chunk)};
  snapshot.tensor = "t" + std::to_string(tensor);
  snapshot.state.version = {2, 40 + chunk};
  snapshot.state.updates = 7 + chunk;
  snapshot.state.samples = Samples(100);
  for (const auto& [name, values] :
       {std::pair("weights", weights), std::pair("momentum", momentum)}) {
    SharedFloats array(values.size());
    std::ranges::copy(values, array.writable().begin());
    snapshot.state.arrays.emplace_back(name, std::move(array));
  }
  return snapshot;
}

TEST_F(CheckpointPartTest, WritesArraysAndVersionsOfEachChunk) {
  const std::string below = directory_ + "/new/one";
  ASSERT_TRUE(WriteCheckpointPart(below, "server-3",
                                  {SnapshotOf(0, 0, {1, -2}, {0.5f, 0}),
                                   SnapshotOf(0, 1, {3}, {0.25f}), SnapshotOf(5, 0, {}, {})})
                  .ok());
  const auto part = SafetensorsReader::Open(below + "/part-server-3.safetensors");
  ASSERT_TRUE(part.ok()) << part.status();
  const std::map<std::string, std::string> metadata = {
      {"t0/0", "lineage=2 version=40 updates=7 samples=100"},
      {"t0/1", "lineage=2 version=41 updates=8 samples=100"},
      {"t5/0", "lineage=2 version=40 updates=7 samples=100"}};
  EXPECT_EQ(part->metadata(), metadata);
  EXPECT_EQ(part->tensors().size(), 6u);
  EXPECT_EQ(*part->ReadFloats("t0/0/weights", {2}), (std::vector<float>{1, -2}));
  EXPECT_EQ(*part->ReadFloats("t0/0/momentum", {2}), (std::vector<float>{0.5f, 0}));
  EXPECT_EQ(*part->ReadFloats("t0/1/weights", {1}), (std::vector<float>{3}));
  EXPECT_EQ(*part->ReadFloats("t0/1/momentum", {1}), (std::vector<float>{0.25f}));
  EXPECT_EQ(*part->ReadFloats("t5/0/weights", {0}), std::vector<float>());
}

// Two servers wrote it; another one reads what it owns now.
TEST_F(CheckpointPartTest, ReadsChunksWhoeverWroteThem) {
  CheckpointManifest manifest;
  manifest.spec.name = "job";
  manifest.spec.chunk_bytes = 4096;
  manifest.tensors = {{"t0", {1026}}, {"t1", {1}}};
  std::vector<float> long_one(1024, 0.5f);
  auto a = WriteCheckpointPart(directory_, "a", {SnapshotOf(0, 0, long_one, long_one)});
  auto b = WriteCheckpointPart(directory_, "b",
                               {SnapshotOf(0, 1, {1, 2}, {3, 4}), SnapshotOf(1, 0, {5}, {6})});
  ASSERT_TRUE(a.ok() && b.ok());
  manifest.parts = {*a, *b};
  ASSERT_TRUE(WriteManifest(directory_, manifest).ok());
  Plan plan;
  plan.spec = manifest.spec;
  // In another order than they were registered in.
  plan.tensors = {{TensorId(0), manifest.tensors[1], {NodeId(1)}, true},
                  {TensorId(1), manifest.tensors[0], {NodeId(2), NodeId(1)}, true}};
  const std::vector<ChunkKey> mine = {{TensorId(0), ChunkIndex(0)}, {TensorId(1), ChunkIndex(1)}};
  auto chunks = ReadChunks(directory_, plan, mine);
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  ASSERT_EQ(chunks->size(), 2u);
  EXPECT_EQ((*chunks)[0].key, mine[0]);
  EXPECT_EQ((*chunks)[0].state.arrays[0].first, "weights");
  EXPECT_EQ((*chunks)[0].state.arrays[0].second, std::vector<float>{5});
  EXPECT_EQ((*chunks)[0].state.arrays[1].second, std::vector<float>{6});
  EXPECT_EQ((*chunks)[1].state.arrays[0].second, (std::vector<float>{1, 2}));
  EXPECT_EQ((*chunks)[1].state.version, (Version{2, 41}));
  EXPECT_EQ((*chunks)[1].state.updates, 8u);

  plan.tensors[0].spec.shape = {2};
  EXPECT_TRUE(absl::IsInvalidArgument(ReadChunks(directory_, plan, mine).status()));
  plan.tensors[0].spec = {"t9", {1}};
  const absl::Status missing = ReadChunks(directory_, plan, mine).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_NE(missing.message().find("t9/0"), std::string::npos) << missing;
  std::filesystem::resize_file(directory_ + "/part-b.safetensors", 200);
  EXPECT_FALSE(ReadChunks(directory_, plan, {mine[1]}).ok());
}

TEST_F(CheckpointPartTest, TakesThePlaceOfTheOneBefore) {
  ASSERT_TRUE(WriteCheckpointPart(directory_, "a", {SnapshotOf(0, 0, {1}, {1})}).ok());
  ASSERT_TRUE(WriteCheckpointPart(directory_, "a", {SnapshotOf(1, 0, {2}, {2})}).ok());
  const auto part = SafetensorsReader::Open(directory_ + "/part-a.safetensors");
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->Find("t0/0/weights"), nullptr);
  EXPECT_EQ(*part->ReadFloats("t1/0/weights", {1}), std::vector<float>{2});
}

TEST_F(CheckpointPartTest, AStopLeavesNothingOfItAndWhatIsOfOthers) {
  std::stop_source stop;
  stop.request_stop();
  const auto write = [&] {
    return WriteCheckpointPart(directory_, "a", {SnapshotOf(0, 0, {1}, {1})}, stop.get_token());
  };
  EXPECT_TRUE(absl::IsCancelled(write().status())) << write().status();
  EXPECT_FALSE(std::filesystem::exists(directory_));
  ASSERT_TRUE(WriteCheckpointPart(directory_, "b", {SnapshotOf(1, 0, {2}, {2})}).ok());
  EXPECT_TRUE(absl::IsCancelled(write().status()));
  std::vector<std::string> left;
  for (const auto& file : std::filesystem::directory_iterator(directory_)) {
    left.push_back(file.path().filename());
  }
  EXPECT_EQ(left, std::vector<std::string>{"part-b.safetensors"});
  EXPECT_TRUE(
      absl::IsCancelled(DescribePart(directory_, "part-b.safetensors", stop.get_token()).status()));
}

TEST_F(CheckpointPartTest, NamesTheDirectoryItCannotMake) {
  std::filesystem::create_directories(directory_);
  const std::string file = directory_ + "/file";
  ASSERT_TRUE(WriteCheckpointPart(directory_, "a", {}).ok());
  std::filesystem::rename(directory_ + "/part-a.safetensors", file);
  const absl::Status status = WriteCheckpointPart(file + "/below", "a", {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find(file + "/below"), std::string::npos) << status;
}

}  // namespace
}  // namespace paceline
