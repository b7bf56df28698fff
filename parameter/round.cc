#include "parameter/round.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace paceline {

Round::Round(RoundKind kind, const GroupTable::Generation& generation, bool apart, FloatPool* pool)
    : kind_(kind),
      group_(generation.plan),
      contributors_(generation.plan->members.size()),
      accumulator_(generation.plan->members.size(), apart, pool) {}

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

void Round::Leave(size_t position) {
  accumulator_.Drop(position);
  contributors_[position] = {};
}

bool Round::empty() const {
  return std::all_of(contributors_.begin(), contributors_.end(),
                     [](const Contributor& c) { return c.part == Part::kAbsent; });
}

bool Round::Has(NodeRef member) const {
  for (size_t i = 0; i < contributors_.size(); ++i) {
    if (RefOf(group_->members[i]) == member) return contributors_[i].part != Part::kAbsent;
  }
  return false;
}

bool Round::IsDone(size_t position, const GroupTable& groups, GroupId group, Step step) const {
  const Part part = contributors_[position].part;
  if (part == Part::kAbsent) return groups.IsCovered(group, group_->members[position], step);
  return part != Part::kPartial;
}

bool Round::IsWhole(const GroupTable& groups, GroupId group, Step step,
                    const Verdict* verdict) const {
  for (size_t i = 0; i < contributors_.size(); ++i) {
    if (verdict != nullptr && !verdict->Has(RefOf(group_->members[i]))) continue;
    if (!IsDone(i, groups, group, step)) return false;
  }
  return true;
}

std::vector<NodeRef> Round::Done(const GroupTable& groups, GroupId group, Step step) const {
  std::vector<NodeRef> done;
  for (size_t i = 0; i < contributors_.size(); ++i) {
    if (IsDone(i, groups, group, step)) done.push_back(RefOf(group_->members[i]));
  }
  std::sort(done.begin(), done.end());
  return done;
}

Samples Round::samples() const {
  Samples total;
  for (const Contributor& c : contributors_) {
    if (c.part == Part::kSum) total += c.samples;
  }
  return total;
}

uint32_t Round::members_in_sum(const Verdict* verdict) const {
  uint32_t members = 0;
  for (size_t i = 0; i < contributors_.size(); ++i) {
    const bool planned = verdict == nullptr || verdict->Has(RefOf(group_->members[i]));
    if (planned && contributors_[i].part != Part::kRefused) ++members;
  }
  return members;
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
