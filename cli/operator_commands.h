// Subcommands that change something in a cluster: stop, remove, move, drain. Each returns an exit
// code. Thread rule: main thread.
#pragma once

#include "cli/command.h"

namespace paceline {

int RunStop(int argc, const char* const* argv, const CommandContext& context);
int RunRemove(int argc, const char* const* argv, const CommandContext& context);
int RunMove(int argc, const char* const* argv, const CommandContext& context);
int RunDrain(int argc, const char* const* argv, const CommandContext& context);

}  // namespace paceline
