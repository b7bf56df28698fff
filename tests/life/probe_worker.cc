// A worker whose result is known beforehand: every gradient is 1 per sample and the optimizer is
// SGD at rate 1, so with `normalization: mean` each update takes exactly 1 from each weight,
// whoever took part in it. After every step it checks, for each element of each chunk,
//
//   weight = initial value - number of updates (version) of the chunk
//
// which a gradient applied twice, lost, or divided by the wrong number of members breaks. Prints a
// line per step for the tests to read; exits with 3 when a number is wrong. With --hold it also
// says what it is about to push, and keeps that back while the file is there.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/environment.h"
#include "common/config/key_table.h"
#include "common/runtime/clock.h"
#include "plan/chunking.h"
#include "worker_client/connect/connect.h"
#include "worker_client/session.h"

namespace paceline {
namespace {

std::atomic<bool> stop_requested{false};

struct ProbeOptions {
  uint64_t steps = 0;  // 0: until the samples are used up, or a signal
  uint32_t tensors = 3;
  uint32_t elements = 20'000;
  uint32_t initial = 1'000'000;  // of every weight, where this worker writes it
  uint32_t step_ms = 5;
  std::string die;   // at which moment the process kills itself
  std::string hold;  // a file that keeps back pushes for as long as it exists
};

void AddKeys(KeyTable& table, ProbeOptions& o) {
  table.Number("steps", "updates to take part in", uint64_t{0}, uint64_t{1} << 40, &o.steps);
  table.Number("tensors", "how many", 1, 10'000, &o.tensors);
  table.Number("elements", "of each tensor", 1, 1u << 28, &o.elements);
  table.Number("initial", "value of every weight", 0, 8'000'000, &o.initial);
  table.Number("step_ms", "of a step's computation", 0, 60'000, &o.step_ms);
  table.Text("hold", "file that keeps back pushes for as long as it exists", &o.hold);
  table.OneOf("die", "when to kill itself", {"", "joined", "ready"}, &o.die);
}

class Probe {
 public:
  Probe(Session& session, const ProbeOptions& options)
      : session_(session), options_(options), weights_(options.tensors) {}

  absl::Status Run() {
    if (options_.die == "joined") raise(SIGKILL);
    PACELINE_RETURN_IF_ERROR(Prepare());
    if (options_.die == "ready") raise(SIGKILL);
    for (bool more = true; more;) {
      if (stop_requested) return Leave("stopped by a signal");
      if (const auto reason = session_.asked_to_leave()) return Leave(*reason);
      PACELINE_ASSIGN_OR_RETURN(more, Step());
    }
    return Leave("finished");
  }

 private:
  absl::Status Prepare() {
    const std::vector<float> initial(options_.elements, static_cast<float>(options_.initial));
    for (uint32_t t = 0; t < options_.tensors; ++t) {
      const TensorSpec spec{absl::StrCat("t", t), {options_.elements}, DType::kF32, false};
      PACELINE_ASSIGN_OR_RETURN(handles_.emplace_back(), session_.RegisterTensor(spec));
      PACELINE_RETURN_IF_ERROR(session_.Init(handles_[t], initial));
      weights_[t].resize(options_.elements);
    }
    PACELINE_RETURN_IF_ERROR(session_.WaitReady());
    chunks_ =
        CutIntoChunks({"t0", {options_.elements}, DType::kF32, false}, session_.spec().chunk_bytes);
    for (uint32_t t = 0; t < options_.tensors; ++t) {
      PACELINE_ASSIGN_OR_RETURN(const OperationHandle pull,
                                session_.Pull(handles_[t], weights_[t], {}));
      PACELINE_ASSIGN_OR_RETURN(const OperationResult result, session_.Wait(pull));
      if (t == 0) base_ = weights_[0][0] + static_cast<float>(result.versions[0].count);
      PACELINE_RETURN_IF_ERROR(Check(t, result));
    }
    std::printf("started rank=%u initial=%.0f step=%llu\n", session_.rank().value(), base_,
                static_cast<unsigned long long>(session_.step().value()));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Step() {
    if (options_.steps != 0 && done_ >= options_.steps) return false;
    Samples samples(1);
    if (session_.spec().sample_count > 0) {
      const auto batch_size = static_cast<uint32_t>(session_.spec().batch_size);
      PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session_.DrawSamples(batch_size));
      if (batch.finished) return false;
      samples = Samples(batch.indices.size());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.step_ms));
    KeepBack();
    if (!options_.hold.empty()) {
      std::printf("pushes step=%llu samples=%llu\n",
                  static_cast<unsigned long long>(session_.step().value()),
                  static_cast<unsigned long long>(samples.value()));
    }
    const std::vector<float> gradient(options_.elements, static_cast<float>(samples.value()));
    std::vector<OperationHandle> operations;
    OperationOptions options;
    options.samples = samples;
    for (uint32_t t = 0; t < options_.tensors; ++t) {
      PACELINE_ASSIGN_OR_RETURN(operations.emplace_back(),
                                session_.PushPull(handles_[t], gradient, weights_[t], options));
    }
    std::vector<OperationResult> results;
    for (const OperationHandle operation : operations) {
      PACELINE_ASSIGN_OR_RETURN(results.emplace_back(), session_.Wait(operation));
    }
    for (uint32_t t = 0; t < options_.tensors; ++t) {
      PACELINE_RETURN_IF_ERROR(Check(t, results[t]));
    }
    const uint64_t step = session_.step().value();
    PACELINE_RETURN_IF_ERROR(session_.AtStepBoundary());
    ++done_;
    std::printf("step=%llu members=%u version=%llu at_us=%lld\n",
                static_cast<unsigned long long>(step), session_.group_size(),
                static_cast<unsigned long long>(results[0].version.count),
                static_cast<long long>(Clock::Real().Now().value() / 1000));
    return true;
  }

  // A computation that takes long; heartbeats go on meanwhile.
  void KeepBack() const {
    const auto held = [this] {
      return !stop_requested && access(options_.hold.c_str(), F_OK) == 0;
    };
    if (options_.hold.empty() || !held()) return;
    std::printf("holds step=%llu\n", static_cast<unsigned long long>(session_.step().value()));
    while (held()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  absl::Status Check(uint32_t t, const OperationResult& result) const {
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const float expected = base_ - static_cast<float>(result.versions[c].count);
      for (uint64_t i = 0; i < chunks_[c].length; ++i) {
        const float got = weights_[t][chunks_[c].begin + i];
        if (got == expected) continue;
        return absl::DataLossError(absl::StrCat("WRONG: tensor ", t, " chunk ", c, " element ", i,
                                                " is ", got, ", expected ", expected, " = ", base_,
                                                " - version ", result.versions[c].count,
                                                " in step ", session_.step().value()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Leave(const std::string& reason) {
    PACELINE_RETURN_IF_ERROR(session_.Leave(reason));
    const SessionCounters counters = session_.counters();
    std::printf("left steps=%llu weight=%.0f drawn=%llu applied=%llu: %s\n",
                static_cast<unsigned long long>(done_), weights_[0][0],
                static_cast<unsigned long long>(counters.drawn.value()),
                static_cast<unsigned long long>(counters.applied.value()), reason.c_str());
    return absl::OkStatus();
  }

  Session& session_;
  const ProbeOptions& options_;
  std::vector<TensorId> handles_;
  std::vector<std::vector<float>> weights_;
  std::vector<ChunkRange> chunks_;
  float base_ = 0;
  uint64_t done_ = 0;
};

absl::Status TakePart(const ProbeOptions& options, const WorkerConfig& config) {
  while (true) {
    PACELINE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                              ConnectToJob(config, [] { return stop_requested.load(); }));
    const absl::Status status = Probe(*session, options).Run();
    if (stop_requested && absl::IsCancelled(status)) {
      std::printf("ends: %s\n", std::string(status.message()).c_str());
      return absl::OkStatus();
    }
    if (!session->declared_dead() || stop_requested) return status;
    std::printf("rejoins: %s\n", std::string(status.message()).c_str());
  }
}

int Main(int argc, const char* const* argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  ProbeOptions options;
  KeyTable keys;
  AddKeys(keys, options);
  auto parsed = LoadWorkerConfig(argc, argv, Environment::FromProcess(), &keys);
  if (!parsed.ok()) {
    std::fprintf(stderr, "probe_worker: %s\n", std::string(parsed.status().message()).c_str());
    return 2;
  }
  WorkerConfig& config = parsed->config;
  config.job.optimizer = {"sgd", {{"learning_rate", 1.0}}};
  if (config.job.batch_size == 0) config.job.batch_size = 8;
  const absl::Status status = TakePart(options, config);
  if (status.ok()) return 0;
  std::fprintf(stderr, "probe_worker: %s\n", std::string(status.message()).c_str());
  return absl::IsDataLoss(status) ? 3 : 1;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  struct sigaction action {};
  action.sa_handler = [](int) {
    if (paceline::stop_requested.exchange(true)) _exit(1);
  };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  return paceline::Main(argc, argv);
}
