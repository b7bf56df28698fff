// A worker that hears of its own leave after everybody else has gone.
#include <gtest/gtest.h>

#include <barrier>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "control/in_memory.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

// Passes directives on, from the first commit after Arm on only when Release is called.
class HeldStream final : public DirectiveSink {
 public:
  explicit HeldStream(std::shared_ptr<DirectiveSink> sink) : sink_(std::move(sink)) {}

  void Send(const Directive& directive) override {
    MutexLock lock(&mutex_);
    if (armed_ && std::holds_alternative<CommitDirective>(directive.body)) {
      holds_ = true;
      changed_.SignalAll();
    }
    Pass([this, directive] { sink_->Send(directive); });
  }
  void Close(const absl::Status& cause) override {
    MutexLock lock(&mutex_);
    Pass([this, cause] { sink_->Close(cause); });
  }

  void Arm() {
    MutexLock lock(&mutex_);
    armed_ = true;
  }
  void AwaitHeld() {
    MutexLock lock(&mutex_);
    while (!holds_) changed_.Wait(&mutex_);
  }
  void Release() {
    MutexLock lock(&mutex_);
    armed_ = holds_ = false;
    for (auto& next : std::exchange(late_, {})) next();
  }

 private:
  void Pass(std::function<void()> next) REQUIRES(mutex_) {
    if (holds_) {
      late_.push_back(std::move(next));
    } else {
      next();
    }
  }

  const std::shared_ptr<DirectiveSink> sink_;
  Mutex mutex_;
  CondVar changed_;
  bool armed_ GUARDED_BY(mutex_) = false;
  bool holds_ GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> late_ GUARDED_BY(mutex_);
};

// The scheduler as one worker sees it over a slow network.
class LateScheduler final : public ControlService {
 public:
  explicit LateScheduler(ControlService* scheduler) : scheduler_(scheduler) {}

  void Join(JoinRequest request, std::function<void(absl::StatusOr<JoinReply>)> done) override {
    scheduler_->Join(std::move(request), std::move(done));
  }
  void Call(NodeRef from, NodeRequest request,
            std::function<void(absl::StatusOr<NodeReply>)> done) override {
    scheduler_->Call(from, std::move(request), std::move(done));
  }
  void Operate(OperatorRequest request,
               std::function<void(absl::StatusOr<OperatorReply>)> done) override {
    scheduler_->Operate(std::move(request), std::move(done));
  }
  void OpenWatch(NodeRef from, std::shared_ptr<DirectiveSink> sink) override {
    stream_ = std::make_shared<HeldStream>(std::move(sink));
    scheduler_->OpenWatch(from, stream_);
  }
  void CloseWatch(NodeRef from, const DirectiveSink*) override {
    scheduler_->CloseWatch(from, stream_.get());
  }

  HeldStream& stream() { return *stream_; }

 private:
  ControlService* const scheduler_;
  std::shared_ptr<HeldStream> stream_;
};

// Lets a test wait until the servers have forgotten what they held of a job.
class ServerReports {
 public:
  explicit ServerReports(SchedulerPort& port) {
    port.SetInterceptor([this](const NodeRequest& request) {
      if (const auto* report = std::get_if<ServerReport>(&request)) {
        MutexLock lock(&mutex_);
        jobs_ = report->jobs.size();
        changed_.SignalAll();
      }
      return absl::OkStatus();
    });
  }
  // False when it did not come to that.
  bool AwaitNoJob() {
    MutexLock lock(&mutex_);
    const Ticks deadline = Clock::Real().Now() + kPatience;
    while (jobs_ > 0 && Clock::Real().Now() < deadline) changed_.WaitFor(&mutex_, Seconds(1));
    return jobs_ == 0;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  size_t jobs_ GUARDED_BY(mutex_) = 1;
};

constexpr uint64_t kElements = 64;

// A leaver tells the owners which steps go without it. Those who would wait for that word may
// have left too, and the job be over, before it comes: leaving is done all the same.
TEST(LateLeaveTest, LeavesThoughTheOwnersHaveForgottenTheJob) {
  ChainCluster cluster(1);
  const JobSpec job = JobOf("last-word", 2, "one");
  LateScheduler late(&cluster.port());
  std::barrier trained(2);
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    auto connected = index == 0 ? Session::Connect(cluster.OptionsFor(job, 0),
                                                   std::make_unique<InMemoryControlClient>(&late),
                                                   cluster.NewTransport())
                                : cluster.Connect(job, index);
    PACELINE_ASSIGN_OR_RETURN(auto session, std::move(connected));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 3));
    if (index == 0) late.stream().Arm();
    trained.arrive_and_wait();
    if (index == 0) return session->Leave("done");
    // The change without the first is decided, and the first does not know yet.
    late.stream().AwaitHeld();
    PACELINE_RETURN_IF_ERROR(session->Leave("done"));
    EXPECT_TRUE(
        cluster.Await(job.name, [](const JobView& v) { return v.state == JobState::kFinished; }));
    ServerReports reports(cluster.port());
    EXPECT_TRUE(reports.AwaitNoJob());
    cluster.port().SetInterceptor({});
    late.stream().Release();
    return absl::OkStatus();
  });
}

// One that ends, by whatever signal, as soon as its leave is granted keeps nobody waiting for the
// steps up to the one from which the others do without it.
TEST(LateLeaveTest, NobodyWaitsForOneThatSaysNothingMore) {
  ChainCluster cluster(2);
  const JobSpec job = JobOf("silent", 2, "one");
  LateScheduler late(&cluster.port());
  std::barrier trained(2);
  RunWorkers(2, [&](uint32_t index) -> absl::Status {
    auto connected = index == 0 ? Session::Connect(cluster.OptionsFor(job, 0),
                                                   std::make_unique<InMemoryControlClient>(&late),
                                                   cluster.NewTransport())
                                : cluster.Connect(job, index);
    PACELINE_ASSIGN_OR_RETURN(auto session, std::move(connected));
    PACELINE_ASSIGN_OR_RETURN(TensorId tensor, PrepareTensor(*session, kElements, 0.0f));
    PACELINE_RETURN_IF_ERROR(TrainSteps(*session, tensor, kElements, 3));
    if (index == 0) late.stream().Arm();
    trained.arrive_and_wait();
    if (index == 0) return session->Leave("done");
    late.stream().AwaitHeld();
    const absl::Status goes_on = TrainSteps(*session, tensor, kElements, 5);
    late.stream().Release();
    PACELINE_RETURN_IF_ERROR(goes_on);
    return session->Leave("done");
  });
}

}  // namespace
}  // namespace paceline
