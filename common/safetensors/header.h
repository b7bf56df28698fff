// The JSON header of a safetensors file, apart from any file.
// Thread rule: no state.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/safetensors/safetensors.h"

namespace paceline::safetensors {

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> tensors;  // by offset; offsets are within the data, not the file
};

// DataLoss or Unimplemented; names the tensor where there is one. `data_bytes` is what follows the
// header.
absl::StatusOr<Header> ParseHeader(std::string_view json, uint64_t data_bytes);

// Header text padded with spaces to a multiple of 8, for tensors that follow each other in this
// order. Names and metadata must be UTF-8 (InvalidArgument).
absl::StatusOr<std::string> MakeHeader(const std::map<std::string, std::string>& metadata,
                                       std::span<const SafetensorsView* const> tensors);

// Bytes of an array; InvalidArgument when the shape has too many dimensions or overflows.
absl::StatusOr<uint64_t> ArrayBytes(DType dtype, const std::vector<uint64_t>& shape);

}  // namespace paceline::safetensors
