// A ParameterShard that changes its owner.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "parameter/parameter_shard.h"

namespace paceline {

namespace {

absl::Status Bad(std::string_view what, std::string_view array) {
  return absl::InvalidArgumentError(
      absl::StrCat("a chunk handed over: array '", Absl(array), "' ", Absl(what)));
}

using Arrays = std::vector<std::pair<std::string, SharedFloats>>;

// "weights" once, and either no slot or those of the optimizer.
absl::Status CheckArrays(const Arrays& arrays, const Optimizer* optimizer, uint64_t elements) {
  std::vector<std::string> names;
  for (const auto& [name, values] : arrays) {
    if (values.size() != elements) {
      return Bad(absl::StrCat("has ", values.size(), " elements, not ", elements), name);
    }
    if (std::find(names.begin(), names.end(), name) != names.end()) return Bad("comes twice", name);
    names.push_back(name);
  }
  const auto has = [&names](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!has("weights")) return Bad("is missing", "weights");
  if (optimizer == nullptr || names.size() == 1) return absl::OkStatus();
  const std::vector<std::string>& slots = optimizer->slots();
  for (const std::string& slot : slots) {
    if (!has(slot)) return Bad("is missing, which the job's optimizer has", slot);
  }
  for (const std::string& name : names) {
    const bool known =
        name == "weights" || std::find(slots.begin(), slots.end(), name) != slots.end();
    if (!known) return Bad("is none of the job's optimizer", name);
  }
  return absl::OkStatus();
}

}  // namespace

void ParameterShard::Unused(GroupId group, const NodeRef& member, Step through, Samples unused) {
  if (!settings_.lead || unused == Samples(0)) return;
  // Beyond the cut: not in what is copied.
  if (IsHeld({group, through, Ordinal(0)})) {
    held_unused_.push_back({group, member, through, unused});
    return;
  }
  CoveredStep& counted = counted_[{group, member.node}];
  if (counted.incarnation > member.incarnation) return;
  if (counted.incarnation == member.incarnation && through <= counted.through) return;
  counted = {group, member.node, member.incarnation, through};
  recorder_.Discarded(group, member.node, unused);
}

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
    const GroupTable::Generation* const newest = groups_->Newest(key.group);
    if (newest == nullptr || newest->plan->members.size() > 1) continue;
    for (Handover::Answer& answer : out.members.back().answers) {
      if (answer.id.kind == RoundKind::kApply) answer.values = {};
    }
  }
  out.recorded_updates = recorder_.updates();
  out.group_staleness = recorder_.groups();
  out.worker_staleness = recorder_.workers();
  out.covered = groups_->Covered();
  for (const auto& [key, counted] : counted_) out.counted.push_back(counted);
  out.written = written_;
  out.restored_lineage = restored_lineage_;
  return out;
}

absl::Status ParameterShard::TakeOver(Handover handover) {
  PACELINE_RETURN_IF_ERROR(CheckArrays(handover.arrays, settings_.optimizer.get(), elements_));
  Arrays slots;
  for (auto& [name, values] : handover.arrays) {
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
  for (const CoveredStep& counted : handover.counted) {
    counted_[{counted.group, counted.node}] = counted;
  }
  written_ = handover.written;
  restored_lineage_ = handover.restored_lineage;
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
