#include "common/runtime/clock.h"

#include <atomic>
#include <chrono>

namespace paceline {
namespace {

class RealClock final : public Clock {
 public:
  Ticks Now() const override {
    return Ticks(std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::steady_clock::now().time_since_epoch())
                     .count());
  }
  int64_t UnixTimeMs() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock* const clock = new RealClock;  // never destroyed, as the log
  return *clock;
}

struct ManualClock::Impl {
  std::atomic<int64_t> now{1};
};

ManualClock::ManualClock() : impl_(new Impl) {}
ManualClock::~ManualClock() { delete impl_; }
Ticks ManualClock::Now() const { return Ticks(impl_->now.load()); }
int64_t ManualClock::UnixTimeMs() const { return impl_->now.load() / 1'000'000; }
void ManualClock::Advance(Ticks by) { impl_->now += by.value(); }

}  // namespace paceline
