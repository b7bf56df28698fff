#include "common/config/text_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "common/base/status.h"

namespace paceline {
namespace {

constexpr size_t kMaxPairs = 64;

struct Unit {
  std::string_view name;
  uint64_t bytes;
};
constexpr std::array<Unit, 4> kUnits = {Unit{"K", 1ull << 10}, Unit{"M", 1ull << 20},
                                        Unit{"G", 1ull << 30}, Unit{"T", 1ull << 40}};

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

absl::StatusOr<uint64_t> ParseWhole(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    return absl::InvalidArgumentError("is too large");
  }
  if (error != std::errc() || end != text.data() + text.size()) {
    return absl::InvalidArgumentError("is not a whole number");
  }
  return value;
}

absl::StatusOr<double> ParseReal(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return absl::InvalidArgumentError("is not a finite number");
  }
  return value;
}

absl::StatusOr<bool> ParseBool(std::string_view text) {
  if (text == "true" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return false;
  return absl::InvalidArgumentError("is neither true nor false");
}

absl::StatusOr<uint64_t> ParseByteCount(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  PACELINE_ASSIGN_OR_RETURN(const uint64_t count, ParseWhole(text.substr(0, digits)));
  std::string_view suffix = Trim(text.substr(digits));
  if (suffix.empty()) return count;
  for (const Unit& unit : kUnits) {
    if (!suffix.starts_with(unit.name)) continue;
    suffix.remove_prefix(1);
    if (!suffix.empty() && suffix != "iB") break;
    if (count > std::numeric_limits<uint64_t>::max() / unit.bytes) {
      return absl::InvalidArgumentError("is too large");
    }
    return count * unit.bytes;
  }
  return absl::InvalidArgumentError("is not a number of bytes (like 65536, 64KiB, 4MiB, 16GiB)");
}

std::string ByteCountText(uint64_t bytes) {
  for (auto unit = kUnits.rbegin(); unit != kUnits.rend(); ++unit) {
    if (bytes != 0 && bytes % unit->bytes == 0) {
      return absl::StrCat(bytes / unit->bytes, Absl(unit->name), "iB");
    }
  }
  return std::to_string(bytes);
}

std::string RealText(double value) {
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), end);
}

absl::StatusOr<std::map<std::string, std::string>> ParsePairs(std::string_view text) {
  std::map<std::string, std::string> pairs;
  for (const std::string& piece : SplitTrimmed(text, ',')) {
    const size_t equals = piece.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == piece.size()) {
      return absl::InvalidArgumentError(absl::StrCat("has \"", piece, "\" where name=value goes"));
    }
    const std::string name(Trim(std::string_view(piece).substr(0, equals)));
    const std::string value(Trim(std::string_view(piece).substr(equals + 1)));
    if (!pairs.emplace(name, value).second) {
      return absl::InvalidArgumentError(absl::StrCat("names \"", name, "\" twice"));
    }
    if (pairs.size() > kMaxPairs) {
      return absl::InvalidArgumentError(absl::StrCat("has more than ", kMaxPairs, " pairs"));
    }
  }
  return pairs;
}

bool IsName(std::string_view text) {
  if (text.empty() || text.size() > 128) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

std::vector<std::string> SplitTrimmed(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  if (Trim(text).empty()) return pieces;
  while (true) {
    const size_t end = text.find(separator);
    pieces.emplace_back(Trim(text.substr(0, end)));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string NearestOf(std::string_view text, const std::vector<std::string>& candidates) {
  text = text.substr(0, 256);
  std::string nearest;
  size_t best = std::max<size_t>(2, text.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(text, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace paceline
