#include "parameter/contribution.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/kernels/kernels.h"

namespace paceline {
Contribution::Contribution(uint64_t elements, DType dtype, FloatPool* pool)
    : total_bytes_(elements * SizeOf(dtype)),
      dtype_(dtype),
      values_(pool->Take(elements)),
      in_((total_bytes_ + kPieceBytes - 1) / kPieceBytes),
      missing_(in_.size()) {
  PACELINE_CHECK(IsFloatOnTheWire(dtype));
}

bool Contribution::Add(const Piece& piece) {
  if (total_bytes_ == 0) return piece.bytes.empty();
  if (piece.offset % kPieceBytes != 0 || piece.offset >= total_bytes_) return false;
  if (piece.bytes.size() != std::min(kPieceBytes, total_bytes_ - piece.offset)) return false;
  const size_t index = piece.offset / kPieceBytes;
  if (in_[index]) return true;
  const uint32_t size = SizeOf(dtype_);
  const std::span<float> to =
      values_.writable().subspan(piece.offset / size, piece.bytes.size() / size);
  if (dtype_ == DType::kF16) {
    kernels::F16ToF32(to, piece.bytes);
  } else if (dtype_ == DType::kBF16) {
    kernels::Bf16ToF32(to, piece.bytes);
  } else {
    std::memcpy(to.data(), piece.bytes.data(), piece.bytes.size());
  }
  finite_ = finite_ && kernels::AllFinite(to);
  in_[index] = true;
  --missing_;
  return true;
}

SharedFloats Contribution::Take() {
  PACELINE_CHECK(whole());
  return std::move(values_);
}

std::vector<uint16_t> ToHalves(std::span<const float> values, DType dtype) {
  PACELINE_CHECK(dtype == DType::kF16 || dtype == DType::kBF16);
  std::vector<uint16_t> halves(values.size());
  if (dtype == DType::kF16) {
    kernels::F32ToF16(halves, values);
  } else {
    kernels::F32ToBf16(halves, values);
  }
  return halves;
}

}  // namespace paceline
