#include "plan/tensor_spec.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace paceline {
namespace {

constexpr uint64_t kMaxWholeBytes = 256u << 20;  // one chunk

constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxDimensions = 32;
constexpr uint64_t kMaxBytes = uint64_t{1} << 48;

}  // namespace

uint64_t TensorSpec::elements() const {
  uint64_t product = 1;
  for (uint64_t dimension : shape) product *= dimension;
  return product;
}

Bytes TensorSpec::bytes() const { return Bytes(elements() * SizeOf(dtype)); }

absl::Status Validate(const TensorSpec& spec) {
  if (spec.name.empty() || spec.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor name: ", spec.name.size(), " bytes (\"",
                                                   spec.name.substr(0, 64), "\"); use 1..",
                                                   kMaxNameBytes));
  }
  if (SizeOf(spec.dtype) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", spec.name,
                                                   ": dtype: ", static_cast<int>(spec.dtype),
                                                   " is no element type; use 1..8"));
  }
  if (spec.shape.size() > kMaxDimensions) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", spec.name,
                                                   ": shape: ", spec.shape.size(),
                                                   " dimensions; use 0..", kMaxDimensions));
  }
  // Zeroes are left out of the product, so that {2^40, 2^40, 0} cannot wrap around.
  uint64_t bytes = SizeOf(spec.dtype);
  for (uint64_t dimension : spec.shape) {
    if (dimension == 0) continue;
    if (dimension >= kMaxBytes / bytes + (kMaxBytes % bytes != 0 ? 1 : 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", spec.name, ": shape: ", ToString(spec),
                       " has 2^48 bytes or more; split it into smaller tensors"));
    }
    bytes *= dimension;
  }
  if (spec.whole && bytes > kMaxWholeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", spec.name, ": whole with ", bytes,
                                                   " bytes; a chunk has at most ", kMaxWholeBytes,
                                                   ", let it be cut"));
  }
  return absl::OkStatus();
}

std::string ToString(const TensorSpec& spec) {
  return absl::StrCat(Absl(Name(spec.dtype)), "[", absl::StrJoin(spec.shape, ","), "]",
                      spec.whole ? " whole" : "");
}

}  // namespace paceline
