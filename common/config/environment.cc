#include "common/config/environment.h"

#include <unistd.h>

#include <utility>

extern char** environ;

namespace paceline {

Environment::Environment(std::map<std::string, std::string> variables)
    : variables_(std::move(variables)) {}

Environment Environment::FromProcess() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::Get(std::string_view name) const {
  const auto it = variables_.find(std::string(name));
  if (it == variables_.end() || it->second.empty()) return std::nullopt;
  return it->second;
}

void Environment::Set(std::string_view name, std::string_view value) {
  variables_[std::string(name)] = std::string(value);
}

void Environment::Remove(std::string_view name) { variables_.erase(std::string(name)); }

std::vector<std::string> Environment::ToStrings() const {
  std::vector<std::string> strings;
  strings.reserve(variables_.size());
  for (const auto& [name, value] : variables_) strings.push_back(name + "=" + value);
  return strings;
}

}  // namespace paceline
