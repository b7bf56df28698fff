// A ParameterShard that changes its owner.
#include <utility>

#include "absl/strings/str_cat.h"
#include "parameter/parameter_shard.h"

namespace paceline {

Handover ParameterShard::HandOver(Replies* replies) {
  Abandon(OperationStatus::kNotOwner, replies);
  Handover out;
  out.version = version_;
  out.updates = updates_;
  out.samples = samples_;
  out.arrays.emplace_back("weights", std::move(weights_));
  for (auto& [name, values] : slots_) out.arrays.emplace_back(name, std::move(values));
  out.applied_steps = std::move(applied_steps_);
  for (auto& [group, pulled] : pulled_) {
    out.pulled.push_back({group, pulled.first, std::move(pulled.second)});
  }
  for (const auto& [key, member] : members_) {
    if (groups_->IsFenced(key.node, member.incarnation())) continue;
    out.members.push_back(member.HandOver());
    out.members.back().group = key.group;
    out.members.back().node = key.node;
  }
  out.recorded_updates = recorder_.updates();
  out.group_staleness = recorder_.groups();
  out.worker_staleness = recorder_.workers();
  out.covered = groups_->Covered();
  return out;
}

absl::Status ParameterShard::TakeOver(Handover handover) {
  std::vector<std::pair<std::string, SharedFloats>> slots;
  for (auto& [name, values] : handover.arrays) {
    if (values.size() != elements_) {
      return absl::InvalidArgumentError(absl::StrCat("a chunk handed over: array ", name, " has ",
                                                     values.size(), " elements, not ", elements_));
    }
    if (name == "weights") {
      weights_ = std::move(values);
    } else {
      slots.emplace_back(name, std::move(values));
    }
  }
  slots_ = std::move(slots);
  Configure(settings_);
  version_ = handover.version;
  updates_ = handover.updates;
  samples_ = handover.samples;
  applied_steps_ = std::move(handover.applied_steps);
  for (Handover::Pulled& pulled : handover.pulled) {
    pulled_[pulled.group] = {pulled.version, std::move(pulled.weights)};
  }
  for (const Handover::MemberState& state : handover.members) {
    if (groups_->IsFenced(state.node, state.incarnation)) continue;
    auto [it, first] = members_.try_emplace({state.group, state.node}, state.incarnation);
    it->second.TakeOver(state);
    holds_taken_over_ = holds_taken_over_ || !state.answers.empty();
  }
  recorder_.TakeOver(handover.recorded_updates, handover.group_staleness,
                     handover.worker_staleness);
  sealed_ = true;
  return absl::OkStatus();
}

void ParameterShard::ForgetTakenOver(GroupId group) {
  bool holds = false;
  for (auto& [key, member] : members_) {
    if (key.group == group) {
      const auto through = groups_->CoveredThrough(key.group, key.node, member.incarnation());
      if (through) member.ForgetTakenOver(*through);
    }
    for (const auto& [id, open] : member.operations()) {
      holds = holds || (open.reply && open.operation.sequence == Sequence(0));
    }
  }
  holds_taken_over_ = holds;
}

}  // namespace paceline
