// Child processes of the launcher: started so that none outlives it, ended, and accounted for.
// Thread rule: one thread, the one that lives as long as the launcher (the kernel ties
// PR_SET_PDEATHSIG to the thread that forked).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/config/environment.h"
#include "common/runtime/file_descriptor.h"

namespace paceline {

struct SpawnRequest {
  std::string role;  // "scheduler", "server", "worker"
  std::string name;  // "worker-3"
  std::string executable;
  std::vector<std::string> arguments;  // without the program's name
  Environment environment;
  std::string log_path;      // stdout and stderr are appended here
  bool wants_ready = false;  // adds --ready-fd with the write end of a pipe
};

struct Process {
  std::string role;
  std::string name;
  std::string log_path;
  pid_t pid = -1;
  FileDescriptor pidfd;  // readable once the process ended
  FileDescriptor ready;  // read end, when asked for
  Ticks started;
  bool killed = false;  // by the launcher, as it had not ended in time
  // Filled by Reap.
  bool ended = false;
  int exit_code = 0;
  int signal = 0;
  double seconds = 0;
  double cpu_seconds = 0;
  uint64_t peak_rss_bytes = 0;

  bool failed() const { return ended && (exit_code != 0 || signal != 0); }
};

// Why `process` ended, for people: "exit code 3", "signal 9 (Killed)".
std::string EndOf(const Process& process);

// Kills process groups when the launcher is gone, whatever ended it: a small process that holds the
// read end of a pipe and acts when the other end closes. PR_SET_PDEATHSIG alone would not reach
// the children of a child.
class Guard {
 public:
  static absl::StatusOr<Guard> Start();

  void Watch(pid_t group);
  void Forget(pid_t group);
  pid_t pid() const { return pid_; }
  // Ends the guard without killing anyone it still watches.
  void Stop();

 private:
  FileDescriptor pipe_;
  pid_t pid_ = -1;
};

// Starts a process in a process group of its own, with /dev/null as input and with default signal
// handling. It is killed when this thread's process ends.
absl::StatusOr<Process> Spawn(const SpawnRequest& request, Guard& guard, Ticks now);

// Sends `signal` to the whole group of a process that has not ended.
void SignalGroup(const Process& process, int signal);

// Collects the exit state if the process has ended; then also kills what is left of its group.
// True when it has ended.
bool Reap(Process& process, Guard& guard, Ticks now);

// Children that are neither in `known` nor the guard: processes that detached themselves and came
// to us as the subreaper. Reaps the ended ones; kills the others when `kill_them`. Returns how many
// are left.
size_t ReapStrays(const std::set<pid_t>& known, bool kill_them);

// `name` itself when it has a slash, else beside this program, else in PATH. NotFound says where it
// was looked for.
absl::StatusOr<std::string> FindExecutable(const std::string& name, const std::string& directory,
                                           const Environment& env);
// The directory of this program.
std::string OwnDirectory();

// The last `lines` lines of a file, at most 4 KiB.
std::string LastLines(const std::string& path, size_t lines);

}  // namespace paceline
