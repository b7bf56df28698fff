#include "plan/job_spec.h"

#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace paceline {
namespace {

constexpr uint32_t kMaxWorkers = 16384;
constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxParameters = 64;
constexpr size_t kMaxCodecs = 256;
constexpr uint64_t kMinChunkBytes = 4u << 10;
constexpr uint64_t kMaxChunkBytes = 256u << 20;
constexpr uint64_t kMaxSamples = 0xFFFFFFFFu;  // positions of a permutation are 32 bits
constexpr uint64_t kMaxEpochs = 1'000'000'000;
constexpr uint32_t kMinFailureTimeoutMs = 100;
constexpr uint32_t kMaxFailureTimeoutMs = 3'600'000;
constexpr uint32_t kMaxLocalSteps = 1024;
constexpr size_t kMaxDirectoryBytes = 3072;    // room for the names below it
constexpr uint32_t kMaxVerdictMembers = 4096;  // a verdict names each, in one piece on the wire

absl::Status OutOfRange(std::string_view field, const std::string& value,
                        const std::string& range) {
  return absl::InvalidArgumentError(absl::StrCat(Absl(field), ": ", value, "; use ", range));
}

absl::Status CheckRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return OutOfRange(field, absl::StrCat(value), absl::StrCat(low, "..", high));
}

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

absl::Status CheckName(std::string_view field, std::string_view name) {
  bool good = !name.empty() && name.size() <= kMaxNameBytes;
  for (char c : name) good = good && IsNameCharacter(c);
  if (good) return absl::OkStatus();
  return OutOfRange(field, absl::StrCat("\"", Absl(name.substr(0, 2 * kMaxNameBytes)), "\""),
                    absl::StrCat("[a-zA-Z0-9._-]{1,", kMaxNameBytes, "}"));
}

absl::Status CheckNamed(std::string_view field, const NamedSpec& spec) {
  PACELINE_RETURN_IF_ERROR(CheckName(field, spec.name));
  PACELINE_RETURN_IF_ERROR(CheckRange(absl::StrCat(Absl(field), ".parameters"),
                                      spec.parameters.size(), 0, kMaxParameters));
  for (const auto& [name, value] : spec.parameters) {
    const std::string where = absl::StrCat(Absl(field), ".", name);
    PACELINE_RETURN_IF_ERROR(CheckName(where, name));
    if (!std::isfinite(value)) return OutOfRange(where, absl::StrCat(value), "a finite number");
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const JobSpec& spec) {
  const GroupSpec& groups = spec.groups;
  switch (groups.kind) {
    case GroupSpec::Kind::kOne:
    case GroupSpec::Kind::kPerWorker:
      return absl::OkStatus();
    case GroupSpec::Kind::kCount:
      return CheckRange("groups", groups.count, 1, spec.workers);
    case GroupSpec::Kind::kLabel:
      return CheckName("groups.label", groups.label);
    case GroupSpec::Kind::kSizes:
      break;
  }
  uint64_t sum = 0;
  bool good = !groups.sizes.empty();
  for (uint32_t size : groups.sizes) {
    good = good && size > 0;
    sum += size;
  }
  if (good && sum == spec.workers) return absl::OkStatus();
  return OutOfRange("groups", ToString(groups),
                    absl::StrCat("sizes from 1 that add up to workers (", spec.workers, ")"));
}

absl::Status CheckCodecs(const JobSpec& spec) {
  PACELINE_RETURN_IF_ERROR(CheckRange("codecs", spec.codecs.size(), 0, kMaxCodecs));
  for (const auto& [pattern, codec] : spec.codecs) {
    if (pattern.empty() || pattern.size() > 512) {
      return OutOfRange("codecs", absl::StrCat("pattern of ", pattern.size(), " bytes"), "1..512");
    }
    PACELINE_RETURN_IF_ERROR(CheckNamed(absl::StrCat("codecs.", pattern), codec));
  }
  return absl::OkStatus();
}

absl::Status CheckSamples(const JobSpec& spec) {
  PACELINE_RETURN_IF_ERROR(CheckRange("sample_count", spec.sample_count, 0, kMaxSamples));
  PACELINE_RETURN_IF_ERROR(CheckRange("epochs", spec.epochs, 0, kMaxEpochs));
  // A deterministic job assigns samples by (step, rank), for which the batch must be known.
  const bool needs_batch = spec.deterministic && spec.sample_count > 0;
  return CheckRange("batch_size", spec.batch_size, needs_batch ? 1 : 0, kMaxSamples);
}

absl::Status CheckCheckpoints(const JobSpec& spec) {
  if (spec.checkpoint_every_steps != 0 && spec.checkpoint_every_s != 0) {
    return OutOfRange(
        "checkpoint_every",
        absl::StrCat(spec.checkpoint_every_steps, " steps and ", spec.checkpoint_every_s, " s"),
        "steps or seconds, not both");
  }
  const std::string& dir = spec.checkpoint_dir;
  if (!dir.empty() && (dir.front() != '/' || dir.size() > kMaxDirectoryBytes)) {
    return OutOfRange("checkpoint_dir", absl::StrCat("\"", dir.substr(0, 256), "\""),
                      "an absolute path of at most 3072 bytes");
  }
  PACELINE_RETURN_IF_ERROR(CheckRange("checkpoint_keep", spec.checkpoint_keep, 1, 1000));
  PACELINE_RETURN_IF_ERROR(CheckRange("nan", static_cast<uint64_t>(spec.nan), 1, 2));
  return CheckRange("on_server_loss", static_cast<uint64_t>(spec.on_server_loss), 1, 2);
}

std::string Text(const NamedSpec& spec) {
  std::string text = spec.name.empty() ? "(not set)" : spec.name;
  for (const auto& [name, value] : spec.parameters) absl::StrAppend(&text, " ", name, "=", value);
  return text;
}

std::string Text(const std::map<std::string, NamedSpec>& codecs) {
  std::string text = "{";
  for (const auto& [pattern, codec] : codecs) {
    absl::StrAppend(&text, text.size() > 1 ? ", " : "", pattern, ": ", Text(codec));
  }
  return text + "}";
}

std::string Text(Normalization n) { return std::string(Name(n)); }
std::string Text(Aggregation a) { return std::string(Name(a)); }
std::string Text(ServerLoss loss) { return std::string(Name(loss)); }
std::string Text(Late late) { return std::string(Name(late)); }
std::string Text(NotFinite nan) { return std::string(Name(nan)); }
std::string Text(const GroupSpec& groups) { return ToString(groups); }
std::string Text(const std::string& text) { return text; }
std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(uint32_t value) { return absl::StrCat(value); }
std::string Text(uint64_t value) { return absl::StrCat(value); }

std::optional<std::vector<uint32_t>> ParseSizes(std::string_view text) {
  std::vector<uint32_t> sizes;
  for (absl::string_view part : absl::StrSplit(Absl(text), ',')) {
    uint32_t size = 0;
    if (!absl::SimpleAtoi(part, &size) || size == 0 || size > kMaxWorkers) return std::nullopt;
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace

double NamedSpec::Get(std::string_view parameter, double otherwise) const {
  auto it = parameters.find(std::string(parameter));
  return it == parameters.end() ? otherwise : it->second;
}

absl::StatusOr<GroupSpec> ParseGroupSpec(std::string_view text) {
  GroupSpec spec;
  if (text == "one") return spec;
  if (text == "per-worker") {
    spec.kind = GroupSpec::Kind::kPerWorker;
    return spec;
  }
  constexpr std::string_view kLabelPrefix = "label:";
  if (text.substr(0, kLabelPrefix.size()) == kLabelPrefix) {
    spec.kind = GroupSpec::Kind::kLabel;
    spec.label = std::string(text.substr(kLabelPrefix.size()));
    if (CheckName("groups", spec.label).ok()) return spec;
  } else if (std::optional<std::vector<uint32_t>> sizes = ParseSizes(text)) {
    spec.kind = sizes->size() == 1 ? GroupSpec::Kind::kCount : GroupSpec::Kind::kSizes;
    if (sizes->size() == 1) {
      spec.count = sizes->front();
    } else {
      spec.sizes = *std::move(sizes);
    }
    return spec;
  }
  return OutOfRange("groups", absl::StrCat("\"", Absl(text.substr(0, 256)), "\""),
                    "\"one\", \"per-worker\", a number of groups (\"4\"), sizes (\"3,1\") or "
                    "\"label:NAME\"");
}

std::string ToString(const GroupSpec& spec) {
  switch (spec.kind) {
    case GroupSpec::Kind::kOne:
      return "one";
    case GroupSpec::Kind::kPerWorker:
      return "per-worker";
    case GroupSpec::Kind::kCount:
      return absl::StrCat(spec.count);
    case GroupSpec::Kind::kSizes:
      return absl::StrJoin(spec.sizes, ",");
    case GroupSpec::Kind::kLabel:
      return absl::StrCat("label:", spec.label);
  }
  return "unknown";
}

absl::Status Validate(const JobSpec& spec) {
  PACELINE_RETURN_IF_ERROR(CheckName("name", spec.name));
  PACELINE_RETURN_IF_ERROR(CheckRange("workers", spec.workers, 1, kMaxWorkers));
  PACELINE_RETURN_IF_ERROR(CheckRange("min_workers", spec.min_workers, 1, spec.workers));
  PACELINE_RETURN_IF_ERROR(CheckGroups(spec));
  if (!spec.optimizer.name.empty()) {
    PACELINE_RETURN_IF_ERROR(CheckNamed("optimizer", spec.optimizer));
  }
  PACELINE_RETURN_IF_ERROR(CheckNamed("policy", spec.policy));
  PACELINE_RETURN_IF_ERROR(CheckCodecs(spec));
  PACELINE_RETURN_IF_ERROR(
      CheckRange("normalization", static_cast<uint64_t>(spec.normalization), 1, 2));
  PACELINE_RETURN_IF_ERROR(
      CheckRange("aggregation", static_cast<uint64_t>(spec.aggregation), 1, 3));
  PACELINE_RETURN_IF_ERROR(
      CheckRange("chunk_bytes", spec.chunk_bytes, kMinChunkBytes, kMaxChunkBytes));
  if (spec.chunk_bytes % 64 != 0) {
    return OutOfRange("chunk_bytes", absl::StrCat(spec.chunk_bytes), "a multiple of 64");
  }
  PACELINE_RETURN_IF_ERROR(CheckSamples(spec));
  PACELINE_RETURN_IF_ERROR(CheckRange("failure_timeout_ms", spec.failure_timeout_ms,
                                      kMinFailureTimeoutMs, kMaxFailureTimeoutMs));
  PACELINE_RETURN_IF_ERROR(CheckRange("quorum", spec.quorum, 0, spec.workers));
  if (spec.quorum != 0 && spec.workers > kMaxVerdictMembers) {
    return OutOfRange(
        "quorum", absl::StrCat(spec.quorum),
        absl::StrCat("0 (all members) with more than ", kMaxVerdictMembers, " workers"));
  }
  if (spec.quorum != 0 && spec.deterministic) {
    // Who is first differs from run to run.
    return OutOfRange("quorum", absl::StrCat(spec.quorum), "0 (all members) with deterministic");
  }
  PACELINE_RETURN_IF_ERROR(CheckRange("late", static_cast<uint64_t>(spec.late), 1, 2));
  PACELINE_RETURN_IF_ERROR(CheckRange("local_steps", spec.local_steps, 1, kMaxLocalSteps));
  return CheckCheckpoints(spec);
}

absl::Status CheckSupported(const JobSpec& spec) {
  if (spec.aggregation != Aggregation::kServer) {
    return absl::UnimplementedError(absl::StrCat("aggregation: ", Absl(Name(spec.aggregation)),
                                                 " is not available; use server"));
  }
  if (spec.local_steps != 1) {
    return absl::UnimplementedError(
        absl::StrCat("local_steps: ", spec.local_steps, " is not available; use 1"));
  }
  if (spec.policy.name != "none") {
    return absl::UnimplementedError(
        absl::StrCat("policy: ", spec.policy.name, " is not available; use none"));
  }
  for (const auto& [field, given] :
       {std::pair("gate", spec.gate), std::pair("max_step_lag", spec.max_step_lag != 0),
        std::pair("max_staleness", spec.max_staleness != 0)}) {
    if (given) {
      return absl::UnimplementedError(absl::StrCat(field, " is not available; leave it out"));
    }
  }
  if (!spec.codecs.empty()) {
    return absl::UnimplementedError(absl::StrCat("codecs: ", spec.codecs.begin()->second.name,
                                                 " is not available; leave codecs out"));
  }
  return absl::OkStatus();
}

std::string FirstDifference(const JobSpec& holding, const JobSpec& joiner) {
  std::string difference;
  const auto compare = [&](std::string_view field, const auto& holds, const auto& joins) {
    if (!difference.empty() || holds == joins) return;
    difference = absl::StrCat(Absl(field), ": ", Text(holds), " != ", Text(joins));
  };
  compare("name", holding.name, joiner.name);
  compare("workers", holding.workers, joiner.workers);
  compare("min_workers", holding.min_workers, joiner.min_workers);
  compare("groups", holding.groups, joiner.groups);
  if (!joiner.optimizer.name.empty()) compare("optimizer", holding.optimizer, joiner.optimizer);
  compare("policy", holding.policy, joiner.policy);
  compare("codecs", holding.codecs, joiner.codecs);
  compare("normalization", holding.normalization, joiner.normalization);
  compare("aggregation", holding.aggregation, joiner.aggregation);
  compare("deterministic", holding.deterministic, joiner.deterministic);
  compare("chunk_bytes", holding.chunk_bytes, joiner.chunk_bytes);
  compare("sample_count", holding.sample_count, joiner.sample_count);
  compare("epochs", holding.epochs, joiner.epochs);
  compare("batch_size", holding.batch_size, joiner.batch_size);
  compare("seed", holding.seed, joiner.seed);
  compare("failure_timeout_ms", holding.failure_timeout_ms, joiner.failure_timeout_ms);
  compare("quorum", holding.quorum, joiner.quorum);
  compare("late", holding.late, joiner.late);
  compare("nan", holding.nan, joiner.nan);
  compare("max_step_lag", holding.max_step_lag, joiner.max_step_lag);
  compare("gate", holding.gate, joiner.gate);
  compare("max_staleness", holding.max_staleness, joiner.max_staleness);
  compare("local_steps", holding.local_steps, joiner.local_steps);
  compare("checkpoint_every (steps)", holding.checkpoint_every_steps,
          joiner.checkpoint_every_steps);
  compare("checkpoint_every (seconds)", holding.checkpoint_every_s, joiner.checkpoint_every_s);
  compare("checkpoint_dir", holding.checkpoint_dir, joiner.checkpoint_dir);
  compare("checkpoint_keep", holding.checkpoint_keep, joiner.checkpoint_keep);
  compare("on_server_loss", holding.on_server_loss, joiner.on_server_loss);
  return difference;
}

}  // namespace paceline
