// What a checkpoint is: the part each owner writes, and the manifest that makes the parts one.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "plan/job_spec.h"
#include "plan/permutation.h"
#include "plan/tensor_spec.h"

namespace paceline {

// A file that one owner wrote.
struct CheckpointPart {
  std::string file;  // name within the checkpoint's directory
  Bytes bytes;
  uint64_t checksum = 0;  // XXH3, 64 bits, of the whole file

  bool operator==(const CheckpointPart&) const = default;
};

// Samples of one worker that the lead owner had counted by the cut, in the lineage of the cut.
struct WorkerSamples {
  NodeId worker;
  Samples applied;
  Samples discarded;

  bool operator==(const WorkerSamples&) const = default;
};

// Where a pass over the data stands: what was drawn and did not reach an update by the cut, and
// from where on nothing was handed out.
struct SamplePosition {
  std::vector<SampleRange> left;  // sorted, disjoint
  Epoch epoch;
  uint64_t position = 0;

  bool operator==(const SamplePosition&) const = default;
};

// All there is to know about a checkpoint besides the arrays. Written last: a directory without one
// holds no checkpoint.
struct CheckpointManifest {
  std::string run;      // of the job's run; the same name may run again
  uint64_t number = 0;  // within the run, from 1
  JobSpec spec;         // as it held
  uint32_t lineage = 0;
  uint64_t updates = 0;           // of the lead chunk
  Samples applied;                // in them
  std::map<GroupId, Step> steps;  // last step of each group that is in it
  SamplePosition samples;
  std::vector<TensorSpec> tensors;  // by id
  std::vector<CheckpointPart> parts;
  int64_t unix_time_ms = 0;  // wall clock of the server that wrote it; for people only

  bool operator==(const CheckpointManifest&) const = default;
};

// The highest step of any group: where a job that resumes goes on.
Step LastStep(const std::map<GroupId, Step>& steps);

// A checkpoint of a job as the scheduler remembers it.
struct CheckpointRecord {
  uint64_t number = 0;
  std::string path;
  uint64_t updates = 0;
  uint32_t tensors = 0;  // registered by then
  Samples applied;       // in all
  std::map<GroupId, Step> steps;
  std::vector<WorkerSamples> workers;  // in all lineages

  bool operator==(const CheckpointRecord&) const = default;
};

// What returns to an older state have cost a job so far.
struct RollbackTotals {
  uint64_t count = 0;
  uint64_t steps = 0;    // of the group that lost most, summed over the returns
  uint64_t updates = 0;  // of the lead chunk, as far as they were reported
  Samples samples;
  uint64_t milliseconds = 0;  // from the checkpoint to the loss, and until all shards were back

  bool operator==(const RollbackTotals&) const = default;
};

}  // namespace paceline
