// YAML in and out of a KeyTable. yaml-cpp throws; its exceptions end here.
#include <yaml-cpp/yaml.h>

#include <cstdio>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/config/key_table.h"

namespace paceline {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxDepth = 8;

std::string At(const std::string& file, const YAML::Mark& mark) {
  return absl::StrCat(file, ":", mark.line + 1);
}

absl::StatusOr<std::string> ScalarText(const YAML::Node& node) {
  if (!node.IsScalar()) return absl::InvalidArgumentError("must be a single value");
  return node.Scalar();
}

absl::StatusOr<std::string> PairsText(const YAML::Node& node, std::string_view left_out) {
  std::vector<std::string> pairs;
  for (const auto& entry : node) {
    PACELINE_ASSIGN_OR_RETURN(const std::string name, ScalarText(entry.first));
    if (name == left_out) continue;
    if (!entry.second.IsScalar()) {
      return absl::InvalidArgumentError(absl::StrCat("has no single value for \"", name, "\""));
    }
    pairs.push_back(name + "=" + entry.second.Scalar());
  }
  return absl::StrJoin(pairs, ",");
}

absl::StatusOr<std::string> NamedText(const YAML::Node& node) {
  if (!node.IsMap()) return ScalarText(node);
  const YAML::Node name = node["name"];
  if (!name || !name.IsScalar()) return absl::InvalidArgumentError("has no \"name\"");
  PACELINE_ASSIGN_OR_RETURN(const std::string parameters, PairsText(node, "name"));
  return parameters.empty() ? name.Scalar() : name.Scalar() + ":" + parameters;
}

absl::StatusOr<std::string> NodeText(const YAML::Node& node, KeyShape shape) {
  if (shape == KeyShape::kList && node.IsSequence()) {
    std::vector<std::string> items;
    for (const YAML::Node& item : node) {
      PACELINE_ASSIGN_OR_RETURN(items.emplace_back(), ScalarText(item));
    }
    return absl::StrJoin(items, ",");
  }
  if (shape == KeyShape::kMap && node.IsMap()) return PairsText(node, "");
  if (shape == KeyShape::kNamed) return NamedText(node);
  if (shape == KeyShape::kNamedMap && node.IsMap()) {
    std::vector<std::string> items;
    for (const auto& entry : node) {
      PACELINE_ASSIGN_OR_RETURN(const std::string pattern, ScalarText(entry.first));
      PACELINE_ASSIGN_OR_RETURN(const std::string spec, NamedText(entry.second));
      items.push_back(pattern + "=" + spec);
    }
    return absl::StrJoin(items, ";");
  }
  return ScalarText(node);
}

class FileLoader {
 public:
  FileLoader(KeyTable* table, std::string file) : table_(table), file_(std::move(file)) {}

  absl::Status Load(const YAML::Node& root) {
    if (root.IsNull()) return absl::OkStatus();
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(file_, ": is not a map of keys to values"));
    }
    return LoadMap(root, "", 0);
  }

 private:
  absl::Status LoadMap(const YAML::Node& map, const std::string& prefix, size_t depth) {
    if (depth > kMaxDepth) {
      return absl::InvalidArgumentError(absl::StrCat(At(file_, map.Mark()), ": too deep"));
    }
    std::set<std::string> seen;
    for (const auto& entry : map) {
      const std::string where = At(file_, entry.first.Mark());
      if (!entry.first.IsScalar()) {
        return absl::InvalidArgumentError(absl::StrCat(where, ": a key must be a single word"));
      }
      const std::string path = prefix + entry.first.Scalar();
      if (!seen.insert(path).second) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": given twice (", where, ")"));
      }
      PACELINE_RETURN_IF_ERROR(LoadEntry(path, entry.second, where, depth));
    }
    return absl::OkStatus();
  }

  absl::Status LoadEntry(const std::string& path, const YAML::Node& value, const std::string& where,
                         size_t depth) {
    if (Key* key = table_->Find(path)) {
      if (value.IsNull()) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": has no value (", where,
                                                       "); allowed: ", key->allowed,
                                                       "; or leave the key out"));
      }
      const absl::StatusOr<std::string> text = NodeText(value, key->shape);
      if (!text.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": ", text.status().message(), " (",
                                                       where, "); allowed: ", key->allowed));
      }
      return table_->Set(*key, *text, where);
    }
    if (IsSection(path)) {
      if (value.IsNull()) return absl::OkStatus();
      if (value.IsMap()) return LoadMap(value, path + ".", depth + 1);
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is a section of keys, not a value (", where, ")"));
    }
    const std::string nearest = table_->Nearest(path);
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown key \"", path, "\" (", where, ")",
        nearest.empty() ? "; --help lists all" : "; did you mean \"" + nearest + "\"?"));
  }

  bool IsSection(const std::string& path) const {
    for (const Key& key : table_->keys()) {
      if (key.path.starts_with(path + ".")) return true;
    }
    return false;
  }

  KeyTable* const table_;
  const std::string file_;
};

std::string Quoted(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/:+=,-";
  const bool plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos &&
                     isalnum(static_cast<unsigned char>(text.front())) && text.back() != ':' &&
                     text != "null" && text != "Null" && text != "NULL";
  if (plain) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

absl::Status KeyTable::LoadText(const std::string& yaml, const std::string& file_name) {
  try {
    return FileLoader(this, file_name).Load(YAML::Load(yaml));
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(At(file_name, e.mark), ": ", e.msg));
  }
}

absl::Status KeyTable::LoadFile(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), fclose);
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("--config ", path, ": ", strerror(errno)));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  text.resize(fread(text.data(), 1, text.size(), file.get()));
  if (ferror(file.get()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--config ", path, ": ", strerror(errno)));
  }
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--config ", path, ": is larger than ", kMaxFileBytes, " bytes"));
  }
  return LoadText(text, path);
}

std::string KeyTable::ToYaml() const {
  std::string yaml;
  std::string section;
  for (const Key& key : keys_) {
    const size_t dot = key.path.find('.');
    const std::string in = dot == std::string::npos ? "" : key.path.substr(0, dot);
    if (in != section && !in.empty()) absl::StrAppend(&yaml, in, ":\n");
    section = in;
    const std::string value = key.get();
    std::string line = absl::StrCat(in.empty() ? "" : "  ", value.empty() ? "# " : "",
                                    dot == std::string::npos ? key.path : key.path.substr(dot + 1),
                                    ": ", value.empty() ? "not set" : Quoted(value));
    if (line.size() < 40) line.resize(40, ' ');
    absl::StrAppend(&yaml, line, " # ", key.origin, "\n");
  }
  return yaml;
}

}  // namespace paceline
