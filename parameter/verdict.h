// The lead owner's verdict on a push, and how the owners of the other chunks ask for it: one push
// (all operations of a group in one step) has one fate at all its chunks.
//
// Thread rule: values; pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "plan/plan.h"

namespace paceline {

struct PushKey {
  GroupId group;
  Step step;

  auto operator<=>(const PushKey&) const = default;
};

struct Verdict {
  std::vector<NodeRef> members;  // whose contributions are in the push, sorted
  Samples samples;               // in the sum it was decided at
  double weight = 1.0;           // multiplies the step after the optimizer
  std::string reason;            // shown as is

  bool Has(NodeRef member) const;
  bool operator==(const Verdict&) const = default;
};

// An owner has contributions enough to go on, and does not know with whose.
struct VerdictQuestion {
  PushKey push;
  std::vector<NodeRef> done;  // who owes its chunk nothing more in this step, sorted
  Samples samples;

  bool operator==(const VerdictQuestion&) const = default;
};

struct VerdictAnswer {
  PushKey push;
  bool over = false;  // decided and done with: nobody who still asks is in it
  Verdict verdict;    // unless it is over
  // Of those named in the question who are not in it: the first step they may be in.
  std::vector<std::pair<NodeRef, Step>> open;

  bool operator==(const VerdictAnswer&) const = default;
};

// The payloads of Verdict frames (docs/wire_format.md).
std::vector<std::byte> Encode(const VerdictQuestion& question);
std::vector<std::byte> Encode(const VerdictAnswer& answer);
// InvalidArgument says what does not fit.
absl::StatusOr<VerdictQuestion> DecodeQuestion(std::span<const std::byte> bytes);
absl::StatusOr<VerdictAnswer> DecodeAnswer(std::span<const std::byte> bytes);

}  // namespace paceline
