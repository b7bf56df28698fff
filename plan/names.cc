#include <algorithm>

#include "plan/checkpoint.h"
#include "plan/job_spec.h"
#include "plan/messages.h"
#include "plan/plan.h"

namespace paceline {

Step LastStep(const std::map<GroupId, Step>& steps) {
  Step last;
  for (const auto& [group, step] : steps) last = std::max(last, step);
  return last;
}

std::string_view Name(Normalization n) {
  switch (n) {
    case Normalization::kMean:
      return "mean";
    case Normalization::kSum:
      return "sum";
  }
  return "unknown";
}

std::string_view Name(Aggregation a) {
  switch (a) {
    case Aggregation::kServer:
      return "server";
    case Aggregation::kPeer:
      return "peer";
    case Aggregation::kAllreduce:
      return "allreduce";
  }
  return "unknown";
}

std::string_view Name(ServerLoss loss) {
  switch (loss) {
    case ServerLoss::kRestore:
      return "restore";
    case ServerLoss::kStop:
      return "stop";
  }
  return "unknown";
}

std::string_view Name(NotFinite nan) {
  switch (nan) {
    case NotFinite::kRefuse:
      return "refuse";
    case NotFinite::kAllow:
      return "allow";
  }
  return "unknown";
}

std::string_view Name(Late late) {
  switch (late) {
    case Late::kCarry:
      return "carry";
    case Late::kDrop:
      return "drop";
  }
  return "unknown";
}

std::string_view Name(Role role) {
  switch (role) {
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
    case Role::kOperator:
      return "operator";
    case Role::kViewer:
      return "viewer";
  }
  return "unknown";
}

std::string_view Name(JobState state) {
  switch (state) {
    case JobState::kForming:
      return "forming";
    case JobState::kRunning:
      return "running";
    case JobState::kFinished:
      return "finished";
    case JobState::kStopped:
      return "stopped";
  }
  return "unknown";
}

}  // namespace paceline
