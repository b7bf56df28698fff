// Exactly once: which operations of a member are open or answered but not yet acknowledged.
//
// An answered operation keeps its reply until the member's next operation on the chunk says that
// the reply came, so a retry of it is answered again and never applied again. After that its
// sequence number tells a stray repetition, and its identity one that was sent anew by mistake.
// Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "common/base/types.h"
#include "parameter/contribution.h"
#include "parameter/handover.h"
#include "parameter/operation.h"
#include "parameter/round.h"

namespace paceline {

struct OpenOperation {
  // Of the newest attempt: its route and sequence take the reply. Sequence 0: answered by the owner
  // before this one, and not asked for here yet.
  Operation operation;
  std::optional<Contribution> contribution;  // while pieces are outstanding
  std::optional<Reply> reply;                // once answered
};

class MemberOperations {
 public:
  // Operations of one member on one chunk that may be open or not acknowledged at once.
  static constexpr size_t kMaxOperations = 64;
  static constexpr size_t kRemembered = 16;

  explicit MemberOperations(Incarnation incarnation) : incarnation_(incarnation) {}

  Incarnation incarnation() const { return incarnation_; }

  // Forgets answered operations up to `sequence`.
  void Acknowledge(Sequence sequence);

  OpenOperation* Find(const OperationId& id);
  // The member has had the reply to this operation: what comes now is a stray repetition.
  bool IsStray(Sequence sequence) const { return sequence <= acknowledged_; }
  // One of the last kRemembered operations that were answered and acknowledged.
  bool IsOver(const OperationId& id) const;
  // Null when there are kMaxOperations.
  OpenOperation* Open(const OperationId& id, const Operation& operation);
  void Erase(const OperationId& id) { operations_.erase(id); }

  // ---- Between owners: what is answered and not acknowledged, and what is over.
  Handover::MemberState HandOver() const;
  void TakeOver(const Handover::MemberState& state);
  // The member is past `through`, so it has had the replies of all steps up to it.
  void ForgetTakenOver(Step through);

  // An answer that is asked for again then comes with the weights of now.
  void ForgetWeights();

  const std::map<OperationId, OpenOperation>& operations() const { return operations_; }

 private:
  Incarnation incarnation_;
  Sequence acknowledged_;
  std::array<OperationId, kRemembered> over_;  // a ring
  size_t over_count_ = 0;
  std::map<OperationId, OpenOperation> operations_;
};

}  // namespace paceline
