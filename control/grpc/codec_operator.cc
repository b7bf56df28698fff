// plan/operator_view.h
#include "control/grpc/codec.h"
#include "control/grpc/codec_util.h"

namespace paceline {
namespace {

using namespace codec;  // NOLINT: the helpers of this codec

constexpr uint32_t kMaxEvents = 100'000;

absl::Status OptionalJobName(std::string_view name) {
  return name.empty() ? absl::OkStatus() : CheckName("job", name);
}

}  // namespace

void ToProto(const DecisionRecord& in, v1::DecisionRecord* out) {
  out->set_sequence(in.sequence);
  out->set_unix_time_ms(in.unix_time_ms);
  out->set_at_ns(in.at.value());
  out->set_job(in.job);
  out->set_kind(in.kind);
  out->set_text(FreeText(in.text));
}

absl::Status FromProto(const v1::DecisionRecord& in, DecisionRecord* out) {
  *out = {in.sequence(), in.unix_time_ms(), Ticks(in.at_ns()), in.job(), in.kind(), in.text()};
  return absl::OkStatus();
}

void ToProto(const NodeView& in, v1::NodeView* out) {
  ToProto(NodeRef{in.node, in.incarnation}, out->mutable_self());
  out->set_role(static_cast<v1::Role>(in.role));
  out->set_name(in.name);
  out->set_host(in.host);
  out->set_data_address(in.data_address);
  out->set_job(in.job);
  if (in.rank) out->set_rank(in.rank->value());
  out->set_state(in.state);
  out->set_last_seen_ms(in.last_seen_ms);
  out->set_process_id(in.process_id);
  ToProto(in.worker, out->mutable_worker());
  ToProto(in.server, out->mutable_server());
}

absl::Status FromProto(const v1::NodeView& in, NodeView* out) {
  NodeRef self;
  PACELINE_RETURN_IF_ERROR(In("self", FromProto(in.self(), &self)));
  PACELINE_RETURN_IF_ERROR(EnumFromProto("role", in.role(), 1, 4, &out->role));
  PACELINE_RETURN_IF_ERROR(In("worker", FromProto(in.worker(), &out->worker)));
  PACELINE_RETURN_IF_ERROR(In("server", FromProto(in.server(), &out->server)));
  out->node = self.node;
  out->incarnation = self.incarnation;
  out->name = in.name();
  out->host = in.host();
  out->data_address = in.data_address();
  out->job = in.job();
  out->rank.reset();
  if (in.has_rank()) out->rank = JobRank(in.rank());
  out->state = in.state();
  out->last_seen_ms = in.last_seen_ms();
  out->process_id = in.process_id();
  return absl::OkStatus();
}

void ToProto(const GroupView& in, v1::GroupView* out) {
  ToProto(in.plan, out->mutable_plan());
  out->set_step(in.step.value());
  out->set_step_time_us(in.step_time_us);
}

absl::Status FromProto(const v1::GroupView& in, GroupView* out) {
  out->step = Step(in.step());
  out->step_time_us = in.step_time_us();
  return In("plan", FromProto(in.plan(), &out->plan));
}

void ToProto(const WorkerStalenessView& in, v1::WorkerStalenessView* out) {
  out->set_name(in.name);
  out->set_group(in.group.value());
  ToProto(in.tau, out->mutable_tau());
  out->set_mean(in.mean);
  out->set_p50(in.p50);
  out->set_p95(in.p95);
  out->set_excess_mean(in.excess_mean);
  out->set_step_lag(in.step_lag);
  out->set_last_seen_ms(in.last_seen_ms);
  out->set_drawn(in.drawn.value());
  out->set_applied(in.applied.value());
  out->set_discarded(in.discarded.value());
  out->set_returned(in.returned.value());
  out->set_drawn_by_worker(in.drawn_by_worker.value());
  out->set_applied_by_worker(in.applied_by_worker.value());
  out->set_discarded_by_worker(in.discarded_by_worker.value());
  out->set_returned_by_worker(in.returned_by_worker.value());
  out->set_carried(in.carried);
  out->set_dropped(in.dropped);
}

absl::Status FromProto(const v1::WorkerStalenessView& in, WorkerStalenessView* out) {
  PACELINE_RETURN_IF_ERROR(In("tau", FromProto(in.tau(), &out->tau)));
  out->name = in.name();
  out->group = GroupId(in.group());
  out->mean = in.mean();
  out->p50 = in.p50();
  out->p95 = in.p95();
  out->excess_mean = in.excess_mean();
  out->step_lag = in.step_lag();
  out->last_seen_ms = in.last_seen_ms();
  out->drawn = Samples(in.drawn());
  out->applied = Samples(in.applied());
  out->discarded = Samples(in.discarded());
  out->returned = Samples(in.returned());
  out->drawn_by_worker = Samples(in.drawn_by_worker());
  out->applied_by_worker = Samples(in.applied_by_worker());
  out->discarded_by_worker = Samples(in.discarded_by_worker());
  out->returned_by_worker = Samples(in.returned_by_worker());
  out->carried = in.carried();
  out->dropped = in.dropped();
  return absl::OkStatus();
}

void ToProto(const GroupStalenessView& in, v1::GroupStalenessView* out) {
  ToProto(in.raw, out->mutable_raw());
  for (const std::string& member : in.members) out->add_members(member);
  out->set_mean(in.mean);
  out->set_p50(in.p50);
  out->set_p95(in.p95);
  out->set_excess_mean(in.excess_mean);
  out->set_step_lag(in.step_lag);
  out->set_formula_sum(in.formula_sum);
  out->set_last_seen_ms(in.last_seen_ms);
}

absl::Status FromProto(const v1::GroupStalenessView& in, GroupStalenessView* out) {
  PACELINE_RETURN_IF_ERROR(In("raw", FromProto(in.raw(), &out->raw)));
  PACELINE_RETURN_IF_ERROR(LinesFromProto("members", in.members(), &out->members, kMaxItems));
  out->mean = in.mean();
  out->p50 = in.p50();
  out->p95 = in.p95();
  out->excess_mean = in.excess_mean();
  out->step_lag = in.step_lag();
  out->formula_sum = in.formula_sum();
  out->last_seen_ms = in.last_seen_ms();
  return absl::OkStatus();
}

void ToProto(const MetricView& in, v1::MetricView* out) {
  out->set_name(in.name);
  out->set_value(in.value);
  out->set_worker(in.worker);
  out->set_step(in.step.value());
}

absl::Status FromProto(const v1::MetricView& in, MetricView* out) {
  *out = {in.name(), in.value(), in.worker(), Step(in.step())};
  return absl::OkStatus();
}

void ToProto(const JobView& in, v1::JobView* out) {
  out->set_id(in.id.value());
  ToProto(in.spec, out->mutable_spec());
  out->set_state(static_cast<v1::JobState>(in.state));
  out->set_reason(FreeText(in.reason));
  out->set_generation(in.generation.value());
  out->set_group_generations(in.group_generations);
  out->set_workers_live(in.workers_live);
  out->set_servers(in.servers);
  out->set_epoch(in.epoch.value());
  out->set_step(in.step.value());
  out->set_updates(in.updates);
  out->set_samples_per_s(in.samples_per_s);
  out->set_seconds_running(in.seconds_running);
  out->set_drawn(in.drawn.value());
  out->set_applied(in.applied.value());
  out->set_discarded(in.discarded.value());
  out->set_returned(in.returned.value());
  out->set_total(in.total.value());
  ToProto(in.tau, out->mutable_tau());
  out->set_mean(in.mean);
  out->set_p50(in.p50);
  out->set_p95(in.p95);
  AllToProto(in.groups, out->mutable_groups());
  AllToProto(in.group_staleness, out->mutable_group_staleness());
  AllToProto(in.worker_staleness, out->mutable_worker_staleness());
  AllToProto(in.metrics, out->mutable_metrics());
  AllToProto(in.tensors, out->mutable_tensors());
  out->set_lineage(in.lineage);
  AllToProto(in.checkpoints, out->mutable_checkpoints());
  ToProto(in.rollbacks, out->mutable_rollbacks());
  out->set_resumed_from(in.resumed_from);
  out->set_not_finite(in.not_finite);
  out->set_refused_frames(in.refused_frames);
}

absl::Status FromProto(const v1::JobView& in, JobView* out) {
  PACELINE_RETURN_IF_ERROR(In("spec", FromProto(in.spec(), &out->spec)));
  PACELINE_RETURN_IF_ERROR(EnumFromProto("state", in.state(), 1, 4, &out->state));
  PACELINE_RETURN_IF_ERROR(In("tau", FromProto(in.tau(), &out->tau)));
  PACELINE_RETURN_IF_ERROR(AllFromProto("groups", in.groups(), &out->groups));
  PACELINE_RETURN_IF_ERROR(
      AllFromProto("group_staleness", in.group_staleness(), &out->group_staleness));
  PACELINE_RETURN_IF_ERROR(
      AllFromProto("worker_staleness", in.worker_staleness(), &out->worker_staleness));
  PACELINE_RETURN_IF_ERROR(
      AllFromProto("metrics", in.metrics(), &out->metrics, kMaxItems * kMaxLines));
  PACELINE_RETURN_IF_ERROR(AllFromProto("tensors", in.tensors(), &out->tensors));
  PACELINE_RETURN_IF_ERROR(AllFromProto("checkpoints", in.checkpoints(), &out->checkpoints));
  PACELINE_RETURN_IF_ERROR(In("rollbacks", FromProto(in.rollbacks(), &out->rollbacks)));
  out->lineage = in.lineage();
  out->resumed_from = in.resumed_from();
  out->not_finite = in.not_finite();
  out->refused_frames = in.refused_frames();
  out->id = JobId(in.id());
  out->reason = in.reason();
  out->generation = JobGeneration(in.generation());
  out->group_generations = in.group_generations();
  out->workers_live = in.workers_live();
  out->servers = in.servers();
  out->epoch = Epoch(in.epoch());
  out->step = Step(in.step());
  out->updates = in.updates();
  out->samples_per_s = in.samples_per_s();
  out->seconds_running = in.seconds_running();
  out->drawn = Samples(in.drawn());
  out->applied = Samples(in.applied());
  out->discarded = Samples(in.discarded());
  out->returned = Samples(in.returned());
  out->total = Samples(in.total());
  out->mean = in.mean();
  out->p50 = in.p50();
  out->p95 = in.p95();
  return absl::OkStatus();
}

void ToProto(const ClusterView& in, v1::ClusterView* out) {
  out->set_version(in.version);
  out->set_cluster(in.cluster);
  out->set_term(in.term.value());
  out->set_uptime_ms(in.uptime_ms);
  AllToProto(in.nodes, out->mutable_nodes());
  AllToProto(in.jobs, out->mutable_jobs());
}

absl::Status FromProto(const v1::ClusterView& in, ClusterView* out) {
  PACELINE_RETURN_IF_ERROR(AllFromProto("nodes", in.nodes(), &out->nodes));
  PACELINE_RETURN_IF_ERROR(AllFromProto("jobs", in.jobs(), &out->jobs));
  out->version = in.version();
  out->cluster = in.cluster();
  out->term = Term(in.term());
  out->uptime_ms = in.uptime_ms();
  return absl::OkStatus();
}

void ToProto(const StatusQuery& in, v1::GetStatusRequest* out) { out->set_job(in.job); }

absl::Status FromProto(const v1::GetStatusRequest& in, StatusQuery* out) {
  out->job = in.job();
  return OptionalJobName(in.job());
}

void ToProto(const EventsQuery& in, v1::ListEventsRequest* out) {
  out->set_after(in.after);
  out->set_limit(in.limit);
  out->set_job(in.job);
}

absl::Status FromProto(const v1::ListEventsRequest& in, EventsQuery* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("limit", in.limit(), 1, kMaxEvents));
  *out = {in.after(), in.limit(), in.job()};
  return OptionalJobName(in.job());
}

void ToProto(const StopJobRequest& in, v1::StopJobRequest* out) {
  out->set_job(in.job);
  out->set_failed(in.failed);
  out->set_reason(FreeText(in.reason));
}

absl::Status FromProto(const v1::StopJobRequest& in, StopJobRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckName("job", in.job()));
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  *out = {in.job(), in.failed(), in.reason()};
  return absl::OkStatus();
}

void ToProto(const ProcessEndedRequest& in, v1::ProcessEndedRequest* out) {
  out->set_job(in.job);
  out->set_name(in.name);
  out->set_process_id(in.process_id);
  out->set_cause(FreeText(in.cause));
}

absl::Status FromProto(const v1::ProcessEndedRequest& in, ProcessEndedRequest* out) {
  PACELINE_RETURN_IF_ERROR(OptionalJobName(in.job()));
  PACELINE_RETURN_IF_ERROR(CheckName("name", in.name()));
  PACELINE_RETURN_IF_ERROR(CheckText("cause", in.cause(), kMaxText));
  *out = {in.job(), in.name(), in.process_id(), in.cause()};
  return absl::OkStatus();
}

void ToProto(const DrainServerRequest& in, v1::DrainServerRequest* out) {
  out->set_server(in.server);
  out->set_undo(in.undo);
}

absl::Status FromProto(const v1::DrainServerRequest& in, DrainServerRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckName("server", in.server()));
  *out = {in.server(), in.undo()};
  return absl::OkStatus();
}

void ToProto(const RemoveWorkerRequest& in, v1::RemoveWorkerRequest* out) {
  out->set_job(in.job);
  out->set_worker(in.worker);
  out->set_reason(FreeText(in.reason));
}

absl::Status FromProto(const v1::RemoveWorkerRequest& in, RemoveWorkerRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckName("job", in.job()));
  PACELINE_RETURN_IF_ERROR(CheckName("worker", in.worker()));
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  *out = {in.job(), in.worker(), in.reason()};
  return absl::OkStatus();
}

void ToProto(const MoveWorkerRequest& in, v1::MoveWorkerRequest* out) {
  out->set_job(in.job);
  out->set_worker(in.worker);
  if (in.group) out->set_group(in.group->value());
  out->set_reason(FreeText(in.reason));
}

absl::Status FromProto(const v1::MoveWorkerRequest& in, MoveWorkerRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckName("job", in.job()));
  PACELINE_RETURN_IF_ERROR(CheckName("worker", in.worker()));
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  *out = {in.job(), in.worker(), std::nullopt, in.reason()};
  if (in.has_group()) out->group = GroupId(in.group());
  return absl::OkStatus();
}

void ToProto(const std::vector<DecisionRecord>& in, v1::ListEventsReply* out) {
  AllToProto(in, out->mutable_events());
}

absl::Status FromProto(const v1::ListEventsReply& in, std::vector<DecisionRecord>* out) {
  return AllFromProto("events", in.events(), out, kMaxEvents);
}

}  // namespace paceline
