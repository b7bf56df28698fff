#include "worker_client/native/options.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "parameter/optimizer.h"
#include "trainer/model.h"

namespace paceline {
namespace {

constexpr double kMaxSlowdown = 1000;

// A number that may be left unsaid.
void OptionalReal(KeyTable& table, std::string path, std::string doc, std::string allowed,
                  bool (*valid)(double), std::optional<double>* field) {
  Key key;
  key.path = std::move(path);
  key.doc = std::move(doc);
  key.allowed = std::move(allowed);
  key.set = [=](std::string_view text) -> absl::Status {
    double value = 0;
    if (!absl::SimpleAtod(Absl(text), &value) || !valid(value)) {
      return absl::InvalidArgumentError("is not such a number");
    }
    *field = value;
    return absl::OkStatus();
  };
  key.get = [=] { return *field ? absl::StrCat(**field) : std::string(); };
  table.Add(std::move(key));
}

void SlowdownKey(KeyTable& table, std::vector<double>* field) {
  Key key;
  key.path = "slowdown";
  key.doc =
      "how many times longer a step of each worker takes, by worker index (to try out what a "
      "slow machine does)";
  key.allowed = "numbers 1 .. 1000 with commas between, as 1,1,1,3";
  key.shape = KeyShape::kList;
  key.set = [=](std::string_view text) -> absl::Status {
    std::vector<double> factors;
    for (const absl::string_view piece : absl::StrSplit(Absl(text), ',')) {
      double factor = 0;
      if (!absl::SimpleAtod(piece, &factor) || !(factor >= 1 && factor <= kMaxSlowdown)) {
        return absl::InvalidArgumentError(absl::StrCat("has \"", piece, "\""));
      }
      factors.push_back(factor);
    }
    *field = std::move(factors);
    return absl::OkStatus();
  };
  key.get = [=] { return absl::StrJoin(*field, ","); };
  table.Add(std::move(key));
}

bool AboveZero(double x) { return x > 0 && x <= 1e6; }
bool BelowOne(double x) { return x >= 0 && x < 1; }
bool NotNegative(double x) { return x >= 0 && x <= 1e6; }

// The rate that trains well with batches of 256 in all (measured on the mlp: README.md).
double DefaultRate(const NamedSpec& optimizer) {
  if (optimizer.name == "adam" || optimizer.name == "adamw") return 0.001;
  const bool plain = optimizer.name == "sgd" && optimizer.Get("momentum", 0) == 0;
  return plain ? 0.1 : 0.03;
}

absl::Status CompleteOptimizer(const ProgramOptions& options, NamedSpec& optimizer) {
  // Nesterov's is a form of momentum; without any, what is left of it is plain SGD.
  if (optimizer.name.empty()) optimizer.name = options.momentum == 0.0 ? "sgd" : "nesterov";
  if (options.momentum) optimizer.parameters["momentum"] = *options.momentum;
  if (options.weight_decay) optimizer.parameters["weight_decay"] = *options.weight_decay;
  if (options.learning_rate) optimizer.parameters["learning_rate"] = *options.learning_rate;
  if (!optimizer.parameters.contains("learning_rate")) {
    optimizer.parameters["learning_rate"] = DefaultRate(optimizer);
  }
  return ValidateOptimizer(optimizer);
}

}  // namespace

void AddProgramKeys(KeyTable& table, ProgramOptions& o) {
  table.OneOf("model", "softmax is 784-10, mlp is 784-128-64-10", ModelNames(), &o.model);
  table.Text("dataset", "directory of the four gzipped Fashion-MNIST files", &o.dataset);
  OptionalReal(table, "learning_rate",
               "after warm-up; default 0.03, 0.1 for sgd without momentum, 0.001 for adam",
               "above 0", AboveZero, &o.learning_rate);
  OptionalReal(table, "momentum", "of sgd and its kin; default: the optimizer's own",
               "0 up to below 1", BelowOne, &o.momentum);
  OptionalReal(table, "weight_decay", "default: the optimizer's own", "0 or more", NotNegative,
               &o.weight_decay);
  table.Number("warmup", "steps over which the learning rate grows linearly", uint64_t{0},
               uint64_t{1'000'000'000}, &o.warmup_steps);
  table.OneOf("decay", "how the learning rate changes towards the end of the epochs: linear to 0",
              {"linear", "none"}, &o.decay);
  table.Number("max_steps", "stop after so many steps; 0 = when the epochs are over", uint64_t{0},
               uint64_t{1} << 40, &o.max_steps);
  table.Number("eval_every",
               "steps between two evaluations on the validation set by rank 0; 0 = "
               "none",
               uint64_t{0}, uint64_t{1} << 40, &o.eval_every);
  table.Text("save",
             "file for the final weights (safetensors); every worker that finishes writes "
             "the same bytes",
             &o.save);
  table.Text("step_log",
             "file that gets a line for each step in a job: its number, the members of the group, "
             "the end of the step in microseconds of the monotonic clock",
             &o.step_log);
  SlowdownKey(table, &o.slowdown);
  table.Number("step_time_ms", "least time of a step's computation, before its slowdown", 0,
               3'600'000, &o.step_time_ms);
  table.Number("standalone",
               "no cluster: compute what so many synchronous workers would, in this "
               "process; 0 = take part in a job",
               0, 4096, &o.standalone);
}

absl::Status Complete(ProgramOptions& options, JobSpec& job, uint32_t train_samples) {
  if (job.batch_size == 0) job.batch_size = 64;
  if (job.batch_size > train_samples) {
    return absl::InvalidArgumentError(absl::StrCat("batch_size is ", job.batch_size,
                                                   ", but the training set has ", train_samples,
                                                   " samples"));
  }
  if (job.epochs == 0 && options.max_steps == 0) job.epochs = 5;
  if (job.sample_count != 0 && job.sample_count != train_samples) {
    return absl::InvalidArgumentError(absl::StrCat("sample_count is ", job.sample_count,
                                                   ", but the training set has ", train_samples,
                                                   " samples; leave it out"));
  }
  job.sample_count = train_samples;
  PACELINE_RETURN_IF_ERROR(CompleteOptimizer(options, job.optimizer));
  options.schedule.base = static_cast<float>(job.optimizer.Get("learning_rate", 0));
  options.schedule.warmup_steps = options.warmup_steps;
  options.schedule.decay = options.decay == "linear" ? Decay::kLinear : Decay::kNone;
  return absl::OkStatus();
}

absl::Status CheckCanSave(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("save: ", path, ": ", what,
                                                   "; name a file in a directory that can be "
                                                   "written to with --save"));
  };
  if (std::filesystem::is_directory(path, error)) return wrong("is a directory");
  // The new file takes the name of what is there: a device or a pipe would be gone.
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return wrong("is not a regular file");
  }
  std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (directory.empty()) directory = ".";
  if (!std::filesystem::is_directory(directory, error)) {
    return wrong(absl::StrCat("there is no directory ", directory.string()));
  }
  // The file is made beside its name first.
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    return wrong(absl::StrCat("cannot write to ", directory.string(), ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace paceline
