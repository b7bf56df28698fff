#include "common/kernels/topk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "common/base/check.h"

namespace paceline::kernels {
namespace {

// Of finite floats the magnitudes are ordered as these.
uint32_t Magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7fff'ffffu; }

// Magnitudes above `value` are taken, and the first `ties` that equal it.
struct Cut {
  uint32_t value = 0;
  uint64_t ties = 0;
};

// The k-th largest magnitude by its digits, highest first: of the values that share the digits
// found so far, each pass counts the next one.
Cut FindCut(std::span<const float> x, uint64_t k) {
  constexpr uint32_t kDigits = 1u << 11;
  Cut cut{0, k};
  uint32_t known = 0;  // mask of the digits found
  for (int shift : {22, 11, 0}) {
    std::array<uint32_t, kDigits> count{};
    for (float v : x) {
      const uint32_t magnitude = Magnitude(v);
      if ((magnitude & known) == cut.value) ++count[magnitude >> shift & (kDigits - 1)];
    }
    uint32_t digit = kDigits - 1;
    while (count[digit] < cut.ties) cut.ties -= count[digit--];
    cut.value |= digit << shift;
    known |= (kDigits - 1) << shift;
  }
  return cut;
}

// The parts of a payload.
template <typename Byte>
struct Parts {
  Parts(std::span<Byte> bytes, uint64_t k)
      : which(bytes.first(bytes.size() - k * sizeof(float))),
        values(bytes.last(k * sizeof(float))) {}

  std::span<Byte> which;
  std::span<Byte> values;
};

uint32_t IndexAt(std::span<const std::byte> list, uint64_t place) {
  uint32_t index;
  std::memcpy(&index, list.data() + place * sizeof(index), sizeof(index));
  return index;
}

bool IsAscendingBelow(std::span<const std::byte> list, uint64_t k, uint64_t n) {
  uint64_t next = 0;
  for (uint64_t place = 0; place < k; ++place) {
    const uint64_t index = IndexAt(list, place);
    if (index < next || index >= n) return false;
    next = index + 1;
  }
  return true;
}

bool IsBitmapOf(std::span<const std::byte> bitmap, uint64_t k, uint64_t n) {
  uint64_t set = 0;
  for (std::byte byte : bitmap) set += std::popcount(static_cast<uint8_t>(byte));
  const bool no_padding =
      n % 8 == 0 || static_cast<uint8_t>(bitmap.back()) >> static_cast<int>(n % 8) == 0;
  return set == k && no_padding;
}

// visit(index, place among the values) for each one of a valid payload.
template <typename Visit>
void ForEach(std::span<const std::byte> which, uint64_t n, uint64_t k, Visit visit) {
  uint64_t place = 0;
  if (!TopKHasBitmap(n, k)) {
    for (; place < k; ++place) visit(IndexAt(which, place), place);
    return;
  }
  for (size_t i = 0; i < which.size(); ++i) {
    for (auto byte = static_cast<uint8_t>(which[i]); byte != 0; byte &= byte - 1) {
      visit(8 * i + static_cast<size_t>(std::countr_zero(byte)), place++);
    }
  }
}

}  // namespace

void EncodeTopK(std::span<std::byte> out, std::span<const float> x, uint64_t k) {
  PACELINE_CHECK(k <= x.size() && x.size() <= std::numeric_limits<uint32_t>::max());
  PACELINE_CHECK(out.size() == TopKBytes(x.size(), k));
  if (k == 0) return;
  Cut cut = FindCut(x, k);
  const bool bitmap = TopKHasBitmap(x.size(), k);
  const Parts<std::byte> parts(out, k);
  if (bitmap) std::fill(parts.which.begin(), parts.which.end(), std::byte{0});
  uint64_t place = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t magnitude = Magnitude(x[i]);
    if (magnitude < cut.value) continue;
    if (magnitude == cut.value) {
      if (cut.ties == 0) continue;
      --cut.ties;
    }
    if (bitmap) {
      parts.which[i / 8] |= std::byte{1} << (i % 8);
    } else {
      const auto index = static_cast<uint32_t>(i);
      std::memcpy(parts.which.data() + place * sizeof(index), &index, sizeof(index));
    }
    std::memcpy(parts.values.data() + place * sizeof(float), &x[i], sizeof(float));
    ++place;
  }
  PACELINE_CHECK(place == k);
}

bool DecodeTopK(std::span<float> x, std::span<const std::byte> in, uint64_t k) {
  PACELINE_CHECK(k <= x.size() && in.size() == TopKBytes(x.size(), k));
  const Parts<const std::byte> parts(in, k);
  const bool valid = TopKHasBitmap(x.size(), k) ? IsBitmapOf(parts.which, k, x.size())
                                                : IsAscendingBelow(parts.which, k, x.size());
  if (!valid) return false;
  std::fill(x.begin(), x.end(), 0.0f);
  ForEach(parts.which, x.size(), k, [&](size_t index, uint64_t place) {
    std::memcpy(&x[index], parts.values.data() + place * sizeof(float), sizeof(float));
  });
  return true;
}

void ClearTopK(std::span<float> x, std::span<const std::byte> encoded, uint64_t k) {
  PACELINE_CHECK(k <= x.size() && encoded.size() == TopKBytes(x.size(), k));
  const Parts<const std::byte> parts(encoded, k);
  ForEach(parts.which, x.size(), k, [&](size_t index, uint64_t) { x[index] = 0; });
}

}  // namespace paceline::kernels
