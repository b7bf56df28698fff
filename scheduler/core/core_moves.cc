#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
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
    return Refuse(request, absl::NotFoundError(absl::StrCat(
                               "server ", drain.server,
                               " is not live; pacelinectl nodes lists those that are")));
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
  const bool changes = run.plan.change() || !run.leavers.empty() || !run.migrations.empty() ||
                       !run.on_their_way.empty();
  if (changes || !run.cuts.empty() || !run.fences.empty()) return false;
  for (const auto& [id, group] : job.groups) {
    for (const Member& m : group.members) {
      auto session = sessions_.find(m.node);
      if (session == sessions_.end()) return false;
      // An owner that is new to the job takes a group's newest generation for all steps.
      const WorkerReport& at = session->second.worker;
      if (at.group != group.id || at.step < group.activation_step) return false;
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
  const auto run = runtimes_.find(job.id);
  std::erase_if(moves, [&](const ChunkMove& move) {
    return run->second.avoided.contains({move.from, move.to});
  });
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
  JobRuntime& run = runtime(id);
  std::erase_if(run.avoided, [this](const auto& pair) { return pair.second <= now_; });
  std::pair<JobGeneration, std::vector<NodeId>> placed{job(id).generation, ServersForChunks()};
  if (run.balanced == placed) return;
  const std::vector<ChunkMove> moves = NextMoves(job(id));
  if (moves.empty()) {
    if (run.avoided.empty()) run.balanced = std::move(placed);
    return;
  }
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
                     node(ends.first).name, node(ends.first).draining ? ", which drains," : "",
                     " to ", node(ends.second).name,
                     node(ends.first).draining ? "" : ", which owns less"));
  }
  Decide(scheduler::ChunksMoved{id, job(id).generation + JobGeneration(1), change, moves});
  SendPlanToAll(id);
}

void Core::Impl::AckMove(JobId id, NodeId from, const std::vector<ChunkKey>& missing) {
  JobRuntime& run = runtime(id);
  const JobRecord& moving = job(id);
  // After a restart of the scheduler who is awaited is known from the moves alone.
  if (run.moving_to.empty()) {
    for (const ChunkMove& move : moving.moves) run.moving_to.insert(move.to);
  }
  for (const ChunkMove& move : moving.moves) {
    const bool said = std::find(missing.begin(), missing.end(), move.chunk) != missing.end();
    if (moving.withdrawn && move.to == from && said) run.missing.insert(move.chunk);
  }
  run.moving_to.erase(from);
  if (!run.moving_to.empty()) return;
  if (run.missing.empty()) return FinishMoves(id);
  GiveBack(id);
}

void Core::Impl::FinishMoves(JobId id) {
  JobRuntime& run = runtime(id);
  // The new lead's first report is still to come: until then what the old one counted holds.
  for (const ChunkMove& move : job(id).moves) run.released.insert(move.from);
  Decide(scheduler::MovesDone{id, job(id).generation + JobGeneration(1)});
  AwaitOwnersOnly(id);
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

// The owners before still have what the new ones said they miss, and take it again.
void Core::Impl::GiveBack(JobId id) {
  PACELINE_CHECK(job(id).withdrawn);
  JobRuntime& run = runtime(id);
  std::vector<ChunkMove> back;
  for (const ChunkMove& move : job(id).moves) {
    run.released.insert(move.to);
    run.released.insert(move.from);
    if (run.missing.count(move.chunk) == 0) continue;
    // A scheduler that was restarted has forgotten why.
    run.avoided.try_emplace({move.from, move.to}, now_ + options_.limits.move_avoidance);
    back.push_back({move.chunk, move.from, move.from});
    run.moving_to.insert(move.from);
  }
  run.missing.clear();
  const uint64_t change = NextChange();
  Say(job(id).spec.name, "move",
      absl::StrCat("move ", change, ": ", back.size(), " chunks go back to their owners"));
  Decide(scheduler::ChunksMoved{id, job(id).generation + JobGeneration(1), change, back});
  AwaitOwnersOnly(id);
  SendPlanToAll(id);
  for (NodeId server : run.released) {
    if (OwnersOf(job(id)).count(server) == 0) SendPlan(job(id), server);
  }
}

// Who owns nothing any more has nothing to do without the dead, and may never answer.
void Core::Impl::AwaitOwnersOnly(JobId id) {
  const std::set<NodeId> owners = OwnersOf(job(id));
  for (auto& [change, fence] : runtime(id).fences) {
    std::erase_if(fence.awaited, [&owners](NodeId node) { return !owners.contains(node); });
  }
  std::erase_if(runtime(id).fences, [](const auto& fence) { return fence.second.awaited.empty(); });
}

void Core::Impl::WithdrawMoves(JobId id, NodeId from, NodeId to, Ticks avoidance,
                               const std::string& reason) {
  JobRuntime& run = runtime(id);
  run.avoided[{from, to}] = now_ + avoidance;
  if (job(id).withdrawn) return;
  Say(job(id).spec.name, "move",
      absl::StrCat("move ", job(id).move, " is withdrawn: chunks of ", node(from).name,
                   " cannot go to ", node(to).name, ": ", reason));
  // Who has all of its own is asked again: what it says now is what the decision rests on.
  run.moving_to.clear();
  run.missing.clear();
  for (const ChunkMove& move : job(id).moves) run.moving_to.insert(move.to);
  Decide(scheduler::MovesWithdrawn{id, job(id).generation + JobGeneration(1)});
  SendPlanToAll(id);
}

void Core::Impl::OnLinkOfMove(NodeId from, const LinkDownRequest& link) {
  if (Milliseconds(link.since_ms) < options_.limits.move_outage) return;
  for (const auto& [id, record] : state_.jobs) {
    const bool moves =
        record.state == JobState::kRunning &&
        std::any_of(record.moves.begin(), record.moves.end(), [&](const ChunkMove& move) {
          return move.from == from && move.to == link.peer && from != link.peer;
        });
    if (!moves) continue;
    WithdrawMoves(
        id, from, link.peer, options_.limits.move_avoidance,
        absl::StrCat("no link since ", link.since_ms, " ms: ", link.cause.substr(0, 512)));
  }
}

// It has not enough memory for what it was to get.
void Core::Impl::OnPlanRefused(JobId id, NodeId by, const std::string& reason) {
  const std::vector<ChunkMove> moves = job(id).moves;
  for (const ChunkMove& move : moves) {
    if (move.to != by || move.from == by) continue;
    WithdrawMoves(id, move.from, by, options_.limits.move_avoidance_of_full, reason);
  }
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
