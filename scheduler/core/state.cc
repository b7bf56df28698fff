#include "scheduler/core/state.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace paceline::scheduler {
namespace {

std::string Text(const std::vector<SampleRange>& ranges) {
  std::string text;
  for (const SampleRange& r : ranges) {
    absl::StrAppend(&text, " ", r.epoch.value(), ":[", r.begin, ",", r.end, ")");
  }
  return text;
}

void DumpNode(const NodeRecord& node, std::string& out) {
  absl::StrAppend(&out, "node ", node.id.value(), ".", node.incarnation.value(), " ",
                  Absl(Name(node.role)), " ", node.name, " ", Absl(Name(node.state)),
                  " host=", node.host, " address=", node.data_address);
  if (node.draining) out += " draining";
  if (!node.asked_to_leave.empty()) absl::StrAppend(&out, " asked to leave: ", node.asked_to_leave);
  if (node.role == Role::kWorker) {
    absl::StrAppend(&out, " job=", node.job.value(), " rank=", node.rank.value());
    if (node.index) absl::StrAppend(&out, " index=", node.index->value());
  }
  for (const auto& [label, value] : node.labels) absl::StrAppend(&out, " ", label, "=", value);
  out += "\n";
}

void DumpGroup(const GroupPlan& group, std::string& out) {
  absl::StrAppend(&out, "  group ", group.id.value(), " generation=", group.generation.value(),
                  " activation=", group.activation_step.value(),
                  " last_fence=", group.last_fence.value(), " planned=", group.planned_members,
                  " members=");
  for (const Member& m : group.members) {
    absl::StrAppend(&out, m.name, "(", m.node.value(), ".", m.incarnation.value(), ") ");
  }
  absl::StrAppend(&out, "reason=", group.reason, "\n");
}

void DumpJob(const JobRecord& job, std::string& out) {
  absl::StrAppend(&out, "job ", job.id.value(), " ", job.spec.name, " ", Absl(Name(job.state)),
                  " generation=", job.generation.value(), " optimizer=", job.spec.optimizer.name,
                  " writer=", job.init_writer.value(), " lead=", job.lead_tensor.value(),
                  " groups_committed=", job.group_generations, " reason=", job.reason, "\n");
  for (const TensorPlan& tensor : job.tensors) {
    absl::StrAppend(&out, "  tensor ", tensor.id.value(), " ", tensor.spec.name, " ",
                    ToString(tensor.spec), tensor.sealed ? " sealed" : "", " owners=");
    for (NodeId owner : tensor.owners) absl::StrAppend(&out, owner.value(), " ");
    out += "\n";
  }
  for (const ChunkMove& move : job.moves) {
    absl::StrAppend(&out, "  move ", job.move, " chunk ", move.chunk.tensor.value(), "/",
                    move.chunk.chunk.value(), " ", move.from.value(), " to ", move.to.value(),
                    job.withdrawn ? " withdrawn" : "", "\n");
  }
  for (const auto& [id, group] : job.groups) DumpGroup(group, out);
  for (const auto& [name, rank] : job.ranks) {
    absl::StrAppend(&out, "  rank ", rank.value(), " ", name, "\n");
  }
  if (job.lineage > 0 || !job.checkpoints.empty()) {
    absl::StrAppend(&out, "  lineage ", job.lineage, " rollbacks=", job.rollbacks.count,
                    " restore_from=", job.restore_from, "\n");
  }
  for (const CheckpointRecord& record : job.checkpoints) {
    absl::StrAppend(&out, "  checkpoint ", record.number, " ", record.path,
                    " updates=", record.updates, "\n");
  }
  for (const auto& [node, settled] : job.settled) {
    absl::StrAppend(&out, "  settled ", node.value(), " applied=", settled.applied,
                    " discarded=", settled.discarded, "\n");
  }
  for (const auto& [node, account] : job.samples.accounts()) {
    absl::StrAppend(&out, "  samples ", node.value(), " drawn=", account.drawn,
                    " returned=", account.returned, " used=", account.used,
                    " holds=", Text(account.outstanding), "\n");
  }
}

}  // namespace

std::string_view Name(NodeState state) {
  switch (state) {
    case NodeState::kLive:
      return "live";
    case NodeState::kLeft:
      return "left";
    case NodeState::kDead:
      return "dead";
  }
  return "unknown";
}

std::string Dump(const State& state) {
  std::string out =
      absl::StrCat("last node=", state.last_node, " incarnation=", state.last_incarnation,
                   " job=", state.last_job, "\n");
  for (const auto& [id, node] : state.nodes) DumpNode(node, out);
  for (const auto& [id, job] : state.jobs) DumpJob(job, out);
  return out;
}

}  // namespace paceline::scheduler
