#include "control/in_memory.h"

#include <deque>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/runtime/clock.h"

namespace paceline {
namespace {

// What a blocked caller and the service's thread share; outlives whichever of them goes first.
template <typename T>
class PendingReply {
 public:
  void Set(absl::StatusOr<T> reply) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (!reply_) reply_ = std::move(reply);
    set_.SignalAll();
  }

  absl::StatusOr<T> Wait(Ticks timeout, std::string_view what) EXCLUDES(mutex_) {
    const Ticks deadline = Clock::Real().Now() + timeout;
    MutexLock lock(&mutex_);
    while (!reply_) {
      const Ticks left = deadline - Clock::Real().Now();
      if (left <= Ticks(0)) {
        return absl::DeadlineExceededError(absl::StrCat("the scheduler (in-memory) did not answer ",
                                                        Absl(what), " within ",
                                                        timeout.value() / 1'000'000, " ms"));
      }
      set_.WaitFor(&mutex_, left);
    }
    return *std::move(reply_);
  }

 private:
  Mutex mutex_;
  CondVar set_;
  std::optional<absl::StatusOr<T>> reply_ GUARDED_BY(mutex_);
};

}  // namespace

// Between the service, which may not block, and the thread that runs the callbacks.
class InMemoryControlClient::WatchQueue final : public DirectiveSink {
 public:
  void Send(const Directive& directive) override EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (cause_) return;
    if (directives_.size() >= kMaxQueuedDirectives) {
      End(absl::ResourceExhaustedError(
          absl::StrCat("the watch stream lags by ", directives_.size(),
                       " directives; open it again for the full state")));
      return;
    }
    directives_.push_back(directive);
    changed_.SignalAll();
  }

  void Close(const absl::Status& cause) override EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (!cause_) End(cause);
  }

  // Ends the stream for the client's own reason: what is still queued is not delivered.
  void Stop() EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    directives_.clear();
    if (!cause_) End(absl::CancelledError("the watch stream was stopped by this node"));
  }

  // The next directive, or the cause once all that came before the end were taken.
  std::variant<Directive, absl::Status> Next() EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    while (directives_.empty() && !cause_) changed_.Wait(&mutex_);
    if (directives_.empty()) return *cause_;
    Directive next = std::move(directives_.front());
    directives_.pop_front();
    return next;
  }

 private:
  void End(absl::Status cause) REQUIRES(mutex_) {
    cause_ = std::move(cause);
    changed_.SignalAll();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<Directive> directives_ GUARDED_BY(mutex_);
  std::optional<absl::Status> cause_ GUARDED_BY(mutex_);
};

absl::StatusOr<JoinReply> InMemoryControlClient::Join(const JoinRequest& request, Ticks timeout) {
  auto pending = std::make_shared<PendingReply<JoinReply>>();
  service_->Join(request, [pending](absl::StatusOr<JoinReply> r) { pending->Set(std::move(r)); });
  return pending->Wait(timeout, "the join");
}

absl::StatusOr<NodeReply> InMemoryControlClient::Call(NodeRef self, const NodeRequest& request,
                                                      Ticks timeout) {
  auto pending = std::make_shared<PendingReply<NodeReply>>();
  service_->Call(self, request,
                 [pending](absl::StatusOr<NodeReply> r) { pending->Set(std::move(r)); });
  return pending->Wait(timeout, "the call");
}

absl::StatusOr<OperatorReply> InMemoryControlClient::Operate(const OperatorRequest& request,
                                                             Ticks timeout) {
  auto pending = std::make_shared<PendingReply<OperatorReply>>();
  service_->Operate(request,
                    [pending](absl::StatusOr<OperatorReply> r) { pending->Set(std::move(r)); });
  return pending->Wait(timeout, "the operator's request");
}

void InMemoryControlClient::Watch(NodeRef self, std::function<void(Directive)> on_directive,
                                  std::function<void(absl::Status)> on_closed) {
  StopWatch();
  watched_ = self;
  watch_ = std::make_shared<WatchQueue>();
  watch_thread_ = std::thread(
      [queue = watch_, on_directive = std::move(on_directive), on_closed = std::move(on_closed)] {
        while (true) {
          std::variant<Directive, absl::Status> next = queue->Next();
          if (auto* directive = std::get_if<Directive>(&next)) {
            on_directive(std::move(*directive));
          } else {
            on_closed(std::get<absl::Status>(std::move(next)));
            return;
          }
        }
      });
  service_->OpenWatch(self, watch_);
}

void InMemoryControlClient::StopWatch() {
  if (!watch_) return;
  watch_->Stop();
  service_->CloseWatch(watched_, watch_.get());
  watch_thread_.join();
  watch_.reset();
}

}  // namespace paceline
