#include "parameter/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/kernels/kernels.h"
#include "common/kernels/optimizer_kernels.h"

namespace paceline {
namespace {

using Slots = std::span<const std::span<float>>;

// w - factor*w.
void DecayDecoupled(std::span<float> weights, float factor) {
  kernels::Axpy(weights, -factor, weights);
}

struct SgdParameters {
  float learning_rate;
  float momentum;
  bool nesterov;
  float weight_decay;
  bool decoupled;
};

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const SgdParameters& parameters)
      : p_(parameters),
        slots_(parameters.momentum > 0 ? std::vector<std::string>{"momentum"}
                                       : std::vector<std::string>{}) {}

  const std::vector<std::string>& slots() const override { return slots_; }
  float learning_rate() const override { return p_.learning_rate; }

  void Apply(std::span<float> weights, Slots slots, std::span<const float> gradient,
             float learning_rate, uint64_t /*t*/) const override {
    PACELINE_CHECK(slots.size() == slots_.size());
    const float rate = learning_rate == 0 ? p_.learning_rate : learning_rate;
    if (p_.decoupled && p_.weight_decay > 0) DecayDecoupled(weights, rate * p_.weight_decay);
    const float decay = p_.decoupled ? 0.0f : p_.weight_decay;
    if (slots_.empty()) {
      kernels::SgdUpdate(weights, gradient, rate, decay);
    } else {
      kernels::MomentumUpdate(weights, slots[0], gradient, {rate, p_.momentum, p_.nesterov, decay});
    }
  }

 private:
  const SgdParameters p_;
  const std::vector<std::string> slots_;
};

struct AdamParameters {
  float learning_rate;
  double beta1;
  double beta2;
  float epsilon;
  float weight_decay;
  bool decoupled;
};

class Adam final : public Optimizer {
 public:
  explicit Adam(const AdamParameters& parameters) : p_(parameters) {}

  const std::vector<std::string>& slots() const override { return slots_; }
  float learning_rate() const override { return p_.learning_rate; }

  void Apply(std::span<float> weights, Slots slots, std::span<const float> gradient,
             float learning_rate, uint64_t t) const override {
    PACELINE_CHECK(slots.size() == 2 && t >= 1);
    const float rate = learning_rate == 0 ? p_.learning_rate : learning_rate;
    if (p_.decoupled && p_.weight_decay > 0) DecayDecoupled(weights, rate * p_.weight_decay);
    const float decay = p_.decoupled ? 0.0f : p_.weight_decay;
    // Powers in double: 1 - beta2^t loses all its digits in fp32 for small t.
    const double correction1 = 1.0 - std::pow(p_.beta1, static_cast<double>(t));
    const double correction2 = 1.0 - std::pow(p_.beta2, static_cast<double>(t));
    kernels::AdamUpdate(weights, slots[0], slots[1], gradient,
                        {.rate = static_cast<float>(rate / correction1),
                         .root_scale = static_cast<float>(std::sqrt(correction2)),
                         .beta1 = static_cast<float>(p_.beta1),
                         .rest1 = static_cast<float>(1.0 - p_.beta1),
                         .beta2 = static_cast<float>(p_.beta2),
                         .rest2 = static_cast<float>(1.0 - p_.beta2),
                         .epsilon = p_.epsilon,
                         .decay = decay});
  }

 private:
  const AdamParameters p_;
  const std::vector<std::string> slots_{"m", "v"};
};

// ---- Registry -----------------------------------------------------------------------------------

struct ParameterRule {
  std::string_view name;
  double otherwise;  // value when it is not given
  std::string_view range;
  bool (*valid)(double);
};

bool Positive(double x) { return x > 0; }
bool NotNegative(double x) { return x >= 0; }
bool BelowOne(double x) { return x >= 0 && x < 1; }
bool ZeroOrOne(double x) { return x == 0 || x == 1; }

using Values = std::map<std::string, double, std::less<>>;

std::unique_ptr<const Optimizer> MakeSgd(const Values& v) {
  return std::make_unique<Sgd>(SgdParameters{
      .learning_rate = static_cast<float>(v.at("learning_rate")),
      .momentum = static_cast<float>(v.at("momentum")),
      .nesterov = v.at("nesterov") == 1,
      .weight_decay = static_cast<float>(v.at("weight_decay")),
      .decoupled = v.at("decoupled") == 1,
  });
}

std::unique_ptr<const Optimizer> MakeAdam(const Values& v) {
  return std::make_unique<Adam>(AdamParameters{
      .learning_rate = static_cast<float>(v.at("learning_rate")),
      .beta1 = v.at("beta1"),
      .beta2 = v.at("beta2"),
      .epsilon = static_cast<float>(v.at("epsilon")),
      .weight_decay = static_cast<float>(v.at("weight_decay")),
      .decoupled = v.at("decoupled") == 1,
  });
}

std::vector<ParameterRule> SgdRules(double momentum, double nesterov) {
  return {{"learning_rate", 0.01, "above 0", Positive},
          {"momentum", momentum, "0 up to below 1", BelowOne},
          {"nesterov", nesterov, "0 or 1", ZeroOrOne},
          {"weight_decay", 0, "0 or more", NotNegative},
          {"decoupled", 0, "0 or 1", ZeroOrOne}};
}

std::vector<ParameterRule> AdamRules(double weight_decay, double decoupled) {
  return {{"learning_rate", 0.001, "above 0", Positive},
          {"beta1", 0.9, "0 up to below 1", BelowOne},
          {"beta2", 0.999, "0 up to below 1", BelowOne},
          {"epsilon", 1e-8, "above 0", Positive},
          {"weight_decay", weight_decay, "0 or more", NotNegative},
          {"decoupled", decoupled, "0 or 1", ZeroOrOne}};
}

struct Kind {
  std::string_view name;
  std::vector<ParameterRule> rules;
  std::unique_ptr<const Optimizer> (*make)(const Values&);
};

const std::vector<Kind>& Kinds() {
  static const auto* const kinds = new std::vector<Kind>{
      {"adam", AdamRules(0, 0), MakeAdam},     {"adamw", AdamRules(0.01, 1), MakeAdam},
      {"momentum", SgdRules(0.9, 0), MakeSgd}, {"nesterov", SgdRules(0.9, 1), MakeSgd},
      {"sgd", SgdRules(0, 0), MakeSgd},
  };
  return *kinds;
}

absl::StatusOr<const Kind*> FindKind(std::string_view name) {
  for (const Kind& kind : Kinds()) {
    if (kind.name == name) return &kind;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "optimizer \"", Absl(name), "\" is not known; use ", absl::StrJoin(OptimizerNames(), ", ")));
}

absl::Status UnknownParameter(const Kind& kind, const std::string& name) {
  std::vector<std::string> known;
  for (const ParameterRule& rule : kind.rules) known.emplace_back(rule.name);
  return absl::InvalidArgumentError(absl::StrCat("optimizer ", Absl(kind.name), ": parameter \"",
                                                 name, "\" is not known; use ",
                                                 absl::StrJoin(known, ", ")));
}

// Every parameter of the kind: given or its default, each in its range.
absl::StatusOr<Values> Resolve(const Kind& kind, const NamedSpec& spec) {
  Values values;
  for (const ParameterRule& rule : kind.rules) values.emplace(rule.name, rule.otherwise);
  for (const auto& [name, value] : spec.parameters) {
    const std::string& given = name;  // clang 14 cannot capture a structured binding
    const auto rule = std::find_if(kind.rules.begin(), kind.rules.end(),
                                   [&given](const ParameterRule& r) { return r.name == given; });
    if (rule == kind.rules.end()) return UnknownParameter(kind, name);
    if (!std::isfinite(value) || !rule->valid(value)) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer ", Absl(kind.name), ": ", name,
                                                     " = ", value, " must be ", Absl(rule->range)));
    }
    values[name] = value;
  }
  const auto nesterov = values.find("nesterov");
  if (nesterov != values.end() && nesterov->second == 1 && values.at("momentum") == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer ", Absl(kind.name), ": nesterov = 1 needs a momentum above 0, got 0"));
  }
  return values;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> Optimizer::Create(const NamedSpec& spec) {
  PACELINE_ASSIGN_OR_RETURN(const Kind* kind, FindKind(spec.name));
  PACELINE_ASSIGN_OR_RETURN(const Values values, Resolve(*kind, spec));
  return kind->make(values);
}

absl::Status ValidateOptimizer(const NamedSpec& spec) { return Optimizer::Create(spec).status(); }

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const Kind& kind : Kinds()) names.emplace_back(kind.name);
  return names;
}

}  // namespace paceline
