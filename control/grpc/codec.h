// Between protobuf (paceline.v1) and the plain structs of plan/. FromProto checks every field at
// the edge, on both sides: what comes out is well formed. Its errors are InvalidArgument:
// "path.of.field: value; use what is allowed".
// Thread rule: pure functions.
//
// ToProto cuts free text (reasons, causes, errors) to its bound and replaces what is not UTF-8,
// so that an odd file name or signal text never costs the message that carries it.
#pragma once

#include "absl/status/status.h"
#include "paceline/v1/membership.pb.h"
#include "paceline/v1/operator.pb.h"
#include "paceline/v1/report.pb.h"
#include "paceline/v1/types.pb.h"
#include "plan/messages.h"
#include "plan/operator_view.h"

namespace paceline {

// Overloads for one type stand together: void ToProto(const T&, v1::T*) and
// absl::Status FromProto(const v1::T&, T*).
#define PACELINE_CODEC(Type, Proto)         \
  void ToProto(const Type& in, Proto* out); \
  absl::Status FromProto(const Proto& in, Type* out)

// plan/job_spec.h, plan/tensor_spec.h, plan/plan.h, plan/permutation.h
PACELINE_CODEC(NodeRef, v1::NodeRef);
PACELINE_CODEC(NamedSpec, v1::NamedSpec);
PACELINE_CODEC(GroupSpec, v1::GroupSpec);
PACELINE_CODEC(JobSpec, v1::JobSpec);  // well formed; what it asks for is checked at Join
PACELINE_CODEC(TensorSpec, v1::TensorSpec);
PACELINE_CODEC(Member, v1::Member);
PACELINE_CODEC(GroupPlan, v1::GroupPlan);
PACELINE_CODEC(ServerInfo, v1::ServerInfo);
PACELINE_CODEC(ChunkKey, v1::ChunkRef);
PACELINE_CODEC(ChunkMove, v1::ChunkMove);
PACELINE_CODEC(TensorPlan, v1::TensorPlan);
PACELINE_CODEC(Plan, v1::Plan);
PACELINE_CODEC(SampleRange, v1::SampleRange);

// plan/checkpoint.h
PACELINE_CODEC(CheckpointPart, v1::CheckpointPart);
PACELINE_CODEC(WorkerSamples, v1::WorkerSamples);
PACELINE_CODEC(SamplePosition, v1::SamplePosition);
PACELINE_CODEC(CheckpointManifest, v1::CheckpointManifest);
PACELINE_CODEC(CheckpointRecord, v1::CheckpointRecord);
PACELINE_CODEC(RollbackTotals, v1::RollbackTotals);

// plan/report.h
PACELINE_CODEC(StalenessCounts, v1::StalenessCounts);
PACELINE_CODEC(GroupStaleness, v1::GroupStaleness);
PACELINE_CODEC(WorkerStaleness, v1::WorkerStaleness);
PACELINE_CODEC(JobAtServer, v1::JobAtServer);
PACELINE_CODEC(ServerReport, v1::ServerReport);
PACELINE_CODEC(Metric, v1::Metric);
PACELINE_CODEC(WorkerReport, v1::WorkerReport);

// plan/messages.h. Requests after Join carry the sender beside the body: `from` is not touched
// here.
PACELINE_CODEC(JoinRequest, v1::JoinRequest);
PACELINE_CODEC(JoinReply, v1::JoinReply);
PACELINE_CODEC(LeaveRequest, v1::LeaveRequest);
PACELINE_CODEC(DrawSamplesRequest, v1::DrawSamplesRequest);
PACELINE_CODEC(DrawSamplesReply, v1::DrawSamplesReply);
PACELINE_CODEC(ReturnSamplesRequest, v1::ReturnSamplesRequest);
PACELINE_CODEC(RegisterTensorsRequest, v1::RegisterTensorsRequest);
PACELINE_CODEC(RegisterTensorsReply, v1::RegisterTensorsReply);
PACELINE_CODEC(InitDoneRequest, v1::InitDoneRequest);
PACELINE_CODEC(SetOptimizerRequest, v1::SetOptimizerRequest);
PACELINE_CODEC(BarrierRequest, v1::BarrierRequest);
PACELINE_CODEC(CheckpointRequest, v1::CheckpointRequest);
PACELINE_CODEC(CheckpointReply, v1::CheckpointReply);
PACELINE_CODEC(AckRequest, v1::AckRequest);
PACELINE_CODEC(AdoptedRequest, v1::AdoptedRequest);
PACELINE_CODEC(NotFiniteRequest, v1::NotFiniteRequest);
PACELINE_CODEC(LinkDownRequest, v1::LinkDownRequest);
PACELINE_CODEC(PlanDirective, v1::PlanDirective);
PACELINE_CODEC(PrepareDirective, v1::PrepareDirective);
PACELINE_CODEC(CommitDirective, v1::CommitDirective);
PACELINE_CODEC(AbortDirective, v1::AbortDirective);
PACELINE_CODEC(FenceDirective, v1::FenceDirective);
PACELINE_CODEC(SealedDirective, v1::SealedDirective);
PACELINE_CODEC(CutDirective, v1::CutDirective);
PACELINE_CODEC(RecallSamplesDirective, v1::RecallSamplesDirective);
PACELINE_CODEC(EndJobDirective, v1::EndJobDirective);
PACELINE_CODEC(RemoveDirective, v1::RemoveDirective);
PACELINE_CODEC(Directive, v1::Directive);

// plan/operator_view.h
PACELINE_CODEC(DecisionRecord, v1::DecisionRecord);
PACELINE_CODEC(NodeView, v1::NodeView);
PACELINE_CODEC(GroupView, v1::GroupView);
PACELINE_CODEC(WorkerStalenessView, v1::WorkerStalenessView);
PACELINE_CODEC(GroupStalenessView, v1::GroupStalenessView);
PACELINE_CODEC(MetricView, v1::MetricView);
PACELINE_CODEC(JobView, v1::JobView);
PACELINE_CODEC(ClusterView, v1::ClusterView);
PACELINE_CODEC(StatusQuery, v1::GetStatusRequest);
PACELINE_CODEC(EventsQuery, v1::ListEventsRequest);
PACELINE_CODEC(StopJobRequest, v1::StopJobRequest);
PACELINE_CODEC(ProcessEndedRequest, v1::ProcessEndedRequest);
PACELINE_CODEC(RemoveWorkerRequest, v1::RemoveWorkerRequest);
PACELINE_CODEC(MoveWorkerRequest, v1::MoveWorkerRequest);
PACELINE_CODEC(DrainServerRequest, v1::DrainServerRequest);
PACELINE_CODEC(CheckpointJobRequest, v1::CheckpointJobRequest);
PACELINE_CODEC(ResumeJobRequest, v1::ResumeJobRequest);

#undef PACELINE_CODEC

void ToProto(const std::vector<DecisionRecord>& in, v1::ListEventsReply* out);
absl::Status FromProto(const v1::ListEventsReply& in, std::vector<DecisionRecord>* out);

}  // namespace paceline
