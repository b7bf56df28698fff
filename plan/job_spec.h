// What a job asks for. Travels in Join; the first joiner's holds, a different one is refused with
// the name of the first field that differs.
// Thread rule: values; no shared state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"

namespace paceline {

// A named algorithm with numeric parameters. An empty name means "not set yet".
struct NamedSpec {
  std::string name;
  std::map<std::string, double> parameters;

  auto operator<=>(const NamedSpec&) const = default;
  // The parameter, or `otherwise` when it is not given.
  double Get(std::string_view parameter, double otherwise) const;
};

enum class Normalization : uint8_t {
  kMean = 1,  // sum of gradients / sum of samples
  kSum = 2,   // sum of gradients x (planned members / members in the sum): MXNet's convention
};

enum class Aggregation : uint8_t {
  kServer = 1,     // the server's accumulator sums
  kPeer = 2,       // reduce-scatter inside the group, then n bytes through the servers
  kAllreduce = 3,  // workers own the shards; nothing passes a server
};

// What happens to a job when a server that owns part of it dies.
enum class ServerLoss : uint8_t {
  kRestore = 1,  // all shards return to the newest checkpoint; without one the job ends
  kStop = 2,     // the job ends
};

// What becomes of a contribution that comes after its round was closed without it.
enum class Late : uint8_t {
  kCarry = 1,  // goes into the round that is open then
  kDrop = 2,   // is discarded and counted
};

// What becomes of a gradient that holds NaN or infinity.
enum class NotFinite : uint8_t {
  kRefuse = 1,  // is left out, named and counted; three in a row end the worker
  kAllow = 2,   // is summed like any other: for those who look at it themselves
};

// How the workers of a job are split into groups.
struct GroupSpec {
  enum class Kind : uint8_t { kOne, kPerWorker, kCount, kSizes, kLabel };
  Kind kind = Kind::kOne;
  uint32_t count = 1;           // kCount: as equal as can be, larger groups first
  std::vector<uint32_t> sizes;  // kSizes: in order of worker index, then rank
  std::string label;            // kLabel: one group per value of this label, in order of the value

  auto operator<=>(const GroupSpec&) const = default;
};

// Text forms: "one", "per-worker", "4", "3,1", "label:rack". InvalidArgument names the text.
absl::StatusOr<GroupSpec> ParseGroupSpec(std::string_view text);
std::string ToString(const GroupSpec& spec);

struct JobSpec {
  std::string name;          // [a-zA-Z0-9._-]{1,128}
  uint32_t workers = 1;      // expected at the start; the job forms when so many have joined
  uint32_t min_workers = 1;  // below it the job waits
  GroupSpec groups;
  NamedSpec optimizer;                      // "sgd", "adam"; may be set later by SetOptimizer
  NamedSpec policy{"none", {}};             // staleness policy
  std::map<std::string, NamedSpec> codecs;  // tensor name pattern -> codec
  Normalization normalization = Normalization::kMean;
  Aggregation aggregation = Aggregation::kServer;
  bool deterministic = false;       // sum in rank order; samples by (step, rank) with one group
  uint64_t chunk_bytes = 1u << 20;  // cut of dense tensors; multiple of 64, 4 KiB .. 256 MiB
  uint64_t sample_count = 0;        // size of the training set; 0 = the job draws none
  uint64_t epochs = 0;              // passes over the training set; 0 = no end
  uint64_t batch_size = 0;  // samples of one worker in one step; used by deterministic draws
  uint64_t seed = 0;        // of the sample permutation
  uint32_t failure_timeout_ms = 5000;
  uint32_t quorum = 0;       // members that close a round; 0 = all
  Late late = Late::kCarry;  // under a quorum
  NotFinite nan = NotFinite::kRefuse;
  uint32_t max_step_lag = 0;  // gate, in exchanges; 0 with gate=false = off
  bool gate = false;
  uint64_t max_staleness = 0;  // 0 = the default bound
  uint32_t local_steps = 1;    // H
  // A checkpoint is taken when the fastest group has made so many steps, or so much time has gone
  // by, since the last one; at most one of the two is set. 0 = only when asked for.
  uint64_t checkpoint_every_steps = 0;
  uint32_t checkpoint_every_s = 0;
  std::string checkpoint_dir;    // absolute, at the servers; shared by them for a restore
  uint32_t checkpoint_keep = 3;  // newest ones kept
  ServerLoss on_server_loss = ServerLoss::kRestore;

  bool operator==(const JobSpec&) const = default;
};

// Whether the lead owner decides about each push, or each owner by itself: then a round is whole
// with all its members, and there is nothing to decide.
inline bool UsesVerdicts(const JobSpec& spec) { return spec.quorum != 0; }

// InvalidArgument names the field, the value and the range.
absl::Status Validate(const JobSpec& spec);

// Nothing is silently ignored: what this version does not do is refused by name. Unimplemented.
absl::Status CheckSupported(const JobSpec& spec);

// The name of the first field that differs, with both values ("chunk_bytes: 1048576 != 65536"),
// or empty. An optimizer that is not set in `joiner` does not differ.
std::string FirstDifference(const JobSpec& holding, const JobSpec& joiner);

std::string_view Name(Normalization n);
std::string_view Name(Aggregation a);
std::string_view Name(ServerLoss loss);
std::string_view Name(Late late);
std::string_view Name(NotFinite nan);

}  // namespace paceline
