// Text for a terminal of 80 columns: tables, wrapped lines, colours.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

enum class Tint : uint8_t { kNone, kBold, kGreen, kYellow, kRed, kDim };

struct Style {
  bool color = false;  // on a terminal, and NO_COLOR is not set
  size_t width = 80;
};

std::string Tinted(std::string_view text, Tint tint, const Style& style);

struct Cell {
  std::string text;
  Tint tint = Tint::kNone;

  Cell(std::string text_in, Tint tint_in = Tint::kNone)  // NOLINT: a table is written as texts
      : text(std::move(text_in)), tint(tint_in) {}
  Cell(const char* text_in) : text(text_in) {}  // NOLINT
};

// A header and rows of as many cells. Numbers (columns where each cell starts with a digit, '-' or
// '+', or is empty) are set to the right. Columns that do not fit are cut, the widest first, with
// "~" as the last character.
std::string TextTable(const std::vector<std::string>& header,
                      const std::vector<std::vector<Cell>>& rows, const Style& style);

// Words in lines of at most style.width; the first after `first`, others after as many blanks.
std::string Wrap(std::string_view first, std::string_view text, const Style& style);

}  // namespace paceline
