#include "scheduler/trace_file.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "common/runtime/log.h"
#include "scheduler/core/trace.h"

namespace paceline {

TraceFile::TraceFile(const std::string& path, const CoreOptions& options,
                     std::vector<JournalEntry> recovered, uint64_t max_events, uint64_t max_bytes)
    : events_left_(max_events), bytes_left_(max_bytes) {
  if (max_events == 0) return;
  rename(path.c_str(), (path + ".previous").c_str());  // there may be none
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd_ < 0) {
    LogWarning("scheduler", "no event trace: cannot write '", path, "': ", strerror(errno));
    return;
  }
  scheduler::TraceHeader header;
  header.cluster = options.cluster;
  header.heartbeat_interval_ms = options.heartbeat_interval_ms;
  header.failure_timeout_ms = options.failure_timeout_ms;
  header.recovered = std::move(recovered);
  Write(scheduler::EncodeTraceHeader(std::move(header)));
}

TraceFile::~TraceFile() {
  if (fd_ >= 0) close(fd_);
}

void TraceFile::Append(Ticks now, const SchedulerEvent& event) {
  if (fd_ < 0) return;
  if (events_left_ == 0) {
    LogInfo("scheduler", "the event trace is full and ends here (trace_max_events)");
    close(std::exchange(fd_, -1));
    return;
  }
  --events_left_;
  Write(scheduler::EncodeTraceRecord(now, event));
}

void TraceFile::Write(const std::string& bytes) {
  if (bytes.size() > bytes_left_) {
    LogInfo("scheduler", "the event trace is full and ends here (trace_max_bytes)");
    close(std::exchange(fd_, -1));
    return;
  }
  bytes_left_ -= bytes.size();
  const ssize_t put = write(fd_, bytes.data(), bytes.size());
  if (put != static_cast<ssize_t>(bytes.size())) {
    LogWarning("scheduler", "the event trace ends here: ", strerror(put < 0 ? errno : ENOSPC));
    close(std::exchange(fd_, -1));
  }
}

}  // namespace paceline
