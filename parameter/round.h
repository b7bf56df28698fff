// One operation of a group on one chunk, from its first contribution until the group's sum is whole
// and decided.
//
//   open --every member whole, without samples, or covered by its Boundary--> whole
//   open --verdict, and those it names are--> whole; who it leaves out has left the round
//   whole --> applied and answered                   (ParameterShard)
//   open --fence, or a generation that takes its step--> void: members push again
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/types.h"
#include "parameter/accumulator.h"
#include "parameter/group_table.h"
#include "parameter/operation.h"
#include "parameter/verdict.h"

namespace paceline {

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

  // `apart`: contributions are summed in rank order, or may leave the round.
  Round(RoundKind kind, const GroupTable::Generation& generation, bool apart, FloatPool* pool);

  RoundKind kind() const { return kind_; }
  const GroupPlan& group() const { return *group_; }
  uint32_t planned_members() const { return group_->planned_members; }
  const std::vector<Contributor>& contributors() const { return contributors_; }

  void Begin(size_t position, const OperationId& operation);
  // The whole contribution of a member; `values` may be empty unless `part` is kSum.
  void Finish(size_t position, Part part, const Operation& operation, SharedFloats values);

  // What the member sent is out of the round, as if it had not come.
  void Leave(size_t position);
  bool empty() const;              // nothing came, or all of it left
  bool Has(NodeRef member) const;  // something came of it

  // Nobody's contribution is outstanding at `step`; nobody's of those that `verdict`, unless it is
  // null, has in the push.
  bool IsWhole(const GroupTable& groups, GroupId group, Step step, const Verdict* verdict) const;
  // Who owes nothing more, sorted.
  std::vector<NodeRef> Done(const GroupTable& groups, GroupId group, Step step) const;

  // Over those in the sum.
  Samples samples() const;
  // One that skips counts: planned by the round, in the verdict, not refused.
  uint32_t members_in_sum(const Verdict* verdict) const;
  std::optional<Version> base() const;  // the oldest
  float learning_rate() const;          // of the lowest rank
  SharedFloats Sum() { return accumulator_.Sum(); }
  size_t bytes() const { return accumulator_.bytes(); }

 private:
  bool IsDone(size_t position, const GroupTable& groups, GroupId group, Step step) const;

  const RoundKind kind_;
  const std::shared_ptr<const GroupPlan> group_;
  std::vector<Contributor> contributors_;  // by position in rank order
  Accumulator accumulator_;
};

}  // namespace paceline
