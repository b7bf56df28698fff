// The directives of plan/messages.h
#include "control/grpc/codec.h"
#include "control/grpc/codec_util.h"

namespace paceline {
namespace {

using namespace codec;  // NOLINT: the helpers of this codec

// What PrepareDirective and CommitDirective, and their protobufs, have alike.
template <typename T, typename Proto>
void ChangeToProto(const T& in, Proto* out) {
  out->set_change(in.change);
  out->set_job(in.job.value());
  AllToProto(in.groups, out->mutable_groups());
  out->set_reason(FreeText(in.reason));
}

template <typename Proto, typename T>
absl::Status ChangeFromProto(const Proto& in, T* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("job", in.job(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(AllFromProto("groups", in.groups(), &out->groups));
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  out->change = in.change();
  out->job = JobId(in.job());
  out->reason = in.reason();
  return absl::OkStatus();
}

template <typename T, typename Proto>
absl::Status BodyFromProto(std::string_view field, const Proto& in, Directive* out) {
  return In(field, FromProto(in, &out->body.emplace<T>()));
}

}  // namespace

void ToProto(const PlanDirective& in, v1::PlanDirective* out) {
  out->set_change(in.change);
  ToProto(in.plan, out->mutable_plan());
}

absl::Status FromProto(const v1::PlanDirective& in, PlanDirective* out) {
  out->change = in.change();
  return In("plan", FromProto(in.plan(), &out->plan));
}

void ToProto(const PrepareDirective& in, v1::PrepareDirective* out) { ChangeToProto(in, out); }
absl::Status FromProto(const v1::PrepareDirective& in, PrepareDirective* out) {
  return ChangeFromProto(in, out);
}

void ToProto(const CommitDirective& in, v1::CommitDirective* out) { ChangeToProto(in, out); }
absl::Status FromProto(const v1::CommitDirective& in, CommitDirective* out) {
  return ChangeFromProto(in, out);
}

void ToProto(const AbortDirective& in, v1::AbortDirective* out) {
  out->set_change(in.change);
  out->set_job(in.job.value());
  out->set_reason(FreeText(in.reason));
}

absl::Status FromProto(const v1::AbortDirective& in, AbortDirective* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("job", in.job(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  *out = {in.change(), JobId(in.job()), in.reason()};
  return absl::OkStatus();
}

void ToProto(const FenceDirective& in, v1::FenceDirective* out) {
  ChangeToProto(in, out);
  ToProto(in.dead, out->mutable_dead());
}

absl::Status FromProto(const v1::FenceDirective& in, FenceDirective* out) {
  PACELINE_RETURN_IF_ERROR(ChangeFromProto(in, out));
  return In("dead", FromProto(in.dead(), &out->dead));
}

void ToProto(const SealedDirective& in, v1::SealedDirective* out) {
  out->set_job(in.job.value());
  IdsToProto(in.tensors, out->mutable_tensors());
}

absl::Status FromProto(const v1::SealedDirective& in, SealedDirective* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("job", in.job(), 1, UINT32_MAX));
  out->job = JobId(in.job());
  return IdsFromProto("tensors", in.tensors(), &out->tensors);
}

void ToProto(const CutDirective& in, v1::CutDirective* out) {
  out->set_cut(in.cut);
  out->set_job(in.job.value());
  out->set_collect(in.collect);
  out->set_abort(in.abort);
  StepsToProto(in.steps, out->mutable_steps());
  out->set_directory(in.directory);
  if (in.manifest) ToProto(*in.manifest, out->mutable_manifest());
  for (const std::string& path : in.drop) out->add_drop(path);
}

absl::Status FromProto(const v1::CutDirective& in, CutDirective* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("job", in.job(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(StepsFromProto("steps", in.steps(), &out->steps));
  PACELINE_RETURN_IF_ERROR(CheckText("directory", in.directory(), kMaxText));
  PACELINE_RETURN_IF_ERROR(LinesFromProto("drop", in.drop(), &out->drop, kMaxLines));
  out->manifest.reset();
  if (in.has_manifest()) {
    PACELINE_RETURN_IF_ERROR(In("manifest", FromProto(in.manifest(), &out->manifest.emplace())));
  }
  out->cut = in.cut();
  out->job = JobId(in.job());
  out->collect = in.collect();
  out->abort = in.abort();
  out->directory = in.directory();
  return absl::OkStatus();
}

void ToProto(const RecallSamplesDirective& in, v1::RecallSamplesDirective* out) {
  out->set_job(in.job.value());
}

absl::Status FromProto(const v1::RecallSamplesDirective& in, RecallSamplesDirective* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("job", in.job(), 1, UINT32_MAX));
  out->job = JobId(in.job());
  return absl::OkStatus();
}

void ToProto(const EndJobDirective& in, v1::EndJobDirective* out) {
  out->set_job(in.job.value());
  out->set_failed(in.failed);
  out->set_reason(FreeText(in.reason));
}

absl::Status FromProto(const v1::EndJobDirective& in, EndJobDirective* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("job", in.job(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  *out = {JobId(in.job()), in.failed(), in.reason()};
  return absl::OkStatus();
}

void ToProto(const RemoveDirective& in, v1::RemoveDirective* out) {
  out->set_job(in.job.value());
  out->set_reason(FreeText(in.reason));
}

absl::Status FromProto(const v1::RemoveDirective& in, RemoveDirective* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("job", in.job(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  *out = {JobId(in.job()), in.reason()};
  return absl::OkStatus();
}

void ToProto(const Directive& in, v1::Directive* out) {
  out->set_sequence(in.sequence);
  out->set_term(in.term.value());
  struct Visitor {
    v1::Directive* out;
    void operator()(const PlanDirective& d) { ToProto(d, out->mutable_plan()); }
    void operator()(const PrepareDirective& d) { ToProto(d, out->mutable_prepare()); }
    void operator()(const CommitDirective& d) { ToProto(d, out->mutable_commit()); }
    void operator()(const AbortDirective& d) { ToProto(d, out->mutable_abort()); }
    void operator()(const FenceDirective& d) { ToProto(d, out->mutable_fence()); }
    void operator()(const SealedDirective& d) { ToProto(d, out->mutable_sealed()); }
    void operator()(const CutDirective& d) { ToProto(d, out->mutable_cut()); }
    void operator()(const RecallSamplesDirective& d) { ToProto(d, out->mutable_recall_samples()); }
    void operator()(const EndJobDirective& d) { ToProto(d, out->mutable_end_job()); }
    void operator()(const RemoveDirective& d) { ToProto(d, out->mutable_remove()); }
  };
  std::visit(Visitor{out}, in.body);
}

absl::Status FromProto(const v1::Directive& in, Directive* out) {
  out->sequence = in.sequence();
  out->term = Term(in.term());
  switch (in.body_case()) {
    case v1::Directive::kPlan:
      return BodyFromProto<PlanDirective>("plan", in.plan(), out);
    case v1::Directive::kPrepare:
      return BodyFromProto<PrepareDirective>("prepare", in.prepare(), out);
    case v1::Directive::kCommit:
      return BodyFromProto<CommitDirective>("commit", in.commit(), out);
    case v1::Directive::kAbort:
      return BodyFromProto<AbortDirective>("abort", in.abort(), out);
    case v1::Directive::kFence:
      return BodyFromProto<FenceDirective>("fence", in.fence(), out);
    case v1::Directive::kSealed:
      return BodyFromProto<SealedDirective>("sealed", in.sealed(), out);
    case v1::Directive::kCut:
      return BodyFromProto<CutDirective>("cut", in.cut(), out);
    case v1::Directive::kRecallSamples:
      return BodyFromProto<RecallSamplesDirective>("recall_samples", in.recall_samples(), out);
    case v1::Directive::kEndJob:
      return BodyFromProto<EndJobDirective>("end_job", in.end_job(), out);
    case v1::Directive::kRemove:
      return BodyFromProto<RemoveDirective>("remove", in.remove(), out);
    case v1::Directive::BODY_NOT_SET:
      break;
  }
  return Invalid("body", "none that this version knows",
                 "a scheduler and a node of the same version");
}

}  // namespace paceline
