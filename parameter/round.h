// One operation of a group on one chunk, from its first contribution until the group's sum is whole
// and decided.
//
//   open --every member whole, without samples, or covered by its Boundary--> whole
//   whole --verdict--> applied and answered          (ParameterShard)
//   open --fence, or a generation that takes its step--> void: members push again
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/types.h"
#include "parameter/accumulator.h"
#include "parameter/group_table.h"
#include "parameter/operation.h"
#include "staleness/policy.h"

namespace paceline {

// What happens to a push, with the reason. Its owners act on one verdict.
struct Verdict {
  uint32_t members = 0;  // in the sum
  Samples samples;
  double weight = 1.0;  // multiplies the step after the optimizer
  bool drop = false;    // not applied; samples count as discarded
  bool hold = false;    // applied, replies wait for the lead's release
  std::string_view reason;
};

// The verdict on a whole push. With policy none any owner comes to the same one by itself.
Verdict Decide(const StalenessPolicy& policy, const PushFacts& facts, uint32_t members,
               Samples samples);

// Operations that meet in one round. Push and PushPull differ in their reply only.
enum class RoundKind : uint8_t { kApply, kReduce };

struct RoundKey {
  GroupId group;
  Step step;
  Ordinal ordinal;

  auto operator<=>(const RoundKey&) const = default;
};

// Names an operation of one member on one chunk; a retry has the same.
struct OperationId {
  Step origin_step;
  Ordinal ordinal;
  RoundKind kind = RoundKind::kApply;

  auto operator<=>(const OperationId&) const = default;
};

class Round {
 public:
  enum class Part : uint8_t {
    kAbsent,     // nothing came yet
    kPartial,    // some pieces are in
    kSum,        // in the sum
    kNoSamples,  // took part with nothing
    kRefused,    // not finite; left out
  };
  struct Contributor {
    Part part = Part::kAbsent;
    OperationId operation;  // when it sent one
    Samples samples;
    Version base;
    float learning_rate = 0;
  };

  Round(RoundKind kind, const GroupTable::Generation& generation, bool rank_order, FloatPool* pool);

  RoundKind kind() const { return kind_; }
  const GroupPlan& group() const { return *group_; }
  uint32_t planned_members() const { return group_->planned_members; }
  const std::vector<Contributor>& contributors() const { return contributors_; }

  void Begin(size_t position, const OperationId& operation);
  // The whole contribution of a member; `values` may be empty unless `part` is kSum.
  void Finish(size_t position, Part part, const Operation& operation, SharedFloats values);

  // Nobody's contribution is outstanding at `step`.
  bool IsWhole(const GroupTable& groups, GroupId group, Step step) const;

  // Over those in the sum.
  Samples samples() const;
  uint32_t members_in_sum() const;      // one that skips counts: planned by the round, not refused
  std::optional<Version> base() const;  // the oldest
  float learning_rate() const;          // of the lowest rank
  SharedFloats Sum() { return accumulator_.Sum(); }
  size_t bytes() const { return accumulator_.bytes(); }

 private:
  const RoundKind kind_;
  const std::shared_ptr<const GroupPlan> group_;
  std::vector<Contributor> contributors_;  // by position in rank order
  Accumulator accumulator_;
};

}  // namespace paceline
