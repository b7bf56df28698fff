// What the launcher does while the job runs, and at its end.
#include <poll.h>
#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/launcher_impl.h"
#include "cli/run_directory.h"
#include "common/base/status.h"

namespace paceline {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr Ticks kPollInterval = Milliseconds(1000);
constexpr Ticks kPlainLineInterval = Seconds(5);
constexpr Ticks kEndsWithin = Seconds(3);  // after a signal, all roles; questions come on top
constexpr Ticks kAskTimeout = Milliseconds(500);
constexpr Ticks kLastCountsTimeout = Seconds(1);
constexpr uint32_t kUnansweredBeforeSaid = 3;  // a busy scheduler may miss one
constexpr size_t kWidth = 79;

uint32_t IndexOf(const Process& worker) {
  return static_cast<uint32_t>(std::stoul(worker.name.substr(worker.name.rfind('-') + 1)));
}

}  // namespace

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
  if (process.role == "server" && others) {
    // Drained or crashed: the scheduler decides whether the job can go on without it; if not, its
    // workers end.
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
  if (interrupted()) gone_by_ = clock_.Now() + kEndsWithin;
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

// A daemon that crashes on its way out has failed too. One that was slow to end has not: the job
// was over before it was asked to.
void Launcher::CheckDaemonEnds() {
  for (const Process& process : processes_) {
    if (process.role == "worker" || !process.failed() || process.signal == SIGTERM) continue;
    if (process.killed && process.signal == SIGKILL) continue;
    if (lost_servers_.contains(process.name)) continue;  // said already
    Fail(absl::StrCat(process.name, " did not end well: ", EndOf(process), "; see ",
                      process.log_path));
  }
}

void Launcher::StopRole(const std::string& role, int signal, Ticks grace) {
  for (const Process& process : processes_) {
    if (process.role == role) SignalGroup(process, signal);
  }
  const Ticks began = clock_.Now();
  if (gone_by_) grace = std::min(grace, std::max(Ticks(0), *gone_by_ - began));
  const Ticks deadline = began + grace;
  while (AnyLive(role) && clock_.Now() < deadline && !hurried_) {
    Wait(std::min(deadline, clock_.Now() + Milliseconds(100)));
    ReapAll();
  }
  if (AnyLive(role)) KillRole(role, grace);
}

void Launcher::KillRole(const std::string& role, Ticks waited) {
  for (Process& process : processes_) {
    if (process.role != role || process.ended) continue;
    if (role != "worker" && !hurried_) {
      *context_.err << "pacelinectl: " << process.name << " had not ended after "
                    << waited.value() / kMillisecond << " ms and is killed\n"
                    << std::flush;
    }
    process.killed = true;
    SignalGroup(process, SIGKILL);
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

}  // namespace paceline
