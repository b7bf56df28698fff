#include "parameter/state_codec.h"

#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/base/status.h"

namespace paceline {
namespace {

static_assert(std::endian::native == std::endian::little, "states are copied as they lie");

template <typename T>
void Put(std::span<std::byte> out, size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof(value));
}

template <typename T>
T Get(std::span<const std::byte> in, size_t at) {
  T value;
  std::memcpy(&value, in.data() + at, sizeof(value));
  return value;
}

absl::Status Bad(std::string_view field, uint64_t value, std::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("state of a chunk: ", Absl(field), " is ", value, ", must be ", Absl(wanted)));
}

bool IsName(std::string_view name) { return !name.empty() && name.size() < kStateNameBytes; }

}  // namespace

absl::Status CheckArrayNames(const std::vector<std::string>& names) {
  if (names.size() > kMaxStateArrays) {
    return absl::InvalidArgumentError(absl::StrCat("state of a chunk: ", names.size(),
                                                   " arrays, must be at most ", kMaxStateArrays));
  }
  for (const std::string& name : names) {
    if (IsName(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat("state of a chunk: the name \"", name, "\" has ",
                                                   name.size(), " bytes, must have 1..",
                                                   kStateNameBytes - 1));
  }
  return absl::OkStatus();
}

std::vector<std::byte> EncodeState(const ChunkState& state) {
  PACELINE_CHECK(!state.arrays.empty() && state.arrays.size() <= kMaxStateArrays);
  const size_t array_bytes = state.arrays[0].second.size() * sizeof(float);
  std::vector<std::byte> out(kStateHeaderBytes +
                             state.arrays.size() * (kStateNameBytes + array_bytes));
  Put<uint32_t>(out, 0, 1);
  Put<uint32_t>(out, 4, static_cast<uint32_t>(state.arrays.size()));
  Put<uint64_t>(out, 8, state.arrays[0].second.size());
  Put<uint64_t>(out, 16, state.version.count);
  Put<uint32_t>(out, 24, state.version.lineage);
  Put<uint64_t>(out, 32, state.updates);
  Put<uint64_t>(out, 40, state.samples.value());
  size_t at = kStateHeaderBytes;
  for (const auto& [name, values] : state.arrays) {
    PACELINE_CHECK(IsName(name));
    std::memcpy(out.data() + at, name.data(), name.size());
    at += kStateNameBytes;
  }
  for (const auto& [name, values] : state.arrays) {
    PACELINE_CHECK(values.size() * sizeof(float) == array_bytes);
    if (array_bytes > 0) std::memcpy(out.data() + at, values.data(), array_bytes);
    at += array_bytes;
  }
  return out;
}

absl::StatusOr<ChunkState> DecodeState(std::span<const std::byte> bytes, uint64_t elements) {
  if (bytes.size() < kStateHeaderBytes) return Bad("size", bytes.size(), "64 bytes or more");
  const auto layout = Get<uint32_t>(bytes, 0);
  if (layout != 1) return Bad("layout", layout, "1");
  const auto arrays = Get<uint32_t>(bytes, 4);
  if (arrays < 1 || arrays > kMaxStateArrays) return Bad("number of arrays", arrays, "1 to 8");
  if (Get<uint64_t>(bytes, 8) != elements) {
    return Bad("elements", Get<uint64_t>(bytes, 8), absl::StrCat(elements));
  }
  const uint64_t wanted = kStateHeaderBytes + arrays * (kStateNameBytes + elements * sizeof(float));
  if (bytes.size() != wanted) return Bad("size", bytes.size(), absl::StrCat(wanted));
  ChunkState state;
  state.version = {Get<uint32_t>(bytes, 24), Get<uint64_t>(bytes, 16)};
  state.updates = Get<uint64_t>(bytes, 32);
  state.samples = Samples(Get<uint64_t>(bytes, 40));
  for (uint32_t i = 0; i < arrays; ++i) {
    const char* const name =
        reinterpret_cast<const char*>(bytes.data() + kStateHeaderBytes + i * kStateNameBytes);
    const size_t length = strnlen(name, kStateNameBytes);
    if (!IsName({name, length})) {
      return Bad(absl::StrCat("name of array ", i), length, "1 to 31 bytes long");
    }
    const size_t at = kStateHeaderBytes + arrays * kStateNameBytes + i * elements * sizeof(float);
    std::vector<float> values(elements);
    if (elements > 0) std::memcpy(values.data(), bytes.data() + at, elements * sizeof(float));
    state.arrays.emplace_back(std::string(name, length), std::move(values));
  }
  if (state.arrays[0].first != "weights") {
    return absl::InvalidArgumentError(absl::StrCat("state of a chunk: its first array is \"",
                                                   state.arrays[0].first,
                                                   "\", must be \"weights\""));
  }
  return state;
}

}  // namespace paceline
