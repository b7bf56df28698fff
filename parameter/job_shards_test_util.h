// Owners of one tensor as shard threads without the threads: plans, frames and chunks that move go
// in one at a time, a piece at a time where that matters.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "parameter/job_shards.h"
#include "parameter/shard_test_util.h"
#include "plan/chunking.h"

namespace paceline {

inline constexpr NodeId kA{1};
inline constexpr NodeId kB{2};
inline constexpr NodeId kC{3};

// Weights and momentum of a chunk of 1 MiB are nine pieces.
inline constexpr uint64_t kMovedElements = (1u << 20) / sizeof(float);

inline std::vector<Piece> PiecesOf(std::span<const std::byte> bytes) {
  std::vector<Piece> pieces;
  for (uint64_t at = 0; at < bytes.size(); at += kPieceBytes) {
    pieces.push_back({at, bytes.subspan(at, std::min<uint64_t>(kPieceBytes, bytes.size() - at))});
  }
  return pieces;
}

class Owner {
 public:
  explicit Owner(NodeId self, uint64_t max_parked_bytes = 64u << 20)
      : shards(self, 0, 1, max_parked_bytes, &pool_) {
    shards.OnHandOver([this](OutgoingChunk chunk) { given.push_back(std::move(chunk)); });
  }

  void Apply(const Plan& plan) {
    auto prepared = std::make_shared<PreparedPlan>();
    prepared->plan = plan;
    if (!plan.spec.optimizer.name.empty()) {
      prepared->optimizer = *Optimizer::Create(plan.spec.optimizer);
    }
    prepared->policy = *StalenessPolicy::Create({"none", {}});
    shards.ApplyPlan(std::move(prepared), Seconds(1), &replies);
  }
  void Send(const Operation& operation, const Piece& piece) {
    shards.OnOperation(operation, piece, nullptr, Seconds(1), &replies);
  }
  void Send(const Operation& operation, std::span<const std::byte> bytes) {
    for (const Piece& piece : PiecesOf(bytes)) Send(operation, piece);
  }
  void SendBoundary(Operation operation) {
    auto answer = std::make_shared<BoundaryAnswer>();
    answer->outstanding = 1;
    operation.kind = OperationKind::kBoundary;
    operation.total_bytes = 0;
    shards.OnOperation(operation, {}, answer, Seconds(1), &replies);
  }
  // The statuses of all replies since the last call.
  std::vector<OperationStatus> Statuses() {
    std::vector<OperationStatus> statuses;
    for (const Reply& reply : std::exchange(replies, {})) statuses.push_back(reply.status);
    return statuses;
  }

 private:
  FloatPool pool_{64u << 20};

 public:
  JobShards shards;
  std::vector<OutgoingChunk> given;
  std::vector<Reply> replies;
};

// One tensor with a chunk per entry of `owners`; one group of members 0 and 1.
inline Plan PlanOfOwners(std::vector<NodeId> owners, uint64_t generation) {
  Plan plan;
  plan.job = JobId(3);
  plan.spec.optimizer = {"sgd", {{"learning_rate", 1}, {"momentum", 0.5}}};
  plan.spec.chunk_bytes = kMovedElements * sizeof(float);
  plan.state = JobState::kRunning;
  plan.generation = JobGeneration(generation);
  plan.groups = {GroupOf(0, {0, 1})};
  plan.init_writer = NodeId(100);
  for (const NodeId node : {kA, kB, kC}) {
    ServerInfo server;
    server.node = node;
    plan.servers.push_back(server);
  }
  TensorPlan tensor;
  tensor.spec = {
      .name = "w", .shape = {kMovedElements * owners.size()}, .dtype = DType::kF32, .whole = false};
  tensor.owners = std::move(owners);
  tensor.sealed = true;
  plan.tensors.push_back(std::move(tensor));
  return plan;
}

inline Plan PlanOfMove(std::vector<NodeId> owners, uint64_t generation, uint64_t move,
                       std::vector<ChunkMove> moves) {
  Plan plan = PlanOfOwners(std::move(owners), generation);
  plan.move = move;
  plan.moves = std::move(moves);
  return plan;
}

inline Operation OperationOf(OperationKind kind, uint32_t member, uint64_t step, uint64_t sequence,
                             uint64_t bytes) {
  Operation op;
  op.kind = kind;
  op.route = 10 + member;
  op.sender = NodeId(100 + member);
  op.incarnation = Incarnation(1);
  op.sequence = Sequence(sequence);
  op.job_generation = JobGeneration(1);
  op.group_generation = GroupGeneration(1);
  op.step = op.origin_step = Step(step);
  op.samples = Samples(1);
  op.total_bytes = bytes;
  return op;
}

// What the mover of `chunk.from` sends: `bytes` are those of its state.
inline Operation MoveOperation(const OutgoingChunk& chunk, NodeId from,
                               std::span<const std::byte> bytes) {
  Operation op;
  op.kind = OperationKind::kMoveShard;
  op.route = 1;
  op.sender = from;
  op.incarnation = Incarnation(1);
  op.sequence = Sequence(1);
  op.job_generation = chunk.generation;
  op.origin_step = Step(chunk.move);
  op.chunk = chunk.chunk;
  op.samples = Samples(bytes.size());
  op.total_bytes = bytes.size();
  return op;
}

}  // namespace paceline
