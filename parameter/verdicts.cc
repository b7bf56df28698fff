#include "parameter/verdicts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace paceline {
namespace {

constexpr Step kNext(1);

}  // namespace

void Verdicts::Configure(const JobSpec& spec, bool lead) {
  quorum_ = UsesVerdicts(spec) ? spec.quorum : 0;
  late_ = spec.late;
  lead_ = lead;
}

uint32_t Verdicts::Needed(const GroupPlan& group) const {
  return std::min(quorum_, static_cast<uint32_t>(group.members.size()));
}

// ---- What is known ----------------------------------------------------------------------------

const Verdicts::Group* Verdicts::FindGroup(GroupId group) const {
  const auto it = decided_.find(group);
  return it == decided_.end() ? nullptr : &it->second;
}

const Verdict* Verdicts::Find(PushKey push) const {
  const Group* const group = FindGroup(push.group);
  if (group == nullptr) return nullptr;
  const auto it = group->kept.find(push.step);
  return it == group->kept.end() ? nullptr : &it->second;
}

bool Verdicts::IsOver(PushKey push) const {
  const Group* const group = FindGroup(push.group);
  if (group == nullptr) return false;
  if (lead_) return push.step <= group->decided_through && !group->kept.contains(push.step);
  return group->over.contains(push.step);
}

Fate Verdicts::FateOf(PushKey push, NodeRef member) const {
  if (const Verdict* const verdict = Find(push)) {
    return verdict->Has(member) ? Fate::kIn : Fate::kOut;
  }
  return IsOver(push) ? Fate::kOut : Fate::kUndecided;
}

Step Verdicts::NextFor(PushKey push, NodeRef member) const {
  const Group* const group = FindGroup(push.group);
  if (group == nullptr) return push.step + kNext;
  if (lead_) {
    for (auto it = group->kept.upper_bound(push.step); it != group->kept.end(); ++it) {
      if (it->second.Has(member)) return it->first;
    }
    return std::max(push.step, group->decided_through) + kNext;
  }
  Step next = push.step + kNext;
  while (FateOf({push.group, next}, member) == Fate::kOut) ++next;
  const auto said = group->open.find(member);
  return said == group->open.end() ? next : std::max(next, said->second);
}

void Verdicts::Remember(std::set<Step>& over, Step step) {
  over.insert(step);
  if (over.size() > kMaxKept) over.erase(over.begin());
}

bool Verdicts::IsPast(PushKey push, NodeRef member) const {
  if (groups_->IsFenced(member.node, member.incarnation)) return true;
  const std::optional<Step> through =
      groups_->CoveredThrough(push.group, member.node, member.incarnation);
  return through && *through >= push.step;
}

void Verdicts::Prune(GroupId id) {
  const auto it = decided_.find(id);
  if (it == decided_.end()) return;
  Group& group = it->second;
  std::erase_if(group.kept, [&](const auto& entry) {
    const std::vector<NodeRef>& members = entry.second.members;
    const bool over = std::all_of(members.begin(), members.end(), [&](const NodeRef& member) {
      return IsPast({id, entry.first}, member);
    });
    if (over && !lead_) Remember(group.over, entry.first);
    return over;
  });
  std::erase_if(group.open, [&](const auto& entry) {
    return IsPast({id, entry.second}, entry.first);
  });
}

// ---- Deciding and asking ----------------------------------------------------------------------

void Verdicts::Offer(PushKey push, const std::vector<NodeRef>& done, Samples samples) {
  Offered& offered = offered_[push];
  const size_t before = offered.done.size();
  offered.done.insert(done.begin(), done.end());
  offered.samples = samples;
  const GroupTable::Generation* const generation = groups_->InForce(push.group, push.step);
  const bool quorum = generation != nullptr && offered.done.size() >= Needed(*generation->plan);
  if (offered.done.size() > before && quorum) offered.asked = false;
  Consider(push);
}

void Verdicts::Consider(PushKey push) {
  const auto it = offered_.find(push);
  if (it == offered_.end()) return;
  if (Find(push) != nullptr || IsOver(push)) return Settle(push);
  Offered& offered = it->second;
  if (!lead_) {
    if (std::exchange(offered.asked, true)) return;
    questions_.push_back({push, {offered.done.begin(), offered.done.end()}, offered.samples});
    return;
  }
  const GroupTable::Generation* const generation = groups_->InForce(push.group, push.step);
  if (generation == nullptr) return;
  std::vector<NodeRef> members;
  for (const Member& member : generation->plan->members) {
    const NodeRef ref{member.node, member.incarnation};
    if (offered.done.contains(ref)) members.push_back(ref);
  }
  if (members.size() < Needed(*generation->plan)) return;
  Decide(push, std::move(members), generation->plan->members.size());
}

void Verdicts::Decide(PushKey push, std::vector<NodeRef> members, size_t planned) {
  std::sort(members.begin(), members.end());
  Group& group = decided_[push.group];
  Verdict& verdict = group.kept[push.step];
  verdict.samples = offered_.at(push).samples;
  verdict.reason = members.size() == planned ? "all members"
                                             : absl::StrCat("quorum: the first ", members.size(),
                                                            " of ", planned, " members");
  verdict.members = std::move(members);
  group.decided_through = std::max(group.decided_through, push.step);
  if (group.kept.size() > kMaxKept) group.kept.erase(group.kept.begin());
  news_.insert(push.group);
  Settle(push);
  // What was not decided before a later push was is over.
  std::vector<PushKey> earlier;
  for (auto it = offered_.lower_bound({push.group, Step(0)});
       it != offered_.end() && it->first < push; ++it) {
    earlier.push_back(it->first);
  }
  for (const PushKey& one : earlier) Consider(one);
}

// The verdict is known: whoever waits for it is answered.
void Verdicts::Settle(PushKey push) {
  auto offered = offered_.extract(push);
  if (offered.empty()) return;
  news_.insert(push.group);
  waiting_ -= offered.mapped().waiting.size();
  for (const Waiting& waiting : offered.mapped().waiting) {
    answers_.push_back({waiting.to, AnswerTo(waiting.question)});
  }
}

VerdictAnswer Verdicts::AnswerTo(const VerdictQuestion& question) const {
  VerdictAnswer answer{.push = question.push, .over = false, .verdict = {}, .open = {}};
  if (const Verdict* const verdict = Find(question.push)) {
    answer.verdict = *verdict;
  } else {
    answer.over = true;
  }
  for (const NodeRef& member : question.done) {
    if (IsPast(question.push, member) || FateOf(question.push, member) == Fate::kIn) continue;
    answer.open.emplace_back(member, NextFor(question.push, member));
  }
  return answer;
}

bool Verdicts::Ask(const VerdictQuestion& question, const Operation& to) {
  PACELINE_CHECK(lead_);
  if (waiting_ >= kMaxWaiting) return false;
  Offered& offered = offered_[question.push];
  offered.waiting.push_back({question, to});
  ++waiting_;
  Offer(question.push, question.done, question.samples);
  return true;
}

std::vector<Operation> Verdicts::TakeWaiting() {
  std::vector<Operation> waiting;
  for (auto& [push, offered] : offered_) {
    for (const Waiting& one : std::exchange(offered.waiting, {})) waiting.push_back(one.to);
  }
  waiting_ = 0;
  return waiting;
}

void Verdicts::OnGroupsChanged() {
  if (!lead_) return;
  std::vector<PushKey> open;
  for (const auto& [push, offered] : offered_) open.push_back(push);
  for (const PushKey& push : open) Consider(push);
}

void Verdicts::OnLeadChanged() {
  std::vector<PushKey> open;
  for (auto& [push, offered] : offered_) {
    offered.asked = false;
    open.push_back(push);
  }
  for (const PushKey& push : open) Consider(push);
}

void Verdicts::Learn(const VerdictAnswer& answer) {
  if (lead_) return;  // it knows better by now
  Group& group = decided_[answer.push.group];
  if (answer.over) {
    Remember(group.over, answer.push.step);
  } else {
    group.kept[answer.push.step] = answer.verdict;
    if (group.kept.size() > kMaxKept) group.kept.erase(group.kept.begin());
  }
  for (const auto& [member, step] : answer.open) {
    Step& open = group.open[member];
    open = std::max(open, step);
  }
  Settle(answer.push);
  news_.insert(answer.push.group);
}

void Verdicts::Forget() {
  decided_.clear();
  offered_.clear();
  waiting_ = 0;
  answers_.clear();
  questions_.clear();
  news_.clear();
}

// ---- Between leads ----------------------------------------------------------------------------

std::vector<GroupVerdicts> Verdicts::HandOver() const {
  std::vector<GroupVerdicts> out;
  for (const auto& [id, group] : decided_) {
    out.push_back({id, group.decided_through, group.kept});
  }
  return out;
}

void Verdicts::TakeOver(const std::vector<GroupVerdicts>& verdicts) {
  for (const GroupVerdicts& from : verdicts) {
    Group& group = decided_[from.group];
    group.decided_through = std::max(group.decided_through, from.decided_through);
    for (const auto& [step, verdict] : from.kept) group.kept[step] = verdict;
    news_.insert(from.group);
  }
}

}  // namespace paceline
