// One worker of a job that does nothing but exchange: pushes a list of tensors and takes the sums
// back, for compare_mxnet.py. Started by `pacelinectl run`, so that all that a real job passes
// through is in what is measured.
//
//   transfer_bench TENSORS TRANSPORT ROUNDS BLOCKS [OPTIMIZER]
//
// With an OPTIMIZER, of the owners, the new weights come back in place of the sums.
// TRANSPORT: shm (chosen by itself, and checked), shm-arena (the same with buffers of
// Session::AllocateTensor) or tcp. For each block of ROUNDS rounds it prints
// "block SECONDS" after "begin"/"end" marks, each on a line of its own; after "ready" it waits for
// a line on the file that PACELINE_BENCH_GO names to appear, so that what is compared runs in turn.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/tensor_lists.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/environment.h"
#include "control/grpc/client.h"
#include "transport/channel.h"
#include "worker_client/session.h"

namespace paceline {
namespace {

struct Arguments {
  std::string tensors;
  bool shared_memory = true;
  bool arena = false;
  int rounds = 0;
  int blocks = 0;
  std::string optimizer;  // empty: none
};

absl::StatusOr<Arguments> Parse(int argc, char** argv) {
  const auto usage = [] {
    return absl::InvalidArgumentError(
        "usage: transfer_bench TENSORS shm|shm-arena|tcp ROUNDS BLOCKS [OPTIMIZER]");
  };
  if (argc != 5 && argc != 6) return usage();
  Arguments out;
  out.tensors = argv[1];
  const std::string_view transport(argv[2]);
  out.arena = transport == "shm-arena";
  out.shared_memory = out.arena || transport == "shm";
  if (!out.shared_memory && transport != "tcp") return usage();
  out.rounds = std::atoi(argv[3]);
  out.blocks = std::atoi(argv[4]);
  if (argc == 6) out.optimizer = argv[5];
  if (TensorList(out.tensors).empty() || out.rounds < 1 || out.blocks < 1) return usage();
  return out;
}

absl::StatusOr<std::unique_ptr<Session>> Connect(const WorkerConfig& config, bool shared_memory) {
  PACELINE_ASSIGN_OR_RETURN(
      auto control,
      MakeGrpcControlClient(config.scheduler, {config.tls.cert, config.tls.key, config.tls.ca}));
  SessionOptions options;
  options.job = config.job;
  options.worker_name = config.name;
  options.index = config.index;
  options.host = config.host;
  options.labels = config.labels;
  return Session::Connect(
      options, std::move(control),
      shared_memory ? NewHostTransport(TransportOptions()) : NewTcpTransport(TransportOptions()));
}

struct Tensor {
  TensorId id;
  std::shared_ptr<float[]> memory[2];
  std::span<float> gradient;
  std::span<float> sum;
};

absl::Status Round(Session& session, std::vector<Tensor>& tensors, bool update) {
  for (Tensor& tensor : tensors) {
    const auto begun = update ? session.PushPull(tensor.id, tensor.gradient, tensor.sum, {})
                              : session.Reduce(tensor.id, tensor.gradient, tensor.sum, {});
    PACELINE_RETURN_IF_ERROR(begun.status());
  }
  PACELINE_RETURN_IF_ERROR(session.WaitAll());
  return session.AtStepBoundary();
}

absl::StatusOr<std::vector<Tensor>> Register(Session& session, const Arguments& arguments) {
  std::vector<Tensor> tensors;
  for (const size_t elements : TensorList(arguments.tensors)) {
    TensorSpec spec;
    spec.name = "tensor-" + std::to_string(tensors.size());
    spec.shape = {elements};
    PACELINE_ASSIGN_OR_RETURN(const TensorId id, session.RegisterTensor(spec));
    PACELINE_RETURN_IF_ERROR(session.Init(id, std::vector<float>(elements, 0.0f)));
    tensors.push_back({.id = id, .memory = {}, .gradient = {}, .sum = {}});
  }
  PACELINE_RETURN_IF_ERROR(session.WaitReady());
  const std::vector<size_t> sizes = TensorList(arguments.tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = tensors[i];
    for (std::shared_ptr<float[]>& memory : tensor.memory) {
      if (arguments.arena) {
        PACELINE_ASSIGN_OR_RETURN(memory, session.AllocateTensor(tensor.id));
      } else {
        memory = std::make_shared<float[]>(sizes[i]);
      }
    }
    tensor.gradient = {tensor.memory[0].get(), sizes[i]};
    tensor.sum = {tensor.memory[1].get(), sizes[i]};
    std::fill(tensor.gradient.begin(), tensor.gradient.end(), 1.0f);
  }
  return tensors;
}

absl::Status CheckSums(const Session& session, const std::vector<Tensor>& tensors) {
  const auto expected = static_cast<float>(session.group_size());
  for (const Tensor& tensor : tensors) {
    for (const float value : tensor.sum) {
      if (value != expected) {
        return absl::DataLossError(absl::StrCat("a sum is ", value, ", not ", expected));
      }
    }
  }
  return absl::OkStatus();
}

// An arena of shared memory is mapped just when a link goes through one.
absl::Status CheckTransport(bool shared_memory) {
  std::ifstream maps("/proc/self/maps");
  bool mapped = false;
  for (std::string line; std::getline(maps, line);) {
    mapped = mapped || line.find("/memfd:") != std::string::npos;
  }
  if (mapped == shared_memory) return absl::OkStatus();
  return absl::FailedPreconditionError(mapped ? "shared memory is in use, which was not asked for"
                                              : "no link goes through shared memory");
}

// Marks are for the process that compares; it counts processor time between them.
void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void AwaitTurn(int block) {
  const char* const folder = std::getenv("PACELINE_BENCH_GO");
  if (folder == nullptr) return;
  const std::filesystem::path turn = std::filesystem::path(folder) / std::to_string(block);
  while (!std::filesystem::exists(turn)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

absl::Status Run(const Arguments& arguments) {
  PACELINE_ASSIGN_OR_RETURN(const WorkerConfig config,
                            WorkerConfigFromEnvironment(Environment::FromProcess()));
  PACELINE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Connect(config, arguments.shared_memory));
  const bool update = !arguments.optimizer.empty();
  if (update) {
    PACELINE_RETURN_IF_ERROR(session->SetOptimizer({arguments.optimizer, {}}));
  }
  PACELINE_ASSIGN_OR_RETURN(std::vector<Tensor> tensors, Register(*session, arguments));
  PACELINE_RETURN_IF_ERROR(CheckTransport(arguments.shared_memory));
  for (int i = 0; i < 3; ++i) PACELINE_RETURN_IF_ERROR(Round(*session, tensors, update));
  if (!update) {
    PACELINE_RETURN_IF_ERROR(CheckSums(*session, tensors));
  }
  for (int block = 0; block < arguments.blocks; ++block) {
    Say("ready");
    AwaitTurn(block);
    PACELINE_RETURN_IF_ERROR(Round(*session, tensors, update));  // all are there
    Say("begin");
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < arguments.rounds; ++i)
      PACELINE_RETURN_IF_ERROR(Round(*session, tensors, update));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    Say("end");
    Say(absl::StrCat("block ", took.count()));
  }
  if (!update) {
    PACELINE_RETURN_IF_ERROR(CheckSums(*session, tensors));
  }
  return session->Leave("the bench is over");
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Arguments> arguments = Parse(argc, argv);
  const absl::Status status = arguments.ok() ? Run(*arguments) : arguments.status();
  if (status.ok()) return 0;
  std::fprintf(stderr, "transfer_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) { return paceline::Main(argc, argv); }
