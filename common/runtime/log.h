// Log lines: lower case, the exact cause, once, where it was first seen. spdlog is behind this
// header and included in log.cc only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/types.h"

namespace paceline {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Thread rule: any thread. Lines go to stderr as "2026-01-02T03:04:05.678Z info  scheduler: text".
void Log(LogLevel level, std::string_view component, std::string_view text);
void SetLogLevel(LogLevel level);
// "debug", "info", "warning", "error"; anything else is taken for "info".
LogLevel LogLevelFromName(std::string_view name);

template <typename... Args>
void LogInfo(std::string_view component, const Args&... args) {
  Log(LogLevel::kInfo, component, absl::StrCat(args...));
}
template <typename... Args>
void LogWarning(std::string_view component, const Args&... args) {
  Log(LogLevel::kWarning, component, absl::StrCat(args...));
}
template <typename... Args>
void LogError(std::string_view component, const Args&... args) {
  Log(LogLevel::kError, component, absl::StrCat(args...));
}

// Lets `burst` lines through per second for what a peer can trigger; says how many were left out.
// Thread rule: any thread.
class LogLimiter {
 public:
  LogLimiter(std::string component, uint32_t burst);
  ~LogLimiter();
  void Warning(std::string_view text);

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace paceline
