// The virtual clock, the events to come, and the processes they happen to. Everything in a run is a
// function of the seed: events of one instant happen in the order in which they were scheduled.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/types.h"
#include "simulation/random.h"

namespace paceline::simulation {

// The first invariant that did not hold.
struct Violation {
  std::string invariant;
  std::string what;
  Ticks at;
};

class World {
 public:
  // `keep_lines`: how many of the newest trace lines are kept; 0 = tracing is off.
  World(uint64_t seed, size_t keep_lines, std::function<void(const std::string&)> on_line)
      : random_(seed), keep_lines_(keep_lines), on_line_(std::move(on_line)) {}

  Ticks now() const { return now_; }
  Random& random() { return random_; }

  void After(Ticks delay, std::function<void()> action);
  // Runs events until `until`, a violation, or when none is left.
  void RunUntil(Ticks until);

  // Records the first violation; the run ends with the event that found it.
  void Fail(std::string invariant, std::string what);
  const std::optional<Violation>& violation() const { return violation_; }

  // A line of the trace; the pieces are put together only when somebody reads it.
  template <typename... Pieces>
  void Trace(const Pieces&... pieces) {
    if (tracing()) AddLine(absl::StrCat(pieces...));
  }
  bool tracing() const { return keep_lines_ > 0 || on_line_ != nullptr; }
  // Every frame, too: more than a bounded trace could hold.
  bool printing() const { return on_line_ != nullptr; }
  const std::deque<std::string>& lines() const { return lines_; }
  uint64_t events() const { return events_; }

 private:
  struct Event {
    Ticks at;
    uint64_t order;
    std::function<void()> action;
  };
  static bool Later(const Event& a, const Event& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }
  void AddLine(const std::string& text);

  Random random_;
  const size_t keep_lines_;
  const std::function<void(const std::string&)> on_line_;
  Ticks now_ = Seconds(1);
  uint64_t next_order_ = 0;
  uint64_t events_ = 0;
  std::vector<Event> heap_;
  std::optional<Violation> violation_;
  std::deque<std::string> lines_;
};

// Which life of a process an event belongs to: what was meant for one that was killed is lost.
using Life = uint64_t;

// Something that runs, and can be killed, stopped and continued.
class Process {
 public:
  Process(World* world, std::string name) : world_(world), name_(std::move(name)) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  const std::string& name() const { return name_; }
  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }
  bool running() const { return alive_ && !stopped_; }
  Life life() const { return life_; }

  // A new life begins.
  void Start();
  // kill -9, or the end of the program.
  void Kill();
  // SIGSTOP and SIGCONT: meanwhile everything that would happen to it waits, in order.
  void Stop();
  void Continue();

  // Happens to this life of the process, or never.
  void After(Ticks delay, std::function<void()> action) {
    AfterIn(life_, delay, std::move(action));
  }
  // Happens to the named life of the process, or never.
  void AfterIn(Life life, Ticks delay, std::function<void()> action);

 protected:
  World* world() { return world_; }
  virtual void OnStart() = 0;
  virtual void OnKill() = 0;

 private:
  void Happen(Life life, std::function<void()> action);

  World* const world_;
  const std::string name_;
  bool alive_ = false;
  bool stopped_ = false;
  Life life_ = 0;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace paceline::simulation
