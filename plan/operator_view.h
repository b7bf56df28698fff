// What an operator can ask and sees: snapshots the scheduler core makes, the CLI prints.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/types.h"
#include "plan/messages.h"
#include "plan/report.h"

namespace paceline {

// A decision with its reason, as the log, the CLI and the tests show it.
struct DecisionRecord {
  uint64_t sequence = 0;     // of the scheduler, from 1
  int64_t unix_time_ms = 0;  // wall clock, filled by the event loop; 0 in the pure core
  Ticks at;                  // scheduler's clock
  std::string job;           // empty: about the cluster
  std::string kind;          // "join", "leave", "group", "placement", "sealed", "fence", ...
  std::string text;          // one line with the reason

  bool operator==(const DecisionRecord&) const = default;
};

struct NodeView {
  NodeId node;
  Incarnation incarnation;
  Role role = Role::kWorker;
  std::string name;
  std::string host;
  std::string data_address;
  std::string job;  // workers
  std::optional<JobRank> rank;
  std::string state;          // "live", "left", "dead"; servers: "draining", "drained"
  uint32_t last_seen_ms = 0;  // ago
  uint64_t process_id = 0;
  WorkerReport worker;  // workers: the newest report
  ServerReport server;  // servers: the newest report

  bool operator==(const NodeView&) const = default;
};

struct GroupView {
  GroupPlan plan;
  Step step;  // highest reported
  uint32_t step_time_us = 0;

  bool operator==(const GroupView&) const = default;
};

struct WorkerStalenessView {
  std::string name;
  GroupId group;
  StalenessCounts tau;
  double mean = 0, p50 = 0, p95 = 0, excess_mean = 0;
  uint64_t step_lag = 0;              // exchanges behind the fastest group
  uint32_t last_seen_ms = 0;          // since its last applied push
  Samples drawn;                      // scheduler's count
  Samples applied;                    // owners' count
  Samples discarded;                  // owners' count
  Samples returned;                   // scheduler's count of what came back
  uint64_t carried = 0, dropped = 0;  // pushes that came late under a quorum
  Samples drawn_by_worker, applied_by_worker, discarded_by_worker, returned_by_worker;

  bool operator==(const WorkerStalenessView&) const = default;
};

struct GroupStalenessView {
  GroupStaleness raw;
  std::vector<std::string> members;
  double mean = 0, p50 = 0, p95 = 0, excess_mean = 0;
  uint64_t step_lag = 0;
  int64_t formula_sum = 0;  // sum(tau) by the exact formula
  uint32_t last_seen_ms = 0;

  bool operator==(const GroupStalenessView&) const = default;
};

struct MetricView {
  std::string name;
  double value = 0;
  std::string worker;
  Step step;

  bool operator==(const MetricView&) const = default;
};

struct JobView {
  JobId id;
  JobSpec spec;
  JobState state = JobState::kForming;
  std::string reason;
  JobGeneration generation;
  uint64_t group_generations = 0;  // group plans committed so far
  uint32_t workers_live = 0;
  uint32_t servers = 0;  // that own a chunk
  Epoch epoch;
  Step step;  // of the fastest group
  uint64_t updates = 0;
  double samples_per_s = 0;
  uint64_t seconds_running = 0;
  Samples drawn, applied, discarded, returned;
  Samples total;        // sample_count x epochs; 0 = no end
  StalenessCounts tau;  // over all groups
  double mean = 0, p50 = 0, p95 = 0;
  std::vector<GroupView> groups;
  std::vector<GroupStalenessView> group_staleness;
  std::vector<WorkerStalenessView> worker_staleness;
  std::vector<MetricView> metrics;
  std::vector<TensorPlan> tensors;
  uint32_t lineage = 0;
  std::vector<CheckpointRecord> checkpoints;  // kept ones, oldest first
  RollbackTotals rollbacks;
  std::string resumed_from;  // path of a checkpoint, or empty
  uint64_t not_finite = 0;   // pushes that held NaN or infinity
  uint64_t refused_frames =
      0;  // by owners: of workers declared dead, of an old plan, for any reason

  bool operator==(const JobView&) const = default;
};

struct ClusterView {
  std::string version;
  std::string cluster;
  Term term;
  uint64_t uptime_ms = 0;
  std::vector<NodeView> nodes;
  std::vector<JobView> jobs;  // finished ones too, a bounded number

  bool operator==(const ClusterView&) const = default;
};

struct EventsQuery {
  uint64_t after = 0;  // sequence: the first ones beyond it; 0: the newest
  uint32_t limit = 1000;
  std::string job;  // empty = all

  bool operator==(const EventsQuery&) const = default;
};

struct StopJobRequest {
  std::string job;
  bool failed = false;  // what the workers and the launcher report
  std::string reason;

  bool operator==(const StopJobRequest&) const = default;
};

// Takes a checkpoint now; answered when it is complete.
struct CheckpointJobRequest {
  std::string job;
  std::string directory;  // absolute, at the servers; empty: the job's checkpoint_dir

  bool operator==(const CheckpointJobRequest&) const = default;
};

// The next job of this name starts from a checkpoint that its servers can read at `path`.
struct ResumeJobRequest {
  std::string job;
  std::string path;
  CheckpointManifest manifest;  // without parts

  bool operator==(const ResumeJobRequest&) const = default;
};

struct StatusQuery {
  std::string job;  // empty = all; detail lists are filled either way

  bool operator==(const StatusQuery&) const = default;
};

// Who started a process saw it end: the node is dead at once, without waiting for its lease. Empty
// `job`: a server. A node that joined from another process is left alone.
struct ProcessEndedRequest {
  std::string job;
  std::string name;
  uint64_t process_id = 0;
  std::string cause;

  bool operator==(const ProcessEndedRequest&) const = default;
};

// Moves every chunk off a server while jobs run; new ones are placed elsewhere. `undo`: it may own
// chunks again. NotFound when no such server is live, FailedPrecondition when it is the only one.
struct DrainServerRequest {
  std::string server;
  bool undo = false;

  bool operator==(const DrainServerRequest&) const = default;
};

// Asks a worker to leave at its next step boundary. NotFound when no such worker is live.
struct RemoveWorkerRequest {
  std::string job;
  std::string worker;
  std::string reason;

  bool operator==(const RemoveWorkerRequest&) const = default;
};

// Lets a worker go over to another group of its job, or to one of its own, at steps of the two that
// nobody has begun; answered once that is agreed. NotFound when there is no such job, worker or
// group, FailedPrecondition when it cannot go there, Aborted when it is gone before.
struct MoveWorkerRequest {
  std::string job;
  std::string worker;
  std::optional<GroupId> group;  // none: a group of its own
  std::string reason;

  bool operator==(const MoveWorkerRequest&) const = default;
};

using OperatorRequest =
    std::variant<StatusQuery, EventsQuery, StopJobRequest, ProcessEndedRequest, RemoveWorkerRequest,
                 DrainServerRequest, CheckpointJobRequest, ResumeJobRequest, MoveWorkerRequest>;
using OperatorReply =
    std::variant<Empty, ClusterView, std::vector<DecisionRecord>, CheckpointReply>;

}  // namespace paceline
