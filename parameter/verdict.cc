#include "parameter/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/status.h"
#include "parameter/verdict_fields.h"

namespace paceline {
namespace {

// What a later version adds to a verdict must not be read as one of today.
constexpr uint32_t kLayout = 1;

std::vector<std::byte> ToBytes(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  if (!bytes.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::string_view ToText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a verdict: ", Absl(what)));
}

absl::Status CheckEnd(const Reader& reader, uint32_t layout) {
  if (!reader.AtEnd()) return Bad("its fields are damaged");
  if (layout != kLayout) return Bad(absl::StrCat("layout ", layout, ", must be ", kLayout));
  return absl::OkStatus();
}

bool IsSorted(const std::vector<NodeRef>& members) {
  return std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) ==
         members.end();
}

}  // namespace

bool Verdict::Has(NodeRef member) const {
  return std::binary_search(members.begin(), members.end(), member);
}

std::vector<std::byte> Encode(const VerdictQuestion& question) {
  Writer writer;
  writer(kLayout, question.push, question.done, question.samples);
  return ToBytes(writer.Take());
}

std::vector<std::byte> Encode(const VerdictAnswer& answer) {
  Writer writer;
  writer(kLayout, answer.push, answer.over, answer.verdict);
  writer(answer.open.size());
  for (const auto& [member, step] : answer.open) writer(member, step);
  return ToBytes(writer.Take());
}

absl::StatusOr<VerdictQuestion> DecodeQuestion(std::span<const std::byte> bytes) {
  VerdictQuestion question;
  uint32_t layout = 0;
  Reader reader(ToText(bytes));
  reader(layout, question.push, question.done, question.samples);
  PACELINE_RETURN_IF_ERROR(CheckEnd(reader, layout));
  if (!IsSorted(question.done)) return Bad("its members are not in order");
  return question;
}

absl::StatusOr<VerdictAnswer> DecodeAnswer(std::span<const std::byte> bytes) {
  VerdictAnswer answer;
  uint32_t layout = 0;
  uint64_t open = 0;
  Reader reader(ToText(bytes));
  reader(layout, answer.push, answer.over, answer.verdict, open);
  for (uint64_t i = 0; i < open && reader.ok(); ++i) {
    auto& [member, step] = answer.open.emplace_back();
    reader(member, step);
  }
  PACELINE_RETURN_IF_ERROR(CheckEnd(reader, layout));
  if (!IsSorted(answer.verdict.members)) return Bad("its members are not in order");
  if (!std::isfinite(answer.verdict.weight)) return Bad("its weight is no number");
  return answer;
}

}  // namespace paceline
