// The process environment as a value. The only place of the tree that reads it; every program takes
// a snapshot at its start and passes it down.
// Thread rule: a value; FromProcess() may not run beside setenv().
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

class Environment {
 public:
  Environment() = default;
  explicit Environment(std::map<std::string, std::string> variables);

  // What this process was started with.
  static Environment FromProcess();

  // The value; nothing when the variable is not set or set to the empty text.
  std::optional<std::string> Get(std::string_view name) const;
  void Set(std::string_view name, std::string_view value);
  void Remove(std::string_view name);

  // "NAME=value" of each variable, in order of the name: what execve takes.
  std::vector<std::string> ToStrings() const;
  const std::map<std::string, std::string>& variables() const { return variables_; }

 private:
  std::map<std::string, std::string> variables_;
};

}  // namespace paceline
