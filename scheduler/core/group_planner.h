// Which workers are synchronous with one another. Pure functions of what the job asks for and who
// is there; each grouping says why. Thread rule: values; no shared state.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "plan/job_spec.h"

namespace paceline::scheduler {

struct Candidate {
  NodeId node;
  JobRank rank;
  std::optional<WorkerIndex> index;
  std::map<std::string, std::string> labels;
};

struct PlannedGroup {
  std::vector<NodeId> members;  // in rank order
  std::string reason;
};

// The groups a job starts with. Sizes and counts cut the workers in order of worker index (those
// without one last), then rank.
std::vector<PlannedGroup> PlanInitialGroups(const GroupSpec& spec,
                                            std::vector<Candidate> candidates);

struct GroupInPlace {
  GroupId id;
  std::vector<Candidate> members;
};
struct JoinerPlace {
  std::optional<GroupId> group;  // none: a group of its own
  std::string reason;
};

// Where a worker goes that joins a running job.
JoinerPlace PlaceJoiner(const GroupSpec& spec, const std::vector<GroupInPlace>& groups,
                        const Candidate& joiner);

}  // namespace paceline::scheduler
