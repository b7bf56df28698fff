#include "simulation/checker.h"

#include <algorithm>
#include <cstring>

#include "staleness/ledger.h"

namespace paceline::simulation {
namespace {

constexpr ChunkKey kLead{};
constexpr JobId kJob(1);  // one that begins after it ended is of no concern

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t state = a * 0x9E3779B97F4A7C15u + b;
  return SplitMix64(state);
}

uint64_t HashOf(ChunkKey chunk) { return Mix(chunk.tensor.value() + 1, chunk.chunk.value() + 1); }

uint64_t Checksum(std::span<const float> values) {
  uint64_t sum = values.size();
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    sum = (sum ^ bits) * 0x100000001B3u;
  }
  return sum;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string Text(ChunkKey chunk) {
  return absl::StrCat("chunk ", chunk.tensor.value(), "/", chunk.chunk.value());
}
std::string Text(Version v) { return absl::StrCat(v.lineage, ".", v.count); }
std::string Text(NodeRef ref) {
  return absl::StrCat("node ", ref.node.value(), ".", ref.incarnation.value());
}
std::string Text(const Operation& op) {
  return absl::StrCat("operation of node ", op.sender.value(), ".", op.incarnation.value(),
                      " in step ", op.origin_step.value(), " on ", Text(op.chunk));
}

bool IsRound(OperationKind kind) {
  return kind == OperationKind::kPushPull || kind == OperationKind::kReduce;
}

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

Gradient::Gradient(Incarnation incarnation, Step origin_step, Ordinal ordinal, ChunkKey chunk) {
  uint64_t h =
      Mix(Mix(incarnation.value(), origin_step.value() * 4 + ordinal.value()), HashOf(chunk));
  for (int32_t& value : pattern_) {
    value = static_cast<int32_t>(h % 31) - 15;
    h = h / 3 + 1;
  }
}

std::vector<float> Gradient::Values(uint64_t elements) const {
  std::vector<float> values(elements);
  for (uint64_t i = 0; i < elements; ++i) values[i] = static_cast<float>(At(i));
  return values;
}

float InitialAt(NodeId writer, ChunkKey chunk, uint64_t i) {
  return static_cast<float>(writer.value()) +
         static_cast<float>((HashOf(chunk) + i) % 17) * 0.03125f;
}

// ---- The scheduler ----------------------------------------------------------------------------

void Checker::OnJoined(NodeRef self, const std::string& who) {
  const auto [it, first] = joined_.emplace(self, who);
  if (!first && it->second != who) {
    Fail("incarnation", Text(self), " was given to ", it->second, " and to ", who);
  }
  if (first) ++incarnations_[self.node];
}

void Checker::OnDurable(const JournalEntry& entry) {
  const auto decoded = scheduler::DecodeEntry(entry.bytes);
  if (!decoded.ok()) return Fail("journal", decoded.status().message());
  OnLastSamples(*decoded);
  const auto* changed = std::get_if<scheduler::GroupsChanged>(&*decoded);
  if (changed == nullptr || changed->job != kJob) return;
  for (const GroupPlan& group : changed->groups) {
    const auto before = generations_.find({group.id, group.generation - GroupGeneration(1)});
    Generation next;
    for (const Member& m : group.members) next.members.emplace_back(m.node, m.incarnation);
    next.activation = group.activation_step;
    next.planned = static_cast<uint32_t>(group.members.size());
    // A fence leaves the activation step and what `normalization: sum` scales to as they were.
    if (before != generations_.end() && before->second.activation == next.activation) {
      next.planned = before->second.planned;
    }
    generations_[{group.id, group.generation}] = std::move(next);
  }
}

// A worker that dies while all others leave has samples that nobody is left to use.
void Checker::OnLastSamples(const scheduler::Entry& entry) {
  if (const auto* gone = std::get_if<scheduler::NodeGone>(&entry)) {
    if (gone->dead) dead_.insert(gone->node);
  } else if (const auto* state = std::get_if<scheduler::JobStateChanged>(&entry)) {
    finished_ = finished_ || (state->job == kJob && state->state == JobState::kFinished);
  } else if (const auto* returned = std::get_if<scheduler::SamplesReturned>(&entry)) {
    const bool of_dead = std::any_of(dead_.begin(), dead_.end(), [&](const NodeRef& node) {
      return node.node == returned->worker;
    });
    if (finished_ && of_dead) {
      never_used_.insert(never_used_.end(), returned->ranges.begin(), returned->ranges.end());
    }
  }
}

void Checker::Learn(const std::vector<GroupPlan>& groups, const std::string& how) {
  for (const GroupPlan& group : groups) {
    std::string content = absl::StrCat("from step ", group.activation_step.value(), ":");
    for (const Member& m : group.members) {
      absl::StrAppend(&content, " ", m.name, ".", m.incarnation.value());
    }
    const auto [it, first] = told_.try_emplace({group.id, group.generation}, content, how);
    if (!first && it->second.first != content) {
      Fail("generation", "group ", group.id.value(), " generation ", group.generation.value(),
           " was told ", it->second.second, " as '", it->second.first, "', now ", how, " as '",
           content, "'");
    }
  }
}

void Checker::OnDirective(NodeRef to, const Directive& directive) {
  const std::string how = absl::StrCat("to ", Text(to));
  if (const auto* plan = std::get_if<PlanDirective>(&directive.body)) {
    if (plan->plan.job == kJob) Learn(plan->plan.groups, how);
  } else if (const auto* commit = std::get_if<CommitDirective>(&directive.body)) {
    if (commit->job == kJob) Learn(commit->groups, how);
  } else if (const auto* fence = std::get_if<FenceDirective>(&directive.body)) {
    if (fence->job == kJob) Learn(fence->groups, how);
  }
}

void Checker::OnDrawn(NodeRef to, const std::vector<SampleRange>& ranges,
                      const std::function<bool(NodeRef)>& live) {
  for (const SampleRange& range : ranges) {
    for (uint64_t i = range.begin; i < range.end; ++i) {
      Sample& sample = samples_[{range.epoch, i}];
      if (sample.over) {
        return Fail("one lease", "sample ", i, " of epoch ", range.epoch.value(), " is handed to ",
                    Text(to), " after it was used by ", Text(sample.holder));
      }
      if (sample.held && sample.holder != to && live(sample.holder)) {
        return Fail("one lease", "sample ", i, " of epoch ", range.epoch.value(), " is handed to ",
                    Text(to), " while ", Text(sample.holder), " holds it");
      }
      sample.holder = to;
      sample.held = true;
    }
  }
}

// ---- Workers ----------------------------------------------------------------------------------

void Checker::OnPush(NodeRef from, GroupId group, Step step,
                     const std::vector<SampleRange>& ranges) {
  pushed_[{from.incarnation, group, step}] = ranges;
}

void Checker::OnGivenBack(NodeRef from, const std::vector<SampleRange>& ranges) {
  for (const SampleRange& range : ranges) {
    for (uint64_t i = range.begin; i < range.end; ++i) {
      Sample& sample = samples_[{range.epoch, i}];
      if (sample.holder == from) sample.held = false;
    }
  }
}

void Checker::OnLeft(NodeRef self, const WorkerLedger& l) {
  if (l.drawn != l.applied + l.discarded + l.returned) {
    Fail("ledger", Text(self), " counts drawn ", l.drawn, " but applied ", l.applied,
         " + discarded ", l.discarded, " + returned ", l.returned);
  }
  left_[self.node].emplace_back(self.incarnation, l);
}

void Checker::OnReplyArrived(const Reply& reply) {
  if (!IsRound(reply.to.kind)) return;
  const auto it = answered_.find(KeyOf(reply.to));
  if (it == answered_.end()) return;  // a refusal
  if (reply.values && Checksum(reply.values.values()) != it->second.checksum) {
    Fail("same bits", "the reply to the ", Text(reply.to), " changed on its way");
  }
}

// ---- Owners -----------------------------------------------------------------------------------

void Checker::OnReplies(const std::string& owner, const std::vector<Reply>& replies) {
  std::vector<std::pair<RoundKey, std::vector<const Reply*>>> decided;  // in this order
  for (const Reply& reply : replies) {
    const Operation& op = reply.to;
    if (!IsRound(op.kind)) continue;
    if (reply.status != OperationStatus::kOk && reply.status != OperationStatus::kNotFinite) {
      if (reply.status == OperationStatus::kDiscarded) OnDiscarded(reply);
      continue;
    }
    const OperationKey key = KeyOf(op);
    if (const auto it = answered_.find(key); it != answered_.end()) {
      CheckAgain(owner, reply, it->second);
      continue;
    }
    answered_[key] = {reply.status, reply.version, reply.samples, Checksum(reply.values.values())};
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

void Checker::OnVerdict(PushKey push, const Verdict& verdict) {
  const auto [it, first] = verdicts_.emplace(push, verdict.members);
  if (!first && it->second != verdict.members) {
    Fail("one verdict", "the push of group ", push.group.value(), " in step ", push.step.value(),
         " has ", it->second.size(), " members at one owner and others, or ",
         verdict.members.size(), ", at another");
  }
}

void Checker::CheckFate(const Reply& reply) {
  const Operation& op = reply.to;
  if (op.samples.value() == 0 || reply.status == OperationStatus::kNotFinite) return;
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
size_t Checker::MembersOf(const Generation& generation, PushKey push) const {
  const auto verdict = verdicts_.find(push);
  if (verdict == verdicts_.end()) return generation.members.size();
  return static_cast<size_t>(
      std::count_if(generation.members.begin(), generation.members.end(), [&](const auto& member) {
        const NodeRef ref{member.first, member.second};
        return std::binary_search(verdict->second.begin(), verdict->second.end(), ref);
      }));
}

void Checker::CheckAgain(const std::string& owner, const Reply& reply, const Answered& before) {
  const Operation& op = reply.to;
  if (before.version != reply.version && op.kind == OperationKind::kPushPull &&
      op.samples.value() > 0) {
    return Fail("exactly once", owner, ": the ", Text(op), " made version ", Text(before.version),
                " and, sent again, ", Text(reply.version));
  }
  if (before.status != reply.status || before.samples != reply.samples ||
      before.version != reply.version || before.checksum != Checksum(reply.values.values())) {
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
  if (!chunk.known && !Begin(chunk, first)) return;
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
    const size_t members =
        known == nullptr ? 0 : MembersOf(*known, {group, step}) - static_cast<size_t>(refused);
    Apply(chunk, in_sum, known, members, first.samples);
    if (chunk_key == kLead) CountLead(group, in_sum, first.version);
  }
  for (const Reply* reply : replies) {
    CheckFate(*reply);
    if (chunk_key == kLead && reply->to.samples.value() > 0) Use(*reply);
  }
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
    in_sum.push_back(reply);
    samples += reply->to.samples;
  }
  if (samples != first.samples) {
    Fail("sum", round, " says ", first.samples.value(), " samples; its operations had ",
         samples.value());
  }
  return in_sum;
}

void Checker::CheckWeights(const std::string& round, const Reply& reply, const Chunk& chunk) {
  if (reply.version != chunk.version) {
    return Fail("version", round, " is at ", Text(reply.version), ", expected ",
                Text(chunk.version));
  }
  const std::span<const float> got = reply.values.values();
  if (SameBits(got, chunk.weights)) return;
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
  Count& count = lead_[group];
  if (count.updates++ == 0) {
    count.first_base = base.count;
  } else {
    count.gaps += static_cast<int64_t>(base.count) - static_cast<int64_t>(count.last);
  }
  count.tau += version.count - 1 - base.count;
  count.last = version.count;
}

// A push has its fate at the lead chunk: the samples in it are used up.
void Checker::Use(const Reply& reply) {
  const Operation& op = reply.to;
  auto& [applied, discarded] = owner_counts_[op.sender];
  (reply.status == OperationStatus::kOk ? applied : discarded) += op.samples.value();
  const auto it = pushed_.find(PushOfOperation(op));
  if (it == pushed_.end()) return;
  for (const SampleRange& range : it->second) {
    for (uint64_t i = range.begin; i < range.end; ++i) {
      Sample& sample = samples_[{range.epoch, i}];
      if (sample.over) {
        return Fail("exactly once", "sample ", i, " of epoch ", range.epoch.value(),
                    " is used a second time, by the ", Text(op));
      }
      sample.over = true;
      sample.held = false;
      sample.holder = {op.sender, op.incarnation};
    }
  }
  pushed_.erase(it);
}

void Checker::OnLeadReport(const JobAtServer& report) {
  for (const GroupStaleness& g : report.groups) {
    const Count& count = lead_[g.group];
    if (g.tau.count != count.updates || g.tau.sum != count.tau ||
        g.first_base != count.first_base || g.last != count.last || g.base_gaps != count.gaps ||
        FormulaSum(g) != static_cast<int64_t>(g.tau.sum)) {
      Fail("staleness", "group ", g.group.value(), ": the owner counts ", g.tau.count,
           " updates, sum ", g.tau.sum, ", formula ", FormulaSum(g), "; expected ", count.updates,
           " updates, sum ", count.tau);
    }
  }
  std::map<NodeId, std::pair<uint64_t, uint64_t>> counted;
  for (const WorkerStaleness& w : report.workers) {
    counted[w.worker].first += w.applied.value();
    counted[w.worker].second += w.discarded.value();
  }
  for (const auto& [node, expected] : owner_counts_) {
    if (counted[node] != expected) {
      Fail("ledger", "node ", node.value(), ": the owner counts ", counted[node].first,
           " applied and ", counted[node].second, " discarded; expected ", expected.first, " and ",
           expected.second);
    }
  }
}

// ---- The end ----------------------------------------------------------------------------------

void Checker::OnFinished(const JobView& job) {
  if (job.drawn != job.applied + job.discarded + job.returned) {
    Fail("ledger", "the scheduler counts drawn ", job.drawn.value(), " but applied ",
         job.applied.value(), " + discarded ", job.discarded.value(), " + returned ",
         job.returned.value());
  }
  uint64_t applied = 0;
  uint64_t discarded = 0;
  for (const auto& [node, counts] : owner_counts_) {
    applied += counts.first;
    discarded += counts.second;
  }
  if (applied != job.applied.value() || discarded != job.discarded.value()) {
    Fail("ledger", "the scheduler knows of ", job.applied.value(), " applied and ",
         job.discarded.value(), " discarded samples; the owners counted ", applied, " and ",
         discarded);
  }
  for (const auto& [node, lives] : left_) {
    if (incarnations_[node] != 1 || lives.size() != 1) continue;
    const WorkerLedger& own = lives.front().second;
    const auto& [by_owner, dropped] = owner_counts_[node];
    if (own.applied != by_owner || own.discarded != dropped) {
      Fail("ledger", "node ", node.value(), " counts ", own.applied, " applied and ", own.discarded,
           " discarded; the owner ", by_owner, " and ", dropped);
    }
  }
  const bool by_step =
      scenario_->job.deterministic && scenario_->job.groups.kind == GroupSpec::Kind::kOne;
  if (by_step) return;  // the parts of members that died are nobody's
  const uint64_t unused = scheduler::CountOf(never_used_);
  if (applied + discarded + unused != job.total.value()) {
    Fail("ledger", applied, " applied + ", discarded, " discarded + ", unused,
         " never used samples of ", job.total.value());
  }
  for (const SampleRange& range : never_used_) {
    for (uint64_t i = range.begin; i < range.end; ++i) samples_[{range.epoch, i}].over = true;
  }
  for (uint64_t epoch = 0; epoch < scenario_->job.epochs; ++epoch) {
    for (uint64_t i = 0; i < scenario_->job.sample_count; ++i) {
      if (!samples_[{Epoch(epoch), i}].over) {
        return Fail("exactly once", "sample ", i, " of epoch ", epoch, " was never used");
      }
    }
  }
}

}  // namespace paceline::simulation
