// Errors of the operating system as statuses.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace paceline {

// Unavailable with the text of `error` (an errno), AlreadyExists for a taken address.
absl::Status SystemError(int error, const std::string& what);

// Whether a read or write of a socket is to be tried again later.
bool WouldBlock(int error);

}  // namespace paceline
