// A dense tensor of a model as registered.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "common/base/types.h"

namespace paceline {

struct TensorSpec {
  std::string name;
  std::vector<uint64_t> shape;  // elements per dimension; {} is a scalar, a 0 makes it empty
  DType dtype = DType::kF32;
  bool whole = false;  // never cut (an optimizer that needs norms over the tensor)

  bool operator==(const TensorSpec&) const = default;

  uint64_t elements() const;
  Bytes bytes() const;
};

// Name of 1..512 bytes, at most 32 dimensions, product below 2^48 bytes.
absl::Status Validate(const TensorSpec& spec);
// "f32[784,128]".
std::string ToString(const TensorSpec& spec);

}  // namespace paceline
