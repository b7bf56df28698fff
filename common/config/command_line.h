// From argv to a filled KeyTable: flags, --config, --set, --print-config, --help, --version.
// Thread rule: one thread. Internal to common/config.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/environment.h"
#include "common/config/key_table.h"

namespace paceline {

struct CommandLine {
  std::string program;   // "paceline-server"
  std::string usage;     // printed first by --help
  bool has_file = true;  // --config, --set and --print-config
  size_t max_arguments = 0;
};

struct CommandLineResult {
  std::optional<int> exit_code;
  std::string text;                    // to print when exit_code is set
  std::vector<std::string> arguments;  // positional ones
};

// Fills `table` from the file, the environment and the flags, in this order, then calls `finish`
// (defaults that depend on other keys, checks across keys).
absl::StatusOr<CommandLineResult> LoadTable(const CommandLine& line, int argc,
                                            const char* const* argv, const Environment& env,
                                            KeyTable& table,
                                            const std::function<absl::Status()>& finish);

}  // namespace paceline
