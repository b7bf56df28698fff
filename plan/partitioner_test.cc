#include "plan/partitioner.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

Plan PlanWith(uint64_t elements, std::vector<uint32_t> owners) {
  Plan plan;
  plan.spec.name = "job";
  plan.spec.chunk_bytes = 4096;  // 1024 floats
  TensorPlan tensor;
  tensor.id = TensorId(3);
  tensor.spec.name = "w";
  tensor.spec.shape = {elements};
  for (const uint32_t owner : owners) tensor.owners.push_back(NodeId(owner));
  plan.tensors.push_back(std::move(tensor));
  return plan;
}

TEST(Partitioner, ChunksAndTheirOwnersInOrder) {
  const auto chunks = Partition(PlanWith(2500, {8, 9, 8}), TensorId(3));
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  ASSERT_EQ(chunks->size(), 3u);
  const uint64_t begins[] = {0, 1024, 2048}, lengths[] = {1024, 1024, 452};
  const uint32_t owners[] = {8, 9, 8};
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*chunks)[i].key, (ChunkKey{TensorId(3), ChunkIndex(i)}));
    EXPECT_EQ((*chunks)[i].range, (ChunkRange{begins[i], lengths[i]}));
    EXPECT_EQ((*chunks)[i].owner, NodeId(owners[i]));
  }
}

TEST(Partitioner, AnEmptyTensorHasAnOwner) {
  const auto chunks = Partition(PlanWith(0, {8}), TensorId(3));
  ASSERT_TRUE(chunks.ok());
  ASSERT_EQ(chunks->size(), 1u);
  EXPECT_EQ((*chunks)[0].range.length, 0u);
}

TEST(Partitioner, SaysWhatDoesNotFit) {
  EXPECT_EQ(Partition(PlanWith(1, {8}), TensorId(4)).status().code(), absl::StatusCode::kNotFound);
  const auto wrong = Partition(PlanWith(2500, {8, 9}), TensorId(3));
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(wrong.status().message().find("3 chunks but the plan names 2"), std::string::npos)
      << wrong.status();
}

}  // namespace
}  // namespace paceline
