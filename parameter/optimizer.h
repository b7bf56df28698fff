// Optimizers an owner applies to a chunk: named, parameterised, never code from a peer. The same
// objects run in owners, in the standalone reference and in the simulator.
//
// Arithmetic is element-wise in fp32 without contraction, so the result of an element does not
// depend on how a tensor is cut: the same bits on one owner and on ten.
//
//  sgd   g' = g + weight_decay*w; m = momentum*m + g'; u = g' + momentum*m (nesterov) or m;
//        w = w - rate*u                                     (Sutskever et al. 2013, as PyTorch)
//  adam  g' = g + weight_decay*w; m = beta1*m + (1-beta1)*g'; v = beta2*v + (1-beta2)*g'*g';
//        w = w - rate/(1-beta1^t) * m / (sqrt(v)/sqrt(1-beta2^t) + epsilon)
//                                                           (Kingma and Ba 2015)
//  decoupled = 1: the decay is w = w - rate*weight_decay*w before the update and g' = g
//                                                           (Loshchilov and Hutter 2019)
// Aliases: "momentum" is sgd with momentum 0.9, "nesterov" the same with nesterov 1, "adamw" is
// adam with decoupled 1 and weight_decay 0.01; every parameter can still be given.
//
// Thread rule: an Optimizer is immutable; any thread may call Apply on its own arrays.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/job_spec.h"

namespace paceline {

class Optimizer {
 public:
  // InvalidArgument names the optimizer or parameter, its value, and what is known or the range.
  static absl::StatusOr<std::unique_ptr<const Optimizer>> Create(const NamedSpec& spec);

  virtual ~Optimizer() = default;

  // Names of the state arrays, each as long as the weights and 0 at first: {}, {"momentum"} or
  // {"m", "v"}. They name the arrays in a checkpoint.
  virtual const std::vector<std::string>& slots() const = 0;

  // One update of `weights` and `slots` (in the order of slots()); all spans are as long as
  // `weights` and do not overlap. `learning_rate` 0 takes the optimizer's own; a damped update
  // passes the rate times its weight, which scales the step after the optimizer. `t` counts the
  // updates of these weights with this one, from 1.
  virtual void Apply(std::span<float> weights, std::span<const std::span<float>> slots,
                     std::span<const float> gradient, float learning_rate, uint64_t t) const = 0;

  // The parameter "learning_rate".
  virtual float learning_rate() const = 0;
};

// OK when Create would succeed.
absl::Status ValidateOptimizer(const NamedSpec& spec);

// Names that Create knows, in order, for messages and --help.
std::vector<std::string> OptimizerNames();

}  // namespace paceline
