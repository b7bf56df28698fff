// Element types of tensors and their sizes.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace paceline {

// The numbers are on the wire (docs/wire_format.md); never renumber.
enum class DType : uint8_t {
  kF32 = 1,
  kF64 = 2,
  kF16 = 3,
  kBF16 = 4,
  kI8 = 5,
  kI32 = 6,
  kI64 = 7,
  kU8 = 8,
};

// Bytes of one element.
constexpr uint32_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8:
      return 1;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
  }
  return 0;
}

// "f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8".
std::string_view Name(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);
std::optional<DType> DTypeFromWire(uint8_t number);

}  // namespace paceline
