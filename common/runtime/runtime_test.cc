// What threads of libraries may still use while the process ends.
#include <gtest/gtest.h>

#include <cstdlib>

#include "common/runtime/clock.h"
#include "common/runtime/log.h"

namespace paceline {
namespace {

// Handlers run in reverse order of registration, mixed with the destructors of static objects: this
// one comes after those of everything that is made after it is registered.
[[noreturn]] void UseThemAtTheEnd() {
  std::atexit(
      [] { LogError("test", "at ", Clock::Real().Now() > Ticks(0) ? "the end" : "no time"); });
  LogInfo("test", "at ", Clock::Real().Now().value());
  std::exit(0);
}

TEST(RuntimeDeathTest, TheLogAndTheClockOutliveStaticObjects) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(UseThemAtTheEnd(), testing::ExitedWithCode(0), "test: at the end");
}

}  // namespace
}  // namespace paceline
