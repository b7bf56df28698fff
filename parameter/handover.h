// All that an owner knows of a chunk, when another becomes its owner: with it the new owner answers
// a retry as the old one would have, and counts on where that one stopped.
//
// Open rounds are not part of it: they are void, and their members push to the new owner. Sequence
// numbers neither: they count what one member sent to one owner. A reply that was not acknowledged
// is kept until its member asks again or is past its step.
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
    SharedFloats values;  // none in the answer to a Push
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
};

// The bytes of MoveShard (docs/wire_format.md). Arrays that several fields share are in them once.
std::vector<std::byte> Encode(const Handover& handover);
// InvalidArgument says what does not fit; every array has `elements`.
absl::StatusOr<Handover> DecodeHandover(std::span<const std::byte> bytes, uint64_t elements);

// The most bytes a handover of so many elements has.
constexpr uint64_t kMaxHandoverArrays = 1024;
constexpr uint64_t MaxHandoverBytes(uint64_t elements) {
  return (64u << 20) + kMaxHandoverArrays * elements * sizeof(float);
}

}  // namespace paceline
