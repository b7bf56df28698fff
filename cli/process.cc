#include "cli/process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace paceline {
namespace {

absl::Status ErrnoStatus(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", strerror(errno)));
}

// argv or envp for execve, built before the fork: the child of a threaded process may not allocate.
std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

void DefaultSignals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) {
    ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

struct ChildPlan {
  const char* executable;
  char* const* argv;
  char* const* envp;
  int input;
  int log;
  int ready;  // -1: none
  pid_t parent;
};

// Runs in the child: async-signal-safe calls only.
[[noreturn]] void RunChild(const ChildPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.parent) _exit(127);  // the launcher died before the line above
  DefaultSignals();
  dup2(plan.input, STDIN_FILENO);
  dup2(plan.log, STDOUT_FILENO);
  dup2(plan.log, STDERR_FILENO);
  if (plan.ready >= 0) fcntl(plan.ready, F_SETFD, 0);
  execve(plan.executable, plan.argv, plan.envp);
  const char* reason = strerrordesc_np(errno);  // which, unlike strerror, only looks up a table
  for (const char* text : {"cannot execute ", plan.executable, ": ", reason, "\n"}) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, strlen(text));
  }
  _exit(127);
}

[[noreturn]] void RunGuard(int pipe) {
  setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
  pipe = fcntl(pipe, F_DUPFD, 3);  // from under what is replaced now
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) dup2(null, fd);
  if (pipe != 3) dup2(pipe, 3);
  close_range(4, ~0u, 0);
  constexpr size_t kMaxGroups = 65'536;
  static std::array<pid_t, kMaxGroups> groups;
  size_t count = 0;
  pid_t message = 0;
  while (true) {
    const ssize_t got = read(3, &message, sizeof(message));
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(message)) break;
    if (message == 0) _exit(0);
    if (message > 0 && count < kMaxGroups) groups[count++] = message;
    if (message < 0) count = std::remove(&groups[0], &groups[0] + count, -message) - &groups[0];
  }
  for (size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  _exit(0);
}

double SecondsOf(const timeval& t) {
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
}

std::vector<pid_t> ChildPids() {
  std::vector<pid_t> pids;
  std::ifstream file(absl::StrCat("/proc/self/task/", getpid(), "/children"));
  for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

// Whether `path` is a regular file that may be executed.
absl::Status CheckProgram(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("program ", path, ": ", strerror(errno)));
  }
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("program ", path, ": no regular file"));
}

}  // namespace

std::string EndOf(const Process& process) {
  if (process.signal != 0) {
    return absl::StrCat("signal ", process.signal, " (", strsignal(process.signal), ")");
  }
  return absl::StrCat("exit code ", process.exit_code);
}

absl::StatusOr<Guard> Guard::Start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe of the guard");
  FileDescriptor read_end(ends[0]);
  Guard guard;
  guard.pipe_ = FileDescriptor(ends[1]);
  guard.pid_ = fork();
  if (guard.pid_ < 0) return ErrnoStatus("fork of the guard");
  if (guard.pid_ == 0) RunGuard(read_end.get());
  return guard;
}

void Guard::Watch(pid_t group) {
  [[maybe_unused]] const ssize_t written = write(pipe_.get(), &group, sizeof(group));
}

void Guard::Forget(pid_t group) { Watch(-group); }

void Guard::Stop() {
  if (pid_ <= 0) return;
  Watch(0);
  pipe_.Close();
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

absl::StatusOr<Process> Spawn(const SpawnRequest& request, Guard& guard, Ticks now) {
  Process process;
  process.role = request.role;
  process.name = request.name;
  process.log_path = request.log_path;
  process.started = now;
  FileDescriptor log(
      open(request.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log.valid()) return ErrnoStatus("log " + request.log_path);
  FileDescriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input.valid()) return ErrnoStatus("/dev/null");
  std::vector<std::string> arguments = {request.executable};
  arguments.insert(arguments.end(), request.arguments.begin(), request.arguments.end());
  FileDescriptor ready_write;
  if (request.wants_ready) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe of " + request.name);
    process.ready = FileDescriptor(ends[0]);
    ready_write = FileDescriptor(ends[1]);
    arguments.push_back(absl::StrCat("--ready-fd=", ready_write.get()));
  }
  std::vector<std::string> variables = request.environment.ToStrings();
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(variables);
  const ChildPlan plan = {
      request.executable.c_str(), argv.data(), envp.data(), input.get(), log.get(),
      ready_write.get(),          getpid()};
  process.pid = fork();
  if (process.pid < 0) return ErrnoStatus("fork of " + request.name);
  if (process.pid == 0) RunChild(plan);
  // Both sides set the group, so that it exists whoever runs first.
  setpgid(process.pid, process.pid);
  guard.Watch(process.pid);
  process.pidfd = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!process.pidfd.valid()) {
    const absl::Status status = ErrnoStatus("pidfd of " + request.name);
    kill(-process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
    return status;
  }
  return process;
}

void SignalGroup(const Process& process, int signal) {
  if (process.ended || process.pid <= 0) return;
  kill(-process.pid, signal);
}

bool Reap(Process& process, Guard& guard, Ticks now) {
  if (process.ended) return true;
  int status = 0;
  rusage usage{};
  const pid_t got = wait4(process.pid, &status, WNOHANG, &usage);
  if (got != process.pid) return false;
  process.ended = true;
  if (WIFEXITED(status)) process.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) process.signal = WTERMSIG(status);
  process.seconds = static_cast<double>((now - process.started).value()) * 1e-9;
  process.cpu_seconds = SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime);
  process.peak_rss_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  kill(-process.pid, SIGKILL);
  guard.Forget(process.pid);
  process.pidfd.Close();
  return true;
}

size_t ReapStrays(const std::set<pid_t>& known, bool kill_them) {
  size_t left = 0;
  for (const pid_t pid : ChildPids()) {
    if (known.contains(pid)) continue;
    if (kill_them) kill(pid, SIGKILL);
    if (waitpid(pid, nullptr, WNOHANG) != pid) ++left;
  }
  return left;
}

absl::StatusOr<std::string> FindExecutable(const std::string& name, const std::string& directory,
                                           const Environment& env) {
  if (name.empty()) return absl::InvalidArgumentError("program \"\": the name is empty");
  if (name.find('/') != std::string::npos) {
    PACELINE_RETURN_IF_ERROR(CheckProgram(name));
    return name;
  }
  const std::string path = env.Get("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  std::vector<std::string> folders = absl::StrSplit(path, ':', absl::SkipEmpty());
  folders.insert(folders.begin(), directory);
  for (const std::string& folder : folders) {
    const std::string candidate = absl::StrCat(folder, "/", name);
    if (CheckProgram(candidate).ok()) return candidate;
  }
  return absl::NotFoundError(
      absl::StrCat("program ", name, " is neither in ", directory, " nor in PATH"));
}

std::string OwnDirectory() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) return ".";
  const std::string text(path.data(), static_cast<size_t>(length));
  return text.substr(0, text.rfind('/'));
}

std::string LastLines(const std::string& path, size_t lines) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return "";
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg();
  const std::streamoff from = std::max<std::streamoff>(0, size - 4096);
  file.seekg(from);
  std::string text(static_cast<size_t>(size - from), '\0');
  file.read(text.data(), size - from);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t start = text.size();
  for (size_t i = 0; i < lines && start != std::string::npos && start > 0; ++i) {
    start = text.rfind('\n', start - 1);
  }
  return start == std::string::npos ? text : text.substr(start == 0 ? 0 : start + 1);
}

}  // namespace paceline
