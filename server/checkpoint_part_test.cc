#include "server/checkpoint_part.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

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
  snapshot.version = {2, 40 + chunk};
  snapshot.applied_steps = 7 + chunk;
  snapshot.arrays["weights"] = std::move(weights);
  snapshot.arrays["momentum"] = std::move(momentum);
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
      {"0/0", "2.40 t=7"}, {"0/1", "2.41 t=8"}, {"5/0", "2.40 t=7"}};
  EXPECT_EQ(part->metadata(), metadata);
  EXPECT_EQ(part->tensors().size(), 6u);
  EXPECT_EQ(*part->ReadFloats("0/0/weights", {2}), (std::vector<float>{1, -2}));
  EXPECT_EQ(*part->ReadFloats("0/0/momentum", {2}), (std::vector<float>{0.5f, 0}));
  EXPECT_EQ(*part->ReadFloats("0/1/weights", {1}), (std::vector<float>{3}));
  EXPECT_EQ(*part->ReadFloats("0/1/momentum", {1}), (std::vector<float>{0.25f}));
  EXPECT_EQ(*part->ReadFloats("5/0/weights", {0}), std::vector<float>());
}

TEST_F(CheckpointPartTest, TakesThePlaceOfTheOneBefore) {
  ASSERT_TRUE(WriteCheckpointPart(directory_, "a", {SnapshotOf(0, 0, {1}, {1})}).ok());
  ASSERT_TRUE(WriteCheckpointPart(directory_, "a", {SnapshotOf(1, 0, {2}, {2})}).ok());
  const auto part = SafetensorsReader::Open(directory_ + "/part-a.safetensors");
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->Find("0/0/weights"), nullptr);
  EXPECT_EQ(*part->ReadFloats("1/0/weights", {1}), std::vector<float>{2});
}

TEST_F(CheckpointPartTest, NamesTheDirectoryItCannotMake) {
  std::filesystem::create_directories(directory_);
  const std::string file = directory_ + "/file";
  ASSERT_TRUE(WriteCheckpointPart(directory_, "a", {}).ok());
  std::filesystem::rename(directory_ + "/part-a.safetensors", file);
  const absl::Status status = WriteCheckpointPart(file + "/below", "a", {});
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find(file + "/below"), std::string::npos) << status;
}

}  // namespace
}  // namespace paceline
