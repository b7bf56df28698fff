// plan/checkpoint.h, and the messages about checkpoints
#include "control/grpc/codec.h"
#include "control/grpc/codec_util.h"

namespace paceline {
namespace {

using namespace codec;  // NOLINT: the helpers of this codec

}  // namespace

void ToProto(const CheckpointPart& in, v1::CheckpointPart* out) {
  out->set_file(in.file);
  out->set_bytes(in.bytes.value());
  out->set_checksum(in.checksum);
}

absl::Status FromProto(const v1::CheckpointPart& in, CheckpointPart* out) {
  PACELINE_RETURN_IF_ERROR(CheckText("file", in.file(), kMaxName));
  *out = {in.file(), Bytes(in.bytes()), in.checksum()};
  return absl::OkStatus();
}

void ToProto(const WorkerSamples& in, v1::WorkerSamples* out) {
  out->set_worker(in.worker.value());
  out->set_applied(in.applied.value());
  out->set_discarded(in.discarded.value());
}

absl::Status FromProto(const v1::WorkerSamples& in, WorkerSamples* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("worker", in.worker(), 1, UINT32_MAX));
  *out = {NodeId(in.worker()), Samples(in.applied()), Samples(in.discarded())};
  return absl::OkStatus();
}

void ToProto(const SamplePosition& in, v1::SamplePosition* out) {
  AllToProto(in.left, out->mutable_left());
  out->set_epoch(in.epoch.value());
  out->set_position(in.position);
}

absl::Status FromProto(const v1::SamplePosition& in, SamplePosition* out) {
  PACELINE_RETURN_IF_ERROR(AllFromProto("left", in.left(), &out->left));
  out->epoch = Epoch(in.epoch());
  out->position = in.position();
  return absl::OkStatus();
}

void ToProto(const CheckpointManifest& in, v1::CheckpointManifest* out) {
  out->set_run(in.run);
  out->set_number(in.number);
  ToProto(in.spec, out->mutable_spec());
  out->set_lineage(in.lineage);
  out->set_updates(in.updates);
  out->set_applied(in.applied.value());
  StepsToProto(in.steps, out->mutable_steps());
  ToProto(in.samples, out->mutable_samples());
  AllToProto(in.tensors, out->mutable_tensors());
  AllToProto(in.parts, out->mutable_parts());
  out->set_unix_time_ms(in.unix_time_ms);
}

absl::Status FromProto(const v1::CheckpointManifest& in, CheckpointManifest* out) {
  PACELINE_RETURN_IF_ERROR(CheckText("run", in.run(), kMaxName));
  PACELINE_RETURN_IF_ERROR(In("spec", FromProto(in.spec(), &out->spec)));
  PACELINE_RETURN_IF_ERROR(StepsFromProto("steps", in.steps(), &out->steps));
  PACELINE_RETURN_IF_ERROR(In("samples", FromProto(in.samples(), &out->samples)));
  PACELINE_RETURN_IF_ERROR(AllFromProto("tensors", in.tensors(), &out->tensors));
  PACELINE_RETURN_IF_ERROR(AllFromProto("parts", in.parts(), &out->parts));
  out->run = in.run();
  out->number = in.number();
  out->lineage = in.lineage();
  out->updates = in.updates();
  out->applied = Samples(in.applied());
  out->unix_time_ms = in.unix_time_ms();
  return absl::OkStatus();
}

void ToProto(const CheckpointRecord& in, v1::CheckpointRecord* out) {
  out->set_number(in.number);
  out->set_path(in.path);
  out->set_updates(in.updates);
  out->set_tensors(in.tensors);
  out->set_applied(in.applied.value());
  StepsToProto(in.steps, out->mutable_steps());
  AllToProto(in.workers, out->mutable_workers());
}

absl::Status FromProto(const v1::CheckpointRecord& in, CheckpointRecord* out) {
  PACELINE_RETURN_IF_ERROR(CheckText("path", in.path(), kMaxText));
  PACELINE_RETURN_IF_ERROR(StepsFromProto("steps", in.steps(), &out->steps));
  PACELINE_RETURN_IF_ERROR(AllFromProto("workers", in.workers(), &out->workers));
  out->number = in.number();
  out->path = in.path();
  out->updates = in.updates();
  out->tensors = in.tensors();
  out->applied = Samples(in.applied());
  return absl::OkStatus();
}

void ToProto(const RollbackTotals& in, v1::RollbackTotals* out) {
  out->set_count(in.count);
  out->set_steps(in.steps);
  out->set_updates(in.updates);
  out->set_samples(in.samples.value());
  out->set_milliseconds(in.milliseconds);
}

absl::Status FromProto(const v1::RollbackTotals& in, RollbackTotals* out) {
  *out = {in.count(), in.steps(), in.updates(), Samples(in.samples()), in.milliseconds()};
  return absl::OkStatus();
}

void ToProto(const AdoptedRequest& in, v1::AdoptedRequest* out) {
  out->set_lineage(in.lineage);
  AllToProto(in.held, out->mutable_held());
}

absl::Status FromProto(const v1::AdoptedRequest& in, AdoptedRequest* out) {
  out->lineage = in.lineage();
  return AllFromProto("held", in.held(), &out->held);
}

void ToProto(const NotFiniteRequest& in, v1::NotFiniteRequest* out) {
  out->set_tensor(in.tensor);
  out->set_step(in.step.value());
  out->set_in_a_row(in.in_a_row);
}

absl::Status FromProto(const v1::NotFiniteRequest& in, NotFiniteRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckText("tensor", in.tensor(), kMaxName));
  *out = {in.tensor(), Step(in.step()), in.in_a_row()};
  return absl::OkStatus();
}

void ToProto(const CheckpointJobRequest& in, v1::CheckpointJobRequest* out) {
  out->set_job(in.job);
  out->set_directory(in.directory);
}

absl::Status FromProto(const v1::CheckpointJobRequest& in, CheckpointJobRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckName("job", in.job()));
  PACELINE_RETURN_IF_ERROR(CheckText("directory", in.directory(), kMaxText));
  *out = {in.job(), in.directory()};
  return absl::OkStatus();
}

void ToProto(const ResumeJobRequest& in, v1::ResumeJobRequest* out) {
  out->set_job(in.job);
  out->set_path(in.path);
  ToProto(in.manifest, out->mutable_manifest());
}

absl::Status FromProto(const v1::ResumeJobRequest& in, ResumeJobRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckName("job", in.job()));
  PACELINE_RETURN_IF_ERROR(CheckText("path", in.path(), kMaxText));
  out->job = in.job();
  out->path = in.path();
  return In("manifest", FromProto(in.manifest(), &out->manifest));
}

}  // namespace paceline
