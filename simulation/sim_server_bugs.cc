// Bugs that are put in on purpose.
#include <utility>

#include "simulation/sim_server.h"

namespace paceline::simulation {

// What is summed of a round that may become void.
void SimServer::RememberSum(const DataFrame& frame) {
  const Operation& op = frame.operation;
  const bool whole = frame.payload != nullptr && frame.length == op.total_bytes;
  if (op.kind != OperationKind::kPushPull || op.samples.value() == 0 || !whole) return;
  std::vector<float>& sum = sums_[{op.chunk, op.group, op.step, op.ordinal}];
  sum.resize(frame.payload->size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += (*frame.payload)[i];
}

// Of the rounds that a directive made void.
void SimServer::KeepSums(const Replies& replies) {
  for (const Reply& reply : replies) {
    if (reply.status != OperationStatus::kOldGeneration) continue;
    auto sum = sums_.extract({reply.to.chunk, reply.to.group, reply.to.step, reply.to.ordinal});
    if (!sum.empty()) old_sums_.insert(std::move(sum));
  }
}

// The first contribution to a round that is done again comes on top of the old sum.
DataFrame SimServer::WithOldSum(DataFrame frame) {
  const Operation& op = frame.operation;
  const RoundKey key{op.chunk, op.group, op.step, op.ordinal};
  const auto it = old_sums_.find(key);
  if (it == old_sums_.end() || op.kind != OperationKind::kPushPull || op.samples.value() == 0) {
    return frame;
  }
  std::vector<float> sum = std::move(it->second);
  old_sums_.erase(it);
  if (sum.size() != frame.payload->size()) return frame;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += (*frame.payload)[i];
  frame.payload = std::make_shared<const std::vector<float>>(std::move(sum));
  return frame;
}

}  // namespace paceline::simulation
