// A whole cluster in one process: the scheduler's real core and event loop over a journal in
// memory, real servers, real sessions, the loopback transport. No gRPC and no sockets, so that the
// sanitizers see all of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "control/control_client.h"
#include "control/control_service.h"
#include "plan/operator_view.h"
#include "scheduler/event_loop.h"
#include "scheduler/journal.h"
#include "server/server.h"
#include "transport/channel.h"
#include "worker_client/session.h"

namespace paceline {

// Long enough for a sanitizer on a busy machine; what waits for it has failed.
inline constexpr Ticks kPatience = Seconds(30);

// Where the scheduler is: stays when the scheduler is stopped and another one takes its place.
class SchedulerPort final : public ControlService {
 public:
  void Set(std::shared_ptr<ControlService> service);

  void Join(JoinRequest request, std::function<void(absl::StatusOr<JoinReply>)> done) override;
  void Call(NodeRef from, NodeRequest request,
            std::function<void(absl::StatusOr<NodeReply>)> done) override;
  void Operate(OperatorRequest request,
               std::function<void(absl::StatusOr<OperatorReply>)> done) override;
  void OpenWatch(NodeRef from, std::shared_ptr<DirectiveSink> sink) override;
  void CloseWatch(NodeRef from, const DirectiveSink* sink) override;

  uint64_t calls() const { return calls_.load(); }

  // Tried on each request first; what it returns (if not OK) is the answer.
  void SetInterceptor(std::function<absl::Status(const NodeRequest&)> interceptor);

 private:
  std::shared_ptr<ControlService> Get() const;

  mutable Mutex mutex_;
  std::shared_ptr<ControlService> service_ GUARDED_BY(mutex_);
  std::function<absl::Status(const NodeRequest&)> interceptor_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> calls_{0};
};

class ChainCluster {
 public:
  // Starts a scheduler and `servers` servers; a failure ends the test.
  explicit ChainCluster(uint32_t servers);
  ~ChainCluster();

  // A scheduler that is stopped loses what it had not made durable; the next one recovers.
  void StopScheduler();
  void StartScheduler();

  // Another process under the name of server `index`, as after a crash; the first one then ends.
  void ReplaceServer(uint32_t index);

  SchedulerPort& port() { return port_; }
  std::unique_ptr<ControlClient> NewControl();
  std::unique_ptr<Transport> NewTransport();

  // Connects worker `index` of `job` under the name "w<index>".
  absl::StatusOr<std::unique_ptr<Session>> Connect(const JobSpec& job, uint32_t index);
  SessionOptions OptionsFor(const JobSpec& job, uint32_t index) const;

  // What pacelinectl asks for.
  absl::Status Operate(const OperatorRequest& request);
  // What pacelinectl shows.
  JobView View(const std::string& job);
  std::vector<DecisionRecord> Events(const std::string& job);
  // Asks until `holds`; false when it never did. `view` is the last one seen.
  bool Await(const std::string& job, const std::function<bool(const JobView&)>& holds,
             JobView* view = nullptr);

 private:
  std::unique_ptr<Server> NewServer(uint32_t index);

  const std::shared_ptr<LoopbackNetwork> network_ = NewLoopbackNetwork();
  const std::shared_ptr<InMemoryJournal::Store> store_ = InMemoryJournal::MakeStore();
  SchedulerPort port_;
  std::shared_ptr<EventLoop> loop_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::unique_ptr<ControlClient> operator_;
};

// A job that says nothing but what a test depends on.
JobSpec JobOf(const std::string& name, uint32_t workers, const std::string& groups,
              NamedSpec optimizer = {"sgd", {{"learning_rate", 0.5}}});

// Runs `work(index)` on a thread each and joins them; each status that is not OK fails the test.
void RunWorkers(uint32_t count, const std::function<absl::Status(uint32_t index)>& work);

// Registers the tensor "w" with `elements` of `value` each, and waits until it can be used.
absl::StatusOr<TensorId> PrepareTensor(Session& session, uint64_t elements, float value);

// Steps in which every element's gradient is 1, of one sample.
absl::Status TrainSteps(Session& session, TensorId tensor, uint64_t elements, int steps);

// One PushPull of every element `value`, waited for.
absl::StatusOr<OperationResult> PushPullAll(Session& session, TensorId tensor, float value,
                                            std::vector<float>& weights, Samples samples);

}  // namespace paceline
