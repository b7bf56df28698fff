#include "simulation/checker.h"

#include <algorithm>

#include "simulation/checker_values.h"
#include "staleness/ledger.h"

namespace paceline::simulation {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t state = a * 0x9E3779B97F4A7C15u + b;
  return SplitMix64(state);
}

uint64_t HashOf(ChunkKey chunk) { return Mix(chunk.tensor.value() + 1, chunk.chunk.value() + 1); }

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
  OnReturns(*decoded);
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

// What comes back after the end: of a worker that died while all others left, say.
void Checker::OnLastSamples(const scheduler::Entry& entry) {
  if (const auto* gone = std::get_if<scheduler::NodeGone>(&entry)) {
    if (gone->dead) dead_.insert(gone->node);
  } else if (const auto* state = std::get_if<scheduler::JobStateChanged>(&entry)) {
    finished_ = finished_ || (state->job == kJob && state->state == JobState::kFinished);
  } else if (const auto* returned = std::get_if<scheduler::SamplesReturned>(&entry)) {
    // Who leaves in good order gives its own back before; not who never heard of a return.
    const bool of_dead = std::any_of(dead_.begin(), dead_.end(), [&](const NodeRef& node) {
      return node.node == returned->worker;
    });
    const bool excused = finished_ && (of_dead || lineage() > 0);
    for (const SampleRange& range : returned->ranges) {
      for (uint64_t i = range.begin; excused && i < range.end; ++i) {
        never_used_.insert({range.epoch, i});
      }
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
      sample.lost = false;
    }
  }
}

// ---- Workers ----------------------------------------------------------------------------------

void Checker::OnPush(NodeRef from, GroupId group, Step step,
                     const std::vector<SampleRange>& ranges) {
  pushed_[{from.incarnation, group, step}] = ranges;
}

void Checker::OnLapsed(NodeRef from, GroupId group, Step step) {
  const auto it = pushed_.find({from.incarnation, group, step});
  if (it == pushed_.end()) return;
  for (const SampleRange& range : it->second) {
    for (uint64_t i = range.begin; i < range.end; ++i) {
      Sample& sample = samples_[{range.epoch, i}];
      sample.lost = true;
      sample.held = false;
    }
  }
  pushed_.erase(it);
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
  const std::vector<uint64_t>& sent = it->second.checksums;
  if (reply.values &&
      std::find(sent.begin(), sent.end(), Checksum(reply.values.values())) == sent.end()) {
    Fail("same bits", "the reply to the ", Text(reply.to), " changed on its way");
  }
}

// ---- Samples, as owners count them -------------------------------------------------------------

// A push has its fate at the lead chunk: the samples in it are used up.
void Checker::Use(const Reply& reply) {
  const Operation& op = reply.to;
  const bool lost = op.lineage < lineage();
  if (op.lineage >= reply.version.lineage) {
    auto& [applied, discarded] = owner_counts_[reply.version.lineage][op.sender];
    (reply.status == OperationStatus::kOk ? applied : discarded) += op.samples.value();
  }
  const auto it = pushed_.find(PushOfOperation(op));
  if (it == pushed_.end()) return;
  for (const SampleRange& range : it->second) {
    for (uint64_t i = range.begin; i < range.end; ++i) {
      Sample& sample = samples_[{range.epoch, i}];
      if (sample.over) {
        return Fail("exactly once", "sample ", i, " of epoch ", range.epoch.value(),
                    " is used a second time, by the ", Text(op));
      }
      sample.over = !lost;
      sample.discarded = reply.status != OperationStatus::kOk;
      sample.lost = lost;
      sample.held = false;
      sample.at = reply.version;
      sample.holder = {op.sender, op.incarnation};
    }
  }
  pushed_.erase(it);
}

void Checker::OnLeadReport(const JobAtServer& report) {
  for (const GroupStaleness& g : report.groups) {
    const Count& count = lead_[{report.lineage, g.group}];
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
  for (const auto& [node, expected] : owner_counts_[report.lineage]) {
    if (counted[node] != expected) {
      Fail("ledger", "node ", node.value(), ": the owner counts ", counted[node].first,
           " applied and ", counted[node].second, " discarded; expected ", expected.first, " and ",
           expected.second);
    }
  }
}

// ---- The end ----------------------------------------------------------------------------------

void Checker::OnFinished(const JobView& job, const Circumstances& circumstances) {
  if (job.drawn != job.applied + job.discarded + job.returned) {
    Fail("ledger", "the scheduler counts drawn ", job.drawn.value(), " but applied ",
         job.applied.value(), " + discarded ", job.discarded.value(), " + returned ",
         job.returned.value());
  }
  if (circumstances.counts_lost) return;
  uint64_t applied = 0;
  uint64_t discarded = 0;
  const Counted& of_newest = owner_counts_[lineage()];
  for (const Counted* counts : {&of_newest, &std::as_const(settled_)}) {
    for (const auto& [node, of_worker] : *counts) {
      applied += of_worker.first;
      discarded += of_worker.second;
    }
  }
  if (applied != job.applied.value() || discarded != job.discarded.value()) {
    Fail("ledger", "the scheduler knows of ", job.applied.value(), " applied and ",
         job.discarded.value(), " discarded samples; the owners counted ", applied, " and ",
         discarded);
  }
  for (const auto& [node, lives] : left_) {
    // What a worker counts as applied may be lost later.
    if (incarnations_[node] != 1 || lives.size() != 1 || lineage() > 0) continue;
    const WorkerLedger& own = lives.front().second;
    const auto& [by_owner, dropped] = owner_counts_[0][node];
    if (own.applied != by_owner || own.discarded != dropped) {
      Fail("ledger", "node ", node.value(), " counts ", own.applied, " applied and ", own.discarded,
           " discarded; the owner ", by_owner, " and ", dropped);
    }
  }
  const bool by_step =
      scenario_->job.deterministic && scenario_->job.groups.kind == GroupSpec::Kind::kOne;
  if (by_step) return;  // the parts of members that died are nobody's
  if (circumstances.nobody_stayed) return;
  const uint64_t unused = never_used_.size();
  if (applied + discarded + unused != job.total.value()) {
    Fail("ledger", applied, " applied + ", discarded, " discarded + ", unused,
         " never used samples of ", job.total.value());
  }
  for (const SampleKey& key : never_used_) samples_[key].over = true;
  for (uint64_t epoch = 0; epoch < scenario_->job.epochs; ++epoch) {
    for (uint64_t i = 0; i < scenario_->job.sample_count; ++i) {
      const Sample& sample = samples_[{Epoch(epoch), i}];
      if (!sample.over && !sample.lost) {
        return Fail("exactly once", "sample ", i, " of epoch ", epoch, " was never used");
      }
    }
  }
}

}  // namespace paceline::simulation
