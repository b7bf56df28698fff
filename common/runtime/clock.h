// Monotonic time as an argument that tests can hold still.
#pragma once

#include <cstdint>

#include "common/base/types.h"

namespace paceline {

// Thread rule: Now() and UnixTimeMs() may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Ticks Now() const = 0;           // CLOCK_MONOTONIC
  virtual int64_t UnixTimeMs() const = 0;  // wall clock, for people only
  static const Clock& Real();
};

// A clock that moves when told to. Advance may be called from any thread.
class ManualClock final : public Clock {
 public:
  ManualClock();
  ~ManualClock() override;
  Ticks Now() const override;
  int64_t UnixTimeMs() const override;
  void Advance(Ticks by);

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace paceline
