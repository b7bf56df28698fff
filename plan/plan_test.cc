// Numbers here are worked out by hand or by a closed form, beside each.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "plan/chunking.h"
#include "plan/messages.h"
#include "plan/permutation.h"
#include "plan/placement.h"

namespace paceline {
namespace {

TensorSpec Floats(std::string name, std::vector<uint64_t> shape) {
  return {std::move(name), std::move(shape), DType::kF32, false};
}

JobSpec FourWorkers() {
  JobSpec spec;
  spec.name = "mnist";
  spec.workers = 4;
  return spec;
}

// ---- Tensors and chunks

TEST(TensorSpecTest, CountsElementsAndBytes) {
  EXPECT_EQ(Floats("w", {784, 128}).elements(), 100352u);
  EXPECT_EQ(Floats("w", {784, 128}).bytes(), Bytes(401408));
  EXPECT_EQ(Floats("s", {}).elements(), 1u);
  EXPECT_EQ(Floats("e", {3, 0, 5}).elements(), 0u);
  EXPECT_EQ(ToString(Floats("w", {784, 128})), "f32[784,128]");
  EXPECT_EQ(ToString(TensorSpec{"b", {}, DType::kBF16, false}), "bf16[]");
}

TEST(TensorSpecTest, ErrorsNameTensorFieldAndRange) {
  EXPECT_TRUE(Validate(Floats("w", {1})).ok());
  EXPECT_EQ(Validate(Floats("", {1})).message(), "tensor name: 0 bytes (\"\"); use 1..512");
  EXPECT_TRUE(Validate(Floats(std::string(512, 'x'), {1})).ok());
  EXPECT_FALSE(Validate(Floats(std::string(513, 'x'), {1})).ok());
  EXPECT_EQ(Validate(Floats("w", std::vector<uint64_t>(33, 1))).message(),
            "tensor w: shape: 33 dimensions; use 0..32");
  // 2^48 bytes are too many; one element less is not. Zero dimensions do not hide an overflow.
  EXPECT_FALSE(Validate(Floats("w", {uint64_t{1} << 46})).ok());
  TensorSpec whole = Floats("w", {(64u << 20) + 1});
  EXPECT_TRUE(Validate(whole).ok());
  whole.whole = true;
  EXPECT_EQ(Validate(whole).message(),
            "tensor w: whole with 268435460 bytes; a chunk has at most 268435456, let it be cut");
  EXPECT_TRUE(Validate(Floats("w", {(uint64_t{1} << 46) - 1})).ok());
  EXPECT_FALSE(Validate(Floats("w", {uint64_t{1} << 40, uint64_t{1} << 40, 0})).ok());
  EXPECT_FALSE(Validate(Floats("w", {std::numeric_limits<uint64_t>::max(), 2})).ok());
  TensorSpec bad = Floats("w", {1});
  bad.dtype = static_cast<DType>(99);
  EXPECT_EQ(Validate(bad).message(), "tensor w: dtype: 99 is no element type; use 1..8");
}

TEST(ChunkingTest, EqualChunksAndARest) {
  // 64 KiB of f32 are 16384 elements; 100352 = 6 * 16384 + 2048.
  std::vector<ChunkRange> chunks = CutIntoChunks(Floats("w", {784, 128}), 64 << 10);
  ASSERT_EQ(chunks.size(), 7u);
  EXPECT_EQ(chunks[0], (ChunkRange{0, 16384}));
  EXPECT_EQ(chunks[5], (ChunkRange{81920, 16384}));
  EXPECT_EQ(chunks[6], (ChunkRange{98304, 2048}));
}

TEST(ChunkingTest, EdgesHaveOneChunk) {
  const std::vector<ChunkRange> exact = {{0, 1024}};
  EXPECT_EQ(CutIntoChunks(Floats("w", {1024}), 4096), exact);
  EXPECT_EQ(CutIntoChunks(Floats("w", {1025}), 4096).size(), 2u);
  EXPECT_EQ(CutIntoChunks(Floats("e", {0}), 4096), (std::vector<ChunkRange>{{0, 0}}));
  EXPECT_EQ(CutIntoChunks(Floats("s", {}), 4096), (std::vector<ChunkRange>{{0, 1}}));
  TensorSpec whole = Floats("w", {1 << 20});
  whole.whole = true;
  EXPECT_EQ(CutIntoChunks(whole, 4096), (std::vector<ChunkRange>{{0, 1 << 20}}));
}

// ---- Placement

double MaxOverMean(const std::vector<TensorSpec>& tensors, uint32_t servers, uint64_t chunk_bytes) {
  std::vector<ChunkSize> chunks;
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    uint32_t index = 0;
    for (const ChunkRange& range : CutIntoChunks(tensors[t], chunk_bytes)) {
      chunks.push_back(
          {{TensorId(t), ChunkIndex(index++)}, Bytes(range.length * SizeOf(tensors[t].dtype))});
    }
  }
  std::map<NodeId, Bytes> load;
  for (uint32_t s = 1; s <= servers; ++s) load[NodeId(s)] = Bytes(0);
  EXPECT_EQ(Place(chunks, load).size(), chunks.size());
  uint64_t max = 0, sum = 0;
  for (const auto& [node, bytes] : load) {
    max = std::max(max, bytes.value());
    sum += bytes.value();
  }
  return static_cast<double>(max) * servers / static_cast<double>(sum);
}

// The 161 parameter tensors of ResNet-50: stem, 16 bottlenecks in 4 stages (4 of them with a
// projection), classifier; each convolution with the scale and shift of its normalization.
std::vector<TensorSpec> ResNet50() {
  std::vector<TensorSpec> tensors;
  const auto add = [&](std::vector<uint64_t> shape) {
    tensors.push_back(Floats(std::to_string(tensors.size()), std::move(shape)));
  };
  const auto convolution = [&](uint64_t out, uint64_t in, uint64_t kernel) {
    add({out, in, kernel, kernel});
    add({out});
    add({out});
  };
  convolution(64, 3, 7);
  const uint64_t blocks[] = {3, 4, 6, 3};
  uint64_t in = 64;
  for (uint64_t stage = 0; stage < 4; ++stage) {
    const uint64_t width = uint64_t{64} << stage;
    for (uint64_t block = 0; block < blocks[stage]; ++block) {
      convolution(width, in, 1);
      convolution(width, width, 3);
      convolution(4 * width, width, 1);
      if (block == 0) convolution(4 * width, in, 1);
      in = 4 * width;
    }
  }
  add({1000, 2048});
  add({1000});
  return tensors;
}

TEST(PlacementTest, ResNet50BalancesOnThreeServers) {
  const std::vector<TensorSpec> tensors = ResNet50();
  ASSERT_EQ(tensors.size(), 161u);
  uint64_t parameters = 0;
  for (const TensorSpec& t : tensors) parameters += t.elements();
  ASSERT_EQ(parameters, 25'557'032u);  // the published size of the model
  EXPECT_LE(MaxOverMean(tensors, 3, JobSpec().chunk_bytes), 1.05);
}

TEST(PlacementTest, FiveEqualTensorsBalanceOnFourServers) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 5; ++i) tensors.push_back(Floats("t" + std::to_string(i), {999'999}));
  EXPECT_LE(MaxOverMean(tensors, 4, JobSpec().chunk_bytes), 1.05);
}

TEST(PlacementTest, LargestFirstOntoTheLeastLoaded) {
  // 7 -> node 1 (tie), 5 -> node 2, 4 -> node 2 (5 < 7), 1 -> node 1 (7 < 9).
  const auto key = [](uint32_t tensor) { return ChunkKey{TensorId(tensor), ChunkIndex(0)}; };
  std::map<NodeId, Bytes> load = {{NodeId(1), Bytes(0)}, {NodeId(2), Bytes(0)}};
  const auto placed =
      Place({{key(0), Bytes(1)}, {key(1), Bytes(4)}, {key(2), Bytes(5)}, {key(3), Bytes(7)}}, load);
  EXPECT_EQ(placed.at(key(3)), NodeId(1));
  EXPECT_EQ(placed.at(key(2)), NodeId(2));
  EXPECT_EQ(placed.at(key(1)), NodeId(2));
  EXPECT_EQ(placed.at(key(0)), NodeId(1));
  EXPECT_EQ(load[NodeId(1)], Bytes(8));
  EXPECT_EQ(load[NodeId(2)], Bytes(9));
}

// ---- Permutation

TEST(PermutationTest, SplitMix64MatchesThePublishedSequence) {
  // From the reference implementation (Vigna, prng.di.unimi.it/splitmix64.c) with state 1234567.
  uint64_t state = 1234567;
  EXPECT_EQ(SplitMix64(state), 6457827717110365317u);
  EXPECT_EQ(SplitMix64(state), 3203168211198807973u);
  EXPECT_EQ(SplitMix64(state), 9817491932198370423u);
}

TEST(PermutationTest, EveryEpochHoldsEverySampleOnceInAnotherOrder) {
  const std::vector<uint32_t> first = EpochPermutation(7, Epoch(0), 1000);
  const std::vector<uint32_t> second = EpochPermutation(7, Epoch(1), 1000);
  EXPECT_EQ(std::set<uint32_t>(first.begin(), first.end()).size(), 1000u);
  EXPECT_EQ(*std::max_element(first.begin(), first.end()), 999u);
  EXPECT_NE(first, second);
  EXPECT_NE(first, EpochPermutation(8, Epoch(0), 1000));
  EXPECT_EQ(first, EpochPermutation(7, Epoch(0), 1000));
  EXPECT_TRUE(EpochPermutation(7, Epoch(0), 0).empty());
  EXPECT_EQ(EpochPermutation(7, Epoch(0), 1), std::vector<uint32_t>{0});
}

TEST(PermutationTest, ProgressCountsWhatComesBefore) {
  EXPECT_EQ(ProgressAt({Epoch(0), 0, 4}, 100, 5), 0.0);
  EXPECT_EQ(ProgressAt({Epoch(2), 50, 60}, 100, 5), 0.5);
  EXPECT_EQ(ProgressAt({Epoch(9), 50, 60}, 100, 0), 0.0);
}

TEST(PermutationTest, EveryOrderOfThreeIsEquallyLikely) {
  // 6000 epochs over 6 orders: 1000 each, standard deviation sqrt(6000 * 1/6 * 5/6) = 28.9.
  std::map<std::vector<uint32_t>, int> seen;
  for (uint64_t epoch = 0; epoch < 6000; ++epoch) ++seen[EpochPermutation(1, Epoch(epoch), 3)];
  ASSERT_EQ(seen.size(), 6u);
  for (const auto& [order, times] : seen) EXPECT_NEAR(times, 1000, 145);
}

// ---- Job specs

TEST(GroupSpecTest, TextFormsRoundTrip) {
  for (const char* text : {"one", "per-worker", "4", "3,1", "label:rack"}) {
    absl::StatusOr<GroupSpec> spec = ParseGroupSpec(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(ToString(*spec), text);
  }
  EXPECT_EQ(ParseGroupSpec("3,1")->sizes, (std::vector<uint32_t>{3, 1}));
  EXPECT_EQ(ParseGroupSpec("4")->kind, GroupSpec::Kind::kCount);
  for (const char* text :
       {"", "two", "0", "3,", "3,0", "-1", "label:", "label:a b", "99999999999"}) {
    absl::StatusOr<GroupSpec> spec = ParseGroupSpec(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_NE(spec.status().message().find("\"" + std::string(text) + "\""), std::string::npos);
  }
}

struct BadField {
  const char* message;
  void (*break_it)(JobSpec&);
};

TEST(JobSpecTest, EveryErrorNamesFieldValueAndRange) {
  ASSERT_TRUE(Validate(FourWorkers()).ok());
  const BadField cases[] = {
      {"name: \"a b\"; use [a-zA-Z0-9._-]{1,128}", [](JobSpec& s) { s.name = "a b"; }},
      {"name: \"\"; use [a-zA-Z0-9._-]{1,128}", [](JobSpec& s) { s.name = ""; }},
      {"workers: 0; use 1..16384", [](JobSpec& s) { s.workers = 0; }},
      {"min_workers: 5; use 1..4", [](JobSpec& s) { s.min_workers = 5; }},
      {"min_workers: 0; use 1..4", [](JobSpec& s) { s.min_workers = 0; }},
      {"groups: 5; use 1..4", [](JobSpec& s) { s.groups = *ParseGroupSpec("5"); }},
      {"groups: 3,2; use sizes from 1 that add up to workers (4)",
       [](JobSpec& s) { s.groups = *ParseGroupSpec("3,2"); }},
      {"optimizer.momentum: nan; use a finite number",
       [](JobSpec& s) {
         s.optimizer = {"sgd", {{"momentum", std::nan("")}}};
       }},
      {"policy: \"\"; use [a-zA-Z0-9._-]{1,128}", [](JobSpec& s) { s.policy.name = ""; }},
      {"normalization: 9; use 1..2",
       [](JobSpec& s) { s.normalization = static_cast<Normalization>(9); }},
      {"aggregation: 0; use 1..3", [](JobSpec& s) { s.aggregation = static_cast<Aggregation>(0); }},
      {"chunk_bytes: 4000; use 4096..268435456", [](JobSpec& s) { s.chunk_bytes = 4000; }},
      {"chunk_bytes: 4100; use a multiple of 64", [](JobSpec& s) { s.chunk_bytes = 4100; }},
      {"sample_count: 4294967296; use 0..4294967295",
       [](JobSpec& s) { s.sample_count = uint64_t{1} << 32; }},
      {"batch_size: 0; use 1..4294967295",
       [](JobSpec& s) { s.deterministic = true, s.sample_count = 10; }},
      {"failure_timeout_ms: 99; use 100..3600000", [](JobSpec& s) { s.failure_timeout_ms = 99; }},
      {"quorum: 5; use 0..4", [](JobSpec& s) { s.quorum = 5; }},
      {"quorum: 3; use 0 (all members) with deterministic",
       [](JobSpec& s) { s.quorum = 3, s.deterministic = true; }},
      {"late: 3; use 1..2", [](JobSpec& s) { s.late = static_cast<Late>(3); }},
      {"local_steps: 0; use 1..1024", [](JobSpec& s) { s.local_steps = 0; }},
  };
  for (const BadField& bad : cases) {
    JobSpec spec = FourWorkers();
    bad.break_it(spec);
    const absl::Status status = Validate(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), bad.message);
  }
}

TEST(JobSpecTest, FirstDifferenceNamesTheFieldAndBothValues) {
  const JobSpec holding = FourWorkers();
  EXPECT_EQ(FirstDifference(holding, holding), "");
  JobSpec joiner = holding;
  joiner.chunk_bytes = 65536;
  joiner.seed = 3;  // differs too, but comes later
  EXPECT_EQ(FirstDifference(holding, joiner),
            "chunk_bytes: " + std::to_string(holding.chunk_bytes) + " != 65536");
  joiner = holding;
  joiner.groups = *ParseGroupSpec("per-worker");
  EXPECT_EQ(FirstDifference(holding, joiner), "groups: one != per-worker");
  JobSpec with_optimizer = holding;
  with_optimizer.optimizer = {"sgd", {{"learning_rate", 0.1}}};
  EXPECT_EQ(FirstDifference(with_optimizer, holding), "");
  joiner = holding;
  joiner.optimizer = {"adam", {}};
  EXPECT_EQ(FirstDifference(with_optimizer, joiner), "optimizer: sgd learning_rate=0.1 != adam");
}

// ---- Plans

TEST(PlanTest, Finders) {
  Plan plan;
  EXPECT_EQ(LeadOwner(plan), std::nullopt);
  plan.tensors = {{TensorId(0), Floats("a", {1}), {NodeId(5)}, false},
                  {TensorId(2), Floats("b", {1}), {NodeId(6), NodeId(5)}, false}};
  plan.lead_tensor = TensorId(2);
  EXPECT_EQ(LeadOwner(plan), NodeId(6));
  EXPECT_EQ(FindTensor(plan, TensorId(1)), nullptr);
  EXPECT_EQ(FindTensor(plan, TensorId(2))->spec.name, "b");
  Member member;
  member.node = NodeId(9);
  plan.groups.resize(2);
  plan.groups[1].members.push_back(member);
  EXPECT_EQ(FindGroup(plan, NodeId(9)), &plan.groups[1]);
  EXPECT_EQ(FindGroup(plan, NodeId(8)), nullptr);
}

TEST(PlanTest, Names) {
  EXPECT_EQ(Name(Role::kWorker), "worker");
  EXPECT_EQ(Name(JobState::kForming), "forming");
  EXPECT_EQ(Name(Normalization::kSum), "sum");
  EXPECT_EQ(Name(Aggregation::kAllreduce), "allreduce");
}

}  // namespace
}  // namespace paceline
