// What the launcher knows of its job from the scheduler.
// Thread rule: one thread. Calls block up to their timeout.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "control/control_client.h"
#include "plan/operator_view.h"

namespace paceline {

class JobMonitor {
 public:
  explicit JobMonitor(std::string job) : job_(std::move(job)) {}

  void Use(std::unique_ptr<ControlClient> client) { client_ = std::move(client); }
  void Disconnect() { client_.reset(); }
  bool connected() const { return client_ != nullptr; }

  // Before the first worker of this run: whether the scheduler answers (Unavailable,
  // DeadlineExceeded), and whether another run holds the job's name (AlreadyExists; disconnects, as
  // there is nothing to ask about that job, nor to stop).
  absl::Status CheckName(Ticks timeout);
  // For more workers of a job that runs: its settings, and the first number no worker of it is
  // named by (worker-NUMBER). NotFound: there is no such job.
  struct Running {
    JobSpec spec;
    uint32_t first_free = 0;
  };
  absl::StatusOr<Running> FindRunning(Ticks timeout);
  // Renews view(), which stays what it is when the scheduler does not answer.
  absl::Status Query(Ticks timeout);
  // The cluster's daemons outlive this job and should forget it. Best effort.
  void StopJob(bool failed, const std::string& reason, Ticks timeout);

  // The job of this name is to go on from a checkpoint.
  absl::Status Resume(const ResumeJobRequest& request, Ticks timeout);
  // A process of the job's, or a server, was seen to end. Best effort: without it its lease runs
  // out.
  void TellEnded(bool of_job, const std::string& name, uint64_t process_id,
                 const std::string& cause, Ticks timeout);

  // The newest that is known; none before the first worker has joined.
  const std::optional<JobView>& view() const { return view_; }
  // Whether each sample of view() is accounted for.
  bool Balanced() const;

 private:
  const std::string job_;
  std::unique_ptr<ControlClient> client_;
  JobId earlier_;  // the newest job of the same name that ended before this run
  std::optional<JobView> view_;
};

}  // namespace paceline
