#include "common/runtime/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"

namespace paceline {
namespace {

// Never destroyed: threads of libraries may log while the process ends.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("paceline", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %-7l %v", spdlog::pattern_time_type::utc);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void Log(LogLevel level, std::string_view component, std::string_view text) {
  Logger().log(ToSpdlog(level), "{}: {}", component, text);
}

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

LogLevel LogLevelFromName(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

struct LogLimiter::Impl {
  std::string component;
  uint32_t burst;
  Mutex mutex;
  Ticks window_start GUARDED_BY(mutex);
  uint32_t in_window GUARDED_BY(mutex) = 0;
  uint64_t left_out GUARDED_BY(mutex) = 0;
};

LogLimiter::LogLimiter(std::string component, uint32_t burst)
    : impl_(new Impl{std::move(component), burst, {}, {}}) {}
LogLimiter::~LogLimiter() { delete impl_; }

void LogLimiter::Warning(std::string_view text) {
  uint64_t left_out = 0;
  {
    MutexLock lock(&impl_->mutex);
    const Ticks now = Clock::Real().Now();
    if (now - impl_->window_start > Seconds(1)) {
      impl_->window_start = now;
      impl_->in_window = 0;
      left_out = std::exchange(impl_->left_out, 0);
    }
    if (++impl_->in_window > impl_->burst) {
      ++impl_->left_out;
      return;
    }
  }
  if (left_out > 0) LogWarning(impl_->component, left_out, " similar lines were left out");
  Log(LogLevel::kWarning, impl_->component, text);
}

}  // namespace paceline
