// How fast the processors together read and write memory, for optimizer_cost.py: a loop that adds
// one array to another, far larger than the caches, on every processor at once.
//
//   memory_rate      prints GB/s, read and written
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr size_t kFloats = 16 * 1024 * 1024;  // 64 MB
constexpr int kRounds = 6;
constexpr double kBytesOfRound = 3.0 * sizeof(float) * kFloats;  // two read, one written

[[gnu::noinline]] void Add(std::vector<float>& to, const std::vector<float>& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

}  // namespace

int main() {
  const unsigned count = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::vector<float>> to(count, std::vector<float>(kFloats, 1.0f));
  std::vector<std::vector<float>> from = to;
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < count; ++t) {
    threads.emplace_back([&to, &from, t] {
      for (int round = 0; round < kRounds; ++round) Add(to[t], from[t]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (to[0][0] != 1.0f + kRounds) return 1;
  std::printf("%.3f\n", count * kRounds * kBytesOfRound / took.count() / 1e9);
  return 0;
}
