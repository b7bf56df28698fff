// paceline-worker: trains a built-in model as one worker of a job, or alone as the reference.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/key_table.h"
#include "common/runtime/clock.h"
#include "worker_client/connect/connect.h"
#include "worker_client/native/options.h"
#include "worker_client/native/standalone_run.h"
#include "worker_client/native/training_loop.h"

namespace paceline {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

constexpr int kFailed = 1;
constexpr int kUsage = 2;

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "paceline-worker: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

// Whether anything says which scheduler: it has a default, which nobody means who says nothing.
bool NamesScheduler(int argc, const char* const* argv, const Environment& env) {
  if (env.Get("PACELINE_SCHEDULER") || env.Get("PACELINE_CONFIG")) return true;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (argument.starts_with("--scheduler") || argument.starts_with("--config")) return true;
  }
  return false;
}

// From here on a signal means to leave the job cleanly; before, there is nothing to leave.
void LeaveOnSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) {
    // A second signal ends the process at once: the first one's way may be blocked.
    if (stop_requested.exchange(true)) _exit(1);
  };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

// One membership of the job. `*again`: it ended because this worker was taken for dead.
absl::Status TrainAsMember(Model& model, const DatasetSplit& data, const ProgramOptions& options,
                           const WorkerConfig& config, bool* again) {
  PACELINE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            ConnectToJob(config, [] { return stop_requested.load(); }));
  LeaveOnSignals();
  std::printf("joined job %s, rank %u\n", config.job.name.c_str(), session->rank().value());
  std::fflush(stdout);
  const uint32_t index = config.index ? config.index->value() : session->rank().value();
  TrainingLoop loop(*session, model, data, options, index, Clock::Real(), stop_requested);
  const absl::StatusOr<TrainingResult> trained = loop.Run();
  *again = session->declared_dead() && !stop_requested.load();
  if (absl::IsCancelled(trained.status()) && (stop_requested || session->asked_to_leave())) {
    std::printf("%s\n", std::string(trained.status().message()).c_str());
    return absl::OkStatus();
  }
  PACELINE_ASSIGN_OR_RETURN(const TrainingResult result, trained);
  std::printf("%llu steps, %llu samples, test accuracy %.4f loss %.4f\n",
              static_cast<unsigned long long>(result.steps),
              static_cast<unsigned long long>(result.samples.value()), result.test.accuracy(),
              result.test.loss());
  return absl::OkStatus();
}

absl::Status TrainInJob(Model& model, const DatasetSplit& data, const ProgramOptions& options,
                        const WorkerConfig& config) {
  while (true) {
    bool again = false;
    const absl::Status status = TrainAsMember(model, data, options, config, &again);
    if (!again) return status;
    std::fprintf(stderr, "paceline-worker: %s; joining again\n",
                 std::string(status.message()).c_str());
  }
}

int Main(int argc, const char* const* argv) {
  Environment env = Environment::FromProcess();
  const bool names_scheduler = NamesScheduler(argc, argv, env);
  // A reference run belongs to no job; the name only marks what it saves.
  if (!names_scheduler && !env.Get("PACELINE_JOB")) env.Set("PACELINE_JOB", "standalone");

  ProgramOptions options;
  KeyTable keys;
  AddProgramKeys(keys, options);
  auto parsed = LoadWorkerConfig(argc, argv, env, &keys);
  if (!parsed.ok()) return Fail(parsed.status(), kUsage);
  if (parsed->exit_code) {
    std::fputs(parsed->text.c_str(), stdout);
    return *parsed->exit_code;
  }
  WorkerConfig& config = parsed->config;
  if (options.standalone == 0 && !names_scheduler) {
    return Fail(absl::InvalidArgumentError(
                    "no scheduler: start it with `pacelinectl run --workers 4 -- paceline-worker`, "
                    "or give PACELINE_SCHEDULER or --scheduler; --standalone 4 needs none"),
                kUsage);
  }
  auto model = Model::Create(options.model);
  if (!model.ok()) return Fail(model.status(), kUsage);
  if (auto status = CheckCanSave(options.save); !status.ok()) return Fail(status, kUsage);
  auto data = LoadFashionMnist(options.dataset);
  if (!data.ok()) return Fail(data.status(), kFailed);
  if (auto status = Complete(options, config.job, data->train.size()); !status.ok()) {
    return Fail(status, kUsage);
  }
  const absl::Status status =
      options.standalone != 0 ? RunStandalone(**model, *data, options, config.job, Clock::Real())
                              : TrainInJob(**model, *data, options, config);
  return status.ok() ? 0 : Fail(status, kFailed);
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) { return paceline::Main(argc, argv); }
