// The bounded trace of the events the core was stepped with: a file that paceline-sim replays.
// Thread rule: one thread (the event loop's).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "plan/events.h"
#include "scheduler/core/core.h"

namespace paceline {

// Not durable: for incidents, not for recovery. At its bound it stops, and says so once: a trace
// replays only from its beginning.
class TraceFile {
 public:
  // The trace of the run before is kept as PATH.previous: it may be the one that tells why this run
  // had to start. A path that cannot be written costs the trace, not the scheduler: that is logged.
  // No events asked for: no file.
  TraceFile(const std::string& path, const CoreOptions& options,
            std::vector<JournalEntry> recovered, uint64_t max_events, uint64_t max_bytes);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void Append(Ticks now, const SchedulerEvent& event);

 private:
  void Write(const std::string& bytes);

  int fd_ = -1;
  uint64_t events_left_;
  uint64_t bytes_left_;
};

}  // namespace paceline
