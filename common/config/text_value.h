// Text forms of values that the configuration reads: numbers, byte counts, names, lists of pairs.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace paceline {

// Errors say only what is wrong with the text ("is not a whole number"); the caller names the key.
absl::StatusOr<uint64_t> ParseWhole(std::string_view text);
absl::StatusOr<double> ParseReal(std::string_view text);
absl::StatusOr<bool> ParseBool(std::string_view text);  // true/false, yes/no, on/off, 1/0
// "65536", "64KiB", "4MiB", "16GiB", "1TiB"; K, M, G, T mean the same.
absl::StatusOr<uint64_t> ParseByteCount(std::string_view text);
std::string ByteCountText(uint64_t bytes);  // the shortest exact form
std::string RealText(double value);         // shortest text that reads back to the same double

// "a=1,b=2" with unique, non-empty names; at most 64 pairs. The empty text is the empty map.
absl::StatusOr<std::map<std::string, std::string>> ParsePairs(std::string_view text);

// Letters, digits, '.', '_', '-', 1 to 128 of them.
bool IsName(std::string_view text);

// Pieces between separators, without blanks at their ends. "" gives none.
std::vector<std::string> SplitTrimmed(std::string_view text, char separator);

// Levenshtein distance.
size_t EditDistance(std::string_view a, std::string_view b);
// The candidate nearest to `text`, or empty when none is within a third of its length (at least 2).
std::string NearestOf(std::string_view text, const std::vector<std::string>& candidates);

}  // namespace paceline
