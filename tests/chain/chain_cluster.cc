#include "tests/chain/chain_cluster.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "control/in_memory.h"
#include "scheduler/core/core.h"

namespace paceline {

// ---- SchedulerPort ------------------------------------------------------------------------------

void SchedulerPort::Set(std::shared_ptr<ControlService> service) {
  MutexLock lock(&mutex_);
  service_ = std::move(service);
}

void SchedulerPort::SetInterceptor(std::function<absl::Status(const NodeRequest&)> interceptor) {
  MutexLock lock(&mutex_);
  interceptor_ = std::move(interceptor);
}

std::shared_ptr<ControlService> SchedulerPort::Get() const {
  MutexLock lock(&mutex_);
  return service_;
}

void SchedulerPort::Join(JoinRequest request, std::function<void(absl::StatusOr<JoinReply>)> done) {
  ++calls_;
  Get()->Join(std::move(request), std::move(done));
}

void SchedulerPort::Call(NodeRef from, NodeRequest request,
                         std::function<void(absl::StatusOr<NodeReply>)> done) {
  ++calls_;
  std::function<absl::Status(const NodeRequest&)> interceptor;
  {
    MutexLock lock(&mutex_);
    interceptor = interceptor_;
  }
  if (interceptor) {
    if (absl::Status status = interceptor(request); !status.ok()) return done(status);
  }
  Get()->Call(from, std::move(request), std::move(done));
}

void SchedulerPort::Operate(OperatorRequest request,
                            std::function<void(absl::StatusOr<OperatorReply>)> done) {
  Get()->Operate(std::move(request), std::move(done));
}

void SchedulerPort::OpenWatch(NodeRef from, std::shared_ptr<DirectiveSink> sink) {
  ++calls_;
  Get()->OpenWatch(from, std::move(sink));
}

void SchedulerPort::CloseWatch(NodeRef from, const DirectiveSink* sink) {
  Get()->CloseWatch(from, sink);
}

// ---- ChainCluster -------------------------------------------------------------------------------

ChainCluster::ChainCluster(uint32_t servers) {
  SetLogLevel(LogLevel::kError);
  StartScheduler();
  operator_ = NewControl();
  for (uint32_t i = 0; i < servers; ++i) servers_.push_back(NewServer(i));
}

std::unique_ptr<Server> ChainCluster::NewServer(uint32_t index) {
  ServerOptions options;
  options.agent.name = "server-" + std::to_string(index);
  auto server =
      std::make_unique<Server>(options, NewControl(), NewTransport(), [](const absl::Status&) {});
  const absl::Status started = server->Start();
  PACELINE_CHECK(started.ok());
  return server;
}

void ChainCluster::ReplaceServer(uint32_t index) {
  std::unique_ptr<Server> old = std::exchange(servers_.at(index), NewServer(index));
  old->Stop();
}

ChainCluster::~ChainCluster() {
  for (auto& server : servers_) server->Stop();
  StopScheduler();
}

void ChainCluster::StopScheduler() { loop_->Stop(); }

void ChainCluster::StartScheduler() {
  auto loop =
      EventLoop::Make({}, std::make_unique<Core>(CoreOptions{}), InMemoryJournal::Entries(*store_),
                      std::make_unique<InMemoryJournal>(store_), &Clock::Real());
  PACELINE_CHECK(loop.ok());
  loop_ = *std::move(loop);
  loop_->Start();
  port_.Set(loop_);
}

std::unique_ptr<ControlClient> ChainCluster::NewControl() {
  return std::make_unique<InMemoryControlClient>(&port_);
}

std::unique_ptr<Transport> ChainCluster::NewTransport() {
  return NewLoopbackTransport(network_, {});
}

SessionOptions ChainCluster::OptionsFor(const JobSpec& job, uint32_t index) const {
  SessionOptions options;
  options.job = job;
  options.worker_name = "w" + std::to_string(index);
  options.index = WorkerIndex(index);
  options.deadline = kPatience;
  options.start_deadline = kPatience;
  return options;
}

absl::StatusOr<std::unique_ptr<Session>> ChainCluster::Connect(const JobSpec& job, uint32_t index) {
  return Session::Connect(OptionsFor(job, index), NewControl(), NewTransport());
}

absl::Status ChainCluster::Operate(const OperatorRequest& request) {
  return operator_->Operate(request, kPatience).status();
}

JobView ChainCluster::View(const std::string& job) {
  auto reply = operator_->Operate(StatusQuery{job}, kPatience);
  EXPECT_TRUE(reply.ok()) << reply.status();
  if (!reply.ok() || std::get<ClusterView>(*reply).jobs.empty()) return {};
  return std::get<ClusterView>(*reply).jobs.back();
}

std::vector<DecisionRecord> ChainCluster::Events(const std::string& job) {
  auto reply = operator_->Operate(EventsQuery{0, 10'000, job}, kPatience);
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? std::get<std::vector<DecisionRecord>>(*std::move(reply))
                    : std::vector<DecisionRecord>();
}

bool ChainCluster::Await(const std::string& job, const std::function<bool(const JobView&)>& holds,
                         JobView* view) {
  const Ticks deadline = Clock::Real().Now() + kPatience;
  while (true) {
    const JobView now = View(job);
    if (view != nullptr) *view = now;
    if (holds(now)) return true;
    if (Clock::Real().Now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// ---- Jobs and workers ---------------------------------------------------------------------------

JobSpec JobOf(const std::string& name, uint32_t workers, const std::string& groups,
              NamedSpec optimizer) {
  JobSpec job;
  job.name = name;
  job.workers = workers;
  job.groups = *ParseGroupSpec(groups);
  job.optimizer = std::move(optimizer);
  job.chunk_bytes = 4096;
  // Only tests of deaths want one to be noticed soon.
  job.failure_timeout_ms = 60'000;
  return job;
}

void RunWorkers(uint32_t count, const std::function<absl::Status(uint32_t index)>& work) {
  std::vector<absl::Status> statuses(count);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < count; ++i) {
    threads.emplace_back([&work, &statuses, i] { statuses[i] = work(i); });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t i = 0; i < count; ++i) {
    EXPECT_TRUE(statuses[i].ok()) << "worker " << i << ": " << statuses[i];
  }
}

absl::StatusOr<TensorId> PrepareTensor(Session& session, uint64_t elements, float value) {
  PACELINE_ASSIGN_OR_RETURN(TensorId tensor,
                            session.RegisterTensor({.name = "w", .shape = {elements}}));
  PACELINE_RETURN_IF_ERROR(session.Init(tensor, std::vector<float>(elements, value)));
  PACELINE_RETURN_IF_ERROR(session.WaitReady());
  return tensor;
}

absl::Status TrainSteps(Session& session, TensorId tensor, uint64_t elements, int steps) {
  std::vector<float> weights(elements);
  for (int i = 0; i < steps; ++i) {
    PACELINE_RETURN_IF_ERROR(PushPullAll(session, tensor, 1.0f, weights, Samples(1)).status());
    PACELINE_RETURN_IF_ERROR(session.AtStepBoundary());
  }
  return absl::OkStatus();
}

absl::StatusOr<OperationResult> PushPullAll(Session& session, TensorId tensor, float value,
                                            std::vector<float>& weights, Samples samples) {
  const std::vector<float> gradient(weights.size(), value);
  OperationOptions options;
  options.samples = samples;
  PACELINE_ASSIGN_OR_RETURN(OperationHandle operation,
                            session.PushPull(tensor, gradient, weights, options));
  return session.Wait(operation);
}

}  // namespace paceline
