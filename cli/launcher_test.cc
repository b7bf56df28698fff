// The launcher with shell scripts in the place of daemons and workers.
#include "cli/launcher.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "common/runtime/clock.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

// A scheduler that knows one job, or none yet.
class FakeControl final : public ControlClient {
 public:
  FakeControl(std::optional<JobState> state, uint32_t workers_live,
              std::vector<ProcessEndedRequest>* ended, int* stops)
      : state_(state), workers_live_(workers_live), ended_(ended), stops_(stops) {}
  absl::StatusOr<JoinReply> Join(const JoinRequest&, Ticks) override {
    return absl::UnimplementedError("not asked here");
  }
  absl::StatusOr<NodeReply> Call(NodeRef, const NodeRequest&, Ticks) override {
    return absl::UnimplementedError("not asked here");
  }
  absl::StatusOr<OperatorReply> Operate(const OperatorRequest& request, Ticks) override {
    if (const auto* ended = std::get_if<ProcessEndedRequest>(&request)) ended_->push_back(*ended);
    *stops_ += std::holds_alternative<StopJobRequest>(request);
    const auto* query = std::get_if<StatusQuery>(&request);
    if (query == nullptr) return OperatorReply(Empty{});
    ClusterView view;
    if (!state_) {
      if (query->job.empty()) return OperatorReply(view);
      return absl::NotFoundError("job " + query->job + " is not known");
    }
    JobView job;
    job.id = JobId(1);
    job.spec.name = "demo";
    job.workers_live = workers_live_;
    job.state = *state_;
    job.drawn = job.applied = Samples(640);
    job.updates = 20;
    job.metrics = {{"accuracy", 0.5, "worker-0", Step(5)}, {"accuracy", 0.75, "worker-1", Step(9)}};
    job.group_generations = 2;
    job.tau = {20, 20, 2, {5, 10, 5}};
    job.mean = 1;
    job.spec.workers = 2;
    job.spec.batch_size = 48;
    view.jobs = {job};
    NodeView added;
    added.name = "worker-4";
    added.job = "demo";
    view.nodes = {added};
    return OperatorReply(view);
  }
  void Watch(NodeRef, std::function<void(Directive)>, std::function<void(absl::Status)>) override {}
  void StopWatch() override {}
  std::unique_ptr<ControlClient> Another() const override { return nullptr; }
  std::string Peer() const override { return "fake"; }

 private:
  const std::optional<JobState> state_;
  const uint32_t workers_live_;
  std::vector<ProcessEndedRequest>* const ended_;
  int* const stops_;
};

constexpr const char* kDaemon = R"sh(#!/bin/sh
for a; do case $a in --ready-fd=*) fd=${a#--ready-fd=};; esac; done
echo $$ >> "$(dirname "$0")/pids"
echo 127.0.0.1:1 > /proc/self/fd/$fd
exec sleep 1000
)sh";

class LauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/launcher_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    Script("paceline-scheduler", kDaemon);
    Script("paceline-server", kDaemon);
    config_.job.name = "demo";
    config_.job.workers = 2;
    config_.output = root_ + "/out";
    context_.environment = Environment({{"PATH", "/usr/bin:/bin"}, {"ROOT", root_}});
    context_.binary_directory = root_;
    context_.connect = [this](const std::string&, const TlsConfig&) {
      return std::make_unique<FakeControl>(state_, workers_live_, &ended_, &stops_);
    };
    context_.out = &out_;
    context_.err = &err_;
    context_.grace_ms = 500;
  }
  void TearDown() override { fs::remove_all(root_); }

  void Script(const std::string& name, const std::string& text) {
    std::ofstream(root_ + "/" + name) << text;
    chmod((root_ + "/" + name).c_str(), 0755);
  }
  int Run(const std::string& shell) {
    config_.program = {"/bin/sh", "-c", shell};
    return RunLauncher(config_, context_);
  }
  std::string Read(const std::string& path) const {
    std::ifstream file(root_ + "/" + path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  nlohmann::json Summary() const { return nlohmann::json::parse(Read("out/summary.json")); }

  // Gone, or a zombie that waits for its parent.
  static bool Ended(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string stat((std::istreambuf_iterator<char>(file)), {});
    const size_t end = stat.rfind(')');
    return end == std::string::npos || stat.substr(end + 2, 1) == "Z";
  }
  std::vector<pid_t> Pids() const {
    std::vector<pid_t> pids;
    std::istringstream text(Read("pids"));
    for (pid_t pid = 0; text >> pid;) pids.push_back(pid);
    return pids;
  }
  // Waits until so many processes wrote their id.
  bool AwaitPids(size_t count) const {
    for (int i = 0; i < 500 && Pids().size() < count; ++i) poll(nullptr, 0, 20);
    return Pids().size() >= count;
  }
  bool AwaitAllEnded() const {
    for (int i = 0; i < 250; ++i) {
      bool all = true;
      for (const pid_t pid : Pids()) all = all && Ended(pid);
      if (all) return true;
      poll(nullptr, 0, 20);
    }
    return false;
  }
  // Runs the launcher in a process of its own.
  pid_t Fork(const std::string& shell) {
    const pid_t pid = fork();
    if (pid == 0) _exit(Run(shell));
    return pid;
  }

  std::string root_;
  LaunchConfig config_;
  std::vector<ProcessEndedRequest> ended_;
  int stops_ = 0;
  LauncherContext context_;
  std::ostringstream out_, err_;
  std::optional<JobState> state_ = JobState::kRunning;
  uint32_t workers_live_ = 0;
};

TEST_F(LauncherTest, AttachesToASchedulerThatDoesNotKnowTheJobYet) {
  state_ = std::nullopt;
  config_.scheduler = "127.0.0.1:1";
  EXPECT_EQ(Run("echo $PACELINE_SCHEDULER"), 0) << err_.str();
  EXPECT_EQ(Read("out/worker-1.log"), "127.0.0.1:1\n");
  EXPECT_FALSE(fs::exists(root_ + "/out/scheduler.log"));
}

TEST_F(LauncherTest, AnEarlierJobOfTheSameNameIsNotThisOne) {
  state_ = JobState::kFinished;
  config_.scheduler = "127.0.0.1:1";
  EXPECT_EQ(Run("exit 3"), 1);
  EXPECT_EQ(Summary()["samples_applied"], 0);
  EXPECT_EQ(Summary()["metrics"].size(), 0u);
}

TEST_F(LauncherTest, AJobOfTheSameNameThatStillRunsIsLeftAlone) {
  workers_live_ = 2;
  config_.scheduler = "127.0.0.1:1";
  EXPECT_EQ(Run("exit 3"), 1);
  EXPECT_NE(err_.str().find("job demo is running in this cluster with 2 workers"),
            std::string::npos)
      << err_.str();
  EXPECT_FALSE(fs::exists(root_ + "/out"));
}

TEST_F(LauncherTest, AddsWorkersToAJobThatRunsAndLeavesItRunning) {
  config_.scheduler = "127.0.0.1:1";
  config_.add = 2;
  workers_live_ = 3;
  EXPECT_EQ(Run("echo $PACELINE_WORKER_NAME $PACELINE_BATCH_SIZE >> $ROOT/names; "
                "test $PACELINE_WORKER_INDEX != 6"),
            kExitFailed);
  const std::string names = Read("names");
  EXPECT_NE(names.find("worker-5 48\n"), std::string::npos) << names;
  EXPECT_NE(names.find("worker-6 48\n"), std::string::npos) << "names that nobody had: " << names;
  EXPECT_EQ(stops_, 0) << "the job is not this launcher's to end";
  EXPECT_NE(err_.str().find("worker-6 failed"), std::string::npos) << err_.str();
}

TEST_F(LauncherTest, AddsNothingToAJobThatDoesNotRun) {
  config_.scheduler = "127.0.0.1:1";
  config_.add = 1;
  state_ = JobState::kFinished;
  EXPECT_EQ(Run("touch $ROOT/ran"), kExitNoSuchJob);
  EXPECT_NE(err_.str().find("job demo does not run in this cluster"), std::string::npos);
  EXPECT_FALSE(fs::exists(root_ + "/ran"));
}

TEST_F(LauncherTest, ADirectoryThatHoldsARunIsNotWrittenTo) {
  EXPECT_EQ(Run("echo first"), 0) << err_.str();
  const std::string summary = Read("out/summary.json");
  EXPECT_EQ(Run("echo second"), 1);
  EXPECT_NE(err_.str().find("/out holds an earlier run"), std::string::npos) << err_.str();
  EXPECT_EQ(Read("out/summary.json"), summary);
  EXPECT_EQ(Read("out/worker-0.log"), "first\n");
}

TEST_F(LauncherTest, GivesWorkersTheirVariablesAndWritesTheSummary) {
  config_.job.groups = *ParseGroupSpec("per-worker");
  EXPECT_EQ(Run("echo $PACELINE_JOB $PACELINE_WORKER_INDEX $PACELINE_WORKER_NAME "
                "$PACELINE_WORKERS $PACELINE_SCHEDULER $PACELINE_GROUPS"),
            0)
      << err_.str();
  EXPECT_EQ(Read("out/worker-0.log"), "demo 0 worker-0 2 127.0.0.1:1 per-worker\n");
  EXPECT_EQ(Read("out/worker-1.log"), "demo 1 worker-1 2 127.0.0.1:1 per-worker\n");
  const nlohmann::json json = Summary();
  EXPECT_EQ(json["outcome"], "succeeded");
  EXPECT_EQ(json["workers"], 2);
  EXPECT_EQ(json["servers"], 1);
  EXPECT_EQ(json["samples_applied"], 640);
  EXPECT_EQ(json["metrics"]["accuracy"]["value"], 0.75);
  EXPECT_EQ(json["staleness"]["count"], 20);
  ASSERT_EQ(json["processes"].size(), 4u);
  EXPECT_EQ(json["processes"][2]["role"], "worker");
  EXPECT_EQ(json["processes"][2]["exit_code"], 0);
  EXPECT_GT(json["processes"][2]["peak_rss_bytes"], 0);
  EXPECT_EQ(fs::read_symlink(root_ + "/latest"), "out");
  EXPECT_TRUE(AwaitAllEnded());
}

TEST_F(LauncherTest, AFailingWorkerIsNamedWithItsCodeAndLastLines) {
  EXPECT_EQ(Run("if [ $PACELINE_WORKER_INDEX = 1 ]; then echo no such data set; exit 3; fi"), 1);
  EXPECT_NE(err_.str().find("worker-1 failed: exit code 3"), std::string::npos) << err_.str();
  EXPECT_NE(err_.str().find("no such data set"), std::string::npos) << err_.str();
  EXPECT_EQ(Summary()["outcome"], "failed");
  EXPECT_EQ(Summary()["reason"], "worker-1 failed: exit code 3");
}

TEST_F(LauncherTest, TellsTheSchedulerOfEachProcessThatEnded) {
  Run("echo $$ > $ROOT/pid-$PACELINE_WORKER_INDEX; kill -9 $$");
  ASSERT_EQ(ended_.size(), 2u);
  for (const ProcessEndedRequest& ended : ended_) {
    EXPECT_EQ(ended.job, "demo");
    EXPECT_EQ(ended.cause, "signal 9 (Killed)");
    EXPECT_EQ(std::to_string(ended.process_id) + "\n", Read("pid-" + ended.name.substr(7)));
  }
}

TEST_F(LauncherTest, ASignalIsNamed) {
  EXPECT_EQ(Run("kill -9 $$"), 1);
  EXPECT_NE(err_.str().find("signal 9 (Killed)"), std::string::npos) << err_.str();
  EXPECT_EQ(Summary()["processes"][2]["signal"], 9);
  EXPECT_TRUE(Summary()["processes"][2]["exit_code"].is_null());
}

TEST_F(LauncherTest, AWorkerThatFailedIsStartedAgainUnderItsIndex) {
  config_.restarts = 1;
  EXPECT_EQ(Run("echo $PACELINE_WORKER_INDEX; [ $PACELINE_WORKER_INDEX = 0 ] && exit 0; "
                "[ -e $ROOT/once ] || { touch $ROOT/once; exit 1; }"),
            0)
      << err_.str();
  EXPECT_EQ(Read("out/worker-1.log"), "1\n1\n");
  EXPECT_EQ(Summary()["processes"].size(), 5u);
}

TEST_F(LauncherTest, AJobThatCannotFormEndsWhenAWorkerFails) {
  state_ = JobState::kForming;
  EXPECT_EQ(Run("[ $PACELINE_WORKER_INDEX = 0 ] && exit 4; exec sleep 1000"), 1);
  EXPECT_NE(err_.str().find("can no longer form"), std::string::npos) << err_.str();
}

TEST_F(LauncherTest, ADaemonThatEndsFailsTheRun) {
  Script("paceline-server", "#!/bin/sh\necho cannot bind; exit 7\n");
  EXPECT_EQ(Run("exit 0"), 1);
  EXPECT_NE(err_.str().find("server-0 ended before it was ready: exit code 7"), std::string::npos)
      << err_.str();
  EXPECT_NE(err_.str().find("cannot bind"), std::string::npos);
  EXPECT_TRUE(AwaitAllEnded());
}

TEST_F(LauncherTest, ADaemonKilledInTheMiddleFailsTheRun) {
  EXPECT_EQ(Run("kill -9 $(head -1 $ROOT/pids); exec sleep 1000"), 1);
  EXPECT_NE(err_.str().find("scheduler ended while the job ran: signal 9"), std::string::npos)
      << err_.str();
  EXPECT_TRUE(AwaitAllEnded());
}

// One that crashes and one that was drained and ended: whether the job goes on is the scheduler's
// to decide.
TEST_F(LauncherTest, AServerThatEndsWhileOthersServeIsLeftToTheScheduler) {
  for (const std::string end : {"exit 0", "kill -9 $$"}) {
    config_.output = root_ + "/out-" + end.substr(0, 4);
    config_.servers = 2;
    fs::remove(root_ + "/pids");
    Script("paceline-server",
           std::string(kDaemon).replace(std::string(kDaemon).find("exec sleep 1000"), 15,
                                        "while [ ! -e $0-$$-ends ]; do sleep 0.02; done; " + end));
    EXPECT_EQ(Run("[ $PACELINE_WORKER_INDEX = 1 ] || { touch $ROOT/paceline-server-$(sed -n 2p "
                  "$ROOT/pids)-ends; while [ -e /proc/$(sed -n 2p $ROOT/pids) ]; do sleep 0.02; "
                  "done; }"),
              0)
        << end << err_.str();
    EXPECT_NE(err_.str().find("server-0 ended while the job ran"), std::string::npos) << end;
  }
}

TEST_F(LauncherTest, ADaemonThatIsSlowToEndFailsNothing) {
  Script("paceline-server", std::string(kDaemon).replace(std::string(kDaemon).find("exec sleep"), 4,
                                                         "trap '' TERM; exec"));
  EXPECT_EQ(Run("exit 0"), 0) << err_.str();
  EXPECT_EQ(Summary()["outcome"], "succeeded");
  EXPECT_EQ(Summary()["processes"][1]["signal"], 9);
  EXPECT_NE(err_.str().find("server-0 had not ended after 500 ms and is killed"), std::string::npos)
      << err_.str();
  EXPECT_TRUE(AwaitAllEnded());
}

TEST_F(LauncherTest, AMissingProgramIsSaidBeforeAnythingStarts) {
  config_.program = {"no-such-program"};
  EXPECT_EQ(RunLauncher(config_, context_), 1);
  EXPECT_NE(err_.str().find("no-such-program is neither in"), std::string::npos) << err_.str();
  EXPECT_FALSE(fs::exists(root_ + "/out"));
}

TEST_F(LauncherTest, SigtermEndsStubbornWorkersAndTheirChildren) {
  const pid_t launcher =
      Fork("trap '' TERM; sleep 1000 & echo $! $$ >> $ROOT/pids; wait; sleep 1000");
  ASSERT_TRUE(AwaitPids(6));
  const auto before = Clock::Real().Now();
  kill(launcher, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_EQ(WEXITSTATUS(status), 143);
  EXPECT_LT((Clock::Real().Now() - before).value(), Seconds(5).value());
  EXPECT_TRUE(AwaitAllEnded());
  EXPECT_EQ(Summary()["outcome"], "interrupted");
}

TEST_F(LauncherTest, NothingOutlivesALauncherThatWasKilled) {
  const pid_t launcher = Fork("sleep 1000 & echo $! $$ >> $ROOT/pids; wait");
  ASSERT_TRUE(AwaitPids(6));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(AwaitAllEnded());
  EXPECT_EQ(Summary()["outcome"], "interrupted");
}

TEST_F(LauncherTest, DetachedProcessesAreSwept) {
  EXPECT_EQ(Run("setsid sh -c 'echo $$ >> $ROOT/pids; exec sleep 1000' & "
                "while [ $(wc -l < $ROOT/pids) -lt 3 ]; do sleep 0.05; done; exit 0"),
            0)
      << err_.str();
  EXPECT_TRUE(AwaitAllEnded());
}

}  // namespace
}  // namespace paceline
