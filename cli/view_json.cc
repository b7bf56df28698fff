#include "cli/view_json.h"

#include <nlohmann/json.hpp>

#include "cli/summary.h"

namespace paceline {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json JobJson(const JobView& job) {
  Json metrics = Json::array();
  for (const MetricView& m : job.metrics) {
    metrics.push_back(
        {{"name", m.name}, {"value", m.value}, {"worker", m.worker}, {"step", m.step.value()}});
  }
  Json checkpoints = Json::array();
  for (const CheckpointRecord& record : job.checkpoints) {
    checkpoints.push_back({{"number", record.number},
                           {"path", record.path},
                           {"step", LastStep(record.steps).value()},
                           {"updates", record.updates}});
  }
  return {{"job", job.spec.name},
          {"state", std::string(Name(job.state))},
          {"reason", job.reason},
          {"epoch", job.epoch.value()},
          {"epochs", job.spec.epochs},
          {"step", job.step.value()},
          {"updates", job.updates},
          {"samples_per_s", job.samples_per_s},
          {"seconds_running", job.seconds_running},
          {"workers", job.spec.workers},
          {"workers_live", job.workers_live},
          {"servers", job.servers},
          {"groups", GroupCount(job)},
          {"generation", job.generation.value()},
          {"group_generations", job.group_generations},
          {"samples_total", job.total.value()},
          {"samples_drawn", job.drawn.value()},
          {"samples_applied", job.applied.value()},
          {"samples_discarded", job.discarded.value()},
          {"samples_returned", job.returned.value()},
          {"staleness_mean", job.mean},
          {"staleness_p95", job.p95},
          {"lineage", job.lineage},
          {"resumed_from", job.resumed_from},
          {"checkpoints", checkpoints},
          {"rollbacks", job.rollbacks.count},
          {"lost_steps", job.rollbacks.steps},
          {"lost_updates", job.rollbacks.updates},
          {"lost_samples", job.rollbacks.samples.value()},
          {"lost_ms", job.rollbacks.milliseconds},
          {"not_finite_pushes", job.not_finite},
          {"refused_frames", job.refused_frames},
          {"metrics", metrics}};
}

Json NodeJson(const NodeView& node) {
  return {{"name", node.name},
          {"node", node.node.value()},
          {"incarnation", node.incarnation.value()},
          {"role", std::string(Name(node.role))},
          {"state", node.state},
          {"host", node.host},
          {"address", node.data_address},
          {"job", node.job},
          {"rank", node.rank ? Json(node.rank->value()) : Json(nullptr)},
          {"pid", node.process_id},
          {"last_seen_ms", node.last_seen_ms},
          {"step", node.worker.step.value()},
          {"step_time_us", node.worker.step_time_us},
          {"links", node.worker.links}};
}

Json GroupJson(const GroupView& group) {
  Json members = Json::array();
  for (const Member& m : group.plan.members) {
    members.push_back({{"name", m.name}, {"rank", m.rank.value()}, {"host", m.host}});
  }
  return {{"group", group.plan.id.value()},
          {"generation", group.plan.generation.value()},
          {"activation_step", group.plan.activation_step.value()},
          {"step", group.step.value()},
          {"step_time_us", group.step_time_us},
          {"reason", group.plan.reason},
          {"members", members}};
}

Json CountsJson(const StalenessCounts& tau, double mean, double p50, double p95) {
  return {{"count", tau.count}, {"mean", mean}, {"p50", p50}, {"p95", p95}, {"max", tau.max}};
}

Json JobStalenessJson(const JobView& job) {
  Json json = CountsJson(job.tau, job.mean, job.p50, job.p95);
  json["job"] = job.spec.name;
  json["buckets"] = job.tau.buckets;
  json["by_group"] = Json::array();
  for (const GroupStalenessView& g : job.group_staleness) {
    Json entry = CountsJson(g.raw.tau, g.mean, g.p50, g.p95);
    entry["group"] = g.raw.group.value();
    entry["members"] = g.members;
    entry["excess_mean"] = g.excess_mean;
    entry["step_lag"] = g.step_lag;
    entry["sum"] = g.raw.tau.sum;
    entry["formula_sum"] = g.formula_sum;
    entry["last_seen_ms"] = g.last_seen_ms;
    json["by_group"].push_back(entry);
  }
  json["by_worker"] = Json::array();
  for (const WorkerStalenessView& w : job.worker_staleness) {
    Json entry = CountsJson(w.tau, w.mean, w.p50, w.p95);
    entry["worker"] = w.name;
    entry["group"] = w.group.value();
    entry["excess_mean"] = w.excess_mean;
    entry["step_lag"] = w.step_lag;
    entry["last_seen_ms"] = w.last_seen_ms;
    entry["samples_drawn"] = w.drawn.value();
    entry["samples_applied"] = w.applied.value();
    entry["samples_discarded"] = w.discarded.value();
    entry["samples_returned"] = w.returned.value();
    entry["carried"] = w.carried;
    entry["dropped"] = w.dropped;
    // Above is what the ledger and the owners say.
    entry["own_counts"] = {{"samples_drawn", w.drawn_by_worker.value()},
                           {"samples_applied", w.applied_by_worker.value()},
                           {"samples_discarded", w.discarded_by_worker.value()},
                           {"samples_returned", w.returned_by_worker.value()}};
    json["by_worker"].push_back(entry);
  }
  return json;
}

template <typename View, typename Function>
Json Array(const std::vector<View>& views, Function function) {
  Json json = Json::array();
  for (const View& view : views) json.push_back(function(view));
  return json;
}

// Chunks of jobs that are not over, by owner.
std::map<NodeId, uint64_t> ChunksOwned(const ClusterView& view) {
  std::map<NodeId, uint64_t> chunks;
  for (const JobView& job : view.jobs) {
    if (job.state != JobState::kForming && job.state != JobState::kRunning) continue;
    for (const TensorPlan& tensor : job.tensors) {
      for (NodeId owner : tensor.owners) ++chunks[owner];
    }
  }
  return chunks;
}

Json NodesOf(const ClusterView& view) {
  const std::map<NodeId, uint64_t> chunks = ChunksOwned(view);
  Json json = Json::array();
  for (const NodeView& node : view.nodes) {
    json.push_back(NodeJson(node));
    const auto owned = chunks.find(node.node);
    json.back()["chunks"] = owned == chunks.end() ? 0 : owned->second;
  }
  return json;
}

}  // namespace

std::string StatusJson(const ClusterView& view) {
  return Text({{"cluster", view.cluster},
               {"version", view.version},
               {"term", view.term.value()},
               {"uptime_ms", view.uptime_ms},
               {"nodes", NodesOf(view)},
               {"jobs", Array(view.jobs, JobJson)}},
              2);
}

std::string JobsJson(const ClusterView& view) {
  return Text({{"jobs", Array(view.jobs, JobJson)}}, 2);
}

std::string NodesJson(const ClusterView& view) { return Text({{"nodes", NodesOf(view)}}, 2); }

std::string GroupsJson(const ClusterView& view) {
  return Text(
      {{"jobs",
        Array(view.jobs,
              [](const JobView& job) {
                return Json{{"job", job.spec.name}, {"groups", Array(job.groups, GroupJson)}};
              })}},
      2);
}

std::string StalenessJson(const ClusterView& view) {
  return Text({{"jobs", Array(view.jobs, JobStalenessJson)}}, 2);
}

std::string CheckpointJson(const CheckpointReply& reply) {
  Json steps = Json::array();
  for (const auto& [group, step] : reply.cut) {
    steps.push_back({{"group", group.value()}, {"step", step.value()}});
  }
  return Text({{"path", reply.path}, {"steps", std::move(steps)}}, 2);
}

std::string EventsJson(const std::vector<DecisionRecord>& events) {
  std::string text;
  for (const DecisionRecord& event : events) {
    text += Text({{"sequence", event.sequence},
                  {"unix_time_ms", event.unix_time_ms},
                  {"job", event.job},
                  {"kind", event.kind},
                  {"text", event.text}},
                 -1);
  }
  return text;
}

}  // namespace paceline
