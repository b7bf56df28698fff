// The signals that end a run, as something to poll.
// Thread rule: main thread.
#pragma once

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/runtime/file_descriptor.h"

namespace paceline {

// Blocks SIGINT, SIGTERM and SIGHUP and delivers them through a descriptor; undone at the end.
class SignalSource {
 public:
  SignalSource() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  ~SignalSource() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  int fd() const { return fd_.get(); }

  // The next pending signal, or 0.
  int Take() {
    signalfd_siginfo info;
    if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return 0;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_;
  FileDescriptor fd_;
};

}  // namespace paceline
