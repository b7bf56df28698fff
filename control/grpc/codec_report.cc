// plan/report.h
#include "control/grpc/codec.h"
#include "control/grpc/codec_util.h"

namespace paceline {
namespace {

using namespace codec;  // NOLINT: the helpers of this codec

constexpr size_t kMaxMetricName = 128;

}  // namespace

void ToProto(const StalenessCounts& in, v1::StalenessCounts* out) {
  out->set_count(in.count);
  out->set_sum(in.sum);
  out->set_max(in.max);
  out->mutable_buckets()->Assign(in.buckets.begin(), in.buckets.end());
}

absl::Status FromProto(const v1::StalenessCounts& in, StalenessCounts* out) {
  PACELINE_RETURN_IF_ERROR(
      CheckRange("buckets (count)", in.buckets_size(), 0, StalenessCounts::kExact + 1));
  out->count = in.count();
  out->sum = in.sum();
  out->max = in.max();
  out->buckets.assign(in.buckets().begin(), in.buckets().end());
  return absl::OkStatus();
}

void ToProto(const GroupStaleness& in, v1::GroupStaleness* out) {
  out->set_group(in.group.value());
  ToProto(in.tau, out->mutable_tau());
  out->set_excess_sum(in.excess_sum);
  out->set_first_base(in.first_base);
  out->set_last(in.last);
  out->set_base_gaps(in.base_gaps);
  out->set_last_step(in.last_step.value());
  out->set_last_applied_ns(in.last_applied.value());
}

absl::Status FromProto(const v1::GroupStaleness& in, GroupStaleness* out) {
  PACELINE_RETURN_IF_ERROR(In("tau", FromProto(in.tau(), &out->tau)));
  out->group = GroupId(in.group());
  out->excess_sum = in.excess_sum();
  out->first_base = in.first_base();
  out->last = in.last();
  out->base_gaps = in.base_gaps();
  out->last_step = Step(in.last_step());
  out->last_applied = Ticks(in.last_applied_ns());
  return absl::OkStatus();
}

void ToProto(const WorkerStaleness& in, v1::WorkerStaleness* out) {
  out->set_worker(in.worker.value());
  out->set_group(in.group.value());
  ToProto(in.tau, out->mutable_tau());
  out->set_excess_sum(in.excess_sum);
  out->set_applied(in.applied.value());
  out->set_discarded(in.discarded.value());
  out->set_carried(in.carried);
  out->set_dropped(in.dropped);
  out->set_last_step(in.last_step.value());
  out->set_last_applied_ns(in.last_applied.value());
}

absl::Status FromProto(const v1::WorkerStaleness& in, WorkerStaleness* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("worker", in.worker(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(In("tau", FromProto(in.tau(), &out->tau)));
  out->worker = NodeId(in.worker());
  out->group = GroupId(in.group());
  out->excess_sum = in.excess_sum();
  out->applied = Samples(in.applied());
  out->discarded = Samples(in.discarded());
  out->carried = in.carried();
  out->dropped = in.dropped();
  out->last_step = Step(in.last_step());
  out->last_applied = Ticks(in.last_applied_ns());
  return absl::OkStatus();
}

void ToProto(const JobAtServer& in, v1::JobAtServer* out) {
  out->set_job(in.job.value());
  out->set_lead(in.lead);
  out->set_updates(in.updates);
  out->set_refused_frames(in.refused_frames);
  out->set_lineage(in.lineage);
  out->set_memory_bytes(in.memory.value());
  AllToProto(in.groups, out->mutable_groups());
  AllToProto(in.workers, out->mutable_workers());
}

absl::Status FromProto(const v1::JobAtServer& in, JobAtServer* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("job", in.job(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(AllFromProto("groups", in.groups(), &out->groups));
  PACELINE_RETURN_IF_ERROR(AllFromProto("workers", in.workers(), &out->workers));
  out->job = JobId(in.job());
  out->lead = in.lead();
  out->updates = in.updates();
  out->refused_frames = in.refused_frames();
  out->lineage = in.lineage();
  out->memory = Bytes(in.memory_bytes());
  return absl::OkStatus();
}

void ToProto(const ServerReport& in, v1::ServerReport* out) {
  out->set_bytes_in(in.bytes_in.value());
  out->set_bytes_out(in.bytes_out.value());
  out->set_connections(in.connections);
  out->set_busy_permille(in.busy_permille);
  AllToProto(in.jobs, out->mutable_jobs());
}

absl::Status FromProto(const v1::ServerReport& in, ServerReport* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("busy_permille", in.busy_permille(), 0, 1000));
  PACELINE_RETURN_IF_ERROR(AllFromProto("jobs", in.jobs(), &out->jobs, kMaxLines));
  out->bytes_in = Bytes(in.bytes_in());
  out->bytes_out = Bytes(in.bytes_out());
  out->connections = in.connections();
  out->busy_permille = in.busy_permille();
  return absl::OkStatus();
}

void ToProto(const Metric& in, v1::Metric* out) {
  out->set_name(FreeText(in.name));
  out->set_value(in.value);
  out->set_step(in.step.value());
}

absl::Status FromProto(const v1::Metric& in, Metric* out) {
  // A value that is not finite is news, not an error: a loss that went to NaN is to be seen.
  PACELINE_RETURN_IF_ERROR(CheckText("name", in.name(), kMaxMetricName));
  *out = {in.name(), in.value(), Step(in.step())};
  return absl::OkStatus();
}

void ToProto(const WorkerReport& in, v1::WorkerReport* out) {
  out->set_group(in.group.value());
  out->set_step(in.step.value());
  out->set_epoch(in.epoch.value());
  out->set_step_time_us(in.step_time_us);
  out->set_wait_permille(in.wait_permille);
  out->set_drawn(in.drawn.value());
  out->set_applied(in.applied.value());
  out->set_discarded(in.discarded.value());
  out->set_returned(in.returned.value());
  out->set_bytes_in(in.bytes_in.value());
  out->set_bytes_out(in.bytes_out.value());
  AllToProto(in.metrics, out->mutable_metrics());
  for (const std::string& line : in.links) *out->add_links() = FreeText(line);
}

absl::Status FromProto(const v1::WorkerReport& in, WorkerReport* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("wait_permille", in.wait_permille(), 0, 1000));
  PACELINE_RETURN_IF_ERROR(AllFromProto("metrics", in.metrics(), &out->metrics, kMaxLines));
  PACELINE_RETURN_IF_ERROR(LinesFromProto("links", in.links(), &out->links, kMaxLines));
  out->group = GroupId(in.group());
  out->step = Step(in.step());
  out->epoch = Epoch(in.epoch());
  out->step_time_us = in.step_time_us();
  out->wait_permille = in.wait_permille();
  out->drawn = Samples(in.drawn());
  out->applied = Samples(in.applied());
  out->discarded = Samples(in.discarded());
  out->returned = Samples(in.returned());
  out->bytes_in = Bytes(in.bytes_in());
  out->bytes_out = Bytes(in.bytes_out());
  return absl::OkStatus();
}

}  // namespace paceline
