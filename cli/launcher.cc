#include "cli/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
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
constexpr Ticks kAskTimeout = Milliseconds(500);
constexpr Ticks kLastCountsTimeout = Seconds(1);
constexpr size_t kLogLines = 10;
constexpr size_t kWidth = 79;

class Launcher {
 public:
  Launcher(const LaunchConfig& config, const LauncherContext& context)
      : config_(config), context_(context), clock_(Clock::Real()), started_(clock_.Now()) {
    restarts_left_.assign(config.job.workers, config.restarts);
  }

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
  absl::Status CheckJobName(const ClusterView& cluster);
  absl::Status StartWorker(uint32_t index);
  Environment WorkerEnvironment(uint32_t index) const;

  void WatchWorkers();
  void Wait(Ticks until);
  void TakeSignals();
  void ReapAll();
  void OnEnd(const Process& process);
  void OnWorkerEnd(const Process& process);
  void Fail(const std::string& reason);
  void Poll();
  void ShowProgress();
  void Query(Ticks timeout);
  void QueryLastCounts();
  void WriteSummaryFile();
  RunSummary Summary() const;

  void Finish();
  void StopRole(bool workers, int signal, Ticks grace);
  void KillRole(bool workers);
  void CheckDaemonEnds();
  void SweepStrays();
  bool AnyLive(bool workers) const;
  int ExitCodeOf() const;
  bool interrupted() const { return first_signal_ != 0; }

  const LaunchConfig& config_;
  const LauncherContext& context_;
  const Clock& clock_;
  const Ticks started_;
  SignalSource signals_;
  Guard guard_;
  std::string directory_;
  std::string scheduler_;  // address
  std::string program_;
  std::unique_ptr<ControlClient> client_;
  std::vector<Process> processes_;
  std::vector<uint32_t> restarts_left_;  // by worker index
  std::vector<uint32_t> finished_;       // indices whose worker ended well or is given up
  JobId earlier_;  // the newest job of the same name that ended before this run
  std::optional<JobView> view_;
  std::string reason_;     // first failure
  bool watched_ = false;   // the workers were started and watched to their end
  bool stopping_ = false;  // ends of processes are expected
  bool unreachable_ = false;
  int first_signal_ = 0;
  bool hurried_ = false;  // a second signal came
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
  for (uint32_t i = 0; status.ok() && !interrupted() && i < config_.job.workers; ++i) {
    status = StartWorker(i);
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
  client_ = *std::move(client);
  return absl::OkStatus();
}

absl::Status Launcher::Attach() {
  scheduler_ = config_.scheduler;
  PACELINE_RETURN_IF_ERROR(Connect());
  // Not about the job: nobody knows it before its first worker has joined.
  const auto reply = client_->Operate(StatusQuery{}, Seconds(5));
  unreachable_ = !reply.ok();
  PACELINE_RETURN_IF_ERROR(reply.status());
  const auto* cluster = std::get_if<ClusterView>(&*reply);
  return cluster == nullptr ? absl::OkStatus() : CheckJobName(*cluster);
}

absl::Status Launcher::CheckJobName(const ClusterView& cluster) {
  for (const JobView& job : cluster.jobs) {
    if (job.spec.name != config_.job.name) continue;
    const bool active = job.state == JobState::kForming || job.state == JobState::kRunning;
    if (!active) {
      earlier_ = std::max(earlier_, job.id);
    } else if (job.workers_live > 0) {
      client_.reset();  // somebody else's job: nothing to ask about it, nor to stop
      return absl::AlreadyExistsError(
          absl::StrCat("job ", job.spec.name, " is ", Absl(Name(job.state)),
                       " in this cluster with ", job.workers_live,
                       " workers; choose another name with --job, or end it first: "
                       "pacelinectl stop ",
                       job.spec.name));
    }
  }
  return absl::OkStatus();
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

bool Launcher::AnyLive(bool workers) const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [&](const Process& p) { return !p.ended && (p.role == "worker") == workers; });
}

void Launcher::WatchWorkers() {
  next_poll_ = clock_.Now() + kPollInterval;
  while (AnyLive(true) && !interrupted() && !stopping_) {
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
    *context_.err << "pacelinectl: " << (signal == SIGINT ? "interrupted" : "terminated")
                  << ", ending the job; once more to end at once\n"
                  << std::flush;
  }
}

void Launcher::ReapAll() {
  // By index: a restart appends.
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (processes_[i].ended || !Reap(processes_[i], guard_, clock_.Now())) continue;
    if (!stopping_ && !interrupted()) OnEnd(processes_[i]);
  }
}

void Launcher::OnEnd(const Process& process) {
  if (process.role == "worker") {
    OnWorkerEnd(process);
    return;
  }
  Fail(absl::StrCat(process.name, " ended while the job ran: ", EndOf(process)));
  *context_.err << "pacelinectl: " << reason_ << "; the end of " << process.log_path << ":\n"
                << LastLines(process.log_path, kLogLines) << "\n"
                << std::flush;
  stopping_ = true;
}

void Launcher::OnWorkerEnd(const Process& process) {
  const uint32_t index = IndexOf(process);
  if (!process.failed()) {
    finished_.push_back(index);
    return;
  }
  const std::string what = absl::StrCat(process.name, " failed: ", EndOf(process));
  *context_.err << "pacelinectl: " << what << "; the end of " << process.log_path << ":\n"
                << LastLines(process.log_path, kLogLines) << "\n"
                << std::flush;
  if (restarts_left_[index] > 0) {
    --restarts_left_[index];
    const absl::Status status = StartWorker(index);
    if (status.ok()) return;
  }
  Fail(what);
  finished_.push_back(index);
  // The others go on without it, unless the job cannot form or has too few left.
  Query(kAskTimeout);
  const bool formed = view_ && view_->state != JobState::kForming;
  const uint32_t lost = static_cast<uint32_t>(finished_.size());
  const bool enough = config_.job.workers - lost >= config_.job.min_workers;
  if (!formed || (!enough && AnyLive(true))) {
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

void Launcher::Query(Ticks timeout) {
  if (client_ == nullptr) return;
  auto reply = client_->Operate(StatusQuery{config_.job.name}, timeout);
  if (!reply.ok()) return;
  const auto* cluster = std::get_if<ClusterView>(&*reply);
  if (cluster == nullptr) return;
  for (const JobView& job : cluster->jobs) {
    if (job.spec.name == config_.job.name && earlier_ < job.id) view_ = job;
  }
}

// The end of the workers makes the owners report once more; until then some samples are neither
// applied nor returned. Those of a worker that was killed may stay so.
void Launcher::QueryLastCounts() {
  const Ticks deadline = clock_.Now() + kLastCountsTimeout;
  do {
    if (hurried_ || client_ == nullptr) return;
    Query(kAskTimeout);
    if (!view_ || view_->drawn == view_->applied + view_->discarded + view_->returned) return;
    Wait(clock_.Now() + Milliseconds(50));
    ReapAll();
  } while (clock_.Now() < deadline);
}

void Launcher::Poll() {
  Query(kAskTimeout);
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
  if (!view_) return;
  const std::string line = ProgressLine(*view_, kWidth);
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
  RunSummary summary;
  summary.job = config_.job.name;
  summary.seconds = static_cast<double>((clock_.Now() - started_).value()) * 1e-9;
  summary.workers = config_.job.workers;
  summary.servers = config_.scheduler.empty() ? config_.servers : (view_ ? view_->servers : 0);
  summary.view = view_;
  const bool stopped = view_ && view_->state == JobState::kStopped;
  if (!reason_.empty()) {
    summary.outcome = Outcome::kFailed;
    summary.reason = reason_;
    if (stopped) absl::StrAppend(&summary.reason, "; the scheduler says: ", view_->reason);
  } else if (interrupted()) {
    summary.reason = absl::StrCat("signal ", first_signal_, " to the launcher");
  } else if (!watched_ || AnyLive(true)) {
    summary.reason = "running";  // what a reader finds when the launcher was killed
  } else if (stopped) {
    summary.reason = "stopped: " + view_->reason;
  } else {
    summary.outcome = Outcome::kSucceeded;
    summary.reason = view_ ? "all workers are done" : "all workers are done; none joined the job";
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
  StopRole(true, interrupted() ? first_signal_ : SIGTERM, Milliseconds(context_.grace_ms));
  QueryLastCounts();
  const bool ended_badly = !reason_.empty() || interrupted();
  if (client_ != nullptr && ended_badly && !hurried_ && !unreachable_) {
    // Best effort: the cluster's daemons outlive this job and should forget it.
    client_
        ->Operate(StopJobRequest{config_.job.name, !reason_.empty(), Summary().reason}, kAskTimeout)
        .status()
        .IgnoreError();
  }
  StopRole(false, SIGTERM, Milliseconds(context_.grace_ms));
  if (!interrupted()) CheckDaemonEnds();
  SweepStrays();
  client_.reset();
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
    Fail(absl::StrCat(process.name, " did not end well: ", EndOf(process), "; see ",
                      process.log_path));
  }
}

void Launcher::StopRole(bool workers, int signal, Ticks grace) {
  for (const Process& process : processes_) {
    if ((process.role == "worker") == workers) SignalGroup(process, signal);
  }
  const Ticks deadline = clock_.Now() + grace;
  while (AnyLive(workers) && clock_.Now() < deadline && !hurried_) {
    Wait(std::min(deadline, clock_.Now() + Milliseconds(100)));
    ReapAll();
  }
  if (AnyLive(workers)) KillRole(workers);
}

void Launcher::KillRole(bool workers) {
  for (const Process& process : processes_) {
    if ((process.role == "worker") == workers) SignalGroup(process, SIGKILL);
  }
  // SIGKILL cannot be refused, but a process in an uninterruptible wait takes its time.
  const Ticks deadline = clock_.Now() + Seconds(1);
  while (AnyLive(workers) && clock_.Now() < deadline) {
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
  return Summary().outcome == Outcome::kSucceeded ? kExitDone : kExitFailed;
}

}  // namespace

int RunLauncher(const LaunchConfig& config, const LauncherContext& context) {
  return Launcher(config, context).Run();
}

}  // namespace paceline
