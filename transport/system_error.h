// Errors of the operating system as statuses.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace paceline {

// Unavailable with the text of `error` (an errno), AlreadyExists for a taken address.
absl::Status SystemError(int error, const std::string& what);

}  // namespace paceline
