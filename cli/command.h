// The program pacelinectl: from argv to a subcommand and its exit code.
#pragma once

#include <ostream>
#include <string>

#include "cli/launcher.h"

namespace paceline {

struct CommandContext {
  Environment environment;
  std::string binary_directory;
  ControlClientFactory connect;
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool terminal = false;  // `out` is one
};

// Thread rule: main thread. Returns an ExitCode.
int RunCommand(int argc, const char* const* argv, const CommandContext& context);

// The script that `pacelinectl completion SHELL` prints; empty for a shell that is not known.
std::string CompletionScript(std::string_view shell);

}  // namespace paceline
