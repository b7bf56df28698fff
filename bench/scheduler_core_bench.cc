// What the scheduler's core costs: planning a large cluster, and the events that come most often.
#include <benchmark/benchmark.h>

#include "plan/placement.h"
#include "scheduler/core/core.h"
#include "scheduler/core/group_planner.h"

namespace paceline {
namespace {

// 10,000 workers in 1,000 groups: budget 50 ms.
void BM_PlanGroups(benchmark::State& state) {
  std::vector<scheduler::Candidate> candidates;
  for (uint32_t i = 0; i < 10'000; ++i) {
    candidates.push_back({NodeId(i + 1), JobRank(9'999 - i), WorkerIndex((i * 7919) % 10'000), {}});
  }
  GroupSpec spec;
  spec.kind = GroupSpec::Kind::kCount;
  spec.count = 1'000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(scheduler::PlanInitialGroups(spec, candidates));
  }
}
BENCHMARK(BM_PlanGroups)->Unit(benchmark::kMillisecond);

// 100,000 chunks on 1,000 servers.
void BM_PlaceChunks(benchmark::State& state) {
  std::vector<ChunkSize> chunks;
  for (uint32_t i = 0; i < 100'000; ++i) {
    chunks.push_back({{TensorId(i), ChunkIndex(0)}, Bytes(4 * ((i * 7919) % 262'144))});
  }
  for (auto _ : state) {
    std::map<NodeId, Bytes> load;
    for (uint32_t s = 1; s <= 1'000; ++s) load[NodeId(s)] = Bytes(0);
    benchmark::DoNotOptimize(Place(chunks, load));
  }
}
BENCHMARK(BM_PlaceChunks)->Unit(benchmark::kMillisecond);

// A cluster of 10,000 nodes that have joined; the job waits for one more worker.
std::unique_ptr<Core> LargeCluster(std::vector<NodeRef>& nodes) {
  CoreOptions options;
  options.limits.max_nodes = 20'000;
  auto core = std::make_unique<Core>(options);
  for (uint32_t i = 0; i < 10'000; ++i) {
    JoinEvent join{RequestId(i + 1), {}, {}};
    join.join.role = Role::kServer;
    join.join.name = "server-" + std::to_string(i);
    join.join.data_address = "127.0.0.1:1";
    core->Step(Seconds(1), join);
    for (const ReplyAction& reply : core->TakeReady().replies) {
      nodes.push_back(std::get<JoinReply>(*reply.reply).self);
    }
  }
  return core;
}

// Budget 20 us.
void BM_Heartbeat(benchmark::State& state) {
  std::vector<NodeRef> nodes;
  const std::unique_ptr<Core> core = LargeCluster(nodes);
  uint64_t i = 0;
  for (auto _ : state) {
    ++i;
    core->Step(Seconds(2), NodeEvent{RequestId(i), nodes[i * 7919 % nodes.size()], Heartbeat{}});
    benchmark::DoNotOptimize(core->TakeReady());
  }
}
BENCHMARK(BM_Heartbeat)->Unit(benchmark::kMicrosecond);

void BM_Tick(benchmark::State& state) {
  std::vector<NodeRef> nodes;
  const std::unique_ptr<Core> core = LargeCluster(nodes);
  for (auto _ : state) {
    core->Step(Seconds(2), TickEvent{});
    benchmark::DoNotOptimize(core->TakeReady());
  }
}
BENCHMARK(BM_Tick)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace paceline

BENCHMARK_MAIN();
