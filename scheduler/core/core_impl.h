// The parts of Core behind core.h. Durable state is in `state_` and changes only by Decide(); all
// else is rebuilt by the nodes themselves after a restart (they watch, report and retry).
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core/core.h"
#include "scheduler/core/group_planner.h"
#include "scheduler/core/journal_entry.h"
#include "scheduler/core/plan_machine.h"
#include "scheduler/core/state.h"

namespace paceline {

namespace scheduler {

// What is known of a node besides its record.
struct NodeSession {
  Ticks last_seen;
  bool watching = false;
  bool heard = false;  // it has asked for something since it joined
  uint64_t last_sequence = 0;
  WorkerReport worker;
  ServerReport server;
  Ticks rate_since;
  uint64_t rate_base = 0;
  double samples_per_s = 0;
  std::map<JobId, JobGeneration> acked;                       // owners: plans in force there
  std::map<uint64_t, std::pair<JobId, JobGeneration>> plans;  // sent, not acked
  std::map<JobId, std::string> refused;                       // plans it could not take
};

struct Waiting {
  RequestId request;
  NodeId node;
  JobGeneration generation;
  NodeReply reply;
};

struct PendingRegistration {
  RequestId request;
  std::vector<TensorSpec> tensors;
};

struct PendingDraw {
  RequestId request;
  DrawSamplesRequest body;
  Ticks since;
};

struct Cut {
  enum class Phase { kWaiting, kCollect, kCopy, kManifest };

  uint64_t id = 0;
  std::optional<RequestId> request;  // nobody waits for a periodic one
  NodeId from;                       // 0: an operator, or nobody
  std::string below;                 // directory of the checkpoint's own
  std::string path;
  uint64_t number = 0;
  Phase phase = Phase::kWaiting;
  std::set<NodeId> awaited;
  std::map<GroupId, Step> steps;
  SampleLedger samples;  // when the steps were fixed
  std::vector<CheckpointPart> parts;
  uint64_t updates = 0;
  std::vector<WorkerSamples> workers;
  uint32_t attempts = 0;
  Ticks since;
};

// When and where the last checkpoint was begun.
struct LastCut {
  Ticks at;
  Step step;
};

// A worker that is to go over to another group.
struct Migration {
  std::optional<GroupId> to;  // none: a group of its own
  std::string reason;
  std::optional<RequestId> request;  // who waits for it
};

struct Fence {
  FenceDirective directive;
  std::set<NodeId> awaited;
};

struct WorkerSeen {
  uint64_t count = 0;
  Ticks at;
};

struct JobRuntime {
  PlanMachine plan;
  std::map<NodeId, RequestId> leavers;
  std::map<NodeId, Migration> migrations;  // to be agreed
  // Workers of which it is agreed and that have not arrived: groups that may still count on them.
  std::map<NodeId, std::set<GroupId>> on_their_way;
  std::map<NodeId, PendingRegistration> registrations;
  std::vector<Waiting> waiting;
  std::map<std::string, std::map<NodeId, RequestId>> barriers;
  std::deque<Cut> cuts;  // the front one runs
  std::optional<LastCut> last_cut;
  uint64_t cut_number = 0;             // highest given to a cut
  std::vector<std::string> abandoned;  // directories of cuts that failed
  std::string cut_fault;               // why the last one failed; empty: it did not
  std::map<uint64_t, Ticks> taken_at;  // of checkpoints, by number
  Ticks restoring_since;
  uint64_t not_finite = 0;
  std::map<uint64_t, Fence> fences;
  std::set<NodeId> unsettled;  // gone, or of a job that ended: the lead's next report decides
  std::map<NodeId, PendingDraw> draws;
  std::set<NodeId> recalled;  // asked to return what they hold ahead
  bool recall_done = false;
  bool said_no_server = false;
  std::string told_waiting;    // why workers begin no step, as they were told last
  std::set<NodeId> moving_to;  // owners that have not all of their chunks yet
  std::set<ChunkKey> missing;  // what those have said that a withdrawn move did not bring
  std::map<std::pair<NodeId, NodeId>, Ticks> avoided;  // from, to: no chunks move until then
  // Where chunks lay, and on which servers, when there was nothing to move.
  std::pair<JobGeneration, std::vector<NodeId>> balanced;
  std::set<NodeId> released;  // servers that owned chunks once and know the job
  // Owners that get EndJob after their last report. A server reports again once it was answered:
  // true means that the next report was made after the end.
  std::map<NodeId, bool> ending;
  Ticks ended_at;
  Ticks started_at;
  std::map<NodeId, JobAtServer> at_server;
  std::map<NodeId, WorkerSeen> seen_worker;
  std::map<GroupId, WorkerSeen> seen_group;
  std::deque<std::pair<Ticks, uint64_t>> applied_history;
};

}  // namespace scheduler

class Core::Impl {
 public:
  explicit Impl(CoreOptions options) : options_(std::move(options)) {}

  absl::Status Recover(const std::vector<JournalEntry>& entries);
  void Step(Ticks now, SchedulerEvent event);
  Ready TakeReady() { return std::exchange(ready_, Ready()); }
  absl::Status CheckNode(NodeRef ref) const;
  JournalEntry Compacted() const;
  const scheduler::State& state() const { return state_; }

 private:
  using GroupPlans = std::vector<GroupPlan>;
  using JobRecord = scheduler::JobRecord;
  using JobRuntime = scheduler::JobRuntime;
  using NodeRecord = scheduler::NodeRecord;
  using NodeSession = scheduler::NodeSession;
  using AnyReply = std::variant<JoinReply, NodeReply, OperatorReply>;

  // ---- core.cc: entries, outputs, look-ups
  void Decide(scheduler::Entry entry);
  void Say(const std::string& job, std::string kind, std::string text);
  void Answer(RequestId request, AnyReply reply);
  void Refuse(RequestId request, absl::Status status);
  void Send(NodeId to, decltype(Directive::body) body);
  uint64_t NextChange() { return ++last_change_; }
  JobRecord* FindActiveJob(const std::string& name);
  absl::StatusOr<const NodeRecord*> FindLiveWorker(const std::string& job, const std::string& name);
  JobRecord& job(JobId id) { return state_.jobs.at(id); }
  NodeRecord& node(NodeId id) { return state_.nodes.at(id); }
  JobRuntime& runtime(JobId id) { return runtimes_[id]; }
  std::vector<const NodeRecord*> LiveWorkers(JobId id) const;
  std::vector<NodeId> LiveServers() const;
  std::set<NodeId> OwnersOf(const JobRecord& job) const;
  std::optional<NodeId> LeadOwnerOf(const JobRecord& job) const;
  const JobAtServer* LeadReport(JobId id) const;

  void Handle(JoinEvent& event);
  void Handle(NodeEvent& event);
  void Handle(WatchEvent& event);
  void Handle(WatchClosedEvent& event);
  void StreamEnded(NodeId id);
  void Handle(ProcessEndedEvent& event);
  void Handle(OperatorEvent& event);
  void Handle(TickEvent& event);
  void RestartLeases();
  void TickJob(JobId id);

  // ---- core_nodes.cc: joining, leaving, dying
  absl::Status CheckJoin(const JoinRequest& join) const;
  absl::Status CheckSameJob(const JobRecord& holding, const JoinRequest& join) const;
  absl::StatusOr<JobId> JobOfJoiner(const JoinRequest& join, uint64_t random);
  void ForgetOldJobs();
  void ForgetGoneServers();
  NodeId IdByName(const JoinRequest& join) const;
  bool IsSameServer(const NodeRecord& record, const JoinRequest& join) const;
  void AnswerJoin(RequestId request, const NodeRecord& record);
  JobRank RankOf(const JobRecord& job, const std::string& name) const;
  uint32_t FailureTimeoutMs(const NodeRecord& record) const;
  void DeclareDead(NodeId id, const std::string& cause);
  void WorkerDied(const NodeRecord& dead, const std::string& cause);
  void ServerGone(const NodeRecord& dead, const std::string& how);
  void On(const NodeRecord& from, RequestId request, LeaveRequest& body);
  void ForgetWaiting(JobId id, NodeId node);
  void EndJob(JobId id, JobState state, bool failed, const std::string& reason);
  void RefuseAllOf(JobId id, const absl::Status& status);

  // ---- core_groups.cc: membership
  void FormIfComplete(JobId id);
  Member MemberOf(const NodeRecord& record) const;
  scheduler::Candidate CandidateOf(const NodeRecord& record) const;
  GroupPlans WithKeysFor(const NodeRecord& to, GroupPlans groups) const;
  void ProposeChange(JobId id);
  paceline::Step NewestStep(const JobRecord& job) const;
  std::string WaitingReason(const JobRecord& job) const;
  void UpdateWaiting(JobId id);
  void AddLeavers(const JobRecord& job, scheduler::Change& change);
  void AddJoiners(const JobRecord& job, const std::vector<const NodeRecord*>& joiners,
                  scheduler::Change& change);
  void SendPrepare(const JobRecord& job, const scheduler::Change& change, NodeId to);
  void AbortChange(JobId id, const std::string& reason);
  void CommitChange(JobId id);
  void FenceWorker(const NodeRecord& dead, const std::string& reason);
  Plan PlanFor(const JobRecord& job, const NodeRecord& to) const;
  std::vector<NodeRef> FencedOf(const JobRecord& job) const;
  void SendPlan(const JobRecord& job, NodeId to);
  void SendPlanToAll(JobId id);
  void SendOpenWork(const JobRecord& job, const NodeRecord& to);

  // ---- core_migration.cc: workers that change their group
  void On(RequestId request, MoveWorkerRequest& body);
  absl::Status Migrate(JobId id, NodeId worker, scheduler::Migration migration);
  absl::Status CheckMigration(const JobRecord& job, const NodeRecord& worker,
                              const std::optional<GroupId>& to) const;
  void DropMigration(JobId id, NodeId worker, const absl::Status& status);
  bool AddMigrations(JobId id, scheduler::Change& change);
  uint64_t StepsBefore(const JobRecord& job, GroupId from, GroupId to) const;
  void CommitMigrations(JobId id, const scheduler::Change& change,
                        const std::map<GroupId, GroupPlan>& before);
  void ArriveIfReported(const NodeRecord& worker);
  void ExpectArrivals(JobId id);
  bool MayCountOn(const GroupPlan& group, NodeId worker) const;

  // ---- core_tensors.cc: tensors, optimizer, barriers, acks
  void On(const NodeRecord& from, RequestId request, Heartbeat& body);
  void On(const NodeRecord& from, RequestId request, RegisterTensorsRequest& body);
  void On(const NodeRecord& from, RequestId request, InitDoneRequest& body);
  void On(const NodeRecord& from, RequestId request, SetOptimizerRequest& body);
  void On(const NodeRecord& from, RequestId request, BarrierRequest& body);
  void On(const NodeRecord& from, RequestId request, AckRequest& body);
  void On(const NodeRecord& from, RequestId request, LinkDownRequest& body);
  void On(const NodeRecord& from, RequestId request, NotFiniteRequest& body);
  absl::Status CheckTensors(const JobRecord& job, const std::vector<TensorSpec>& tensors) const;
  void PlaceRegistrations(JobId id);
  void PlaceNew(JobId id, const std::vector<TensorSpec>& tensors);
  bool NameInitWriter(JobId id);  // whether it named one, and so sent the plan
  void AwaitOwners(JobId id, scheduler::Waiting waiting);
  void ReleaseWaiting(JobId id);
  void ReleaseBarriers(JobId id);

  // ---- core_checkpoint.cc
  void On(const NodeRecord& from, RequestId request, CheckpointRequest& body);
  void On(RequestId request, CheckpointJobRequest& body);
  absl::Status QueueCut(JobId id, scheduler::Cut cut);
  void CheckpointIfDue(JobId id);
  void TickCut(JobId id);
  bool HoldsSteps(JobId id);
  paceline::Step FastestStep(const JobRecord& job) const;
  bool MayCut(const JobRecord& of);
  void StartCut(JobId id);
  void AckCut(JobId id, NodeId from, const AckRequest& ack);
  void CopyCut(JobId id);
  bool MayStillPush(JobId id, GroupId group);
  void AbortCutOfEndedGroups(JobId id);
  void WriteManifest(JobId id);
  CheckpointManifest ManifestOf(const JobRecord& job, const scheduler::Cut& cut) const;
  CheckpointRecord RecordOf(const JobRecord& job, const scheduler::Cut& cut) const;
  void AbortCut(JobId id, const std::string& reason);
  void LetGo(JobId id, const scheduler::Cut& cut);
  void ClearCuts(JobId id);
  void Drop(JobId id, std::vector<std::string> directories);
  void FinishCut(JobId id, const absl::Status& status);
  void CutTaken(JobId id, const scheduler::Cut& cut);
  void CutFailed(JobId id, const scheduler::Cut& cut, const absl::Status& status);

  // ---- core_restore.cc: resuming and returning to checkpoints
  void On(RequestId request, ResumeJobRequest& body);
  void On(const NodeRecord& from, RequestId request, AdoptedRequest& body);
  absl::Status CheckResume(const JobSpec& spec) const;
  std::string WhyNoRollBack(const JobRecord& job) const;
  void RollBack(JobId id, NodeId dead, const std::string& reason);
  std::vector<TensorPlan> PlaceAnew(const JobRecord& job, size_t* moved) const;
  std::map<NodeId, scheduler::SettledSamples> SettleAt(JobId id, const CheckpointRecord& record,
                                                       uint64_t* lost) const;
  void FinishRestore(JobId id);
  std::string TensorsLeftOut(const JobRecord& job) const;
  scheduler::SettledSamples SettledOf(const JobRecord& job, NodeId worker) const;

  // ---- core_moves.cc: chunks that change their owner
  void On(RequestId request, DrainServerRequest& drain);
  std::vector<NodeId> ServersForChunks() const;
  bool MayMove(const JobRecord& job) const;
  void ProposeMoves(JobId id);
  std::vector<ChunkMove> NextMoves(const JobRecord& job) const;
  void AckMove(JobId id, NodeId from, const std::vector<ChunkKey>& missing);
  void FinishMoves(JobId id);
  void GiveBack(JobId id);
  void AwaitOwnersOnly(JobId id);
  void WithdrawMoves(JobId id, NodeId from, NodeId to, Ticks avoidance, const std::string& reason);
  void OnLinkOfMove(NodeId from, const LinkDownRequest& link);
  void OnPlanRefused(JobId id, NodeId by, const std::string& reason);
  bool OwnsChunks(NodeId server) const;
  void SayDrained();

  // ---- core_samples.cc: samples and reports
  void On(const NodeRecord& from, RequestId request, DrawSamplesRequest& body);
  void On(const NodeRecord& from, RequestId request, ReturnSamplesRequest& body);
  void On(const NodeRecord& from, RequestId request, WorkerReport& body);
  void On(const NodeRecord& from, RequestId request, ServerReport& body);
  void StoreWorkerReport(NodeId id, WorkerReport report);
  void DrawForStep(const NodeRecord& from, RequestId request, const DrawSamplesRequest& body);
  void DrawAhead(const NodeRecord& from, RequestId request, const DrawSamplesRequest& body);
  std::vector<SampleRange> Hand(const NodeRecord& to, const DrawSamplesRequest& body);
  void ServeDraws(JobId id);
  bool MayComeBack(JobId id, NodeId but, Ticks waited);
  void Unsettle(JobId id, NodeId worker);
  void Settle(JobId id, NodeId worker);
  void SettleAll(JobId id);
  scheduler::SettledSamples CountedByOwners(JobId id, NodeId worker) const;
  uint64_t UsedByOwners(JobId id, NodeId worker) const;

  // ---- core_views.cc: what operators see
  void On(RequestId request, StatusQuery& query);
  void On(RequestId request, EventsQuery& query);
  void On(RequestId request, StopJobRequest& stop);
  void On(RequestId request, ProcessEndedRequest& ended);
  void On(RequestId request, RemoveWorkerRequest& remove);
  NodeView ViewOf(const NodeRecord& record) const;
  JobView ViewOf(const JobRecord& job) const;
  void AddStaleness(const JobRecord& job, JobView& view) const;
  void AddWorkers(const JobRecord& job, JobView& view) const;
  uint32_t AgoMs(Ticks then) const;

  CoreOptions options_;
  scheduler::State state_;
  uint64_t last_index_ = 0;
  uint64_t last_change_ = 0;
  uint64_t last_decision_ = 0;
  bool leases_running_ = false;
  std::set<JobId> ended_before_;  // this scheduler began: their owners' counts are not known
  Ticks now_;
  Ticks started_at_;
  Ready ready_;
  std::deque<DecisionRecord> decisions_;
  std::set<NodeId> drained_;  // said so
  std::map<NodeId, NodeSession> sessions_;
  std::map<JobId, JobRuntime> runtimes_;
};

}  // namespace paceline
