#include "parameter/round.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace paceline {

Verdict Decide(const StalenessPolicy& policy, const PushFacts& facts, uint32_t members,
               Samples samples) {
  const Damping damping = policy.Weigh(facts);
  return {.members = members,
          .samples = samples,
          .weight = damping.weight,
          .drop = false,
          .hold = false,
          .reason = damping.reason};
}

Round::Round(RoundKind kind, const GroupTable::Generation& generation, bool rank_order,
             FloatPool* pool)
    : kind_(kind),
      group_(generation.plan),
      contributors_(generation.plan->members.size()),
      accumulator_(generation.plan->members.size(), rank_order, pool) {}

void Round::Begin(size_t position, const OperationId& operation) {
  PACELINE_CHECK(contributors_[position].part == Part::kAbsent);
  contributors_[position].part = Part::kPartial;
  contributors_[position].operation = operation;
}

void Round::Finish(size_t position, Part part, const Operation& operation, SharedFloats values) {
  Contributor& contributor = contributors_[position];
  PACELINE_CHECK(contributor.part == Part::kPartial);
  contributor.part = part;
  contributor.samples = operation.samples;
  contributor.base = operation.base;
  contributor.learning_rate = operation.learning_rate;
  if (part == Part::kSum) accumulator_.Take(position, std::move(values));
}

bool Round::IsWhole(const GroupTable& groups, GroupId group, Step step) const {
  for (size_t i = 0; i < contributors_.size(); ++i) {
    const Part part = contributors_[i].part;
    if (part == Part::kPartial) return false;
    if (part == Part::kAbsent && !groups.IsCovered(group, group_->members[i], step)) return false;
  }
  return true;
}

Samples Round::samples() const {
  Samples total;
  for (const Contributor& c : contributors_) {
    if (c.part == Part::kSum) total += c.samples;
  }
  return total;
}

uint32_t Round::members_in_sum() const {
  return static_cast<uint32_t>(
      std::count_if(contributors_.begin(), contributors_.end(),
                    [](const Contributor& c) { return c.part != Part::kRefused; }));
}

std::optional<Version> Round::base() const {
  std::optional<Version> oldest;
  for (const Contributor& c : contributors_) {
    if (c.part == Part::kSum && (!oldest || c.base < *oldest)) oldest = c.base;
  }
  return oldest;
}

float Round::learning_rate() const {
  for (const Contributor& c : contributors_) {
    if (c.part == Part::kSum) return c.learning_rate;
  }
  return 0;
}

}  // namespace paceline
