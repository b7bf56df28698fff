// A trace: everything that went into one run of a scheduler's core, in order, so that the run can
// be stepped through again (paceline-sim replay). Bounded by who writes it, not durable, holds no
// key.
//
// Form: "PLTRACE2", then records; each is its length as LEB128 and that many bytes. The first
// record is the header, the others are an event and its time, as encoding.h writes them. Thread
// rule: values; one thread per reader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/events.h"

namespace paceline::scheduler {

// What the core started from. A run replays exactly when its trace holds every event since then.
struct TraceHeader {
  std::string cluster;
  uint32_t heartbeat_interval_ms = 500;
  uint32_t failure_timeout_ms = 5000;
  std::vector<JournalEntry> recovered;  // what Recover was given, without keys of nodes
};
struct TraceRecord {
  Ticks now;
  SchedulerEvent event;
};

// Magic and header: what a trace begins with. Keys in `recovered` are blanked.
std::string EncodeTraceHeader(TraceHeader header);
// One event, its key blanked.
std::string EncodeTraceRecord(Ticks now, SchedulerEvent event);

class TraceReader {
 public:
  // `bytes` must outlive the reader. InvalidArgument: not a trace; DataLoss: a damaged header.
  static absl::StatusOr<TraceReader> Open(std::string_view bytes);

  const TraceHeader& header() const { return header_; }
  // The next record; nothing at the end; DataLoss names the offset of a cut or damaged record.
  absl::StatusOr<std::optional<TraceRecord>> Next();

 private:
  explicit TraceReader(std::string_view bytes) : bytes_(bytes) {}
  absl::StatusOr<std::string_view> NextBytes();

  std::string_view bytes_;
  size_t position_ = 0;
  TraceHeader header_;
};

}  // namespace paceline::scheduler
