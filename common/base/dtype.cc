#include "common/base/dtype.h"

#include <array>
#include <utility>

namespace paceline {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 8> kNames = {{
    {DType::kF32, "f32"},
    {DType::kF64, "f64"},
    {DType::kF16, "f16"},
    {DType::kBF16, "bf16"},
    {DType::kI8, "i8"},
    {DType::kI32, "i32"},
    {DType::kI64, "i64"},
    {DType::kU8, "u8"},
}};

}  // namespace

std::string_view Name(DType dtype) {
  for (const auto& [candidate, name] : kNames) {
    if (candidate == dtype) return name;
  }
  return "unknown";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const auto& [dtype, candidate] : kNames) {
    if (candidate == name) return dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromWire(uint8_t number) {
  for (const auto& [dtype, name] : kNames) {
    if (static_cast<uint8_t>(dtype) == number) return dtype;
  }
  return std::nullopt;
}

}  // namespace paceline
