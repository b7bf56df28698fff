#include "parameter/host/key_table.h"

#include <algorithm>

#include "common/base/status.h"

namespace paceline {

void PeerKeyTable::Learn(JobId job, const std::vector<GroupPlan>& groups) {
  MutexLock lock(&mutex_);
  if (ended_.contains(job)) return;
  std::map<NodeId, Entry>& nodes = jobs_[job];
  for (const GroupPlan& group : groups) {
    for (const Member& member : group.members) {
      Take(nodes[member.node], member.incarnation, member.key, PeerRole::kWorker);
    }
  }
}

void PeerKeyTable::Learn(JobId job, const std::vector<ServerInfo>& servers) {
  MutexLock lock(&mutex_);
  if (ended_.contains(job)) return;
  for (const ServerInfo& server : servers) {
    Take(jobs_[job][server.node], server.incarnation, server.key, PeerRole::kServer);
  }
}

void PeerKeyTable::Take(Entry& entry, Incarnation incarnation, const SecretKey& key,
                        PeerRole role) {
  const bool told = key != SecretKey{};
  if (incarnation < entry.incarnation || !told) return;
  entry.incarnation = incarnation;
  entry.key = key;
  entry.role = role;
}

void PeerKeyTable::Fence(JobId job, const NodeRef& dead) {
  MutexLock lock(&mutex_);
  if (ended_.contains(job)) return;
  Entry& entry = jobs_[job][dead.node];
  entry.fenced = std::max(entry.fenced, dead.incarnation);
}

void PeerKeyTable::EndJob(JobId job) {
  MutexLock lock(&mutex_);
  jobs_.erase(job);
  ended_.insert(job);
  if (ended_.size() > kMaxEndedJobs) ended_.erase(ended_.begin());
}

absl::StatusOr<ChannelKey> PeerKeyTable::Find(const PeerIdentity& peer) const {
  MutexLock lock(&mutex_);
  const std::string who = absl::StrCat("node ", peer.node.value(), " (job ", peer.job.value(),
                                       ", incarnation ", peer.incarnation.value(), ")");
  if (ended_.contains(peer.job)) {
    return absl::PermissionDeniedError(absl::StrCat(who, ": the job has ended"));
  }
  const auto job = jobs_.find(peer.job);
  if (job == jobs_.end()) {
    return absl::UnavailableError(absl::StrCat(who, ": no plan of this job is known yet"));
  }
  const auto node = job->second.find(peer.node);
  if (node == job->second.end()) {
    return absl::UnavailableError(absl::StrCat(who, ": not a member of any known plan yet"));
  }
  const Entry& entry = node->second;
  if (peer.incarnation <= entry.fenced) {
    return absl::PermissionDeniedError(absl::StrCat(who, ": this incarnation was declared dead"));
  }
  if (peer.incarnation < entry.incarnation) {
    return absl::PermissionDeniedError(
        absl::StrCat(who, ": incarnation ", entry.incarnation.value(), " has taken its place"));
  }
  if (peer.incarnation > entry.incarnation) {
    return absl::UnavailableError(absl::StrCat(who, ": no plan names this incarnation yet"));
  }
  if (peer.role != entry.role) {
    return absl::PermissionDeniedError(absl::StrCat(who, ": its key is not one of that role"));
  }
  return entry.key;
}

}  // namespace paceline
