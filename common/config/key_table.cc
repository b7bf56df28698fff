#include "common/config/key_table.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/text_value.h"

namespace paceline {
namespace {

constexpr std::string_view kJobPrefix = "job.";

std::string WithoutJob(std::string_view path) {
  if (path.starts_with(kJobPrefix)) path.remove_prefix(kJobPrefix.size());
  return std::string(path);
}

std::string FlagOf(std::string_view path) {
  std::string flag = "--" + WithoutJob(path);
  for (char& c : flag) c = (c == '.' || c == '_') ? '-' : c;
  return flag;
}

std::string VariableOf(std::string_view path) {
  std::string name = "PACELINE_" + WithoutJob(path);
  for (char& c : name) c = (c == '.') ? '_' : static_cast<char>(toupper(c));
  return name;
}

std::string Range(const std::string& low, const std::string& high, bool open_end) {
  return open_end ? absl::StrCat(low, " or more") : absl::StrCat(low, " .. ", high);
}

template <typename T, typename Parse, typename Print>
Key RangeKey(std::string path, std::string doc, T low, T high, T* field, Parse parse, Print print) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = Range(print(low), print(high), high == std::numeric_limits<T>::max());
  key.set = [=](std::string_view text) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(const auto value, parse(text));
    if (value < low || value > high) return absl::InvalidArgumentError("is out of range");
    *field = static_cast<T>(value);
    return absl::OkStatus();
  };
  key.get = [=] { return print(*field); };
  return key;
}

}  // namespace

Key& KeyTable::Add(Key key) {
  if (key.flag.empty()) key.flag = FlagOf(key.path);
  if (key.variable.empty()) key.variable = VariableOf(key.path);
  keys_.push_back(std::move(key));
  return keys_.back();
}

void KeyTable::Append(const KeyTable& other) {
  keys_.insert(keys_.end(), other.keys_.begin(), other.keys_.end());
}

void KeyTable::Spelled(std::string flag, std::string variable) {
  keys_.back().flag = std::move(flag);
  keys_.back().variable = std::move(variable);
}

void KeyTable::Text(std::string path, std::string doc, std::string* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = "text without line breaks";
  key.set = [=](std::string_view text) -> absl::Status {
    if (text.size() > 4096) return absl::InvalidArgumentError("is longer than 4096 characters");
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        return absl::InvalidArgumentError("has a control character");
      }
    }
    *field = std::string(text);
    return absl::OkStatus();
  };
  key.get = [=] { return *field; };
  Add(std::move(key));
}

void KeyTable::OneOf(std::string path, std::string doc, std::vector<std::string> allowed,
                     std::string* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = absl::StrJoin(allowed, ", ");
  key.set = [=](std::string_view text) -> absl::Status {
    if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
      const std::string nearest = NearestOf(text, allowed);
      return absl::InvalidArgumentError(
          nearest.empty() ? "is not known"
                          : absl::StrCat("is not known, did you mean \"", nearest, "\"?"));
    }
    *field = std::string(text);
    return absl::OkStatus();
  };
  key.get = [=] { return *field; };
  Add(std::move(key));
}

void KeyTable::Name(std::string path, std::string doc, std::string* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = "1 to 128 of a-z A-Z 0-9 . _ -";
  key.set = [=](std::string_view text) -> absl::Status {
    if (!text.empty() && !IsName(text)) return absl::InvalidArgumentError("is not a name");
    *field = std::string(text);
    return absl::OkStatus();
  };
  key.get = [=] { return *field; };
  Add(std::move(key));
}

void KeyTable::Address(std::string path, std::string doc, bool port_optional, std::string* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = port_optional ? "host or host:port" : "host:port";
  const bool empty_allowed = field->empty();
  key.set = [=](std::string_view text) -> absl::Status {
    const bool host_only = (empty_allowed && text.empty()) || (port_optional && IsName(text));
    if (!host_only && !ParseHostPort(text).ok()) {
      return absl::InvalidArgumentError("is not an address");
    }
    *field = std::string(text);
    return absl::OkStatus();
  };
  key.get = [=] { return *field; };
  Add(std::move(key));
}

void KeyTable::Switch(std::string path, std::string doc, bool* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = "true or false";
  key.implied = "true";
  key.set = [=](std::string_view text) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(*field, ParseBool(text));
    return absl::OkStatus();
  };
  key.get = [=] { return *field ? "true" : "false"; };
  Add(std::move(key));
}

void KeyTable::Number(std::string path, std::string doc, uint64_t low, uint64_t high,
                      uint64_t* field) {
  Add(RangeKey(std::move(path), std::move(doc), low, high, field, ParseWhole,
               [](uint64_t v) { return std::to_string(v); }));
}

void KeyTable::Number(std::string path, std::string doc, uint32_t low, uint32_t high,
                      uint32_t* field) {
  Add(RangeKey(std::move(path), std::move(doc), low, high, field, ParseWhole,
               [](uint32_t v) { return std::to_string(v); }));
}

void KeyTable::Real(std::string path, std::string doc, double low, double high, double* field) {
  Add(RangeKey(std::move(path), std::move(doc), low, high, field, ParseReal, RealText));
}

void KeyTable::ByteCount(std::string path, std::string doc, uint64_t low, uint64_t high,
                         uint64_t* field) {
  Add(RangeKey(std::move(path), std::move(doc), low, high, field, ParseByteCount, ByteCountText));
}

void KeyTable::Labels(std::string path, std::string doc,
                      std::map<std::string, std::string>* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = "name=value,... of a-z A-Z 0-9 . _ -";
  key.shape = KeyShape::kMap;
  key.set = [=](std::string_view text) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(const auto labels, ParsePairs(text));
    for (const auto& [name, value] : labels) {
      if (!IsName(name) || !IsName(value)) {
        return absl::InvalidArgumentError(
            absl::StrCat("has \"", name, "=", value, "\", which is not a label"));
      }
    }
    *field = labels;
    return absl::OkStatus();
  };
  key.get = [=] { return absl::StrJoin(*field, ",", absl::PairFormatter("=")); };
  Add(std::move(key));
}

void KeyTable::Named(std::string path, std::string doc, NamedSpec* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = "NAME or NAME:parameter=number,...";
  key.shape = KeyShape::kNamed;
  key.set = [=](std::string_view text) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(*field, ParseNamedSpec(text));
    return absl::OkStatus();
  };
  key.get = [=] { return ToText(*field); };
  Add(std::move(key));
}

void KeyTable::NamedMap(std::string path, std::string doc,
                        std::map<std::string, NamedSpec>* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = "PATTERN=NAME:parameter=number,...;...";
  key.shape = KeyShape::kNamedMap;
  key.set = [=](std::string_view text) -> absl::Status {
    std::map<std::string, NamedSpec> result;
    for (const std::string& piece : SplitTrimmed(text, ';')) {
      const size_t equals = piece.find('=');
      if (equals == std::string::npos || equals == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("has \"", piece, "\" where PATTERN=NAME goes"));
      }
      PACELINE_ASSIGN_OR_RETURN(NamedSpec spec, ParseNamedSpec(piece.substr(equals + 1)));
      if (!result.emplace(piece.substr(0, equals), std::move(spec)).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("has pattern \"", piece.substr(0, equals), "\" twice"));
      }
    }
    *field = std::move(result);
    return absl::OkStatus();
  };
  key.get = [=] {
    return absl::StrJoin(*field, ";", [](std::string* out, const auto& entry) {
      absl::StrAppend(out, entry.first, "=", ToText(entry.second));
    });
  };
  Add(std::move(key));
}

Key* KeyTable::Find(std::string_view path) {
  for (Key& key : keys_) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

std::string KeyTable::OriginOf(std::string_view path) const {
  for (const Key& key : keys_) {
    if (key.path == path) return key.origin;
  }
  return "default";
}

absl::Status KeyTable::Set(Key& key, std::string_view text, std::string origin) {
  const absl::Status status = key.set(text);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(key.path, ": \"", Absl(text.substr(0, 200)),
                                                   "\" (", origin, ") ", status.message(),
                                                   "; allowed: ", key.allowed));
  }
  key.origin = std::move(origin);
  return absl::OkStatus();
}

absl::Status KeyTable::LoadEnvironment(const Environment& env) {
  for (Key& key : keys_) {
    if (const auto value = env.Get(key.variable)) {
      PACELINE_RETURN_IF_ERROR(Set(key, *value, "variable " + key.variable));
    }
  }
  return absl::OkStatus();
}

absl::Status KeyTable::LoadAssignment(std::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", Absl(assignment), ": key=value goes here"));
  }
  const std::string path(assignment.substr(0, equals));
  Key* key = Find(path);
  if (key == nullptr) key = Find(std::string(kJobPrefix) + path);
  if (key == nullptr) {
    const std::string nearest = Nearest(path);
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown key \"", path, "\" (flag --set)",
        nearest.empty() ? "; --help lists all" : "; did you mean \"" + nearest + "\"?"));
  }
  return Set(*key, assignment.substr(equals + 1), "flag --set");
}

std::string KeyTable::Nearest(std::string_view path) const {
  std::vector<std::string> paths;
  for (const Key& key : keys_) {
    // A key written in the wrong section is as near as can be.
    const size_t dot = key.path.rfind('.');
    if (dot != std::string::npos && key.path.substr(dot + 1) == path) return key.path;
    paths.push_back(key.path);
  }
  const std::string nearest = NearestOf(path, paths);
  return nearest.empty() ? NearestOf(std::string(kJobPrefix) + std::string(path), paths) : nearest;
}

absl::StatusOr<NamedSpec> ParseNamedSpec(std::string_view text) {
  NamedSpec spec;
  const size_t colon = text.find(':');
  spec.name = std::string(text.substr(0, colon));
  if (spec.name.empty() && colon == std::string_view::npos) return spec;
  if (!IsName(spec.name)) {
    return absl::InvalidArgumentError(absl::StrCat("has no name in \"", Absl(text), "\""));
  }
  if (colon == std::string_view::npos) return spec;
  PACELINE_ASSIGN_OR_RETURN(const auto pairs, ParsePairs(text.substr(colon + 1)));
  for (const auto& [name, value] : pairs) {
    const absl::StatusOr<double> number = ParseReal(value);
    if (!number.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("gives ", name, " the value \"", value, "\", which is not a finite number"));
    }
    spec.parameters.emplace(name, *number);
  }
  return spec;
}

std::string ToText(const NamedSpec& spec) {
  if (spec.parameters.empty()) return spec.name;
  return absl::StrCat(spec.name, ":",
                      absl::StrJoin(spec.parameters, ",", [](std::string* out, const auto& entry) {
                        absl::StrAppend(out, entry.first, "=", RealText(entry.second));
                      }));
}

}  // namespace paceline
