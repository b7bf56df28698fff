#include "control/grpc/codec_util.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"

namespace paceline::codec {
namespace {

constexpr size_t kMaxQuoted = 64;
constexpr size_t kMaxNameBytes = 128;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

// Length of the well-formed UTF-8 sequence at the start of `s` (RFC 3629), or 0.
size_t Utf8Length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || s.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool surrogate = first == 0xED && byte(1) > 0x9F;
  const bool beyond = first == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

}  // namespace

absl::Status Invalid(std::string_view field, std::string_view value, std::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(field), ": ", Absl(value), "; use ", Absl(allowed)));
}

std::string Quoted(std::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(Absl(text.substr(0, kMaxQuoted))),
                      text.size() > kMaxQuoted ? "...\"" : "\"");
}

absl::Status CheckRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Invalid(field, absl::StrCat(value), absl::StrCat(low, "..", high));
}

absl::Status CheckText(std::string_view field, std::string_view value, size_t max_bytes) {
  if (value.size() <= max_bytes) return absl::OkStatus();
  return Invalid(field, absl::StrCat(value.size(), " bytes"),
                 absl::StrCat("at most ", max_bytes, " bytes"));
}

absl::Status CheckName(std::string_view field, std::string_view value) {
  if (!value.empty() && value.size() <= kMaxNameBytes &&
      std::all_of(value.begin(), value.end(), IsNameCharacter)) {
    return absl::OkStatus();
  }
  return Invalid(field, Quoted(value), "[a-zA-Z0-9._-]{1,128}");
}

absl::Status CheckAddress(std::string_view field, std::string_view value) {
  const size_t colon = value.rfind(':');
  uint32_t port = 0;
  bool good = value.size() <= kMaxAddress && colon != std::string_view::npos && colon > 0 &&
              absl::SimpleAtoi(Absl(value.substr(colon + 1)), &port) && port >= 1 && port <= 65535;
  if (good) {
    const std::string_view host = value.substr(0, colon);
    const bool bracketed = host.front() == '[' && host.back() == ']' && host.size() > 2;
    good = bracketed || host.find_first_of(":[]") == std::string_view::npos;
    for (char c : host) good = good && c > 0x20 && c < 0x7F;
  }
  if (good) return absl::OkStatus();
  return Invalid(field, Quoted(value), "host:port or [v6]:port with a port of 1..65535");
}

std::string FreeText(std::string_view text) {
  std::string out;
  out.reserve(std::min(text.size(), kMaxText));
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const std::string_view next = length == 0 ? std::string_view("?") : text.substr(0, length);
    if (out.size() + next.size() > kMaxText) break;
    out += next;
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

absl::Status KeyFromProto(std::string_view field, const std::string& in, SecretKey* out) {
  out->fill(0);
  if (in.empty()) return absl::OkStatus();
  // A key is never part of a message, not even a broken one.
  if (in.size() != out->size()) {
    return Invalid(field, absl::StrCat(in.size(), " bytes"), absl::StrCat(out->size(), " bytes"));
  }
  std::copy(in.begin(), in.end(), out->begin());
  return absl::OkStatus();
}

std::string KeyToProto(const SecretKey& key) {
  if (key == SecretKey{}) return "";
  return std::string(key.begin(), key.end());
}

absl::Status In(std::string_view name, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(Absl(name), ".", status.message()));
}

absl::Status LinesFromProto(std::string_view field,
                            const google::protobuf::RepeatedPtrField<std::string>& in,
                            std::vector<std::string>* out, size_t max_lines) {
  PACELINE_RETURN_IF_ERROR(
      CheckRange(absl::StrCat(Absl(field), " (count)"), in.size(), 0, max_lines));
  for (int i = 0; i < in.size(); ++i) {
    PACELINE_RETURN_IF_ERROR(CheckText(absl::StrCat(Absl(field), "[", i, "]"), in[i], kMaxText));
  }
  out->assign(in.begin(), in.end());
  return absl::OkStatus();
}

void StepsToProto(const std::map<GroupId, Step>& in,
                  google::protobuf::RepeatedPtrField<v1::GroupStep>* out) {
  for (const auto& [group, step] : in) {
    v1::GroupStep* item = out->Add();
    item->set_group(group.value());
    item->set_step(step.value());
  }
}

absl::Status StepsFromProto(std::string_view field,
                            const google::protobuf::RepeatedPtrField<v1::GroupStep>& in,
                            std::map<GroupId, Step>* out) {
  PACELINE_RETURN_IF_ERROR(
      CheckRange(absl::StrCat(Absl(field), " (count)"), in.size(), 0, kMaxItems));
  out->clear();
  for (int i = 0; i < in.size(); ++i) {
    if (!out->emplace(GroupId(in[i].group()), Step(in[i].step())).second) {
      return Invalid(absl::StrCat(Absl(field), "[", i, "].group"), absl::StrCat(in[i].group()),
                     "each group once");
    }
  }
  return absl::OkStatus();
}

}  // namespace paceline::codec
