// What every daemon does around its work: end on a signal, tell its starter where it serves.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace paceline {

// Blocks SIGINT and SIGTERM in this thread and those it will start, ignores SIGPIPE, and waits for
// the first of the two on request. Make it before any other thread.
// Thread rule: one thread.
class EndSignals {
 public:
  EndSignals();
  ~EndSignals();
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  void Wait();

 private:
  const int fd_;
};

// Writes "address\n" to the descriptor of --ready-fd and closes it; nothing to do when it is
// negative. Internal names the descriptor.
absl::Status TellReady(int fd, const std::string& address);

}  // namespace paceline
