// A job of the size that is asked for, and what its nodes say.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/core/cluster_for_test.h"

namespace paceline::scheduler {

inline JobSpec Spec(uint32_t workers, const char* groups = "one") {
  JobSpec spec;
  spec.name = "mnist";
  spec.workers = workers;
  spec.groups = *ParseGroupSpec(groups);
  spec.sample_count = 1000;
  spec.epochs = 2;
  spec.batch_size = 10;
  return spec;
}

inline std::string W(uint32_t i) { return "worker-" + std::to_string(i); }

class CoreTest : public testing::Test {
 protected:
  void Start(uint32_t servers, const JobSpec& spec) {
    for (uint32_t i = 0; i < servers; ++i) {
      ASSERT_TRUE(c.Join(c.Server("server-" + std::to_string(i))).ok());
    }
    for (uint32_t i = 0; i < spec.workers; ++i) ASSERT_TRUE(c.Join(c.Worker(W(i), spec, i)).ok());
  }
  RequestId Register(const std::string& worker) {
    return c.Ask(worker, RegisterTensorsRequest{{{"w", {784, 128}, DType::kF32, false},
                                                 {"b", {128}, DType::kF32, false}}});
  }
  // What the lead owner (server-0 in these tests) counts of a worker.
  void Report(std::map<std::string, std::pair<uint64_t, uint64_t>> applied_discarded) {
    JobAtServer at;
    at.job = c.joined.at(W(0)).job;
    at.lead = true;
    for (const auto& [name, counts] : applied_discarded) {
      WorkerStaleness w;
      w.worker = c.joined.at(name).self.node;
      w.applied = Samples(counts.first);
      w.discarded = Samples(counts.second);
      at.workers.push_back(w);
    }
    c.Ask("server-0", ServerReport{Bytes(0), Bytes(0), 0, 0, {at}});
  }
  std::string Members(const JobView& job) {
    std::string text;
    for (const GroupView& g : job.groups) {
      absl::StrAppend(&text, "g", g.plan.id.value(), ".", g.plan.generation.value(), "@",
                      g.plan.activation_step.value(), ":");
      for (const Member& m : g.plan.members) absl::StrAppend(&text, m.rank.value(), " ");
    }
    return text;
  }
  std::string StateOf(const std::string& name) {
    const ClusterView cluster = std::get<ClusterView>(c.Operate(StatusQuery{}));
    for (const NodeView& node : cluster.nodes) {
      if (node.name == name) return node.state;
    }
    return "";
  }
  ClusterForTest c;
};

}  // namespace paceline::scheduler
