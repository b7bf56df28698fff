// Status macros and short constructors with formatted messages.
// A message names the thing, the value, and what to do.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define PACELINE_CONCAT_INNER(a, b) a##b
#define PACELINE_CONCAT(a, b) PACELINE_CONCAT_INNER(a, b)

// Returns from the function when the expression is not OK.
#define PACELINE_RETURN_IF_ERROR(expr)                                               \
  do {                                                                               \
    if (absl::Status status_macro = (expr); !status_macro.ok()) return status_macro; \
  } while (false)

// PACELINE_ASSIGN_OR_RETURN(auto x, F()): x = value of F(), or return its status.
#define PACELINE_ASSIGN_OR_RETURN(lhs, expr) \
  PACELINE_ASSIGN_OR_RETURN_INNER(PACELINE_CONCAT(status_or_, __LINE__), lhs, expr)
#define PACELINE_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return std::move(tmp).status();        \
  lhs = std::move(tmp).value()

namespace paceline {

// The same status with "context: " before its message.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(absl::string_view(context.data(), context.size()),
                                                  ": ", status.message()));
}

// Debian's absl::string_view is a type of its own; ours is std's.
inline absl::string_view Absl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view Std(absl::string_view s) { return {s.data(), s.size()}; }

}  // namespace paceline
