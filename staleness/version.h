// Arithmetic of versions. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/types.h"

namespace paceline {

// Updates applied between the version a gradient was computed on and its own application.
// Empty when they are not comparable: of different lineages, or a base nobody has made yet.
inline std::optional<uint64_t> Staleness(Version before, Version base) {
  if (before.lineage != base.lineage || base.count > before.count) return std::nullopt;
  return before.count - base.count;
}

}  // namespace paceline
