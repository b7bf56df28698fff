#include "parameter/host/frame_codec.h"

namespace paceline {
namespace {

std::optional<OperationKind> ToKind(FrameKind kind) {
  switch (kind) {
    case FrameKind::kInit:
      return OperationKind::kInit;
    case FrameKind::kPush:
      return OperationKind::kPush;
    case FrameKind::kPull:
      return OperationKind::kPull;
    case FrameKind::kPushPull:
      return OperationKind::kPushPull;
    case FrameKind::kReduce:
      return OperationKind::kReduce;
    case FrameKind::kBoundary:
      return OperationKind::kBoundary;
    case FrameKind::kReadState:
      return OperationKind::kReadState;
    case FrameKind::kWriteState:
      return OperationKind::kWriteState;
    case FrameKind::kMoveShard:
      return OperationKind::kMoveShard;
    case FrameKind::kVerdict:
      return OperationKind::kVerdict;
    default:
      return std::nullopt;
  }
}

FrameKind ToFrameKind(OperationKind kind) {
  switch (kind) {
    case OperationKind::kInit:
      return FrameKind::kInit;
    case OperationKind::kPush:
      return FrameKind::kPush;
    case OperationKind::kPull:
      return FrameKind::kPull;
    case OperationKind::kPushPull:
      return FrameKind::kPushPull;
    case OperationKind::kReduce:
      return FrameKind::kReduce;
    case OperationKind::kBoundary:
      return FrameKind::kBoundary;
    case OperationKind::kReadState:
      return FrameKind::kReadState;
    case OperationKind::kWriteState:
      return FrameKind::kWriteState;
    case OperationKind::kMoveShard:
      return FrameKind::kMoveShard;
    case OperationKind::kVerdict:
      return FrameKind::kVerdict;
  }
  return FrameKind::kRefuse;
}

}  // namespace

std::optional<Operation> ToOperation(const FrameHeader& header, uint64_t route) {
  const std::optional<OperationKind> kind = ToKind(header.kind);
  if (!kind || header.reply) return std::nullopt;
  return Operation{.kind = *kind,
                   .route = route,
                   .sender = header.sender,
                   .incarnation = header.incarnation,
                   .sequence = header.sequence,
                   .acknowledged = header.acknowledged,
                   .job_generation = header.job_generation,
                   .group = header.group,
                   .group_generation = header.group_generation,
                   .step = header.step,
                   .origin_step = header.origin_step,
                   .ordinal = header.ordinal,
                   .chunk = {header.tensor, header.chunk},
                   .base = header.version,
                   .lineage = header.lineage,
                   .samples = header.samples,
                   .learning_rate = header.learning_rate,
                   .dtype = header.dtype,
                   .total_bytes = header.total};
}

FrameHeader ToHeader(const Reply& reply) {
  FrameHeader header;
  header.kind = ToFrameKind(reply.to.kind);
  header.reply = true;
  header.status = ToFrameStatus(reply.status);
  header.group = reply.to.group;
  header.step = reply.open_step > Step(0) ? reply.open_step : reply.to.step;
  header.origin_step = reply.to.origin_step;
  header.ordinal = reply.to.ordinal;
  header.tensor = reply.to.chunk.tensor;
  header.chunk = reply.to.chunk.chunk;
  header.version = reply.version;
  header.sequence = reply.to.sequence;
  header.samples = reply.samples;
  header.dtype = reply.to.dtype;
  return header;
}

FrameStatus ToFrameStatus(OperationStatus status) {
  switch (status) {
    case OperationStatus::kOk:
      return FrameStatus::kOk;
    case OperationStatus::kNotYet:
      return FrameStatus::kNotYet;
    case OperationStatus::kOldGeneration:
      return FrameStatus::kOldGeneration;
    case OperationStatus::kFenced:
      return FrameStatus::kFenced;
    case OperationStatus::kNotOwner:
      return FrameStatus::kNotOwner;
    case OperationStatus::kUnknownTensor:
      return FrameStatus::kUnknownTensor;
    case OperationStatus::kBadRequest:
      return FrameStatus::kBadRequest;
    case OperationStatus::kNoOptimizer:
      return FrameStatus::kNoOptimizer;
    case OperationStatus::kNotWriter:
      return FrameStatus::kNotWriter;
    case OperationStatus::kNotFinite:
      return FrameStatus::kNotFinite;
    case OperationStatus::kDiscarded:
      return FrameStatus::kDiscarded;
    case OperationStatus::kQuota:
      return FrameStatus::kQuota;
    case OperationStatus::kJobEnded:
      return FrameStatus::kJobEnded;
    case OperationStatus::kLate:
      return FrameStatus::kLate;
  }
  return FrameStatus::kInternal;
}

}  // namespace paceline
