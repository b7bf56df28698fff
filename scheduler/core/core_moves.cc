#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "plan/chunking.h"
#include "plan/rebalance.h"
#include "scheduler/core/core_impl.h"

namespace paceline {
namespace {

Bytes BytesOf(const scheduler::JobRecord& job, const ChunkKey& key) {
  const TensorPlan& tensor = job.tensors[key.tensor.value()];
  const std::vector<ChunkRange> cut = CutIntoChunks(tensor.spec, job.spec.chunk_bytes);
  return Bytes(cut[key.chunk.value()].length * SizeOf(tensor.spec.dtype));
}

}  // namespace

// Live servers that may own chunks: those that drain only if there is no other.
std::vector<NodeId> Core::Impl::ServersForChunks() const {
  std::vector<NodeId> servers = LiveServers();
  std::vector<NodeId> staying;
  for (NodeId id : servers) {
    if (!state_.nodes.at(id).draining) staying.push_back(id);
  }
  return staying.empty() ? servers : staying;
}

void Core::Impl::On(RequestId request, DrainServerRequest& drain) {
  const NodeRecord* server = nullptr;
  bool another = false;
  for (NodeId id : LiveServers()) {
    const NodeRecord& record = node(id);
    if (record.name == drain.server) {
      server = &record;
    } else {
      another = another || !record.draining;
    }
  }
  if (server == nullptr) {
    return Refuse(request,
                  absl::NotFoundError(absl::StrCat("server ", drain.server, " is not live")));
  }
  if (!drain.undo && !another) {
    return Refuse(request, absl::FailedPreconditionError(absl::StrCat(
                               "server ", drain.server,
                               " cannot drain: no other server could take its chunks; start one")));
  }
  Answer(request, OperatorReply(Empty()));
  if (server->draining == !drain.undo) return;
  Decide(scheduler::ServerDraining{server->ref(), !drain.undo});
  drained_.erase(server->id);
  Say("", "drain",
      absl::StrCat("server ", drain.server,
                   drain.undo ? " may own chunks again" : " hands over its chunks"));
  std::vector<JobId> jobs;
  for (const auto& [id, job] : state_.jobs) jobs.push_back(id);
  for (JobId id : jobs) ProposeMoves(id);
  SayDrained();
}

// One thing at a time: while chunks move no change of membership is agreed and no cut is taken, so
// that a new owner learns of one generation per group and misses no part of a step.
bool Core::Impl::MayMove(const JobRecord& job) const {
  if (job.state != JobState::kRunning || !job.moves.empty()) return false;
  if (!job.restore_from.empty()) return false;
  for (const TensorPlan& tensor : job.tensors) {
    if (!tensor.sealed) return false;
  }
  auto found = runtimes_.find(job.id);
  if (found == runtimes_.end()) return false;
  const JobRuntime& run = found->second;
  if (run.plan.change() || !run.leavers.empty() || !run.cuts.empty() || !run.fences.empty()) {
    return false;
  }
  for (const auto& [id, group] : job.groups) {
    for (const Member& m : group.members) {
      auto session = sessions_.find(m.node);
      if (session == sessions_.end()) return false;
      // An owner that is new to the job takes a group's newest generation for all steps.
      if (session->second.worker.step < group.activation_step) return false;
    }
  }
  return true;
}

std::vector<ChunkMove> Core::Impl::NextMoves(const JobRecord& job) const {
  std::vector<OwnedChunk> chunks;
  for (const TensorPlan& tensor : job.tensors) {
    const std::vector<ChunkRange> cut = CutIntoChunks(tensor.spec, job.spec.chunk_bytes);
    for (uint32_t i = 0; i < tensor.owners.size(); ++i) {
      chunks.push_back({{tensor.id, ChunkIndex(i)},
                        Bytes(cut[i].length * SizeOf(tensor.spec.dtype)),
                        tensor.owners[i]});
    }
  }
  const std::vector<NodeId> servers = ServersForChunks();
  std::vector<ChunkMove> moves = Rebalance(chunks, {servers.begin(), servers.end()});
  uint64_t bytes = 0;
  size_t taken = 0;
  while (taken < moves.size() && (taken == 0 || bytes < options_.limits.move_bytes)) {
    bytes += BytesOf(job, moves[taken++].chunk).value();
  }
  moves.resize(taken);
  return moves;
}

void Core::Impl::ProposeMoves(JobId id) {
  if (!MayMove(job(id))) return;
  const std::vector<ChunkMove> moves = NextMoves(job(id));
  if (moves.empty()) return;
  JobRuntime& run = runtime(id);
  std::map<std::pair<NodeId, NodeId>, std::pair<uint64_t, uint64_t>> sums;  // chunks, bytes
  for (const ChunkMove& move : moves) {
    auto& [count, bytes] = sums[{move.from, move.to}];
    ++count;
    bytes += BytesOf(job(id), move.chunk).value();
    run.moving_to.insert(move.to);
    run.released.insert(move.from);
  }
  const uint64_t change = NextChange();
  for (const auto& [ends, sum] : sums) {
    Say(job(id).spec.name, "move",
        absl::StrCat("move ", change, ": ", sum.first, " chunks (", sum.second, " bytes) from ",
                     node(ends.first).name, " to ", node(ends.second).name,
                     node(ends.first).draining ? ", which drains" : ", which owns less"));
  }
  Decide(scheduler::ChunksMoved{id, job(id).generation + JobGeneration(1), change, moves});
  SendPlanToAll(id);
}

void Core::Impl::AckMove(JobId id, NodeId from) {
  JobRuntime& run = runtime(id);
  // After a restart of the scheduler who is awaited is known from the moves alone.
  if (run.moving_to.empty()) {
    for (const ChunkMove& move : job(id).moves) run.moving_to.insert(move.to);
  }
  run.moving_to.erase(from);
  if (!run.moving_to.empty()) return;
  // The new lead's first report is still to come: until then what the old one counted holds.
  for (const ChunkMove& move : job(id).moves) run.released.insert(move.from);
  Decide(scheduler::MovesDone{id, job(id).generation + JobGeneration(1)});
  Say(job(id).spec.name, "moved", "all chunks have arrived");
  ProposeChange(id);
  if (!run.cuts.empty()) StartCut(id);
  const JobGeneration told = job(id).generation;
  ProposeMoves(id);
  if (job(id).generation == told) SendPlanToAll(id);
  for (NodeId server : run.released) {
    if (OwnersOf(job(id)).count(server) == 0) SendPlan(job(id), server);
  }
  SayDrained();
}

bool Core::Impl::OwnsChunks(NodeId server) const {
  return std::any_of(state_.jobs.begin(), state_.jobs.end(), [&](const auto& entry) {
    return entry.second.active() && OwnersOf(entry.second).count(server) > 0;
  });
}

void Core::Impl::SayDrained() {
  for (NodeId id : LiveServers()) {
    if (!node(id).draining || OwnsChunks(id) || !drained_.insert(id).second) continue;
    Say("", "drained", absl::StrCat("server ", node(id).name, " owns nothing and may be ended"));
  }
}

}  // namespace paceline
