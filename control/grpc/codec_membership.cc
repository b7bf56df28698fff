// plan/messages.h
#include "control/grpc/codec.h"
#include "control/grpc/codec_util.h"

namespace paceline {
namespace {

using namespace codec;  // NOLINT: the helpers of this codec

constexpr uint64_t kMaxSamplesPerDraw = uint64_t{1} << 32;

// Roles that join: a server or a worker.
absl::Status JoiningRole(v1::Role in, Role* out) { return EnumFromProto("role", in, 1, 2, out); }

}  // namespace

void ToProto(const JoinRequest& in, v1::JoinRequest* out) {
  out->set_role(static_cast<v1::Role>(in.role));
  out->set_name(in.name);
  out->set_host(in.host);
  for (const auto& [name, value] : in.labels) (*out->mutable_labels())[name] = value;
  out->set_data_address(in.data_address);
  if (in.role == Role::kWorker) ToProto(in.job, out->mutable_job());
  if (in.index) out->set_index(in.index->value());
  out->set_process_id(in.process_id);
}

absl::Status FromProto(const v1::JoinRequest& in, JoinRequest* out) {
  PACELINE_RETURN_IF_ERROR(JoiningRole(in.role(), &out->role));
  PACELINE_RETURN_IF_ERROR(CheckName("name", in.name()));
  PACELINE_RETURN_IF_ERROR(CheckText("host", in.host(), kMaxLabelBytes));
  PACELINE_RETURN_IF_ERROR(CheckRange("labels (count)", in.labels().size(), 0, kMaxLabels));
  out->labels.clear();
  for (const auto& [name, value] : in.labels()) {
    PACELINE_RETURN_IF_ERROR(CheckName("labels", name));
    PACELINE_RETURN_IF_ERROR(CheckText(absl::StrCat("labels.", name), value, kMaxLabelBytes));
    out->labels[name] = value;
  }
  const bool worker = out->role == Role::kWorker;
  if (!worker || !in.data_address().empty()) {
    PACELINE_RETURN_IF_ERROR(CheckAddress("data_address", in.data_address()));
  }
  if (worker != in.has_job()) {
    return Invalid("job", in.has_job() ? "given by a server" : "missing",
                   "it for workers, and for workers only");
  }
  if (worker) {
    PACELINE_RETURN_IF_ERROR(In("job", FromProto(in.job(), &out->job)));
    PACELINE_RETURN_IF_ERROR(In("job", Validate(out->job)));
  }
  out->index.reset();
  if (in.has_index()) out->index = WorkerIndex(in.index());
  if (!worker && out->index) return Invalid("index", "given by a server", "it for workers only");
  out->name = in.name();
  out->host = in.host();
  out->data_address = in.data_address();
  out->process_id = in.process_id();
  return absl::OkStatus();
}

void ToProto(const JoinReply& in, v1::JoinReply* out) {
  ToProto(in.self, out->mutable_self());
  out->set_job(in.job.value());
  out->set_rank(in.rank.value());
  out->set_term(in.term.value());
  out->set_key(KeyToProto(in.key));
  out->set_heartbeat_interval_ms(in.heartbeat_interval_ms);
  out->set_failure_timeout_ms(in.failure_timeout_ms);
}

absl::Status FromProto(const v1::JoinReply& in, JoinReply* out) {
  PACELINE_RETURN_IF_ERROR(In("self", FromProto(in.self(), &out->self)));
  PACELINE_RETURN_IF_ERROR(KeyFromProto("key", in.key(), &out->key));
  PACELINE_RETURN_IF_ERROR(
      CheckRange("heartbeat_interval_ms", in.heartbeat_interval_ms(), 1, UINT32_MAX));
  out->job = JobId(in.job());
  out->rank = JobRank(in.rank());
  out->term = Term(in.term());
  out->heartbeat_interval_ms = in.heartbeat_interval_ms();
  out->failure_timeout_ms = in.failure_timeout_ms();
  return absl::OkStatus();
}

void ToProto(const LeaveRequest& in, v1::LeaveRequest* out) {
  out->set_reason(FreeText(in.reason));
  out->set_exit_code(in.exit_code);
  ToProto(in.last, out->mutable_last());
}

absl::Status FromProto(const v1::LeaveRequest& in, LeaveRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  PACELINE_RETURN_IF_ERROR(In("last", FromProto(in.last(), &out->last)));
  out->reason = in.reason();
  out->exit_code = in.exit_code();
  return absl::OkStatus();
}

void ToProto(const DrawSamplesRequest& in, v1::DrawSamplesRequest* out) {
  out->set_wanted(in.wanted.value());
  out->set_step(in.step.value());
  out->set_received(in.received.value());
  out->set_ahead(in.ahead);
}

absl::Status FromProto(const v1::DrawSamplesRequest& in, DrawSamplesRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("wanted", in.wanted(), 0, kMaxSamplesPerDraw));
  *out = {Samples(in.wanted()), Step(in.step()), Samples(in.received()), in.ahead()};
  return absl::OkStatus();
}

void ToProto(const DrawSamplesReply& in, v1::DrawSamplesReply* out) {
  AllToProto(in.ranges, out->mutable_ranges());
  out->set_finished(in.finished);
}

absl::Status FromProto(const v1::DrawSamplesReply& in, DrawSamplesReply* out) {
  PACELINE_RETURN_IF_ERROR(AllFromProto("ranges", in.ranges(), &out->ranges));
  out->finished = in.finished();
  return absl::OkStatus();
}

void ToProto(const ReturnSamplesRequest& in, v1::ReturnSamplesRequest* out) {
  AllToProto(in.ranges, out->mutable_ranges());
}

absl::Status FromProto(const v1::ReturnSamplesRequest& in, ReturnSamplesRequest* out) {
  return AllFromProto("ranges", in.ranges(), &out->ranges);
}

void ToProto(const RegisterTensorsRequest& in, v1::RegisterTensorsRequest* out) {
  AllToProto(in.tensors, out->mutable_tensors());
}

absl::Status FromProto(const v1::RegisterTensorsRequest& in, RegisterTensorsRequest* out) {
  return AllFromProto("tensors", in.tensors(), &out->tensors);
}

void ToProto(const RegisterTensorsReply& in, v1::RegisterTensorsReply* out) {
  IdsToProto(in.ids, out->mutable_ids());
  out->set_generation(in.generation.value());
}

absl::Status FromProto(const v1::RegisterTensorsReply& in, RegisterTensorsReply* out) {
  PACELINE_RETURN_IF_ERROR(IdsFromProto("ids", in.ids(), &out->ids));
  out->generation = JobGeneration(in.generation());
  return absl::OkStatus();
}

void ToProto(const InitDoneRequest& in, v1::InitDoneRequest* out) {
  IdsToProto(in.tensors, out->mutable_tensors());
}

absl::Status FromProto(const v1::InitDoneRequest& in, InitDoneRequest* out) {
  return IdsFromProto("tensors", in.tensors(), &out->tensors);
}

void ToProto(const SetOptimizerRequest& in, v1::SetOptimizerRequest* out) {
  ToProto(in.optimizer, out->mutable_optimizer());
}

absl::Status FromProto(const v1::SetOptimizerRequest& in, SetOptimizerRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckName("optimizer.name", in.optimizer().name()));
  return In("optimizer", FromProto(in.optimizer(), &out->optimizer));
}

void ToProto(const BarrierRequest& in, v1::BarrierRequest* out) { out->set_name(in.name); }

absl::Status FromProto(const v1::BarrierRequest& in, BarrierRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckText("name", in.name(), kMaxName));
  out->name = in.name();
  return absl::OkStatus();
}

void ToProto(const CheckpointRequest& in, v1::CheckpointRequest* out) {
  out->set_directory(in.directory);
}

absl::Status FromProto(const v1::CheckpointRequest& in, CheckpointRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckText("directory", in.directory(), kMaxText));
  out->directory = in.directory();
  return absl::OkStatus();
}

void ToProto(const CheckpointReply& in, v1::CheckpointReply* out) {
  out->set_path(in.path);
  StepsToProto(in.cut, out->mutable_cut());
}

absl::Status FromProto(const v1::CheckpointReply& in, CheckpointReply* out) {
  PACELINE_RETURN_IF_ERROR(StepsFromProto("cut", in.cut(), &out->cut));
  out->path = in.path();
  return absl::OkStatus();
}

void ToProto(const AckRequest& in, v1::AckRequest* out) {
  out->set_id(in.id);
  out->set_step(in.step.value());
  StepsToProto(in.applied, out->mutable_applied());
  out->set_error(FreeText(in.error));
  if (!in.part.file.empty()) ToProto(in.part, out->mutable_part());
  out->set_updates(in.updates);
  AllToProto(in.workers, out->mutable_workers());
  AllToProto(in.missing, out->mutable_missing());
}

absl::Status FromProto(const v1::AckRequest& in, AckRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("id", in.id(), 1, UINT64_MAX));
  PACELINE_RETURN_IF_ERROR(StepsFromProto("applied", in.applied(), &out->applied));
  PACELINE_RETURN_IF_ERROR(CheckText("error", in.error(), kMaxText));
  PACELINE_RETURN_IF_ERROR(AllFromProto("missing", in.missing(), &out->missing));
  out->id = in.id();
  out->step = Step(in.step());
  PACELINE_RETURN_IF_ERROR(In("part", FromProto(in.part(), &out->part)));
  PACELINE_RETURN_IF_ERROR(AllFromProto("workers", in.workers(), &out->workers));
  out->updates = in.updates();
  out->error = in.error();
  return absl::OkStatus();
}

void ToProto(const LinkDownRequest& in, v1::LinkDownRequest* out) {
  out->set_peer(in.peer.value());
  out->set_since_ms(in.since_ms);
  out->set_cause(FreeText(in.cause));
}

absl::Status FromProto(const v1::LinkDownRequest& in, LinkDownRequest* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("peer", in.peer(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(CheckText("cause", in.cause(), kMaxText));
  *out = {NodeId(in.peer()), in.since_ms(), in.cause()};
  return absl::OkStatus();
}

}  // namespace paceline
