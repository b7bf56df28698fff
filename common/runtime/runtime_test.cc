// What threads of libraries may still use while the process ends, and what a daemon does while it
// waits for that.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/runtime/clock.h"
#include "common/runtime/daemon.h"
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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitizerHeap = true;
#elif defined(__has_feature)
constexpr bool kSanitizerHeap = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitizerHeap = false;
#endif

uint64_t AnonymousKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8));
  }
  return 0;
}

TEST(ServiceManagerTest, WhatABurstTookIsGivenBackWhileADaemonWaits) {
  if (kSanitizerHeap) GTEST_SKIP() << "a sanitizer's own heap keeps what is freed";
  EndSignals signals;
  const ServiceManager manager("", "");
  // Too small to be mapped alone, and held in place by the few that stay.
  constexpr size_t kBlocks = 2000, kBytes = 32 * 1024;
  std::vector<std::unique_ptr<char[]>> burst(kBlocks);
  for (auto& block : burst) {
    block = std::make_unique<char[]>(kBytes);
    std::memset(block.get(), 1, kBytes);
  }
  for (size_t i = 0; i < kBlocks; ++i) {
    if (i % 100 != 99) burst[i].reset();
  }
  const uint64_t before = AnonymousKilobytes();
  ASSERT_GT(before, kBlocks * kBytes / 1024 / 2) << "the heap gives nothing back by itself";
  std::thread waiter([&] {
    manager.WaitForSignal(
        &signals, [] { return true; }, Milliseconds(5));
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (AnonymousKilobytes() > before / 4 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  kill(getpid(), SIGTERM);
  waiter.join();
  EXPECT_LE(AnonymousKilobytes(), before / 4);
}

}  // namespace
}  // namespace paceline
