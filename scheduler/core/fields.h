// Which fields of the plan types the core's binary form holds, in order. The order is the format:
// a change of it needs a new format number of the journal (journal_entry.h) and trace (trace.h).
#pragma once

#include "common/base/encoding.h"
#include "plan/events.h"
#include "plan/report_fields.h"

// In namespace paceline, where argument-dependent lookup finds them for the plan types.
namespace paceline {

template <typename A>
void Fields(A& a, Is<NamedSpec> auto& v) {
  a(v.name, v.parameters);
}
template <typename A>
void Fields(A& a, Is<GroupSpec> auto& v) {
  a(v.kind, v.count, v.sizes, v.label);
}
template <typename A>
void Fields(A& a, Is<JobSpec> auto& v) {
  a(v.name, v.workers, v.min_workers, v.groups, v.optimizer, v.policy, v.codecs, v.normalization,
    v.aggregation, v.deterministic, v.chunk_bytes, v.sample_count, v.epochs, v.batch_size, v.seed,
    v.failure_timeout_ms, v.quorum, v.late, v.max_step_lag, v.gate, v.max_staleness, v.local_steps,
    v.checkpoint_every_steps, v.checkpoint_every_s, v.checkpoint_dir, v.checkpoint_keep,
    v.on_server_loss, v.nan);
}
template <typename A>
void Fields(A& a, Is<TensorSpec> auto& v) {
  a(v.name, v.shape, v.dtype, v.whole);
}
template <typename A>
void Fields(A& a, Is<SampleRange> auto& v) {
  a(v.epoch, v.begin, v.end);
}
template <typename A>
void Fields(A& a, Is<CheckpointPart> auto& v) {
  a(v.file, v.bytes, v.checksum);
}
template <typename A>
void Fields(A& a, Is<WorkerSamples> auto& v) {
  a(v.worker, v.applied, v.discarded);
}
template <typename A>
void Fields(A& a, Is<SamplePosition> auto& v) {
  a(v.left, v.epoch, v.position);
}
template <typename A>
void Fields(A& a, Is<CheckpointManifest> auto& v) {
  a(v.run, v.number, v.spec, v.lineage, v.updates, v.applied, v.steps, v.samples, v.tensors,
    v.parts, v.unix_time_ms);
}
template <typename A>
void Fields(A& a, Is<CheckpointRecord> auto& v) {
  a(v.number, v.path, v.updates, v.tensors, v.applied, v.steps, v.workers);
}
template <typename A>
void Fields(A& a, Is<RollbackTotals> auto& v) {
  a(v.count, v.steps, v.updates, v.samples, v.milliseconds);
}
template <typename A>
void Fields(A& a, Is<Member> auto& v) {
  a(v.node, v.name, v.incarnation, v.rank, v.index, v.host, v.data_address, v.key, v.first_step);
}
template <typename A>
void Fields(A& a, Is<GroupPlan> auto& v) {
  a(v.id, v.generation, v.activation_step, v.last_fence, v.planned_members, v.members, v.reason);
}
template <typename A>
void Fields(A& a, Is<TensorPlan> auto& v) {
  a(v.id, v.spec, v.owners, v.sealed);
}
template <typename A>
void Fields(A& a, Is<ChunkKey> auto& v) {
  a(v.tensor, v.chunk);
}
template <typename A>
void Fields(A& a, Is<ChunkMove> auto& v) {
  a(v.chunk, v.from, v.to);
}
template <typename A>
void Fields(A& a, Is<NodeRef> auto& v) {
  a(v.node, v.incarnation);
}
template <typename A>
void Fields(A& a, Is<JobAtServer> auto& v) {
  a(v.job, v.lead, v.updates, v.refused_frames, v.lineage, v.memory, v.groups, v.workers);
}
template <typename A>
void Fields(A& a, Is<ServerReport> auto& v) {
  a(v.bytes_in, v.bytes_out, v.connections, v.busy_permille, v.jobs);
}
template <typename A>
void Fields(A& a, Is<Metric> auto& v) {
  a(v.name, v.value, v.step);
}
template <typename A>
void Fields(A& a, Is<WorkerReport> auto& v) {
  a(v.group, v.step, v.epoch, v.step_time_us, v.wait_permille, v.drawn, v.applied, v.discarded,
    v.returned, v.bytes_in, v.bytes_out, v.metrics, v.links);
}
template <typename A>
void Fields(A& a, Is<JoinRequest> auto& v) {
  a(v.role, v.name, v.host, v.labels, v.data_address, v.job, v.index, v.process_id);
}
template <typename A>
void Fields(A& a, Is<RegisterTensorsRequest> auto& v) {
  a(v.tensors);
}
template <typename A>
void Fields(A& a, Is<InitDoneRequest> auto& v) {
  a(v.tensors);
}
template <typename A>
void Fields(A& a, Is<SetOptimizerRequest> auto& v) {
  a(v.optimizer);
}
template <typename A>
void Fields(A& a, Is<DrawSamplesRequest> auto& v) {
  a(v.wanted, v.step, v.received, v.ahead);
}
template <typename A>
void Fields(A& a, Is<ReturnSamplesRequest> auto& v) {
  a(v.ranges);
}
template <typename A>
void Fields(A& a, Is<BarrierRequest> auto& v) {
  a(v.name);
}
template <typename A>
void Fields(A& a, Is<CheckpointRequest> auto& v) {
  a(v.directory);
}
template <typename A>
void Fields(A& a, Is<AckRequest> auto& v) {
  a(v.id, v.step, v.applied, v.error, v.part, v.updates, v.workers, v.missing);
}
template <typename A>
void Fields(A& a, Is<AdoptedRequest> auto& v) {
  a(v.lineage, v.held);
}
template <typename A>
void Fields(A& a, Is<NotFiniteRequest> auto& v) {
  a(v.tensor, v.step, v.in_a_row);
}
template <typename A>
void Fields(A& a, Is<LinkDownRequest> auto& v) {
  a(v.peer, v.since_ms, v.cause);
}
template <typename A>
void Fields(A& a, Is<LeaveRequest> auto& v) {
  a(v.reason, v.exit_code, v.last);
}
template <typename A>
void Fields(A&, Is<Heartbeat> auto&) {}
template <typename A>
void Fields(A& a, Is<StatusQuery> auto& v) {
  a(v.job);
}
template <typename A>
void Fields(A& a, Is<EventsQuery> auto& v) {
  a(v.after, v.limit, v.job);
}
template <typename A>
void Fields(A& a, Is<StopJobRequest> auto& v) {
  a(v.job, v.failed, v.reason);
}
template <typename A>
void Fields(A& a, Is<ProcessEndedRequest> auto& v) {
  a(v.job, v.name, v.process_id, v.cause);
}
template <typename A>
void Fields(A& a, Is<RemoveWorkerRequest> auto& v) {
  a(v.job, v.worker, v.reason);
}
template <typename A>
void Fields(A& a, Is<MoveWorkerRequest> auto& v) {
  a(v.job, v.worker, v.group, v.reason);
}
template <typename A>
void Fields(A& a, Is<DrainServerRequest> auto& v) {
  a(v.server, v.undo);
}
template <typename A>
void Fields(A& a, Is<CheckpointJobRequest> auto& v) {
  a(v.job, v.directory);
}
template <typename A>
void Fields(A& a, Is<ResumeJobRequest> auto& v) {
  a(v.job, v.path, v.manifest);
}
template <typename A>
void Fields(A& a, Is<JoinEvent> auto& v) {
  a(v.request, v.join, v.key, v.random);
}
template <typename A>
void Fields(A& a, Is<NodeEvent> auto& v) {
  a(v.request, v.from, v.body);
}
template <typename A>
void Fields(A& a, Is<WatchEvent> auto& v) {
  a(v.from);
}
template <typename A>
void Fields(A& a, Is<WatchClosedEvent> auto& v) {
  a(v.from);
}
template <typename A>
void Fields(A& a, Is<ProcessEndedEvent> auto& v) {
  a(v.node, v.cause);
}
template <typename A>
void Fields(A& a, Is<OperatorEvent> auto& v) {
  a(v.request, v.body);
}
template <typename A>
void Fields(A&, Is<TickEvent> auto&) {}

}  // namespace paceline
