#include "worker_client/native/standalone_run.h"

#include <cinttypes>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "trainer/standalone.h"

namespace paceline {

namespace {

// The reference is one synchronous group that averages; anything else is refused by name.
absl::Status CheckReference(const JobSpec& job, uint32_t workers) {
  PACELINE_RETURN_IF_ERROR(CheckSupported(job));
  const auto refuse = [](std::string_view field, const std::string& value,
                         const std::string& instead) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(field), ": ", value, " is not available with --standalone; ", instead));
  };
  if (job.normalization != Normalization::kMean) {
    return refuse("normalization", std::string(Name(job.normalization)), "use mean");
  }
  if (job.groups.kind != GroupSpec::Kind::kOne) {
    return refuse("groups", ToString(job.groups), "use one");
  }
  if (job.workers != 1 && job.workers != workers) {
    return refuse("workers", absl::StrCat(job.workers), "leave it out, --standalone says how many");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunStandalone(Model& model, const DatasetSplit& data, const ProgramOptions& options,
                           const JobSpec& job, const Clock& clock) {
  PACELINE_RETURN_IF_ERROR(CheckReference(job, options.standalone));
  StandaloneOptions reference;
  reference.workers = options.standalone;
  reference.batch_size = static_cast<uint32_t>(job.batch_size);
  reference.epochs = job.epochs != 0 ? job.epochs : std::numeric_limits<uint64_t>::max();
  reference.max_steps = options.max_steps;
  reference.seed = job.seed;
  reference.optimizer = job.optimizer;
  reference.learning_rate = options.schedule;

  BatchResult epoch;
  Ticks start = clock.Now();
  const auto after_step = [&](const StandaloneStep& now) {
    epoch.loss_sum += now.batch.loss_sum;
    epoch.correct += now.batch.correct;
    epoch.samples += now.batch.samples;
    const bool evaluate =
        options.eval_every != 0 && (now.step.value() + 1) % options.eval_every == 0;
    if (!now.epoch_ends && !evaluate) return;
    const double seconds = static_cast<double>((clock.Now() - start).value()) * 1e-9;
    std::printf("epoch %" PRIu64 " step %" PRIu64
                " loss %.4f train %.4f validation %.4f (%.1f s)\n",
                now.epoch.value() + 1, now.step.value() + 1, epoch.loss(), epoch.accuracy(),
                model.Evaluate(*now.parameters, data.validation).accuracy(), seconds);
    std::fflush(stdout);
    if (!now.epoch_ends) return;
    epoch = {};
    start = clock.Now();
  };
  PACELINE_ASSIGN_OR_RETURN(const Parameters parameters,
                            TrainStandalone(model, data.train, reference, after_step));
  const BatchResult test = model.Evaluate(parameters, data.test);
  std::printf("test accuracy %.4f loss %.4f\n", test.accuracy(), test.loss());
  if (options.save.empty()) return absl::OkStatus();
  return SaveParameters(options.save, model, parameters,
                        {{"model", options.model}, {"format", "paceline"}});
}

}  // namespace paceline
