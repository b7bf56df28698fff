// One value of every message, each field set to something of its own, so that a field the codec
// forgets or mixes up is seen. For tests of control/grpc.
#pragma once

#include <numeric>
#include <vector>

#include "plan/messages.h"
#include "plan/operator_view.h"

namespace paceline::samples {

inline SecretKey Key(uint8_t first) {
  SecretKey key;
  std::iota(key.begin(), key.end(), first);
  return key;
}

inline JobSpec Job() {
  JobSpec spec;
  spec.name = "job.a-1";
  spec.workers = 4;
  spec.min_workers = 2;
  spec.groups = {GroupSpec::Kind::kSizes, 7, {3, 1}, "rack"};
  spec.optimizer = {"sgd", {{"lr", 0.125}, {"momentum", 0.5}}};
  spec.policy = {"dc", {{"lambda", 0.04}}};
  spec.codecs = {{"conv*", {"bf16", {}}}, {"*", {"topk", {{"ratio", 0.25}}}}};
  spec.normalization = Normalization::kSum;
  spec.aggregation = Aggregation::kPeer;
  spec.chunk_bytes = 65536;
  spec.sample_count = 60000;
  spec.epochs = 11;
  spec.batch_size = 64;
  spec.seed = 0xFEDCBA9876543210u;
  spec.failure_timeout_ms = 2500;
  spec.quorum = 3;
  spec.late = Late::kDrop;
  spec.nan = NotFinite::kAllow;
  spec.max_step_lag = 5;
  spec.gate = true;
  spec.max_staleness = 99;
  spec.local_steps = 8;
  spec.checkpoint_every_steps = 500;
  spec.checkpoint_dir = "/srv/checkpoints";
  spec.checkpoint_keep = 7;
  spec.on_server_loss = ServerLoss::kStop;
  return spec;
}

// What a scheduler of today takes (it refuses features that nothing implements yet).
inline JobSpec PlainJob() {
  JobSpec spec;
  spec.name = "plain";
  return spec;
}

inline TensorSpec Tensor() { return {"conv.weight", {64, 3, 7, 7}, DType::kBF16, true}; }

inline Member Worker() {
  return {NodeId(12), "w-0",        Incarnation(34), JobRank(3), WorkerIndex(0),
          "host-1",   "10.0.0.1:9", Key(1),          Step(70)};
}

inline GroupPlan Group() {
  return {GroupId(2),           GroupGeneration(5),    Step(77), GroupGeneration(4), 3,
          {Worker(), Worker()}, "one group: all equal"};
}

inline Plan WholePlan() {
  Plan plan;
  plan.job = JobId(6);
  plan.spec = Job();
  plan.state = JobState::kRunning;
  plan.reason = "4 of 4 workers";
  plan.term = Term(8);
  plan.generation = JobGeneration(9);
  plan.servers = {{NodeId(1), "server-0", Incarnation(2), "host-0", "10.0.0.2:7000", Key(9)}};
  plan.tensors = {{TensorId(4), Tensor(), {NodeId(1), NodeId(3), NodeId(1)}, true}};
  plan.groups = {Group()};
  plan.lead_tensor = TensorId(4);
  plan.init_writer = NodeId(12);
  plan.move = 44;
  plan.waiting = "1 of 2";
  plan.fenced = {{NodeId(12), Incarnation(33)}};
  plan.withdrawn = true;
  plan.next_group = GroupId(9);
  plan.moves = {{{TensorId(4), ChunkIndex(1)}, NodeId(1), NodeId(3)}};
  plan.restore_from = "/srv/checkpoints/a";
  plan.lineage = 3;
  return plan;
}

inline StalenessCounts Tau() { return {10, 25, 130, {1, 2, 3, 4}}; }

inline GroupStaleness GroupTau() {
  return {GroupId(1), Tau(), 2.5, 100, 110, -7, Step(55), Ticks(123456789)};
}

inline WorkerStaleness WorkerTau() {
  return {NodeId(12),  GroupId(1), Tau(), 1.25,     Samples(640),
          Samples(64), 3,          4,     Step(54), Ticks(-5)};
}

inline ServerReport Server() {
  JobAtServer job{JobId(6), true, 1000, 3, 2, Bytes(1u << 20), {GroupTau()}, {WorkerTau()}};
  return {Bytes(uint64_t{1} << 40), Bytes(11), 12, 987, {job}};
}

inline WorkerReport Report() {
  WorkerReport report;
  report.group = GroupId(13);
  report.step = Step(1);
  report.epoch = Epoch(2);
  report.step_time_us = 3;
  report.wait_permille = 4;
  report.drawn = Samples(5);
  report.applied = Samples(6);
  report.discarded = Samples(7);
  report.returned = Samples(8);
  report.bytes_in = Bytes(9);
  report.bytes_out = Bytes(10);
  report.metrics = {{"loss", 0.75, Step(11)}, {"accuracy", -1e300, Step(12)}};
  report.links = {"server-0: tcp (other host)", "server-1: shm"};
  return report;
}

inline JoinRequest WorkerJoin() {
  JoinRequest join;
  join.role = Role::kWorker;
  join.name = "worker-3";
  join.host = "host-1";
  join.labels = {{"rack", "r1"}, {"zone", "z 2"}};
  join.data_address = "[::1]:5000";
  join.job = Job();
  join.index = WorkerIndex(0);
  join.process_id = 4242;
  return join;
}

inline JoinRequest ServerJoin() {
  JoinRequest join;
  join.role = Role::kServer;
  join.name = "server-0";
  join.host = "host-2";
  join.data_address = "127.0.0.1:7000";
  return join;
}

// Every alternative of NodeRequest, in the order of the variant.
inline std::vector<NodeRequest> NodeRequests() {
  const std::map<GroupId, Step> steps{{GroupId(0), Step(10)}, {GroupId(3), Step(0)}};
  return {Heartbeat{},
          RegisterTensorsRequest{{Tensor(), {"bias", {}, DType::kF32, false}}},
          InitDoneRequest{{TensorId(0), TensorId(5)}},
          SetOptimizerRequest{{"adam", {{"lr", 1e-3}}}},
          DrawSamplesRequest{Samples(512), Step(6), Samples(64), true},
          ReturnSamplesRequest{{{Epoch(1), 10, 20}, {Epoch(2), 0, 0}}},
          BarrierRequest{"end of epoch 1"},
          CheckpointRequest{"/tmp/checkpoint"},
          AckRequest{17,
                     Step(4),
                     steps,
                     "out of disk",
                     {"part-server-0.safetensors", Bytes(1234), 0xFEDCBA9876543210u},
                     99,
                     {{NodeId(12), Samples(640), Samples(3)}},
                     {{TensorId(4), ChunkIndex(1)}}},
          LinkDownRequest{NodeId(9), 750, "connection reset"},
          Report(),
          Server(),
          LeaveRequest{"done", -9, Report()},
          AdoptedRequest{3, {{Epoch(1), 10, 20}}},
          NotFiniteRequest{"conv.weight", Step(77), 2}};
}

inline CheckpointManifest Manifest() {
  CheckpointManifest manifest;
  manifest.run = "3fa9c1d2";
  manifest.number = 12;
  manifest.spec = Job();
  manifest.lineage = 2;
  manifest.updates = 345;
  manifest.applied = Samples(6789);
  manifest.steps = {{GroupId(0), Step(10)}, {GroupId(3), Step(12)}};
  manifest.samples = {{{Epoch(1), 5, 9}}, Epoch(2), 77};
  manifest.tensors = {Tensor()};
  manifest.parts = {{"part-server-0.safetensors", Bytes(1234), 0xFEDCBA9876543210u}};
  manifest.unix_time_ms = 1700000000123;
  return manifest;
}

// Every alternative of Directive::body, in the order of the variant.
inline std::vector<Directive> Directives() {
  const std::map<GroupId, Step> steps{{GroupId(0), Step(10)}, {GroupId(3), Step(12)}};
  std::vector<Directive> all(10);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].sequence = 100 + i;
    all[i].term = Term(3);
  }
  all[0].body = PlanDirective{1, WholePlan()};
  all[1].body = PrepareDirective{2, JobId(6), {Group()}, "w-1 joins"};
  all[2].body = CommitDirective{3, JobId(6), {Group(), Group()}, "all are ready"};
  all[3].body = AbortDirective{4, JobId(6), "w-1 died"};
  all[4].body = FenceDirective{5, JobId(6), {NodeId(12), Incarnation(34)}, {Group()}, "silent"};
  all[5].body = SealedDirective{JobId(6), {TensorId(1), TensorId(2)}};
  all[6].body =
      CutDirective{7, JobId(6), false, true, steps, "/tmp/cut", Manifest(), {"/tmp/a", "/tmp/b"}};
  all[7].body = RecallSamplesDirective{JobId(6)};
  all[8].body = EndJobDirective{JobId(6), true, "server-0 is gone"};
  all[9].body = RemoveDirective{JobId(6), "its machine is wanted elsewhere"};
  return all;
}

inline JobView JobDetails() {
  JobView view;
  view.id = JobId(6);
  view.spec = Job();
  view.state = JobState::kStopped;
  view.reason = "by an operator";
  view.generation = JobGeneration(7);
  view.group_generations = 8;
  view.workers_live = 9;
  view.servers = 10;
  view.epoch = Epoch(11);
  view.step = Step(12);
  view.updates = 13;
  view.samples_per_s = 14.5;
  view.seconds_running = 15;
  view.drawn = Samples(16);
  view.applied = Samples(17);
  view.discarded = Samples(18);
  view.returned = Samples(19);
  view.total = Samples(20);
  view.tau = Tau();
  view.mean = 21.5;
  view.p50 = 22.5;
  view.p95 = 23.5;
  view.groups = {{Group(), Step(24), 25}};
  view.group_staleness = {{GroupTau(), {"w-0", "w-1"}, 1.5, 2.5, 3.5, 4.5, 5, -6, 7}};
  view.worker_staleness = {{"w-0", GroupId(1), Tau(), 1.5, 2.5, 3.5, 4.5, 5, 6, Samples(1),
                            Samples(2), Samples(3), Samples(4), 31, 32, Samples(5), Samples(6),
                            Samples(7), Samples(8)}};
  view.metrics = {{"loss", 0.5, "w-0", Step(30)}};
  view.tensors = WholePlan().tensors;
  view.lineage = 2;
  view.checkpoints = {{12,
                       "/srv/checkpoints/a",
                       345,
                       1,
                       Samples(6789),
                       {{GroupId(0), Step(10)}},
                       {{NodeId(12), Samples(640), Samples(3)}}}};
  view.rollbacks = {1, 2, 3, Samples(4), 5};
  view.resumed_from = "/srv/checkpoints/b";
  view.not_finite = 6;
  view.refused_frames = 7;
  return view;
}

inline ClusterView Cluster() {
  NodeView node;
  node.node = NodeId(12);
  node.incarnation = Incarnation(34);
  node.role = Role::kWorker;
  node.name = "w-0";
  node.host = "host-1";
  node.data_address = "10.0.0.1:9";
  node.job = "job.a-1";
  node.rank = JobRank(0);
  node.state = "live";
  node.last_seen_ms = 321;
  node.process_id = 99;
  node.worker = Report();
  node.server = Server();
  return {"0.1.0", "blue", Term(4), 5678, {node}, {JobDetails()}};
}

inline std::vector<DecisionRecord> Decisions() {
  return {{1, 1700000000123, Ticks(55), "job.a-1", "fence", "w-1 was silent for 5.0 s"},
          {2, 0, Ticks(-1), "", "join", "server-0"}};
}

}  // namespace paceline::samples
