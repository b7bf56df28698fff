#include "cli/job_monitor.h"

#include <algorithm>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace paceline {

absl::Status JobMonitor::CheckName(Ticks timeout) {
  // Not about the job: nobody knows it before its first worker has joined.
  const auto reply = client_->Operate(StatusQuery{}, timeout);
  PACELINE_RETURN_IF_ERROR(reply.status());
  const auto* cluster = std::get_if<ClusterView>(&*reply);
  if (cluster == nullptr) return absl::OkStatus();
  for (const JobView& job : cluster->jobs) {
    if (job.spec.name != job_) continue;
    const bool active = job.state == JobState::kForming || job.state == JobState::kRunning;
    if (!active) {
      earlier_ = std::max(earlier_, job.id);
    } else if (job.workers_live > 0) {
      Disconnect();
      return absl::AlreadyExistsError(absl::StrCat(
          "job ", job_, " is ", Absl(Name(job.state)), " in this cluster with ", job.workers_live,
          " workers; choose another name with --job, or end it first: "
          "pacelinectl stop ",
          job_));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<JobMonitor::Running> JobMonitor::FindRunning(Ticks timeout) {
  PACELINE_ASSIGN_OR_RETURN(const OperatorReply reply, client_->Operate(StatusQuery{}, timeout));
  const auto* cluster = std::get_if<ClusterView>(&reply);
  if (cluster == nullptr) return absl::InternalError("the scheduler answered a status query oddly");
  for (const JobView& job : cluster->jobs) {
    if (job.spec.name != job_) continue;
    if (job.state != JobState::kForming && job.state != JobState::kRunning) continue;
    Running running{job.spec, job.spec.workers};
    for (const NodeView& node : cluster->nodes) {
      uint32_t number = 0;
      if (node.job == job_ && node.name.starts_with("worker-") &&
          absl::SimpleAtoi(node.name.substr(7), &number)) {
        running.first_free = std::max(running.first_free, number + 1);
      }
    }
    return running;
  }
  return absl::NotFoundError(absl::StrCat("job ", job_, " does not run in this cluster; start it ",
                                          "without --add, or see: pacelinectl jobs"));
}

absl::Status JobMonitor::Query(Ticks timeout) {
  if (client_ == nullptr) return absl::OkStatus();
  auto reply = client_->Operate(StatusQuery{job_}, timeout);
  if (absl::IsNotFound(reply.status())) return absl::OkStatus();  // no worker has joined yet
  PACELINE_RETURN_IF_ERROR(reply.status());
  const auto* cluster = std::get_if<ClusterView>(&*reply);
  if (cluster == nullptr) return absl::OkStatus();
  for (const JobView& job : cluster->jobs) {
    if (job.spec.name == job_ && earlier_ < job.id) view_ = job;
  }
  return absl::OkStatus();
}

void JobMonitor::StopJob(bool failed, const std::string& reason, Ticks timeout) {
  client_->Operate(StopJobRequest{job_, failed, reason}, timeout).status().IgnoreError();
}

absl::Status JobMonitor::Resume(const ResumeJobRequest& request, Ticks timeout) {
  return client_->Operate(request, timeout).status();
}

void JobMonitor::TellEnded(bool of_job, const std::string& name, uint64_t process_id,
                           const std::string& cause, Ticks timeout) {
  if (client_ == nullptr) return;
  const ProcessEndedRequest ended{of_job ? job_ : "", name, process_id, cause};
  client_->Operate(ended, timeout).status().IgnoreError();
}

bool JobMonitor::Balanced() const {
  return view_->drawn == view_->applied + view_->discarded + view_->returned;
}

}  // namespace paceline
