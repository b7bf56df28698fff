#include "cli/text_table.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace paceline {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kNarrowest = 4;

std::string Cut(const std::string& text, size_t width) {
  if (text.size() <= width) return text;
  return text.substr(0, width - 1) + "~";
}

void ShrinkToFit(std::vector<size_t>& widths, size_t available) {
  auto total = [&] {
    size_t sum = kGap * (widths.size() - 1);
    for (const size_t width : widths) sum += width;
    return sum;
  };
  while (total() > available) {
    auto widest = std::max_element(widths.begin(), widths.end());
    if (*widest <= kNarrowest) return;
    --*widest;
  }
}

bool IsNumeric(const std::vector<std::vector<Cell>>& rows, size_t column) {
  bool any = false;
  for (const std::vector<Cell>& row : rows) {
    const std::string& text = row[column].text;
    if (text.empty() || text == "-") continue;
    const char c = text.front();
    if (!(c >= '0' && c <= '9') && c != '-' && c != '+') return false;
    // An address or a date starts with a digit too.
    if (text.find_first_of(":_") != std::string::npos) return false;
    any = true;
  }
  return any;
}

std::string Padded(const std::string& text, size_t width, bool right) {
  const std::string blanks(width - std::min(width, text.size()), ' ');
  return right ? blanks + text : text + blanks;
}

}  // namespace

std::string Tinted(std::string_view text, Tint tint, const Style& style) {
  if (!style.color || tint == Tint::kNone || text.empty()) return std::string(text);
  const char* code = "";
  switch (tint) {
    case Tint::kNone:
      break;
    case Tint::kBold:
      code = "1";
      break;
    case Tint::kGreen:
      code = "32";
      break;
    case Tint::kYellow:
      code = "33";
      break;
    case Tint::kRed:
      code = "31";
      break;
    case Tint::kDim:
      code = "2";
      break;
  }
  return absl::StrCat("\x1b[", code, "m", Absl(text), "\x1b[0m");
}

std::string TextTable(const std::vector<std::string>& header,
                      const std::vector<std::vector<Cell>>& rows, const Style& style) {
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (size_t c = 0; c < header.size(); ++c) {
    size_t width = header[c].size();
    for (const std::vector<Cell>& row : rows) width = std::max(width, row[c].text.size());
    widths.push_back(width);
    right.push_back(IsNumeric(rows, c));
  }
  ShrinkToFit(widths, style.width);
  std::string text;
  auto add_row = [&](const std::vector<Cell>& row) {
    std::string line;
    size_t blanks = 0;  // not written before more text comes: lines have no blanks at their end
    for (size_t c = 0; c < row.size(); ++c) {
      std::string cell = Padded(Cut(row[c].text, widths[c]), widths[c], right[c]);
      const size_t end = cell.find_last_not_of(' ') + 1;
      const size_t trailing = cell.size() - end;
      cell.resize(end);
      if (!cell.empty()) {
        line += std::string(blanks, ' ') + Tinted(cell, row[c].tint, style);
        blanks = 0;
      }
      blanks += trailing + kGap;
    }
    text += line + "\n";
  };
  std::vector<Cell> head;
  for (const std::string& name : header) head.emplace_back(name, Tint::kBold);
  add_row(head);
  for (const std::vector<Cell>& row : rows) add_row(row);
  return text;
}

std::string Wrap(std::string_view first, std::string_view text, const Style& style) {
  const size_t indent = first.size();
  std::string out;
  std::string line(first);
  bool empty = true;
  for (absl::string_view word : absl::StrSplit(Absl(text), ' ', absl::SkipEmpty())) {
    if (!empty && line.size() + 1 + word.size() > style.width) {
      out += line + "\n";
      line.assign(indent, ' ');
      empty = true;
    }
    // A word longer than a line is cut into lines.
    while (indent + word.size() > style.width && style.width > indent) {
      out += line + std::string(word.substr(0, style.width - indent)) + "\n";
      word.remove_prefix(style.width - indent);
      line.assign(indent, ' ');
    }
    if (!empty) line += " ";
    line.append(word.data(), word.size());
    empty = false;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return out + line + "\n";
}

}  // namespace paceline
