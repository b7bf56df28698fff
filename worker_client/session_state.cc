#include <utility>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "parameter/state_codec.h"
#include "worker_client/session_impl.h"

namespace paceline {
namespace {

// Whether `state` fits a tensor that is cut into `chunks`.
absl::Status CheckState(const TensorSpec& spec, size_t chunks, const TensorState& state) {
  const auto refuse = [&spec](const auto&... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("WriteState of tensor '", spec.name, "': ", parts...));
  };
  if (state.versions.size() != chunks || state.applied_steps.size() != chunks ||
      state.samples.size() != chunks) {
    return refuse("it has ", chunks, " chunks, the state has ", state.versions.size(),
                  " versions, ", state.applied_steps.size(), " applied_steps and ",
                  state.samples.size(), " samples");
  }
  std::vector<std::string> names;
  for (const auto& [name, values] : state.slots) {
    names.push_back(name);
    if (values.size() != spec.elements()) {
      return refuse("slot '", name, "' has ", values.size(), " elements, expected ",
                    spec.elements());
    }
  }
  if (!state.slots.contains("weights")) return refuse("the state has no slot 'weights'");
  return Annotate(CheckArrayNames(names), absl::StrCat("WriteState of tensor '", spec.name, "'"));
}

// The chunk `index` of `state`, which covers `range` of the tensor.
ChunkState PartOf(const TensorState& state, size_t index, const ChunkRange& range) {
  ChunkState chunk{.version = state.versions[index],
                   .updates = state.applied_steps[index],
                   .samples = state.samples[index],
                   .arrays = {}};
  const auto add = [&](const std::string& name, const std::vector<float>& values) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(range.begin);
    chunk.arrays.emplace_back(
        name, std::vector<float>(begin, begin + static_cast<ptrdiff_t>(range.length)));
  };
  add("weights", state.slots.at("weights"));
  for (const auto& [name, values] : state.slots) {
    if (name != "weights") add(name, values);
  }
  return chunk;
}

}  // namespace

absl::StatusOr<TensorState> SessionImpl::ReadState(TensorId tensor) {
  PACELINE_RETURN_IF_ERROR(WaitReady());
  const OpRequest request{FrameKind::kReadState, tensor.value(), {}, {}, {}};
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
    PACELINE_RETURN_IF_ERROR(CheckState(held.spec, held.chunks.size(), state));
    auto pending = std::make_shared<Pending>();
    id = next_operation_++;
    pending->kind = FrameKind::kWriteState;
    pending->tensor = tensor.value();
    pending->began = Clock::Real().Now();
    pending->deadline = Deadline();
    pending->remaining = held.chunks.size();
    pending->result.versions.resize(held.chunks.size());
    for (uint32_t i = 0; i < held.chunks.size(); ++i) {
      encoded.push_back(EncodeState(PartOf(state, i, held.chunks[i].range)));
      ops.push_back(MakeChunkOp(request, held, i));
      ops.back()->tag = id;
      ops.back()->header.origin_step = Step(id);  // the same with another owner
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
