#include "parameter/accumulator.h"

#include <utility>

#include "common/base/check.h"
#include "common/kernels/kernels.h"

namespace paceline {

void Accumulator::Take(size_t position, SharedFloats contribution) {
  if (!keeps_apart_) {
    AddTo(std::move(contribution));
    return;
  }
  PACELINE_CHECK(position < apart_.size() && !apart_[position]);
  apart_[position] = std::move(contribution);
}

void Accumulator::Drop(size_t position) {
  PACELINE_CHECK(position < apart_.size());
  if (apart_[position]) pool_->Give(std::move(apart_[position]));
  apart_[position] = {};
}

SharedFloats Accumulator::Sum() {
  for (SharedFloats& contribution : apart_) {
    if (contribution) AddTo(std::move(contribution));
  }
  apart_.clear();
  return std::move(sum_);
}

void Accumulator::AddTo(SharedFloats contribution) {
  if (!sum_) {
    sum_ = std::move(contribution);
    return;
  }
  kernels::Add(sum_.writable(), contribution.values());
  pool_->Give(std::move(contribution));
}

size_t Accumulator::bytes() const {
  size_t elements = sum_.size();
  for (const SharedFloats& contribution : apart_) elements += contribution.size();
  return elements * sizeof(float);
}

}  // namespace paceline
