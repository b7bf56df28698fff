#include "common/config/job_keys.h"

#include <limits>
#include <utility>

#include "common/base/status.h"
#include "common/config/text_value.h"

namespace paceline {
namespace {

constexpr uint64_t kMaxSamples = 0xffffffffu;
constexpr uint64_t kNoEnd = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMaxCheckpointSeconds = 366u * 24 * 3600;

void GroupsKey(KeyTable& table, GroupSpec* groups) {
  Key key;
  key.path = "job.groups";
  key.doc = "workers that are synchronous with one another";
  key.allowed = "one, per-worker, a number of groups, sizes (3,1), label:NAME";
  key.shape = KeyShape::kList;
  key.set = [=](std::string_view text) -> absl::Status {
    absl::StatusOr<GroupSpec> parsed = ParseGroupSpec(text);
    if (!parsed.ok()) return absl::InvalidArgumentError("is not a way to group workers");
    *groups = *std::move(parsed);
    return absl::OkStatus();
  };
  key.get = [=] { return ToString(*groups); };
  table.Add(std::move(key));
}

// A row for an enumeration whose words Name() knows.
template <typename Enum>
void EnumKey(KeyTable& table, std::string path, std::string doc, std::vector<Enum> values,
             Enum* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  for (const Enum value : values) {
    absl::StrAppend(&key.allowed, key.allowed.empty() ? "" : ", ", Absl(Name(value)));
  }
  key.set = [=](std::string_view text) -> absl::Status {
    for (const Enum value : values) {
      if (Name(value) != text) continue;
      *field = value;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("is not known");
  };
  key.get = [=] { return std::string(Name(*field)); };
  table.Add(std::move(key));
}

// An error of a job's field also says where its value comes from.
absl::Status AtItsKey(const KeyTable& table, const absl::Status& status) {
  if (status.ok()) return status;
  const std::string message(status.message());
  const std::string path =
      "job." + message.substr(0, message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"));
  return absl::InvalidArgumentError(
      absl::StrCat("job: ", message, " (", table.OriginOf(path), ")"));
}

// "500" steps, or "30s", "10m", "2h".
void CheckpointEveryKey(KeyTable& table, JobSpec* spec) {
  Key key;
  key.path = "job.checkpoint_every";
  key.doc = "steps, or time, from one checkpoint to the next; 0 = only when asked for";
  key.allowed = "a number of steps (500), or a time (30s, 10m, 2h)";
  key.set = [=](std::string_view text) -> absl::Status {
    uint64_t unit = 0;
    if (text.ends_with('s')) unit = 1;
    if (text.ends_with('m')) unit = 60;
    if (text.ends_with('h')) unit = 3600;
    PACELINE_ASSIGN_OR_RETURN(const uint64_t value,
                              ParseWhole(unit == 0 ? text : text.substr(0, text.size() - 1)));
    if (unit != 0 && (value == 0 || value > kMaxCheckpointSeconds / unit)) {
      return absl::InvalidArgumentError("is out of range");
    }
    spec->checkpoint_every_steps = unit == 0 ? value : 0;
    spec->checkpoint_every_s = static_cast<uint32_t>(value * unit);
    return absl::OkStatus();
  };
  key.get = [=] {
    return spec->checkpoint_every_s != 0 ? absl::StrCat(spec->checkpoint_every_s, "s")
                                         : absl::StrCat(spec->checkpoint_every_steps);
  };
  table.Add(std::move(key));
}

}  // namespace

void AddJobKeys(KeyTable& table, JobSpec& spec) {
  table.Name("job.name", "unique among the jobs of the cluster", &spec.name);
  table.Spelled("--job", "PACELINE_JOB");
  table.Number("job.workers", "workers at the start; the job forms when so many have joined", 1,
               16'384, &spec.workers);
  table.Number("job.min_workers", "below it the job waits", 1, 16'384, &spec.min_workers);
  GroupsKey(table, &spec.groups);
  table.Named("job.optimizer", "applied by the owners of the model; a program may set it",
              &spec.optimizer);
  table.Named("job.policy", "what is done about stale updates", &spec.policy);
  table.NamedMap("job.codecs", "compression of gradients by tensor name pattern", &spec.codecs);
  EnumKey(table, "job.normalization", "mean over samples, or MXNet's sum over workers",
          std::vector{Normalization::kMean, Normalization::kSum}, &spec.normalization);
  EnumKey(table, "job.aggregation", "who sums the gradients of a group",
          std::vector{Aggregation::kServer, Aggregation::kPeer, Aggregation::kAllreduce},
          &spec.aggregation);
  table.Switch("job.deterministic", "sum in rank order, samples by (step, rank)",
               &spec.deterministic);
  table.ByteCount("job.chunk_bytes", "cut of dense tensors, a multiple of 64", 4096, 256u << 20,
                  &spec.chunk_bytes);
  table.Number("job.sample_count", "size of the training set; 0 = the job draws none", uint64_t{0},
               kMaxSamples, &spec.sample_count);
  table.Number("job.epochs", "passes over the training set; 0 = no end", uint64_t{0},
               uint64_t{1'000'000'000}, &spec.epochs);
  table.Number("job.batch_size", "samples of one worker in one step", uint64_t{0}, kMaxSamples,
               &spec.batch_size);
  table.Number("job.seed", "of the order of the samples", uint64_t{0}, kNoEnd, &spec.seed);
  table.Number("job.failure_timeout_ms", "silence after which a worker is declared dead", 100,
               3'600'000, &spec.failure_timeout_ms);
  table.Number("job.quorum", "members that close a round; 0 = all", 0, 16'384, &spec.quorum);
  EnumKey(table, "job.late", "under a quorum: gradients that come after their round was closed",
          std::vector{Late::kCarry, Late::kDrop}, &spec.late);
  EnumKey(table, "job.nan", "a gradient that holds NaN or infinity: leave it out, or sum it",
          std::vector{NotFinite::kRefuse, NotFinite::kAllow}, &spec.nan);
  table.Switch("job.gate", "hold groups that run ahead of the slowest by max_step_lag", &spec.gate);
  table.Number("job.max_step_lag", "of the gate, in exchanges", 0, 1'000'000, &spec.max_step_lag);
  table.Number("job.max_staleness", "drop updates that are staler; 0 = the default bound",
               uint64_t{0}, kNoEnd, &spec.max_staleness);
  table.Number("job.local_steps", "steps between two exchanges", 1, 1024, &spec.local_steps);
  CheckpointEveryKey(table, &spec);
  table.Text("job.checkpoint_dir", "where the servers write; shared by them for a restore",
             &spec.checkpoint_dir);
  table.Number("job.checkpoint_keep", "newest checkpoints to keep", 1, 1000, &spec.checkpoint_keep);
  EnumKey(table, "job.on_server_loss", "return to the newest checkpoint, or end the job",
          std::vector{ServerLoss::kRestore, ServerLoss::kStop}, &spec.on_server_loss);
}

absl::Status CheckJob(const KeyTable& table, const JobSpec& spec) {
  return AtItsKey(table, Validate(spec));
}

absl::Status CheckLaunchedJob(const KeyTable& table, const JobSpec& spec) {
  PACELINE_RETURN_IF_ERROR(CheckJob(table, spec));
  return AtItsKey(table, CheckSupported(spec));
}

}  // namespace paceline
