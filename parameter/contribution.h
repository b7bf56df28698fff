// The payload of one operation while its pieces come, as fp32, and which pieces are in: a retry
// after a lost connection resumes, and no piece is taken twice.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "parameter/operation.h"
#include "parameter/shared_floats.h"

namespace paceline {

class Contribution {
 public:
  // `elements` values sent as `dtype` (kF32, kF16 or kBF16) into an array of the pool.
  Contribution(uint64_t elements, DType dtype, FloatPool* pool);

  // False when the piece is not one of this payload (place or length). One that is in already is
  // taken as a repetition and ignored.
  bool Add(const Piece& piece);

  bool whole() const { return missing_ == 0; }
  bool finite() const { return finite_; }
  // The values; checked: whole().
  SharedFloats Take();
  const SharedFloats& values() const { return values_; }

 private:
  uint64_t total_bytes_;
  DType dtype_;
  SharedFloats values_;
  std::vector<bool> in_;
  uint64_t missing_;
  bool finite_ = true;
};

// Whether gradients and weights may travel as this type.
constexpr bool IsFloatOnTheWire(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// Weights or a sum as they travel back: kF16 or kBF16, rounded to nearest, ties to even.
std::vector<uint16_t> ToHalves(std::span<const float> values, DType dtype);

}  // namespace paceline
