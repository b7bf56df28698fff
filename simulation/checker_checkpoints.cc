// What a checkpoint must hold, and what a return to it leaves.
#include <algorithm>
#include <set>

#include "plan/chunking.h"
#include "simulation/checker.h"
#include "simulation/checker_values.h"

namespace paceline::simulation {

void Checker::Remember(Chunk& chunk) const {
  if (scenario_->tensors.front().elements() > kMostRemembered) return;
  chunk.past[chunk.version] = {chunk.weights, chunk.momentum};
}

void Checker::OnCheckpoint(const CutDirective& cut, const std::vector<RestoredChunk>& chunks) {
  if (cut.job != kJob) return;
  std::set<ChunkKey> expected;
  for (size_t i = 0; i < cut.manifest->tensors.size(); ++i) {
    const auto cuts = CutIntoChunks(cut.manifest->tensors[i], scenario_->job.chunk_bytes);
    for (uint32_t c = 0; c < cuts.size(); ++c) {
      expected.insert({TensorId(static_cast<uint32_t>(i)), ChunkIndex(c)});
    }
  }
  for (const RestoredChunk& chunk : chunks) {
    if (expected.erase(chunk.key) == 0) {
      return Fail("checkpoint", cut.directory, " holds ", Text(chunk.key), " twice");
    }
    if (!CheckChunk(cut, chunk)) return;
  }
  if (scenario_->servers_die) {
    for (const RestoredChunk& chunk : chunks) {
      saved_[cut.directory].insert_or_assign(chunk.key, chunk);
    }
  }
  if (!expected.empty()) {
    Fail("checkpoint", cut.directory, " does not hold ", Text(*expected.begin()));
  }
  ++checkpoints_;
}

bool Checker::CheckChunk(const CutDirective& cut, const RestoredChunk& restored) {
  const ChunkKey key = restored.key;
  const Version version = restored.state.version;
  FollowRestore(key, version.lineage);
  if (world_->violation()) return false;
  const auto chunk = chunks_.find(key);
  // Before its first round, or too large to be remembered.
  if (chunk == chunks_.end() || chunk->second.past.empty()) return true;
  const auto past = chunk->second.past.find(version);
  if (past == chunk->second.past.end()) {
    Fail("checkpoint", cut.directory, " has ", Text(key), " at version ", Text(version),
         ", which it never had");
    return false;
  }
  for (const auto& [name, values] : restored.state.arrays) {
    const std::vector<float>& was =
        name == "weights" ? past->second.weights : past->second.momentum;
    if (SameBits(values, was)) continue;
    Fail("checkpoint", cut.directory, ": the ", name, " of ", Text(key),
         " are not those of version ", Text(version));
    return false;
  }
  for (const auto& [round, made] : applied_rounds_) {
    const auto& [of, group, step, ordinal, kind] = round;
    if (of != key || made.lineage != version.lineage) continue;
    const auto through = cut.steps.find(group);
    const bool in = through != cut.steps.end() && step <= through->second;
    if (in == (made <= version)) continue;
    // What a member sent to this chunk alone after a quorum had passed the step is in no copy.
    if (in && scenario_->job.quorum > 0) continue;
    Fail("checkpoint", cut.directory, ": ", Text(key), " is at version ", Text(version),
         ", but step ", step.value(), " of group ", group.value(), " made version ", Text(made));
    return false;
  }
  chunk->second.past.erase(chunk->second.past.begin(), past);
  return true;
}

// ---- Returns -----------------------------------------------------------------------------------

void Checker::RememberApplied(Version version) {
  if (!scenario_->servers_die) return;
  std::map<NodeId, uint64_t>& applied = applied_at_[version];
  for (const Counted* counts :
       {&std::as_const(owner_counts_[version.lineage]), &std::as_const(settled_)}) {
    for (const auto& [node, of_worker] : *counts) applied[node] += of_worker.first;
  }
}

void Checker::OnReturns(const scheduler::Entry& entry) {
  if (const auto* recorded = std::get_if<scheduler::CheckpointRecorded>(&entry)) {
    if (recorded->job == kJob) ++recorded_;
  } else if (const auto* back = std::get_if<scheduler::RolledBack>(&entry)) {
    if (back->job == kJob) OnRolledBack(*back);
  } else if (const auto* lost = std::get_if<scheduler::SamplesLost>(&entry)) {
    if (lost->job == kJob) settled_[lost->worker].second += scheduler::CountOf(lost->ranges);
  }
}

// Only what is in the checkpoint counts as applied; samples used after it are lost.
void Checker::OnRolledBack(const scheduler::RolledBack& back) {
  const auto saved = saved_.find(back.path);
  if (saved == saved_.end() || !saved->second.contains(kLead)) {
    return Fail("restore", "the job returns to ", back.path, ", which is not there");
  }
  rollbacks_[back.lineage] = back.path;
  rolled_back_at_ = world_->now();
  const Version to = saved->second.at(kLead).state.version;
  settled_.clear();
  for (const auto& [node, settled] : back.settled) {
    settled_[node] = {settled.applied, settled.discarded};
    const uint64_t in_it = applied_at_[to][node];
    if (settled.applied == in_it) continue;
    Fail("ledger", "after the return to ", back.path, " node ", node.value(), " has ",
         settled.applied, " samples applied; ", in_it, " are in it");
  }
  for (auto& [key, sample] : samples_) {
    if (!sample.over || sample.at < to) continue;
    // At just that version it was applied before the cut, or discarded before or after it.
    if (sample.at == to && !sample.discarded) continue;
    sample.over = false;
    sample.lost = true;
  }
}

// The chunk is of this lineage by now.
void Checker::FollowRestore(ChunkKey key, uint32_t lineage) {
  Chunk& chunk = chunks_[key];
  if (lineage <= chunk.version.lineage) return;
  const auto back = rollbacks_.find(lineage);
  if (back == rollbacks_.end()) {
    return Fail("restore", Text(key), " is of lineage ", lineage, ", which nobody decided");
  }
  const ChunkState& state = saved_.at(back->second).at(key).state;
  chunk.known = true;
  for (const auto& [name, values] : state.arrays) {
    if (name == "weights") chunk.weights = values;
  }
  chunk.momentum.assign(chunk.weights.size(), 0.0f);
  for (const auto& [name, values] : state.arrays) {
    if (name != "weights") chunk.momentum = values;
  }
  chunk.version = {lineage, state.version.count};
  Remember(chunk);
  if (key == kLead) applied_at_[chunk.version] = applied_at_[state.version];
  std::erase_if(applied_rounds_, [&](const auto& round) {
    return std::get<ChunkKey>(round.first) == key && round.second.lineage < lineage;
  });
}

}  // namespace paceline::simulation
