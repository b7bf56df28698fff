// What every daemon does around its work: end on a signal, tell its starter where it serves and its
// service manager that it lives.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/base/types.h"

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
  // False when `timeout` passed first.
  bool WaitFor(Ticks timeout);

 private:
  const int fd_;
};

// Writes "address\n" to the descriptor of --ready-fd and closes it; nothing to do when it is
// negative. Internal names the descriptor.
absl::Status TellReady(int fd, const std::string& address);

// systemd's notify protocol (sd_notify(3)), without its library: when the service is ready, that it
// is alive, that it ends. Does nothing where no manager listens.
// Thread rule: any thread.
class ServiceManager {
 public:
  // The values of NOTIFY_SOCKET and WATCHDOG_USEC; empty where they are not set.
  ServiceManager(std::string socket, const std::string& watchdog_usec);

  void Ready(const std::string& status) const;
  void Stopping() const;
  // Waits for a signal. While it waits it tells the watchdog, twice as often as asked for, as long
  // as `alive` returns true; a service that is stuck says nothing and is started again. And every
  // `trim_every` it gives memory that was freed back to the system: what a burst took (of peers
  // that were waited for, of a job that ended) is not kept.
  void WaitForSignal(EndSignals* signals, const std::function<bool()>& alive,
                     Ticks trim_every = Seconds(30)) const;

 private:
  void Send(const std::string& message) const;

  const std::string socket_;
  Ticks watchdog_;  // 0: nobody watches
};

}  // namespace paceline
