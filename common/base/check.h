// PACELINE_CHECK states an invariant of our own and stays on in release. It is never applied to
// what a peer, a file, a flag or a user said: that is an absl::Status.
#pragma once

namespace paceline::internal {

// Prints "file:line: check failed: condition" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace paceline::internal

#define PACELINE_CHECK(condition)                                        \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::paceline::internal::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
