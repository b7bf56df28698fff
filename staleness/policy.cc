#include "staleness/policy.h"

#include <array>

#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace paceline {
namespace {

// Plain asynchronous updates.
class None final : public StalenessPolicy {
 public:
  std::string_view name() const override { return "none"; }
  Damping Weigh(const PushFacts& /*facts*/) const override {
    return {.weight = 1.0, .reason = "policy none"};
  }
  bool compensates() const override { return false; }
  void Compensate(std::span<float> /*gradient*/,
                  const CompensationInputs& /*inputs*/) const override {}
};

struct Kind {
  std::string_view name;
  std::unique_ptr<const StalenessPolicy> (*make)();
};

constexpr std::array kKinds = {
    Kind{"none",
         []() -> std::unique_ptr<const StalenessPolicy> { return std::make_unique<None>(); }},
};

}  // namespace

absl::StatusOr<std::unique_ptr<const StalenessPolicy>> StalenessPolicy::Create(
    const NamedSpec& spec) {
  for (const Kind& kind : kKinds) {
    if (kind.name != spec.name) continue;
    if (!spec.parameters.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("staleness policy ", spec.name, ": parameter \"",
                       spec.parameters.begin()->first, "\" is not known; it takes none"));
    }
    return kind.make();
  }
  return absl::InvalidArgumentError(absl::StrCat("staleness policy \"", spec.name,
                                                 "\" is not known; use ",
                                                 absl::StrJoin(StalenessPolicyNames(), ", ")));
}

std::vector<std::string> StalenessPolicyNames() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

}  // namespace paceline
