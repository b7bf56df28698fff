// All that an owner knows of a chunk, when another becomes its owner: with it the new owner answers
// a retry as the old one would have, and counts on where that one stopped.
//
// Open rounds are not part of it: they are void, and their members push to the new owner. Sequence
// numbers neither: they count what one member sent to one owner. A reply that was not acknowledged
// is kept until its member asks again or is past its step. What a member that is a group by itself
// asks for again is answered with the weights as they are then: nobody else has to get the same.
// Thread rule: values; pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "parameter/group_table.h"
#include "parameter/operation.h"
#include "parameter/round.h"
#include "parameter/shared_floats.h"
#include "parameter/verdicts.h"
#include "staleness/recorder.h"

namespace paceline {

struct Handover {
  struct Answer {
    OperationId id;
    OperationStatus status = OperationStatus::kOk;
    Version version;
    Samples samples;
    SharedFloats values;  // none in the answer to a Push, or for the weights as they are then
  };
  struct MemberState {
    GroupId group;
    NodeId node;
    Incarnation incarnation;
    std::vector<OperationId> over;  // oldest first
    std::vector<Answer> answers;
  };
  struct Pulled {
    GroupId group;
    Version version;
    SharedFloats weights;
  };

  Version version;
  uint64_t updates = 0;
  Samples samples;
  std::vector<std::pair<std::string, SharedFloats>> arrays;  // "weights" first, then slots
  std::map<GroupId, Step> applied_steps;
  std::vector<Pulled> pulled;
  std::vector<MemberState> members;
  uint64_t recorded_updates = 0;
  std::vector<GroupStaleness> group_staleness;
  std::vector<WorkerStaleness> worker_staleness;
  // Of the thread that held the chunk, not of the chunk: what the new owner may have missed.
  std::vector<CoveredStep> covered;
  std::vector<GroupVerdicts> verdicts;  // of the lead chunk
  // Of the lead chunk: up to where members' unused samples were counted.
  std::vector<CoveredStep> counted;
  // The last state that was written into the chunk; operation 0: none, or it cannot come again.
  struct Written {
    NodeId node;
    Incarnation incarnation;
    Step operation;
  } written;
  uint32_t restored_lineage = 0;  // of the checkpoint that it was loaded from, 0 for none
};

// The bytes of MoveShard (docs/wire_format.md). Arrays that several fields share are in them once.
std::vector<std::byte> Encode(const Handover& handover);
// InvalidArgument says what does not fit; every array has `elements`.
absl::StatusOr<Handover> DecodeHandover(std::span<const std::byte> bytes, uint64_t elements);

// The most bytes a handover of so many elements has: the arrays it may refer to, and its fields.
constexpr uint64_t MaxHandoverBytes(uint64_t elements, uint64_t arrays) {
  return (64u << 20) + arrays * elements * sizeof(float);
}

}  // namespace paceline
