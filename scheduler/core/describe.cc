#include "scheduler/core/describe.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace paceline::scheduler {
namespace {

std::string Text(const std::vector<GroupPlan>& groups) {
  std::string text;
  for (const GroupPlan& group : groups) {
    absl::StrAppend(&text, " group ", group.id.value(), ".", group.generation.value(), "@",
                    group.activation_step.value(), " [");
    for (const Member& m : group.members) {
      absl::StrAppend(&text, &m == &group.members.front() ? "" : " ", m.name);
    }
    text += "]";
  }
  return text;
}

std::string Restore(const Plan& plan) {
  if (plan.restore_from.empty()) return "";
  return absl::StrCat(" lineage=", plan.lineage, " from ", plan.restore_from);
}

struct Describer {
  std::string operator()(const PlanDirective& d) const {
    return absl::StrCat("plan change=", d.change, " ", Absl(Name(d.plan.state)),
                        " generation=", d.plan.generation.value(),
                        " tensors=", d.plan.tensors.size(), " writer=", d.plan.init_writer.value(),
                        d.plan.moves.empty() ? "" : absl::StrCat(" moving=", d.plan.moves.size()),
                        Restore(d.plan), Text(d.plan.groups));
  }
  std::string operator()(const PrepareDirective& d) const {
    return absl::StrCat("prepare change=", d.change, Text(d.groups));
  }
  std::string operator()(const CommitDirective& d) const {
    return absl::StrCat("commit change=", d.change, Text(d.groups));
  }
  std::string operator()(const AbortDirective& d) const {
    return absl::StrCat("abort change=", d.change, ": ", d.reason);
  }
  std::string operator()(const FenceDirective& d) const {
    return absl::StrCat("fence change=", d.change, " dead=", d.dead.node.value(), ".",
                        d.dead.incarnation.value(), Text(d.groups));
  }
  std::string operator()(const SealedDirective& d) const {
    return absl::StrCat("sealed ", d.tensors.size(), " tensors");
  }
  std::string operator()(const CutDirective& d) const {
    if (!d.drop.empty()) return absl::StrCat("drop ", absl::StrJoin(d.drop, " "));
    std::string text = absl::StrCat(
        "cut ", d.cut,
        d.abort ? " abort" : (d.collect ? " collect" : (d.manifest ? " manifest" : " copy")));
    for (const auto& [group, step] : d.steps) {
      absl::StrAppend(&text, " ", group.value(), "@", step.value());
    }
    return text;
  }
  std::string operator()(const RecallSamplesDirective&) const { return "recall samples"; }
  std::string operator()(const EndJobDirective& d) const {
    return absl::StrCat("end of job ", d.job.value(), d.failed ? " failed: " : ": ", d.reason);
  }
  std::string operator()(const RemoveDirective& d) const {
    return absl::StrCat("remove: ", d.reason);
  }
};

}  // namespace

std::string Describe(const Directive& directive) { return std::visit(Describer(), directive.body); }

}  // namespace paceline::scheduler
