#include "plan/plan.h"

#include <algorithm>

namespace paceline {

std::optional<NodeId> LeadOwner(const Plan& plan) {
  const TensorPlan* lead = FindTensor(plan, plan.lead_tensor);
  if (lead == nullptr || lead->owners.empty()) return std::nullopt;
  return lead->owners.front();
}

const GroupPlan* FindGroup(const Plan& plan, NodeId member) {
  for (const GroupPlan& group : plan.groups) {
    for (const Member& m : group.members) {
      if (m.node == member) return &group;
    }
  }
  return nullptr;
}

const TensorPlan* FindTensor(const Plan& plan, TensorId id) {
  auto it = std::lower_bound(plan.tensors.begin(), plan.tensors.end(), id,
                             [](const TensorPlan& t, TensorId wanted) { return t.id < wanted; });
  return it != plan.tensors.end() && it->id == id ? &*it : nullptr;
}

}  // namespace paceline
