// Codecs: how gradients and weights may travel smaller than fp32. Named and parameterised like
// optimizers; both ends of a link make them from the same JobSpec, so a payload carries no
// parameter, and its size follows from the number of values alone.
//
//  name   parameters         bytes for n values                        decoded
//  fp16   -                  2n                                        IEEE 754 binary16
//  bf16   -                  2n                                        bfloat16
//  int8   -                  n + 4*ceil(n/256)                         q*s of its block of 256
//  2bit   threshold (0.5)    ceil(n/4)                                 threshold, -threshold or 0
//  topk   ratio (0.1)        4k + min(4k, ceil(n/8)),                  the k largest, else 0
//                            k = floor(ratio*n + 0.5), at least 1 (0 for n = 0)
// Layout and arithmetic to the bit: common/kernels/codec_kernels.h and topk.h.
//
// Error feedback (Seide et al. 2014; Stich et al. 2018): the sender keeps a residual r per value,
// codes x = v + r and keeps r = x - decoded, so nothing is lost, only late. For pulls the owner
// codes x = new weights - what the group holds, which contains the residual already: it passes
// none.
//
// Thread rule: a Codec is immutable; any thread may use it on its own arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/job_spec.h"

namespace paceline {

class Codec {
 public:
  // InvalidArgument names the codec or parameter, its value, and what is known or the range.
  static absl::StatusOr<std::unique_ptr<const Codec>> Create(const NamedSpec& spec);

  virtual ~Codec() = default;

  virtual std::string_view name() const = 0;

  // Exact bytes of the payload of so many values, at most kMaxValues.
  virtual uint64_t EncodedBytes(uint64_t values) const = 0;

  // Whether a push must keep a residual, or what it does not carry is lost: 2bit and topk.
  virtual bool error_feedback() const = 0;

  // Codes values + residual into `out` of EncodedBytes(values.size()) bytes and leaves in
  // `residual` what the payload does not carry. An empty residual: codes the values and keeps
  // nothing. fp16 and bf16 take only that, and any values: what is too large for them becomes
  // infinite. InvalidArgument, with residual and `out` as they were, for a sum that is not finite.
  virtual absl::Status Encode(std::span<const float> values, std::span<float> residual,
                              std::span<std::byte> out) const = 0;

  // `in` is from a peer. InvalidArgument when it is not EncodedBytes(values.size()) long or holds
  // what no encoder writes; the values are then not specified.
  absl::Status Decode(std::span<const std::byte> in, std::span<float> values) const;

  static constexpr uint64_t kMaxValues = (uint64_t{1} << 32) - 1;

 protected:
  // False when `in`, of the right length, is not a payload.
  virtual bool DecodeSized(std::span<const std::byte> in, std::span<float> values) const = 0;
};

// OK when Create would succeed.
absl::Status ValidateCodec(const NamedSpec& spec);

// Names that Create knows, in order, for messages and --help.
std::vector<std::string> CodecNames();

}  // namespace paceline
