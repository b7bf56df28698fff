// What a checkpoint must hold.
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
  if (!expected.empty()) {
    Fail("checkpoint", cut.directory, " does not hold ", Text(*expected.begin()));
  }
  ++checkpoints_;
}

bool Checker::CheckChunk(const CutDirective& cut, const RestoredChunk& restored) {
  const ChunkKey key = restored.key;
  const Version version = restored.state.version;
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

}  // namespace paceline::simulation
