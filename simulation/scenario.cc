#include "simulation/scenario.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace paceline::simulation {
namespace {

GroupSpec DrawGroups(Random& random) {
  const char* const kinds[] = {"one", "one", "per-worker", "2", "2", "3"};
  auto groups = ParseGroupSpec(kinds[random.Below(6)]);
  PACELINE_CHECK(groups.ok());
  return *std::move(groups);
}

std::vector<TensorSpec> DrawTensors(Random& random, bool large) {
  std::vector<TensorSpec> tensors;
  const uint64_t count = large ? 1 : random.Between(1, 3);
  for (uint64_t i = 0; i < count; ++i) {
    TensorSpec tensor;
    tensor.name = absl::StrCat("t", i);
    // A chunk is 1024 elements; large ones have three pieces of 256 KB on the wire.
    tensor.shape = {large ? 140'000 : random.Between(1, random.OneIn(3) ? 2500 : 60)};
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

Scenario DrawScenario(Random& random) {
  Scenario s;
  const bool large = random.OneIn(40);
  s.servers = static_cast<uint32_t>(random.Between(1, 3));
  s.job.name = "job";
  s.job.workers = static_cast<uint32_t>(random.Between(2, 6));
  s.job.groups = DrawGroups(random);
  if (s.job.groups.kind == GroupSpec::Kind::kCount && s.job.groups.count > s.job.workers) {
    s.job.groups.count = s.job.workers;
  }
  s.job.optimizer = {"sgd", {{"learning_rate", 0.0625}}};
  if (random.OneIn(2)) s.job.optimizer.parameters["momentum"] = 0.5;
  s.job.normalization = random.OneIn(2) ? Normalization::kMean : Normalization::kSum;
  s.job.deterministic = random.OneIn(4);
  s.job.chunk_bytes = large ? 1u << 20 : 4096;
  s.job.batch_size = random.Between(2, 9);
  s.job.epochs = random.Between(1, 2);
  const uint64_t steps = large ? random.Between(6, 12) : random.Between(15, 60);
  s.job.sample_count = s.job.batch_size * s.job.workers * steps + random.Below(7);
  s.job.seed = random.Next();
  s.job.failure_timeout_ms = static_cast<uint32_t>(1000 * random.Between(1, 3));
  s.tensors = DrawTensors(random, large);
  s.spare_workers = static_cast<uint32_t>(random.Below(3));
  s.faults = static_cast<uint32_t>(random.OneIn(8) ? 0 : random.Between(1, 10));
  const uint32_t noise = random.OneIn(4) ? 0 : 1;
  s.lost_calls = noise * static_cast<uint32_t>(random.Below(1500));
  s.resets = noise * static_cast<uint32_t>(random.Below(400));
  s.lost_replies = noise * static_cast<uint32_t>(random.Below(1500));
  s.repeated = noise * static_cast<uint32_t>(random.Below(3000));
  s.broken_watches = noise * static_cast<uint32_t>(random.Below(4000));
  s.not_finite = random.OneIn(3) ? static_cast<uint32_t>(random.Below(2000)) : 0;
  s.longest_step = Milliseconds(static_cast<int64_t>(random.Between(5, 80)));
  s.latency = Ticks(static_cast<int64_t>(random.Between(50'000, 4'000'000)));
  s.sync = Ticks(static_cast<int64_t>(random.Between(200'000, 20'000'000)));
  s.compact_after = random.OneIn(2) ? random.Between(5, 60) : 0;
  s.reduces = random.OneIn(4);
  if (!s.job.deterministic && random.OneIn(3)) {
    s.job.quorum = static_cast<uint32_t>(random.Between(1, s.job.workers));
    s.job.late = random.OneIn(3) ? Late::kDrop : Late::kCarry;
  }
  s.spare_servers = static_cast<uint32_t>(random.Below(3));
  s.lost_parts = noise * static_cast<uint32_t>(random.Below(20'000));
  s.move_bytes = random.OneIn(2) ? 1 : 16u << 20;
  if (!large && random.OneIn(2)) {
    s.job.checkpoint_every_steps = random.Between(3, 20);
    s.job.checkpoint_dir = "/checkpoints";
    s.job.checkpoint_keep = static_cast<uint32_t>(random.Between(1, 3));
    s.servers_die = random.OneIn(2);
  }
  return s;
}

std::string Describe(const Scenario& s) {
  return absl::StrCat(
      s.job.workers, "+", s.spare_workers, " workers, ", s.servers, "+", s.spare_servers,
      " servers, groups ", ToString(s.job.groups), ", ", s.tensors.size(), " tensors, ",
      s.job.sample_count, "x", s.job.epochs, " samples by ", s.job.batch_size, ", ",
      s.job.normalization == Normalization::kMean ? "mean" : "sum",
      s.job.deterministic ? ", deterministic" : "", s.reduces ? ", reduces" : "",
      s.job.quorum == 0 ? std::string()
                        : absl::StrCat(", quorum ", s.job.quorum, " ", Absl(Name(s.job.late))),
      s.job.checkpoint_every_steps == 0
          ? std::string()
          : absl::StrCat(", a checkpoint each ", s.job.checkpoint_every_steps, " steps"),
      s.servers_die ? ", servers die" : "", ", failure timeout ", s.job.failure_timeout_ms, " ms, ",
      s.faults, " faults");
}

}  // namespace paceline::simulation
