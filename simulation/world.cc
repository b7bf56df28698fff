#include "simulation/world.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace paceline::simulation {

void World::After(Ticks delay, std::function<void()> action) {
  PACELINE_CHECK(delay >= Ticks(0));
  heap_.push_back({now_ + delay, next_order_++, std::move(action)});
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

void World::RunUntil(Ticks until) {
  while (!violation_ && !heap_.empty() && heap_.front().at <= until) {
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    Event event = std::move(heap_.back());
    heap_.pop_back();
    now_ = event.at;
    ++events_;
    event.action();
  }
  if (!violation_) now_ = std::max(now_, until);
}

void World::Fail(std::string invariant, std::string what) {
  if (violation_) return;
  Trace("VIOLATION of '", invariant, "': ", what);
  violation_ = {std::move(invariant), std::move(what), now_};
}

void World::AddLine(const std::string& text) {
  const int64_t us = now_.value() / 1000;
  std::string line =
      absl::StrCat("+", us / 1'000'000, ".", absl::Dec(us % 1'000'000, absl::kZeroPad6), " ", text);
  if (on_line_) on_line_(line);
  if (keep_lines_ == 0) return;
  lines_.push_back(std::move(line));
  if (lines_.size() > keep_lines_) lines_.pop_front();
}

void Process::Start() {
  PACELINE_CHECK(!alive_);
  alive_ = true;
  ++life_;
  OnStart();
}

void Process::Kill() {
  if (!alive_) return;
  alive_ = false;
  stopped_ = false;
  ++life_;
  waiting_.clear();
  OnKill();
}

void Process::Stop() {
  if (alive_) stopped_ = true;
}

void Process::Continue() {
  if (!stopped_) return;
  stopped_ = false;
  const Life life = life_;
  for (std::function<void()>& action : std::exchange(waiting_, {})) {
    AfterIn(life, Ticks(0), std::move(action));
  }
}

void Process::AfterIn(Life life, Ticks delay, std::function<void()> action) {
  if (life != life_) return;
  world_->After(delay, [this, life, action = std::move(action)]() mutable {
    Happen(life, std::move(action));
  });
}

void Process::Happen(Life life, std::function<void()> action) {
  if (life != life_) return;
  if (stopped_) {
    waiting_.push_back(std::move(action));
    return;
  }
  action();
}

}  // namespace paceline::simulation
