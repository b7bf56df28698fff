// A shard with its groups and members, driven one message at a time.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "parameter/parameter_shard.h"

namespace paceline {

inline Member MemberNumber(uint32_t number, uint64_t incarnation = 1) {
  Member member;
  member.node = NodeId(100 + number);
  member.incarnation = Incarnation(incarnation);
  member.rank = JobRank(number);
  return member;
}

inline GroupPlan GroupOf(uint32_t id, std::vector<uint32_t> numbers, uint64_t generation = 1,
                         uint64_t activation = 0) {
  GroupPlan group;
  group.id = GroupId(id);
  group.generation = GroupGeneration(generation);
  group.activation_step = Step(activation);
  for (const uint32_t number : numbers) group.members.push_back(MemberNumber(number));
  group.planned_members = static_cast<uint32_t>(numbers.size());
  return group;
}

// What one member sends.
struct Sent {
  OperationKind kind = OperationKind::kPushPull;
  uint32_t member = 0;
  uint64_t step = 0;
  std::vector<float> values{};
  uint64_t samples = 1;
  uint32_t group = 0;
  uint64_t generation = 1;
  uint32_t ordinal = 0;
  uint64_t base = 0;
  float learning_rate = 0;
  std::optional<uint64_t> sequence{};  // the member's next when not given
  std::optional<uint64_t> acknowledged{};
  DType dtype = DType::kF32;
  uint64_t route = 0;
  std::optional<uint64_t> origin{};  // `step` when not given
};

class ShardHarness {
 public:
  ShardHarness(uint64_t elements, const NamedSpec& optimizer, std::vector<GroupPlan> groups,
               Normalization normalization = Normalization::kMean, bool deterministic = false) {
    groups_.ApplyPlan(groups);
    ShardSettings settings;
    if (!optimizer.name.empty()) settings.optimizer = *Optimizer::Create(optimizer);
    settings.policy = *StalenessPolicy::Create({"none", {}});
    settings.normalization = normalization;
    settings.deterministic = deterministic;
    settings.lead = true;
    shard_.emplace(ChunkKey{}, elements, &groups_, &verdicts_, &pool_, settings);
    shard_->Seal();
  }

  // The chunk is the lead of a job whose rounds `quorum` members close.
  void UseQuorum(uint32_t quorum, Late late = Late::kCarry) {
    JobSpec spec;
    spec.quorum = quorum;
    spec.late = late;
    verdicts_.Configure(spec, true);
  }
  Verdicts& verdicts() { return verdicts_; }
  GroupTable& groups() { return groups_; }
  ParameterShard& shard() { return *shard_; }
  std::vector<float> weights() const {
    return {shard_->weights().begin(), shard_->weights().end()};
  }

  Operation Header(const Sent& sent) {
    Operation op;
    op.kind = sent.kind;
    op.route = sent.route;
    op.sender = NodeId(100 + sent.member);
    op.incarnation = Incarnation(1);
    op.sequence = Sequence(sent.sequence ? *sent.sequence : ++sequences_[sent.member]);
    op.acknowledged = Sequence(sent.acknowledged.value_or(0));
    op.group = GroupId(sent.group);
    op.group_generation = GroupGeneration(sent.generation);
    op.step = Step(sent.step);
    op.origin_step = Step(sent.origin.value_or(sent.step));
    op.ordinal = Ordinal(sent.ordinal);
    op.base.count = sent.base;
    op.samples = Samples(sent.samples);
    op.learning_rate = sent.learning_rate;
    op.total_bytes = sent.values.size() * sizeof(float);
    return op;
  }

  // All pieces of a message, or only those named.
  std::vector<Reply> Send(const Sent& sent, std::vector<size_t> pieces = {}) {
    return SendBytes(Header(sent), std::as_bytes(std::span(sent.values)), pieces);
  }

  std::vector<Reply> SendBytes(const Operation& op, std::span<const std::byte> bytes,
                               const std::vector<size_t>& pieces = {}) {
    std::vector<Reply> replies;
    const size_t count = bytes.empty() ? 1 : (bytes.size() + kPieceBytes - 1) / kPieceBytes;
    for (size_t i = 0; i < count; ++i) {
      if (!pieces.empty() && std::find(pieces.begin(), pieces.end(), i) == pieces.end()) continue;
      const size_t begin = i * kPieceBytes;
      const Piece piece{begin,
                        bytes.subspan(begin, std::min<size_t>(kPieceBytes, bytes.size() - begin))};
      if (shard_->Repeats(op, piece, &replies)) continue;
      const GroupTable::Admitted admitted =
          groups_.Admit(op.group, op.group_generation, op.step, op.sender, op.incarnation);
      EXPECT_EQ(admitted.admission, Admission::kAccept);
      if (admitted.admission != Admission::kAccept) return replies;
      shard_->Contribute(op, piece, *admitted.generation, admitted.position, Seconds(1), &replies);
    }
    return replies;
  }

  std::vector<Reply> Cover(uint32_t member, uint64_t through, uint32_t group = 0) {
    std::vector<Reply> replies;
    groups_.Cover(GroupId(group), NodeId(100 + member), Incarnation(1), Step(through));
    shard_->OnCovered(GroupId(group), Seconds(1), &replies);
    verdicts_.Prune(GroupId(group));
    return replies;
  }

 private:
  GroupTable groups_;
  Verdicts verdicts_{&groups_};
  FloatPool pool_{64u << 20};
  std::optional<ParameterShard> shard_;
  std::map<uint32_t, uint64_t> sequences_;
};

inline std::vector<float> ValuesOf(const Reply& reply) {
  return {reply.values.values().begin(), reply.values.values().end()};
}

}  // namespace paceline
