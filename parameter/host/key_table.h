// Keys of the workers and other owners that may open channels to this owner, from the plans of its
// jobs.
// Thread rule: every method may be called from any thread.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "common/runtime/mutex.h"
#include "plan/messages.h"
#include "transport/channel.h"

namespace paceline {

class PeerKeyTable {
 public:
  void Learn(JobId job, const std::vector<GroupPlan>& groups) EXCLUDES(mutex_);
  void Learn(JobId job, const std::vector<ServerInfo>& servers) EXCLUDES(mutex_);
  void Fence(JobId job, const NodeRef& dead) EXCLUDES(mutex_);
  void EndJob(JobId job) EXCLUDES(mutex_);

  // As KeyStore::Find.
  absl::StatusOr<ChannelKey> Find(const PeerIdentity& peer) const EXCLUDES(mutex_);

 private:
  struct Entry {
    Incarnation incarnation;
    ChannelKey key{};
    PeerRole role = PeerRole::kWorker;
    Incarnation fenced;  // this one and all before are dead
  };
  static void Take(Entry& entry, Incarnation incarnation, const SecretKey& key, PeerRole role);

  static constexpr size_t kMaxEndedJobs = 1024;

  mutable Mutex mutex_;
  std::map<JobId, std::map<NodeId, Entry>> jobs_ GUARDED_BY(mutex_);
  std::set<JobId> ended_ GUARDED_BY(mutex_);
};

}  // namespace paceline
