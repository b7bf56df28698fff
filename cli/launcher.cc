#include "cli/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/job_monitor.h"
#include "cli/process.h"
#include "cli/run_directory.h"
#include "cli/signals.h"
#include "cli/summary.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"

namespace paceline {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr Ticks kPollInterval = Milliseconds(1000);
constexpr Ticks kPlainLineInterval = Seconds(5);
constexpr Ticks kReadyTimeout = Seconds(20);
constexpr Ticks kAttachTimeout = Seconds(5);
constexpr Ticks kAskTimeout = Milliseconds(500);
constexpr Ticks kLastCountsTimeout = Seconds(1);
constexpr size_t kLogLines = 10;
constexpr uint32_t kUnansweredBeforeSaid = 3;  // a busy scheduler may miss one
constexpr size_t kWidth = 79;

class Launcher {
 public:
  Launcher(const LaunchConfig& config, const LauncherContext& context)
      : config_(config),
        context_(context),
        clock_(Clock::Real()),
        started_(clock_.Now()),
        workers_(config.add != 0 ? config.add : config.job.workers),
        monitor_(config.job.name) {}

  int Run();

 private:
  absl::Status Prepare();
  absl::Status StartDaemons();
  absl::StatusOr<std::string> StartDaemon(const std::string& role, const std::string& name,
                                          const std::string& executable,
                                          std::vector<std::string> arguments);
  absl::StatusOr<std::string> AwaitReady(size_t process);
  absl::Status Connect();
  absl::Status Attach();
  absl::Status Resume();
  absl::Status StartWorker(uint32_t index);
  Environment WorkerEnvironment(uint32_t index) const;

  void WatchWorkers();
  void Wait(Ticks until);
  void TakeSignals();
  void ReapAll();
  void ShowEnd(const std::string& what, const Process& process);
  void OnEnd(size_t index);
  void TellScheduler(const Process& process);
  void OnWorkerFailed(uint32_t index, const std::string& what);
  void Fail(const std::string& reason);
  void Poll();
  void ShowProgress();
  void QueryLastCounts();
  void WriteSummaryFile();
  RunSummary Summary() const;

  void Finish();
  void StopRole(const std::string& role, int signal, Ticks grace);
  void KillRole(const std::string& role);
  void CheckDaemonEnds();
  void SweepStrays();
  bool AnyLive(const std::string& role) const;
  int ExitCodeOf() const;
  bool interrupted() const { return first_signal_ != 0; }

  LaunchConfig config_;
  const LauncherContext& context_;
  const Clock& clock_;
  const Ticks started_;
  const uint32_t workers_;    // to start
  uint32_t first_index_ = 0;  // of them
  SignalSource signals_;
  Guard guard_;
  std::string directory_;
  std::string scheduler_;  // address
  std::string program_;
  JobMonitor monitor_;
  std::vector<Process> processes_;
  std::map<uint32_t, uint32_t> restarts_left_;  // by worker index
  std::set<std::string> lost_servers_;          // that the job went on without, or ended for
  std::vector<uint32_t> finished_;              // indices whose worker ended well or is given up
  std::string reason_;                          // first failure
  bool watched_ = false;                        // the workers were started and watched to their end
  bool stopping_ = false;                       // ends of processes are expected
  bool unreachable_ = false;
  bool no_such_job_ = false;  // to add workers to
  int first_signal_ = 0;
  uint32_t unanswered_ = 0;  // polls in a row
  bool hurried_ = false;     // a second signal came
  Ticks next_poll_;
  Ticks next_line_;
  std::string last_line_;
};

uint32_t IndexOf(const Process& worker) {
  return static_cast<uint32_t>(std::stoul(worker.name.substr(worker.name.rfind('-') + 1)));
}

int Launcher::Run() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGPIPE, SIG_IGN);
  absl::Status status = Prepare();
  if (status.ok() && config_.scheduler.empty()) status = StartDaemons();
  if (status.ok() && !interrupted()) status = Resume();
  for (uint32_t i = 0; status.ok() && !interrupted() && i < workers_; ++i) {
    restarts_left_[first_index_ + i] = config_.restarts;
    status = StartWorker(first_index_ + i);
  }
  if (status.ok()) {
    WatchWorkers();
    watched_ = true;
  } else if (!interrupted()) {
    Fail(std::string(status.message()));
  }
  Finish();
  return ExitCodeOf();
}

absl::Status Launcher::Prepare() {
  PACELINE_ASSIGN_OR_RETURN(
      program_,
      FindExecutable(config_.program.front(), context_.binary_directory, context_.environment));
  PACELINE_ASSIGN_OR_RETURN(guard_, Guard::Start());
  // Before anything is written: what is asked of the cluster may be refused.
  if (!config_.scheduler.empty()) PACELINE_RETURN_IF_ERROR(Attach());
  PACELINE_ASSIGN_OR_RETURN(directory_, CreateRunDirectory(config_.output, config_.job.name));
  // Servers that are started here share this machine's disk.
  if (config_.scheduler.empty() && config_.job.checkpoint_dir.empty()) {
    config_.job.checkpoint_dir = std::filesystem::absolute(directory_ + "/checkpoints").string();
  }
  WriteSummaryFile();
  return absl::OkStatus();
}

absl::Status Launcher::StartDaemons() {
  PACELINE_ASSIGN_OR_RETURN(
      const std::string scheduler,
      FindExecutable("paceline-scheduler", context_.binary_directory, context_.environment));
  PACELINE_ASSIGN_OR_RETURN(
      const std::string server,
      FindExecutable("paceline-server", context_.binary_directory, context_.environment));
  const std::string timeout = absl::StrCat(config_.job.failure_timeout_ms);
  const uint32_t heartbeat = std::clamp(config_.job.failure_timeout_ms / 5, 10u, 500u);
  PACELINE_ASSIGN_OR_RETURN(
      scheduler_,
      StartDaemon("scheduler", "scheduler", scheduler,
                  {"--listen=127.0.0.1:0", "--state-dir=" + directory_ + "/scheduler",
                   "--failure-timeout-ms=" + timeout, absl::StrCat("--heartbeat-ms=", heartbeat)}));
  for (uint32_t i = 0; i < config_.servers && !interrupted(); ++i) {
    const std::string name = absl::StrCat("server-", i);
    PACELINE_RETURN_IF_ERROR(
        StartDaemon("server", name, server,
                    {"--name=" + name, "--scheduler=" + scheduler_, "--bind=127.0.0.1:0"})
            .status());
  }
  return Connect();
}

absl::StatusOr<std::string> Launcher::StartDaemon(const std::string& role, const std::string& name,
                                                  const std::string& executable,
                                                  std::vector<std::string> arguments) {
  SpawnRequest request{role,
                       name,
                       executable,
                       std::move(arguments),
                       context_.environment,
                       directory_ + "/" + name + ".log",
                       true};
  // What the launcher was told is in the flags; a variable meant for it must not reach a daemon.
  for (const auto& [variable, value] : context_.environment.variables()) {
    if (variable.starts_with("PACELINE_")) request.environment.Remove(variable);
  }
  if (const auto level = context_.environment.Get("PACELINE_LOG_LEVEL")) {
    request.environment.Set("PACELINE_LOG_LEVEL", *level);
  }
  PACELINE_ASSIGN_OR_RETURN(Process process, Spawn(request, guard_, clock_.Now()));
  processes_.push_back(std::move(process));
  return AwaitReady(processes_.size() - 1);
}

// Reads "host:port\n" from the daemon's pipe, until it ends, a signal comes or time is up.
absl::StatusOr<std::string> Launcher::AwaitReady(size_t index) {
  Process& process = processes_[index];
  const Ticks deadline = clock_.Now() + kReadyTimeout;
  std::string address;
  while (!interrupted() && clock_.Now() < deadline) {
    pollfd fds[] = {{process.ready.get(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    poll(fds, 2, 100);
    TakeSignals();
    if (fds[0].revents == 0) continue;
    char buffer[256];
    const ssize_t got = read(process.ready.get(), buffer, sizeof(buffer));
    if (got > 0) address.append(buffer, static_cast<size_t>(got));
    const size_t end = address.find('\n');
    if (end != std::string::npos) {
      process.ready.Close();
      address.resize(end);
      PACELINE_RETURN_IF_ERROR(
          Annotate(ParseHostPort(address).status(), process.name + " reported its address"));
      return address;
    }
    if (got <= 0 || address.size() > 1024) break;
  }
  if (interrupted()) return absl::CancelledError("interrupted");
  // Its pipe closed: it is ending; its exit code says more than the pipe.
  for (int i = 0; i < 20 && !Reap(process, guard_, clock_.Now()); ++i) poll(nullptr, 0, 50);
  *context_.err << LastLines(process.log_path, kLogLines) << "\n";
  return absl::UnavailableError(absl::StrCat(process.name,
                                             process.ended
                                                 ? " ended before it was ready: " + EndOf(process)
                                                 : std::string(" was not ready in time"),
                                             "; see ", process.log_path));
}

absl::Status Launcher::Connect() {
  absl::StatusOr<std::unique_ptr<ControlClient>> client = context_.connect(scheduler_, config_.tls);
  if (!client.ok()) {
    unreachable_ = true;
    return client.status();
  }
  monitor_.Use(*std::move(client));
  return absl::OkStatus();
}

absl::Status Launcher::Attach() {
  scheduler_ = config_.scheduler;
  PACELINE_RETURN_IF_ERROR(Connect());
  if (config_.add != 0) {
    auto running = monitor_.FindRunning(kAttachTimeout);
    no_such_job_ = absl::IsNotFound(running.status());
    unreachable_ = !running.ok() && !no_such_job_;
    PACELINE_RETURN_IF_ERROR(running.status());
    config_.job = std::move(running->spec);
    first_index_ = running->first_free;
    return absl::OkStatus();
  }
  const absl::Status status = monitor_.CheckName(kAttachTimeout);
  unreachable_ = !status.ok() && !absl::IsAlreadyExists(status);
  return status;
}

absl::Status Launcher::Resume() {
  if (!context_.resume) return absl::OkStatus();
  return Annotate(monitor_.Resume(*context_.resume, Seconds(10)), "resume");
}

Environment Launcher::WorkerEnvironment(uint32_t index) const {
  Environment env = context_.environment;
  env.Remove("PACELINE_CONFIG");  // the launcher's file, whose job keys follow as variables
  for (const auto& [variable, value] : JobEnvironment(config_.job)) env.Set(variable, value);
  env.Set("PACELINE_SCHEDULER", scheduler_);
  env.Set("PACELINE_WORKER_INDEX", absl::StrCat(index));
  env.Set("PACELINE_WORKER_NAME", absl::StrCat("worker-", index));
  if (config_.insecure) env.Set("PACELINE_INSECURE", "true");
  if (config_.tls.enabled()) {
    env.Set("PACELINE_TLS_CERT", config_.tls.cert);
    env.Set("PACELINE_TLS_KEY", config_.tls.key);
    env.Set("PACELINE_TLS_CA", config_.tls.ca);
  }
  return env;
}

absl::Status Launcher::StartWorker(uint32_t index) {
  const std::string name = absl::StrCat("worker-", index);
  SpawnRequest request{"worker",
                       name,
                       program_,
                       {config_.program.begin() + 1, config_.program.end()},
                       WorkerEnvironment(index),
                       directory_ + "/" + name + ".log",
                       false};
  PACELINE_ASSIGN_OR_RETURN(Process process, Spawn(request, guard_, clock_.Now()));
  processes_.push_back(std::move(process));
  return absl::OkStatus();
}

bool Launcher::AnyLive(const std::string& role) const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [&](const Process& p) { return !p.ended && p.role == role; });
}

void Launcher::WatchWorkers() {
  next_poll_ = clock_.Now() + kPollInterval;
  while (AnyLive("worker") && !interrupted() && !stopping_) {
    Wait(next_poll_);
    ReapAll();
    if (clock_.Now() >= next_poll_) Poll();
  }
}

void Launcher::Wait(Ticks until) {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const Process& process : processes_) {
    if (!process.ended) fds.push_back({process.pidfd.get(), POLLIN, 0});
  }
  const int64_t left = (until - clock_.Now()).value() / kMillisecond + 1;
  poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
  TakeSignals();
}

void Launcher::TakeSignals() {
  while (const int signal = signals_.Take()) {
    if (first_signal_ != 0) {
      hurried_ = true;
      continue;
    }
    first_signal_ = signal == SIGHUP ? SIGTERM : signal;
    if (context_.terminal && !last_line_.empty()) *context_.out << "\n" << std::flush;
    *context_.err << "pacelinectl: " << (signal == SIGINT ? "interrupted" : "terminated")
                  << ", ending the job; once more to end at once\n"
                  << std::flush;
  }
}

void Launcher::ReapAll() {
  // By index: a restart appends.
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (processes_[i].ended || !Reap(processes_[i], guard_, clock_.Now())) continue;
    if (!stopping_ && !interrupted()) OnEnd(i);
  }
}

// The group goes on at once instead of after the failure timeout. Before a restart, so that it can
// only mean this process.
void Launcher::TellScheduler(const Process& process) {
  if (process.role == "scheduler") return;
  monitor_.TellEnded(process.role == "worker", process.name, static_cast<uint64_t>(process.pid),
                     EndOf(process), kAskTimeout);
}

void Launcher::ShowEnd(const std::string& what, const Process& process) {
  *context_.err << "pacelinectl: " << what << "; the end of " << process.log_path << ":\n"
                << LastLines(process.log_path, kLogLines) << "\n"
                << std::flush;
}

void Launcher::OnEnd(size_t index) {
  const Process& process = processes_[index];
  TellScheduler(process);
  if (process.role == "worker") {
    if (!process.failed()) {
      finished_.push_back(IndexOf(process));
      return;
    }
    const std::string what = absl::StrCat(process.name, " failed: ", EndOf(process));
    ShowEnd(what, process);
    return OnWorkerFailed(IndexOf(process), what);  // `process` may move
  }
  const std::string what = absl::StrCat(process.name, " ended while the job ran: ", EndOf(process));
  ShowEnd(what, process);
  const bool others = std::any_of(processes_.begin(), processes_.end(),
                                  [](const Process& p) { return p.role == "server" && !p.ended; });
  if (process.role == "server" && others && process.failed()) {
    // The scheduler decides whether the job can go on without it; if not, its workers end.
    lost_servers_.insert(process.name);
    return;
  }
  Fail(what);
  stopping_ = true;
}

void Launcher::OnWorkerFailed(uint32_t index, const std::string& what) {
  if (restarts_left_[index] > 0) {
    --restarts_left_[index];
    const absl::Status status = StartWorker(index);
    if (status.ok()) return;
  }
  Fail(what);
  finished_.push_back(index);
  if (config_.add != 0) return;
  // The others go on without it, unless the job cannot form or has too few left.
  monitor_.Query(kAskTimeout).IgnoreError();
  const std::optional<JobView>& view = monitor_.view();
  const bool formed = view && view->state != JobState::kForming;
  const uint32_t lost = static_cast<uint32_t>(finished_.size());
  const bool enough = workers_ - lost >= config_.job.min_workers;
  if (!formed || (!enough && AnyLive("worker"))) {
    stopping_ = true;
    *context_.err << "pacelinectl: "
                  << (formed ? "fewer than min_workers are left" : "the job can no longer form")
                  << ", ending it\n"
                  << std::flush;
  }
}

void Launcher::Fail(const std::string& reason) {
  if (!reason_.empty()) return;
  reason_ = reason;
}

// The end of the workers makes the owners report once more; until then some samples are neither
// applied nor returned. Those of a worker that was killed may stay so.
void Launcher::QueryLastCounts() {
  if (config_.add != 0) return;  // the job goes on
  const Ticks deadline = clock_.Now() + kLastCountsTimeout;
  do {
    if (hurried_ || !monitor_.connected()) return;
    monitor_.Query(kAskTimeout).IgnoreError();
    if (!monitor_.view() || monitor_.Balanced()) return;
    Wait(clock_.Now() + Milliseconds(50));
    ReapAll();
  } while (clock_.Now() < deadline);
}

void Launcher::Poll() {
  const absl::Status asked = monitor_.Query(kAskTimeout);
  unanswered_ = asked.ok() ? 0 : unanswered_ + 1;
  if (unanswered_ == kUnansweredBeforeSaid) {
    *context_.err << "pacelinectl: " << asked.message() << "; the workers go on without it\n"
                  << std::flush;
  }
  ShowProgress();
  WriteSummaryFile();
  std::set<pid_t> known = {guard_.pid()};
  for (const Process& process : processes_) {
    if (!process.ended) known.insert(process.pid);
  }
  ReapStrays(known, false);
  next_poll_ = clock_.Now() + kPollInterval;
}

void Launcher::ShowProgress() {
  if (!monitor_.view()) return;
  const std::string line = ProgressLine(*monitor_.view(), kWidth);
  if (context_.terminal) {
    *context_.out << "\r\x1b[K" << line << std::flush;
    last_line_ = line;
    return;
  }
  if (clock_.Now() < next_line_ || line == last_line_) return;
  *context_.out << line << "\n" << std::flush;
  last_line_ = line;
  next_line_ = clock_.Now() + kPlainLineInterval;
}

RunSummary Launcher::Summary() const {
  const std::optional<JobView>& view = monitor_.view();
  RunSummary summary;
  summary.job = config_.job.name;
  summary.seconds = static_cast<double>((clock_.Now() - started_).value()) * 1e-9;
  summary.workers = workers_;
  summary.servers = config_.scheduler.empty() ? config_.servers : (view ? view->servers : 0);
  summary.view = view;
  const bool stopped = view && view->state == JobState::kStopped;
  if (!reason_.empty()) {
    summary.outcome = Outcome::kFailed;
    summary.reason = reason_;
    if (stopped) absl::StrAppend(&summary.reason, "; the scheduler says: ", view->reason);
  } else if (interrupted()) {
    summary.reason = absl::StrCat("signal ", first_signal_, " to the launcher");
  } else if (!watched_ || AnyLive("worker")) {
    summary.reason = "running";  // what a reader finds when the launcher was killed
  } else if (stopped) {
    summary.reason = "stopped: " + view->reason;
  } else {
    summary.outcome = Outcome::kSucceeded;
    summary.reason = view ? "all workers are done" : "all workers are done; none joined the job";
  }
  return summary;
}

void Launcher::WriteSummaryFile() {
  if (directory_.empty()) return;
  const absl::Status status =
      ReplaceFile(directory_ + "/summary.json", SummaryJson(Summary(), processes_));
  if (!status.ok()) Fail(std::string(status.message()));
}

void Launcher::Finish() {
  const bool started = !processes_.empty();
  stopping_ = true;
  StopRole("worker", interrupted() ? first_signal_ : SIGTERM, Milliseconds(context_.grace_ms));
  QueryLastCounts();
  const bool ended_badly = !reason_.empty() || interrupted();
  if (monitor_.connected() && ended_badly && !hurried_ && !unreachable_ && config_.add == 0) {
    monitor_.StopJob(!reason_.empty(), Summary().reason, kAskTimeout);
  }
  // The scheduler last: a server tells it that it goes.
  for (const char* role : {"server", "scheduler"}) {
    StopRole(role, SIGTERM, Milliseconds(context_.grace_ms));
  }
  if (!interrupted()) CheckDaemonEnds();
  SweepStrays();
  monitor_.Disconnect();
  WriteSummaryFile();
  guard_.Stop();
  if (context_.terminal && !last_line_.empty()) *context_.out << "\r\x1b[K";
  const RunSummary summary = Summary();
  if (!started && !reason_.empty()) {
    *context_.err << "pacelinectl: " << reason_ << "\n" << std::flush;
    return;
  }
  *context_.out << SummaryText(summary, directory_) << std::flush;
  if (!reason_.empty()) *context_.err << "pacelinectl: " << reason_ << "\n" << std::flush;
}

// A daemon that crashes on its way out has failed too.
void Launcher::CheckDaemonEnds() {
  for (const Process& process : processes_) {
    if (process.role == "worker" || !process.failed() || process.signal == SIGTERM) continue;
    if (lost_servers_.contains(process.name)) continue;  // said already
    Fail(absl::StrCat(process.name, " did not end well: ", EndOf(process), "; see ",
                      process.log_path));
  }
}

void Launcher::StopRole(const std::string& role, int signal, Ticks grace) {
  for (const Process& process : processes_) {
    if (process.role == role) SignalGroup(process, signal);
  }
  const Ticks deadline = clock_.Now() + grace;
  while (AnyLive(role) && clock_.Now() < deadline && !hurried_) {
    Wait(std::min(deadline, clock_.Now() + Milliseconds(100)));
    ReapAll();
  }
  if (AnyLive(role)) KillRole(role);
}

void Launcher::KillRole(const std::string& role) {
  for (const Process& process : processes_) {
    if (process.role == role) SignalGroup(process, SIGKILL);
  }
  // SIGKILL cannot be refused, but a process in an uninterruptible wait takes its time.
  const Ticks deadline = clock_.Now() + Seconds(1);
  while (AnyLive(role) && clock_.Now() < deadline) {
    Wait(clock_.Now() + Milliseconds(50));
    ReapAll();
  }
}

void Launcher::SweepStrays() {
  for (int i = 0; i < 10; ++i) {
    if (ReapStrays({guard_.pid()}, true) == 0) return;
    poll(nullptr, 0, 20);
  }
}

int Launcher::ExitCodeOf() const {
  if (interrupted()) return kExitSignalBase + first_signal_;
  if (unreachable_) return kExitUnreachable;
  if (no_such_job_) return kExitNoSuchJob;
  return Summary().outcome == Outcome::kSucceeded ? kExitDone : kExitFailed;
}

}  // namespace

int RunLauncher(const LaunchConfig& config, const LauncherContext& context) {
  return Launcher(config, context).Run();
}

}  // namespace paceline
