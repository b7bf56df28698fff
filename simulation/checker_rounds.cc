// What owners say of rounds, and what must follow: fates, sums, versions, weights.
#include <algorithm>
#include <cstring>

#include "simulation/checker.h"
#include "simulation/checker_values.h"

namespace paceline::simulation {
namespace {

// Of those that brought samples.
std::vector<Gradient> GradientsOf(const std::vector<const Reply*>& replies) {
  std::vector<Gradient> gradients;
  for (const Reply* reply : replies) {
    const Operation& op = reply->to;
    if (op.samples.value() == 0) continue;
    gradients.emplace_back(op.incarnation, op.origin_step, op.ordinal, op.chunk);
  }
  return gradients;
}

}  // namespace

void Checker::OnReplies(const std::string& owner, const std::vector<Reply>& replies) {
  std::vector<std::pair<RoundKey, std::vector<const Reply*>>> decided;  // in this order
  std::vector<const Reply*> again;
  for (const Reply& reply : replies) {
    const Operation& op = reply.to;
    if (!IsRound(op.kind)) continue;
    if (reply.status != OperationStatus::kOk && reply.status != OperationStatus::kNotFinite) {
      if (reply.status == OperationStatus::kDiscarded) OnDiscarded(reply);
      continue;
    }
    const OperationKey key = KeyOf(op);
    // What brought nothing may be asked again of a chunk that has returned to a checkpoint.
    const auto before = answered_.find(key);
    if (before != answered_.end() && before->second.version.lineage >= reply.version.lineage) {
      again.push_back(&reply);
      continue;
    }
    Answered& answer = answered_[key];
    answer.status = reply.status;
    answer.version = reply.version;
    answer.samples = reply.samples;
    answer.checksums.push_back(Checksum(reply.values.values()));
    answer.moves = chunks_[op.chunk].moves;
    const RoundKey round{op.chunk, op.group, op.step, op.ordinal, op.kind};
    const auto it = std::find_if(decided.begin(), decided.end(),
                                 [&round](const auto& entry) { return entry.first == round; });
    if (it == decided.end()) {
      decided.push_back({round, {&reply}});
    } else {
      it->second.push_back(&reply);
    }
  }
  for (const auto& [key, of_round] : decided) OnRound(owner, key, of_round);
  for (const Reply* reply : again) CheckAgain(owner, *reply, answered_.at(KeyOf(reply->to)));
}

// Asked for again, it is discarded no second time; what was applied is discarded when it is sent
// anew.
void Checker::OnDiscarded(const Reply& reply) {
  const Operation& op = reply.to;
  if (op.kind != OperationKind::kPushPull) return;
  const OperationKey key = KeyOf(op);
  if (answered_.contains(key) || !discarded_.insert(key).second) return;
  CheckFate(reply);
  if (op.chunk == kLead) Use(reply);
}

void Checker::OnVerdict(uint32_t lineage, PushKey push, const Verdict& verdict) {
  const auto [it, first] = verdicts_.emplace(std::pair(lineage, push), verdict.members);
  if (!first && it->second != verdict.members) {
    Fail("one verdict", "the push of group ", push.group.value(), " in step ", push.step.value(),
         " has ", it->second.size(), " members at one owner and others, or ",
         verdict.members.size(), ", at another");
  }
}

void Checker::CheckFate(const Reply& reply) {
  const Operation& op = reply.to;
  if (op.samples.value() == 0 || reply.status == OperationStatus::kNotFinite) return;
  if (op.lineage < lineage()) return;  // part of it may be lost, part discarded
  if (dead_.contains({op.sender, op.incarnation})) return;  // nor is it pushed again
  std::optional<Step> fate;
  if (reply.status == OperationStatus::kOk) fate = op.step;
  const auto [it, first] = fates_.emplace(PushOfOperation(op), fate);
  if (first || it->second == fate) return;
  const auto text = [](const std::optional<Step>& step) {
    return step ? absl::StrCat("applied in step ", step->value()) : std::string("discarded");
  };
  Fail("one fate", "the ", Text(op), " is ", text(fate), "; of the same push another chunk's was ",
       text(it->second));
}

// Whose contributions a round counts, refused ones too.
size_t Checker::MembersOf(const Generation& generation, uint32_t lineage, PushKey push) const {
  const auto verdict = verdicts_.find({lineage, push});
  if (verdict == verdicts_.end()) return generation.members.size();
  return static_cast<size_t>(
      std::count_if(generation.members.begin(), generation.members.end(), [&](const auto& member) {
        const NodeRef ref{member.first, member.second};
        return std::binary_search(verdict->second.begin(), verdict->second.end(), ref);
      }));
}

// A new owner has no old weights for a member that is a group by itself: it answers with those of
// now (parameter/handover.h).
bool Checker::IsOfNow(const Reply& reply, const Answered& before) const {
  const Chunk& chunk = chunks_.at(reply.to.chunk);
  const bool same = reply.to.kind == OperationKind::kPushPull && reply.status == before.status &&
                    reply.samples == before.samples && reply.version >= before.version;
  const auto known = chunk.checksums.find(reply.version);
  return chunk.moves > before.moves && same && known != chunk.checksums.end() &&
         known->second == Checksum(reply.values.values());
}

void Checker::CheckAgain(const std::string& owner, const Reply& reply, Answered& before) {
  const Operation& op = reply.to;
  if (IsOfNow(reply, before)) {
    before.version = reply.version;
    before.checksums.push_back(Checksum(reply.values.values()));
    return;
  }
  if (before.version != reply.version && op.kind == OperationKind::kPushPull &&
      op.samples.value() > 0) {
    return Fail("exactly once", owner, ": the ", Text(op), " made version ", Text(before.version),
                " and, sent again, ", Text(reply.version));
  }
  if (before.status != reply.status || before.samples != reply.samples ||
      before.version != reply.version ||
      before.checksums.back() != Checksum(reply.values.values())) {
    Fail("same bits", owner, ": the ", Text(op), " is answered differently: version ",
         Text(before.version), " with ", before.samples.value(), " samples, now ",
         Text(reply.version), " with ", reply.samples.value());
  }
}

void Checker::OnRound(const std::string& owner, const RoundKey& key,
                      const std::vector<const Reply*>& replies) {
  const auto& [chunk_key, group, step, ordinal, kind] = key;
  ++rounds_;
  progress_[group] = world_->now();
  const std::string round = absl::StrCat(owner, ": group ", group.value(), " step ", step.value(),
                                         " on ", Text(chunk_key));
  const Reply& first = *replies.front();
  const std::vector<const Reply*> in_sum = InSum(round, replies);
  if (world_->violation()) return;
  if (kind == OperationKind::kReduce) return CheckReduce(in_sum.empty() ? replies : in_sum);
  Chunk& chunk = chunks_[chunk_key];
  FollowRestore(chunk_key, first.version.lineage);
  if (world_->violation() || (!chunk.known && !Begin(chunk, first))) return;
  if (!in_sum.empty()) {
    const auto [it, once] = applied_rounds_.emplace(key, first.version);
    if (!once) {
      return Fail("exactly once", round, " made version ", Text(it->second), " and then ",
                  Text(first.version));
    }
    ++updates_;
    const auto generation = generations_.find({group, first.to.group_generation});
    const auto refused = std::count_if(replies.begin(), replies.end(), [](const Reply* reply) {
      return reply->status == OperationStatus::kNotFinite;
    });
    const Generation* const known =
        generation == generations_.end() ? nullptr : &generation->second;
    const size_t members = known == nullptr
                               ? 0
                               : MembersOf(*known, first.version.lineage, {group, step}) -
                                     static_cast<size_t>(refused);
    Apply(chunk, in_sum, known, members, first.samples);
    if (chunk_key == kLead) CountLead(group, in_sum, first.version);
  }
  for (const Reply* reply : replies) {
    CheckFate(*reply);
    if (chunk_key == kLead && reply->to.samples.value() > 0) Use(*reply);
  }
  if (chunk_key == kLead && !in_sum.empty()) RememberApplied(chunk.version);
  CheckWeights(round, first, chunk);
}

// The replies to what is in the sum, when all agree about it.
std::vector<const Reply*> Checker::InSum(const std::string& round,
                                         const std::vector<const Reply*>& replies) {
  std::vector<const Reply*> in_sum;
  Samples samples;
  const Reply& first = *replies.front();
  for (const Reply* reply : replies) {
    if (reply->to.group_generation != first.to.group_generation) {
      Fail("generation", round, " sums operations of generations ",
           first.to.group_generation.value(), " and ", reply->to.group_generation.value());
    }
    if (reply->version != first.version || reply->samples != first.samples ||
        !SameBits(reply->values.values(), first.values.values())) {
      Fail("same bits", round, ": its members get different replies");
    }
    if (reply->status != OperationStatus::kOk || reply->to.samples.value() == 0) continue;
    const bool gone = reply->to.base.lineage != reply->version.lineage;
    if (gone && reply->to.kind == OperationKind::kPushPull) {
      Fail("restore", round, " applies a gradient of weights that are gone: the ", Text(reply->to));
    }
    in_sum.push_back(reply);
    samples += reply->to.samples;
  }
  if (samples != first.samples) {
    Fail("sum", round, " says ", first.samples.value(), " samples; its operations had ",
         samples.value());
  }
  return in_sum;
}

void Checker::CheckWeights(const std::string& round, const Reply& reply, Chunk& chunk) {
  if (reply.version != chunk.version) {
    return Fail("version", round, " is at ", Text(reply.version), ", expected ",
                Text(chunk.version));
  }
  const std::span<const float> got = reply.values.values();
  if (SameBits(got, chunk.weights)) {
    chunk.checksums[chunk.version] = Checksum(got);
    return;
  }
  if (got.size() != chunk.weights.size()) {
    return Fail("weights", round, " has ", got.size(), " elements, expected ",
                chunk.weights.size());
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &chunk.weights[i], sizeof(float)) == 0) continue;
    return Fail("weights", round, " makes version ", Text(reply.version), " with element ", i,
                " = ", got[i], ", expected ", chunk.weights[i]);
  }
}

// Initial values of one writer, the same for all chunks.
bool Checker::Begin(Chunk& chunk, const Reply& reply) {
  const ChunkKey key = reply.to.chunk;
  const std::span<const float> values = reply.values.values();
  if (!writer_ && !values.empty()) {
    writer_ = NodeId(static_cast<uint32_t>(values[0] - InitialAt(NodeId(0), key, 0)));
  }
  chunk.known = true;
  chunk.weights.resize(values.size());
  chunk.momentum.assign(values.size(), 0.0f);
  if (reply.samples.value() > 0) --(chunk.version = reply.version).count;
  for (size_t i = 0; i < values.size(); ++i) chunk.weights[i] = InitialAt(*writer_, key, i);
  Remember(chunk);
  if (reply.samples.value() == 0 && !SameBits(values, chunk.weights)) {
    Fail("weights", Text(key), " does not begin with the initial values of node ",
         writer_->value());
    return false;
  }
  return true;
}

void Checker::Apply(Chunk& chunk, const std::vector<const Reply*>& in_sum,
                    const Generation* generation, size_t members, Samples samples) {
  float scale = 1.0f;
  if (scenario_->job.normalization == Normalization::kSum) {
    if (generation == nullptr) {
      return Fail("generation", "a round was decided under one that nobody decided: ",
                  in_sum.front()->to.group_generation.value());
    }
    if (generation->planned != members) {
      scale = static_cast<float>(static_cast<double>(generation->planned) /
                                 static_cast<double>(members));
    }
  }
  const bool mean = scenario_->job.normalization == Normalization::kMean;
  const auto rate = static_cast<float>(scenario_->job.optimizer.Get("learning_rate", 0));
  const auto momentum = static_cast<float>(scenario_->job.optimizer.Get("momentum", 0));
  const std::vector<Gradient> gradients = GradientsOf(in_sum);
  for (size_t i = 0; i < chunk.weights.size(); ++i) {
    int32_t sum = 0;
    for (const Gradient& gradient : gradients) sum += gradient.At(i);
    float g = static_cast<float>(sum);
    if (mean) {
      g = g / static_cast<float>(samples.value());
    } else if (scale != 1.0f) {
      g = g * scale;
    }
    const float decayed = momentum * chunk.momentum[i];
    chunk.momentum[i] = decayed + g;
    const float move = rate * chunk.momentum[i];
    chunk.weights[i] = chunk.weights[i] - move;
  }
  ++chunk.version.count;
  Remember(chunk);
}

void Checker::CheckReduce(const std::vector<const Reply*>& replies) {
  const std::span<const float> got = replies.front()->values.values();
  const std::vector<Gradient> gradients = GradientsOf(replies);
  for (size_t i = 0; i < got.size(); ++i) {
    int32_t sum = 0;
    for (const Gradient& gradient : gradients) sum += gradient.At(i);
    if (got[i] != static_cast<float>(sum)) {
      return Fail("sum", "Reduce of ", Text(replies.front()->to.chunk), " element ", i, " is ",
                  got[i], ", expected ", sum);
    }
  }
}

void Checker::CountLead(GroupId group, const std::vector<const Reply*>& in_sum, Version version) {
  Version base = in_sum.front()->to.base;
  for (const Reply* reply : in_sum) base = std::min(base, reply->to.base);
  Count& count = lead_[{version.lineage, group}];
  if (count.updates++ == 0) {
    count.first_base = base.count;
  } else {
    count.gaps += static_cast<int64_t>(base.count) - static_cast<int64_t>(count.last);
  }
  count.tau += version.count - 1 - base.count;
  count.last = version.count;
}

}  // namespace paceline::simulation
