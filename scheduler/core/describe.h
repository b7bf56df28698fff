// One line about a directive, for tests and the simulator.
#pragma once

#include <string>

#include "plan/messages.h"

namespace paceline::scheduler {

std::string Describe(const Directive& directive);

}  // namespace paceline::scheduler
