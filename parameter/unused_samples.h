// What the last Boundaries of each member said about samples it did not push. An owner that takes
// over the lead chunk may have had a Boundary while the one before it no longer counted, and
// neither was the lead then. Thread rule: one thread.
#pragma once

#include <deque>
#include <map>
#include <utility>

#include "common/base/types.h"
#include "plan/plan.h"

namespace paceline {

class UnusedSamples {
 public:
  // Steps a member may end while the lead chunk moves: it needs its rounds for more.
  static constexpr size_t kKept = 8;

  void Add(GroupId group, const NodeRef& member, Step through, Samples samples) {
    if (samples == Samples(0)) return;
    Of& of = members_[{group, member.node}];
    if (member.incarnation < of.incarnation) return;
    if (of.incarnation < member.incarnation) of = {member.incarnation, {}};
    if (!of.last.empty() && through <= of.last.back().first) return;
    of.last.emplace_back(through, samples);
    if (of.last.size() > kKept) of.last.pop_front();
  }

  void Forget(const NodeRef& dead) {
    std::erase_if(members_, [&dead](const auto& entry) {
      return entry.first.second == dead.node && entry.second.incarnation <= dead.incarnation;
    });
  }

  // `take(group, member, through, samples)`, oldest first for each member.
  template <typename Take>
  void ForEach(const Take& take) const {
    for (const auto& [key, of] : members_) {
      for (const auto& [through, samples] : of.last) {
        take(key.first, NodeRef{key.second, of.incarnation}, through, samples);
      }
    }
  }

 private:
  struct Of {
    Incarnation incarnation;
    std::deque<std::pair<Step, Samples>> last;
  };
  std::map<std::pair<GroupId, NodeId>, Of> members_;
};

}  // namespace paceline
