// What an owner does about staleness, as pure functions that compose with every optimizer.
//
// A policy acts at two points of an update. Damping: one weight per push multiplies the step after
// the optimizer (an adaptive optimizer would undo it before). Compensation: per chunk, the gradient
// is corrected before the optimizer by what the weights have moved since it was computed.
// Thread rule: a policy is immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/job_spec.h"

namespace paceline {

// What is known of a push when its fate is decided.
struct PushFacts {
  uint64_t tau = 0;     // of the lead chunk
  uint32_t groups = 1;  // G, the live groups of the job
};

struct Damping {
  double weight = 1.0;      // in (0, 1]
  std::string_view reason;  // static text, shown as is
};

// One chunk of an update before its optimizer.
struct CompensationInputs {
  std::span<const float> weights_now;
  std::span<const float> weights_pulled;  // what the gradient was computed on
  double learning_rate = 0;
};

class StalenessPolicy {
 public:
  // InvalidArgument names an unknown policy or parameter and lists the known ones.
  static absl::StatusOr<std::unique_ptr<const StalenessPolicy>> Create(const NamedSpec& spec);

  virtual ~StalenessPolicy() = default;
  virtual std::string_view name() const = 0;
  virtual Damping Weigh(const PushFacts& facts) const = 0;

  // Whether Compensate does anything; if so owners keep the weights each group pulled.
  virtual bool compensates() const = 0;
  virtual void Compensate(std::span<float> gradient, const CompensationInputs& inputs) const = 0;
};

// Names that Create knows, in order.
std::vector<std::string> StalenessPolicyNames();

}  // namespace paceline
