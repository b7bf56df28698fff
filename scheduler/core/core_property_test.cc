// Random orders of events, each run from one seed; the invariants of core.h after every event.
#include <gtest/gtest.h>

#include "plan/chunking.h"
#include "plan/permutation.h"
#include "scheduler/core/cluster_for_test.h"

namespace paceline::scheduler {
namespace {

constexpr uint32_t kWorkers = 4;

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : state_(seed) {
    const char* const groups[] = {"one", "per-worker", "2", "3,1"};
    spec_.name = "job";
    spec_.workers = kWorkers;
    spec_.groups = *ParseGroupSpec(groups[Below(4)]);
    spec_.sample_count = 500;
    spec_.epochs = 3;
    spec_.batch_size = 8;
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(c_.Join(c_.Server(absl::StrCat("s", i))).ok());
    for (uint32_t i = 0; i < kWorkers; ++i) JoinWorker(i);
  }

  void Run(int events) {
    for (int i = 0; i < events; ++i) {
      Act();
      Check();
      if (testing::Test::HasFailure()) return;
    }
    // Live workers use up what they hold; the rest of those that are gone is settled by the report.
    // Then the books must balance to the sample.
    // A draw that waited for that is answered meanwhile, so a second report has the rest.
    ReportUse(kAll);
    ReportUse(kAll);
    const JobView job = c_.Job("job");
    if (job.state == JobState::kRunning && !job.tensors.empty()) {
      EXPECT_EQ(job.drawn, job.applied + job.discarded + job.returned);
      ++balanced;
    }
    const std::unique_ptr<Core> recovered = c_.Recovered(c_.journal().size());
    ASSERT_NE(recovered, nullptr);
    EXPECT_EQ(recovered->Snapshot(), c_.core().Snapshot());
  }

  int balanced = 0;  // runs whose books could be checked

 private:
  enum Use { kSome, kAll };

  uint64_t Below(uint64_t bound) { return SplitMix64(state_) % bound; }
  static std::string NameOf(uint64_t i) { return absl::StrCat("w", i); }
  bool Live(const std::string& name) {
    return c_.joined.count(name) > 0 && c_.core().CheckNode(c_.joined[name].self).ok();
  }

  void JoinWorker(uint64_t i) {
    const std::string name = NameOf(i);
    if (c_.Join(c_.Worker(name, spec_, static_cast<uint32_t>(i))).ok()) {
      c_.steps[c_.joined[name].self.node] = paceline::Step(Below(50));
    }
  }

  // The lead owner's cumulative counts: each worker used a part of what it drew.
  void ReportUse(Use use) {
    const JobView job = c_.Job("job");
    if (job.tensors.empty()) return;  // nobody can have applied anything
    JobAtServer at;
    at.job = job.id;
    at.lead = true;
    for (const WorkerStalenessView& w : job.worker_staleness) {
      auto& [of_job, used] = used_[w.name];
      if (of_job != job.id) {
        of_job = job.id;
        used = 0;
      }
      const uint64_t open = w.drawn.value() - w.returned.value() - used;
      if (Live(w.name)) used += use == kAll ? open : Below(open + 1);
      WorkerStaleness s;
      s.worker = c_.joined[w.name].self.node;
      s.applied = Samples(used - used / 4);
      s.discarded = Samples(used / 4);
      at.workers.push_back(s);
    }
    const std::string lead = job.tensors[0].owners[0] == c_.joined["s0"].self.node ? "s0" : "s1";
    c_.Ask(lead, ServerReport{Bytes(0), Bytes(0), 0, 0, {at}});
  }

  void Act() {
    const std::string name = NameOf(Below(kWorkers + 2));
    const uint64_t action = Below(14);
    if (action == 13) {
      std::optional<GroupId> to;
      if (Below(4) > 0) to = GroupId(static_cast<uint32_t>(Below(4)));
      c_.Feed(OperatorEvent{RequestId(~uint64_t{0}), MoveWorkerRequest{"job", name, to, ""}});
      return;
    }
    if (action == 12) {
      // Draining the last one is refused.
      c_.Feed(OperatorEvent{RequestId(~uint64_t{0}),
                            DrainServerRequest{absl::StrCat("s", Below(2)), Below(2) == 0}});
      return;
    }
    if (action == 0) return JoinWorker(Below(kWorkers + 2));
    if (action == 1) return ReportUse(kSome);
    if (action == 2) return c_.Tick(static_cast<int64_t>(Below(200)));
    if (!Live(name)) return;
    const NodeId node = c_.joined[name].self.node;
    switch (action) {
      case 3:
        if (Below(3) == 0) c_.Feed(ProcessEndedEvent{c_.joined[name].self, "killed"});
        return;
      case 4:
        if (Below(3) == 0) c_.Ask(name, LeaveRequest{"done", 0, {}});
        return;
      case 5:
        c_.Ask(name, RegisterTensorsRequest{
                         {{absl::StrCat("t", Below(5)), {900'000}, DType::kF32, false}}});
        return;
      case 6:
        if (c_.silent.insert(node).second) return;
        c_.silent.erase(node);
        [[fallthrough]];  // what it did not answer is told again
      case 7:
        c_.Feed(WatchClosedEvent{c_.joined[name].self});
        c_.Feed(WatchEvent{c_.joined[name].self});
        return;
      case 8:
        c_.steps[node] += paceline::Step(Below(5));
        return;
      case 9:
        c_.Ask(name, InitDoneRequest{{TensorId(0)}});
        c_.Ask(name, CheckpointRequest{"/dir"});
        return;
      default:
        DrawSamplesRequest draw;
        draw.wanted = Samples(Below(40));
        if (Below(4) == 0) {
          c_.AskAndLose(name, draw);
        } else {
          c_.Ask(name, draw);
        }
    }
  }

  void Check() {
    const ClusterView cluster = std::get<ClusterView>(c_.Operate(StatusQuery{}));
    for (const JobView& job : cluster.jobs) {
      CheckChunks(job);
      CheckGroups(cluster, job);
      const auto before = generations_.find(job.id);
      if (before != generations_.end()) {
        EXPECT_GE(job.generation, before->second);
      }
      generations_[job.id] = job.generation;
    }
  }

  void CheckChunks(const JobView& job) {
    for (const TensorPlan& tensor : job.tensors) {
      EXPECT_EQ(tensor.owners.size(), CutIntoChunks(tensor.spec, job.spec.chunk_bytes).size());
      const auto now = std::pair(job.generation, tensor.owners);
      const auto [it, first] = owners_.emplace(std::pair(job.id, tensor.id), now);
      if (!first && it->second.second != tensor.owners) {
        EXPECT_GT(job.generation, it->second.first) << "owners changed within a generation";
      }
      it->second = now;
    }
  }

  void CheckGroups(const ClusterView& cluster, const JobView& job) {
    if (job.state != JobState::kRunning) return;
    std::map<NodeId, int> memberships;
    for (const GroupView& g : job.groups) {
      for (const Member& m : g.plan.members) ++memberships[m.node];
      const auto key = std::pair(job.id, g.plan.id);
      const auto now = std::pair(g.plan.generation, g.plan.activation_step);
      auto [it, first] = groups_.emplace(key, now);
      if (first) continue;
      EXPECT_GE(now.first, it->second.first);
      EXPECT_GE(now.second, it->second.second) << "two generations would hold for one step";
      it->second = now;
    }
    for (const auto& [node, count] : memberships) EXPECT_EQ(count, 1);
    for (const NodeView& node : cluster.nodes) {
      const bool in = memberships.count(node.node) > 0;
      if (node.state != "live") {
        EXPECT_FALSE(in && node.job == job.spec.name) << node.name;
      }
      // With every ack given there is no open change: each live worker is in a group.
      if (c_.silent.empty() && node.state == "live" && node.role == Role::kWorker &&
          node.job == job.spec.name && quiet_) {
        EXPECT_TRUE(in) << node.name;
      }
    }
    quiet_ = c_.silent.empty();
  }

  uint64_t state_;
  JobSpec spec_;
  ClusterForTest c_;
  bool quiet_ = false;
  std::map<std::string, std::pair<JobId, uint64_t>> used_;
  std::map<JobId, JobGeneration> generations_;
  std::map<std::pair<JobId, TensorId>, std::pair<JobGeneration, std::vector<NodeId>>> owners_;
  std::map<std::pair<JobId, GroupId>, std::pair<GroupGeneration, paceline::Step>> groups_;
};

TEST(CorePropertyTest, InvariantsHoldOverRandomOrders) {
  int balanced = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomRun run(seed);
    run.Run(150);
    if (testing::Test::HasFailure()) break;
    balanced += run.balanced;
  }
  EXPECT_GT(balanced, 10);
}

}  // namespace
}  // namespace paceline::scheduler
