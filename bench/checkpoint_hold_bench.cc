// How long a checkpoint holds a job up: a session exchanges weights, with Adam state, with a server
// again and again, alone and while a checkpoint is taken. Prints JSON with the longest
// exchange during the checkpoint, the median one without, a memcpy of the shard, and the bound of
// one exchange + 1.5 x memcpy.
//
//   checkpoint_hold_bench [DIRECTORY [MEGABYTES]]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "tests/chain/chain_cluster.h"

namespace paceline {
namespace {

constexpr int kAlone = 10;  // exchanges

double Ms(Ticks ticks) { return static_cast<double>(ticks.value()) / 1e6; }

// Into fresh memory, as a copy of a shard would go.
double MemcpyMs(size_t bytes) {
  const std::vector<char> from(bytes, 1);
  const Ticks begin = Clock::Real().Now();
  char* const to = static_cast<char*>(std::malloc(bytes));
  std::memcpy(to, from.data(), bytes);
  const double ms = Ms(Clock::Real().Now() - begin);
  std::free(to);
  return ms;
}

absl::Status Measure(const std::string& directory, uint64_t megabytes) {
  const uint64_t bytes = megabytes << 20;
  ChainCluster cluster(1);
  JobSpec job = JobOf("hold", 1, "one", {"adam", {{"learning_rate", 0.001}}});
  job.chunk_bytes = 1 << 20;
  job.checkpoint_dir = directory;
  SessionOptions options = cluster.OptionsFor(job, 0);
  options.deadline = Seconds(600);
  PACELINE_ASSIGN_OR_RETURN(
      auto session, Session::Connect(options, cluster.NewControl(), cluster.NewTransport()));
  std::vector<float> weights(bytes / 12);  // weights, m and v
  PACELINE_ASSIGN_OR_RETURN(const TensorId tensor,
                            session->RegisterTensor({"model", {weights.size()}}));
  PACELINE_RETURN_IF_ERROR(session->Init(tensor, weights));
  PACELINE_RETURN_IF_ERROR(session->WaitReady());

  std::vector<double> alone, during;
  std::atomic<bool> taking{false}, taken{false};
  absl::Status checkpoint;
  double checkpoint_ms = 0;
  std::jthread taker;
  for (int i = 0; i < kAlone || !taken; ++i) {
    if (i == kAlone) {
      taking = true;
      taker = std::jthread([&] {
        const Ticks begin = Clock::Real().Now();
        checkpoint = session->Checkpoint("").status();
        checkpoint_ms = Ms(Clock::Real().Now() - begin);
        taken = true;
      });
    }
    const Ticks begin = Clock::Real().Now();
    PACELINE_RETURN_IF_ERROR(PushPullAll(*session, tensor, 0.01f, weights, Samples(1)).status());
    PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    (taking ? during : alone).push_back(Ms(Clock::Real().Now() - begin));
  }
  taker.join();
  PACELINE_RETURN_IF_ERROR(checkpoint);
  std::nth_element(alone.begin(), alone.begin() + alone.size() / 2, alone.end());
  const double exchange = alone[alone.size() / 2];
  const double longest = *std::max_element(during.begin(), during.end());
  const double memcpy_ms = MemcpyMs(bytes);
  const double bound = exchange + 1.5 * memcpy_ms;
  std::printf(
      "{\"megabytes\": %llu, \"exchange_ms\": %.1f, \"longest_during_ms\": %.1f, \"hold_ms\": "
      "%.1f, \"memcpy_ms\": %.1f, \"bound_ms\": %.1f, \"checkpoint_ms\": %.1f, \"holds\": %s}\n",
      static_cast<unsigned long long>(megabytes), exchange, longest, longest - exchange, memcpy_ms,
      bound, checkpoint_ms, longest - exchange <= bound ? "true" : "false");
  PACELINE_RETURN_IF_ERROR(session->Leave("measured"));
  return longest - exchange <= bound ? absl::OkStatus()
                                     : absl::DeadlineExceededError("held longer than the bound");
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  const std::string directory =
      argc > 1 ? argv[1] : (std::filesystem::temp_directory_path() / "paceline-hold").string();
  const uint64_t megabytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  const absl::Status status = paceline::Measure(directory, megabytes);
  std::error_code ignored;
  if (argc <= 1) std::filesystem::remove_all(directory, ignored);
  if (status.ok()) return 0;
  std::fprintf(stderr, "checkpoint_hold_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
