// A server's side of the control plane: joins the scheduler, applies its directives to the router,
// answers them, heartbeats and reports, and writes the parts of checkpoints.
//
// Thread rule: Join, Follow and Stop from one thread; the rest happens on the agent's own thread
// and on the callbacks of its client and router, which only queue.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "common/runtime/mutex.h"
#include "control/control_client.h"
#include "control/heartbeat.h"
#include "parameter/host/router.h"
#include "plan/messages.h"
#include "server/checkpoint_disk.h"

namespace paceline {

struct ServerAgentOptions {
  std::string name;  // stable and unique among the servers of a cluster
  std::string host;
  std::map<std::string, std::string> labels;
  std::string data_address;  // advertised to workers
  uint64_t process_id = 0;
  Ticks join_timeout = Seconds(60);
};

class ServerAgent {
 public:
  // `control` outlives the agent. `on_lost` is called once, from a thread of the agent, when the
  // scheduler no longer knows this incarnation; the process has to join anew.
  ServerAgent(ServerAgentOptions options, ControlClient* control,
              std::function<void(const absl::Status&)> on_lost);
  ~ServerAgent();

  // Joins, waiting for the scheduler up to join_timeout. After it self() holds.
  absl::Status Join();
  // Begins to apply directives to `router`, which outlives the agent.
  void Follow(Router* router);
  // Leaves the cluster. Idempotent. Callbacks of the router may come until that is gone.
  void Stop();

  NodeRef self() const { return joined_.self; }
  const SecretKey& key() const { return joined_.key; }

  // For the router, from its threads.
  void OnArrived(uint64_t move, std::vector<ChunkKey> missing);
  void OnLinkDown(NodeId peer, Ticks since, const std::string& cause);

 private:
  void OpenWatch();
  void OnDirective(Directive directive);
  void OnPlan(const PlanDirective& directive);
  // On the disk thread, or a shard thread: brings back what the plan wants from a checkpoint.
  void Load(const Plan& plan, Router::Done done);
  void OnCut(const CutDirective& cut) EXCLUDES(mutex_);
  void ReleaseCuts() EXCLUDES(mutex_);
  void OnCopied(const CutDirective& cut, absl::StatusOr<std::vector<ChunkSnapshot>> chunks);
  void WriteManifestOf(const CutDirective& cut);
  void Remove(const std::string& checkpoint);
  // Answers the directive `id` once the router has it in force.
  Router::Done AckWhenDone(uint64_t id);
  void Queue(NodeRequest request) EXCLUDES(mutex_);
  void Run();
  absl::Status Send(const NodeRequest& request);
  absl::Status SendQueued() EXCLUDES(mutex_);
  void ReopenWatch() EXCLUDES(mutex_);
  absl::Status Report() EXCLUDES(mutex_);
  void Lost(const absl::Status& cause) EXCLUDES(mutex_);

  const ServerAgentOptions options_;
  ControlClient* const control_;
  Router* router_ = nullptr;  // constant after Follow
  const std::function<void(const absl::Status&)> on_lost_;
  JoinReply joined_;  // constant after Join

  Mutex mutex_;
  CondVar wake_;
  std::deque<NodeRequest> outbox_ GUARDED_BY(mutex_);                // answers; kMaxQueued at most
  std::map<NodeId, LinkDownRequest> links_down_ GUARDED_BY(mutex_);  // the newest word of each
  bool reopening_ GUARDED_BY(mutex_) = false;
  bool watch_lost_ GUARDED_BY(mutex_) = false;
  bool away_ GUARDED_BY(mutex_) = false;  // the scheduler; said once
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool lost_ GUARDED_BY(mutex_) = false;
  std::set<JobId> cutting_ GUARDED_BY(mutex_);  // whose later steps a cut may hold
  std::unique_ptr<HeartbeatThread> heartbeat_;
  std::thread thread_;
  CheckpointDisk disk_;  // stopped by Stop; shard threads may post to it later
};

}  // namespace paceline
