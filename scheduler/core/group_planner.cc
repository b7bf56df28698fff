#include "scheduler/core/group_planner.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace paceline::scheduler {
namespace {

uint64_t IndexKey(const Candidate& c) {
  return c.index ? c.index->value() : std::numeric_limits<uint64_t>::max();
}

std::string LabelOf(const Candidate& c, const std::string& label) {
  auto it = c.labels.find(label);
  return it == c.labels.end() ? "" : it->second;
}

PlannedGroup MakeGroup(std::vector<Candidate> members, std::string reason) {
  std::sort(members.begin(), members.end(),
            [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
  PlannedGroup group{{}, std::move(reason)};
  group.members.reserve(members.size());
  for (const Candidate& member : members) group.members.push_back(member.node);
  return group;
}

// Sizes that differ by at most one, larger first; no empty group.
std::vector<uint32_t> EqualSizes(size_t workers, uint32_t groups) {
  groups = static_cast<uint32_t>(std::min<size_t>(groups, workers));
  std::vector<uint32_t> sizes;
  for (uint32_t i = 0; i < groups; ++i) {
    sizes.push_back(static_cast<uint32_t>(workers / groups + (i < workers % groups ? 1 : 0)));
  }
  return sizes;
}

std::vector<PlannedGroup> CutInOrder(const std::vector<Candidate>& ordered,
                                     const std::vector<uint32_t>& sizes, const std::string& why) {
  std::vector<PlannedGroup> groups;
  auto next = ordered.begin();
  for (size_t i = 0; i < sizes.size() && next != ordered.end(); ++i) {
    const auto left = static_cast<size_t>(ordered.end() - next);
    const bool last = i + 1 == sizes.size();
    auto end = next + static_cast<ptrdiff_t>(last ? left : std::min<size_t>(sizes[i], left));
    groups.push_back(
        MakeGroup({next, end}, absl::StrCat(why, ": group ", i + 1, " of ", sizes.size(), ", ",
                                            end - next, end - next == 1 ? " worker" : " workers")));
    next = end;
  }
  return groups;
}

std::vector<PlannedGroup> CutByLabel(const std::vector<Candidate>& ordered,
                                     const std::string& label) {
  std::map<std::string, std::vector<Candidate>> by_value;
  for (const Candidate& c : ordered) by_value[LabelOf(c, label)].push_back(c);
  std::vector<PlannedGroup> groups;
  for (auto& [value, members] : by_value) {
    groups.push_back(MakeGroup(
        std::move(members), value.empty() ? absl::StrCat("asked for: no label ", label)
                                          : absl::StrCat("asked for: label ", label, "=", value)));
  }
  return groups;
}

}  // namespace

std::vector<PlannedGroup> PlanInitialGroups(const GroupSpec& spec,
                                            std::vector<Candidate> candidates) {
  if (candidates.empty()) return {};
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return IndexKey(a) != IndexKey(b) ? IndexKey(a) < IndexKey(b) : a.rank < b.rank;
  });
  const std::string why = absl::StrCat("asked for: groups ", ToString(spec));
  switch (spec.kind) {
    case GroupSpec::Kind::kOne:
      break;
    case GroupSpec::Kind::kPerWorker:
      return CutInOrder(candidates, std::vector<uint32_t>(candidates.size(), 1), why);
    case GroupSpec::Kind::kCount:
      return CutInOrder(candidates, EqualSizes(candidates.size(), spec.count), why);
    case GroupSpec::Kind::kSizes:
      return CutInOrder(candidates, spec.sizes, why);
    case GroupSpec::Kind::kLabel:
      return CutByLabel(candidates, spec.label);
  }
  return CutInOrder(candidates, {static_cast<uint32_t>(candidates.size())}, why);
}

JoinerPlace PlaceJoiner(const GroupSpec& spec, const std::vector<GroupInPlace>& groups,
                        const Candidate& joiner) {
  const std::string why = absl::StrCat("asked for: groups ", ToString(spec));
  if (groups.empty() || spec.kind == GroupSpec::Kind::kPerWorker) {
    return {std::nullopt, absl::StrCat(why, ", a group of its own")};
  }
  if (spec.kind == GroupSpec::Kind::kLabel) {
    const std::string value = LabelOf(joiner, spec.label);
    for (const GroupInPlace& group : groups) {
      if (!group.members.empty() && LabelOf(group.members.front(), spec.label) == value) {
        return {group.id, absl::StrCat("label ", spec.label, "=", value)};
      }
    }
    return {std::nullopt, absl::StrCat("first worker with label ", spec.label, "=", value)};
  }
  if (spec.kind == GroupSpec::Kind::kCount && groups.size() < spec.count) {
    return {std::nullopt, absl::StrCat(why, ", ", groups.size(), " in place")};
  }
  if (spec.kind == GroupSpec::Kind::kSizes && groups.size() < spec.sizes.size()) {
    return {std::nullopt, absl::StrCat(why, ", ", groups.size(), " in place")};
  }
  if (spec.kind == GroupSpec::Kind::kSizes) {
    for (const GroupInPlace& group : groups) {
      const uint32_t id = group.id.value();
      if (id < spec.sizes.size() && group.members.size() < spec.sizes[id]) {
        return {group.id, absl::StrCat(why, ", group ", id, " has room")};
      }
    }
  }
  const auto smallest = std::min_element(groups.begin(), groups.end(),
                                         [](const GroupInPlace& a, const GroupInPlace& b) {
                                           return a.members.size() < b.members.size();
                                         });
  return {smallest->id, groups.size() == 1 ? why : absl::StrCat(why, ", the smallest group")};
}

}  // namespace paceline::scheduler
