#include <utility>

#include "common/base/status.h"
#include "parameter/state_codec.h"
#include "worker_client/session_impl.h"

namespace paceline {

absl::StatusOr<TensorState> SessionImpl::ReadState(TensorId tensor) {
  PACELINE_RETURN_IF_ERROR(WaitReady());
  OpRequest request{FrameKind::kReadState, tensor.value(), {}, {}, {}};
  request.collect = true;
  PACELINE_ASSIGN_OR_RETURN(uint64_t id, Issue(request));
  std::vector<std::shared_ptr<ChunkOp>> ops;
  std::vector<PlacedChunk> chunks;
  uint64_t elements = 0;
  {
    MutexLock lock(&mutex_);
    if (auto it = pending_.find(id); it != pending_.end()) ops = it->second->ops;
    chunks = tensors_[tensor.value()].chunks;
    elements = tensors_[tensor.value()].spec.elements();
  }
  PACELINE_RETURN_IF_ERROR(WaitFor(id).status());
  TensorState state;
  for (size_t i = 0; i < ops.size(); ++i) {
    const ChunkRange& range = chunks[i].range;
    PACELINE_ASSIGN_OR_RETURN(ChunkState chunk, DecodeState(ops[i]->collected, range.length));
    state.versions.push_back(chunk.version);
    state.applied_steps.push_back(chunk.updates);
    state.samples.push_back(chunk.samples);
    for (auto& [name, values] : chunk.arrays) {
      std::vector<float>& whole = state.slots[name];
      whole.resize(elements);
      std::copy(values.begin(), values.end(), whole.begin() + range.begin);
    }
  }
  return state;
}

absl::Status SessionImpl::WriteState(TensorId tensor, const TensorState& state) {
  PACELINE_RETURN_IF_ERROR(WaitReady());
  std::vector<std::vector<std::byte>> encoded;
  std::vector<std::shared_ptr<ChunkOp>> ops;
  uint64_t id = 0;
  {
    MutexLock lock(&mutex_);
    OpRequest request{FrameKind::kWriteState, tensor.value(), {}, {}, {}};
    PACELINE_RETURN_IF_ERROR(CheckTensor(request));
    const Tensor& held = tensors_[tensor.value()];
    const size_t chunks = held.chunks.size();
    if (state.versions.size() != chunks || state.applied_steps.size() != chunks ||
        state.samples.size() != chunks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "WriteState: tensor '", held.spec.name, "' has ", chunks, " chunks, the state has ",
          state.versions.size(), " versions, ", state.applied_steps.size(), " applied_steps and ",
          state.samples.size(), " samples"));
    }
    for (const auto& [name, values] : state.slots) {
      if (values.size() != held.spec.elements()) {
        return absl::InvalidArgumentError(
            absl::StrCat("WriteState: slot '", name, "' of tensor '", held.spec.name, "' has ",
                         values.size(), " elements, expected ", held.spec.elements()));
      }
    }
    auto weights = state.slots.find("weights");
    if (weights == state.slots.end()) {
      return absl::InvalidArgumentError("WriteState: the state has no slot 'weights'");
    }
    auto pending = std::make_shared<Pending>();
    id = next_operation_++;
    pending->kind = FrameKind::kWriteState;
    pending->tensor = tensor.value();
    pending->deadline = Deadline();
    pending->remaining = held.chunks.size();
    pending->result.versions.resize(held.chunks.size());
    for (uint32_t i = 0; i < held.chunks.size(); ++i) {
      const ChunkRange& range = held.chunks[i].range;
      ChunkState chunk;
      chunk.version = state.versions[i];
      chunk.updates = state.applied_steps[i];
      chunk.samples = state.samples[i];
      const auto part = [&range](const std::vector<float>& values) {
        return std::vector<float>(values.begin() + range.begin,
                                  values.begin() + range.begin + range.length);
      };
      chunk.arrays.emplace_back("weights", part(weights->second));
      for (const auto& [name, values] : state.slots) {
        if (name != "weights") chunk.arrays.emplace_back(name, part(values));
      }
      encoded.push_back(EncodeState(chunk));
      ops.push_back(MakeChunkOp(request, held, i));
      ops.back()->tag = id;
      ops.back()->payload = encoded.back();
    }
    pending->ops = ops;
    pending_.emplace(id, std::move(pending));
  }
  for (auto& op : ops) links_->Issue(op);
  PACELINE_RETURN_IF_ERROR(WaitFor(id).status());
  DropStartWeights();
  return absl::OkStatus();
}

}  // namespace paceline
