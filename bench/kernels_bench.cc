// What the kernels cost, each beside what it is measured against, in turn (A B A B ...), so that a
// machine that is busy slows both; clocked by processor time. Prints medians, the best and the
// spread of the rounds; ends with exit code 1 when a bar is missed.
//
//   kernels_bench [ROUNDS]     at least 3, default 15
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/kernels_bench_scalar.h"
#include "common/kernels/codec_kernels.h"
#include "common/kernels/kernels.h"
#include "common/kernels/optimizer_kernels.h"
#include "common/kernels/topk.h"

namespace paceline {
namespace {

namespace scalar = bench_scalar;

constexpr size_t kPiece = 128 * 1024;        // values of a piece of 256 KB in half precision
constexpr size_t kLarge = 16 * 1024 * 1024;  // 64 MB of floats: beyond the last-level cache
constexpr double kSecondsPerTurn = 0.01;

// What the sum is held against: the loop as anybody writes it, over arrays beyond the caches.
[[gnu::noinline]] void PlainAdd(std::span<float> dst, std::span<const float> src) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] += src[i];
}

struct Side {
  std::vector<double> gigabytes_per_s;

  double Median() const {
    auto sorted = gigabytes_per_s;
    std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
    return sorted[sorted.size() / 2];
  }
  double Best() const { return *std::max_element(gigabytes_per_s.begin(), gigabytes_per_s.end()); }
  double SpreadPercent() const {
    const double worst = *std::min_element(gigabytes_per_s.begin(), gigabytes_per_s.end());
    return 100 * (Best() - worst) / Median();
  }
};

struct Comparison {
  std::string name;
  size_t bytes;  // read and written by one call
  std::function<void()> ours;
  std::function<void()> other;
  double bar;  // of ours over other; 0: none
};

// Of this thread's processor time: what others do on the machine meanwhile does not count, what
// they take of the memory's rate does.
double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double Seconds(const std::function<void()>& call, size_t times) {
  const double start = ThreadSeconds();
  for (size_t i = 0; i < times; ++i) call();
  return ThreadSeconds() - start;
}

size_t TimesForATurn(const std::function<void()>& call) {
  call();  // first touch and dispatch
  return std::max<size_t>(1, static_cast<size_t>(kSecondsPerTurn / Seconds(call, 1)));
}

// True when the bar holds.
bool Run(const Comparison& c, int rounds) {
  const size_t our_times = TimesForATurn(c.ours), other_times = TimesForATurn(c.other);
  Side ours, other;
  for (int round = 0; round < rounds; ++round) {
    const auto rate = [&](size_t times, double seconds) {
      return static_cast<double>(c.bytes * times) / seconds / 1e9;
    };
    ours.gigabytes_per_s.push_back(rate(our_times, Seconds(c.ours, our_times)));
    other.gigabytes_per_s.push_back(rate(other_times, Seconds(c.other, other_times)));
  }
  const double ratio = ours.Median() / other.Median();
  const bool holds = ratio >= c.bar;
  std::printf("%-50s %7.2f %7.2f %5.0f%% %8.2f %7.2f %5.0f%% %7.2f", c.name.c_str(), ours.Median(),
              ours.Best(), ours.SpreadPercent(), other.Median(), other.Best(),
              other.SpreadPercent(), ratio);
  if (c.bar > 0) std::printf("   >= %.1f %s", c.bar, holds ? "holds" : "MISSED");
  std::printf("\n");
  std::fflush(stdout);
  return holds;
}

std::vector<float> Normal(size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.01f);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = i < kPiece ? normal(random) : values[i - kPiece];
  return values;
}

std::string At(const char* name, size_t n) {
  return std::string(name) + (n == kPiece ? ", 128 Ki values" : ", 16 Mi values");
}

// The arrays that all comparisons of one size use.
struct Arrays {
  explicit Arrays(size_t n)
      : x(Normal(n)), y(n), m(n), v(n, 1e-4f), half(n), bytes(4 * n), residual(n) {
    kernels::F32ToF16(half, x);
  }

  std::vector<float> x, y, m, v;
  std::vector<uint16_t> half;
  std::vector<std::byte> bytes;
  std::vector<float> residual;
};

void AddSums(std::vector<Comparison>& all, Arrays& a) {
  const size_t n = a.x.size();
  const double half_bar = n == kPiece ? 8 : 0;
  const double sum_bar = n == kLarge ? 0.8 : 0;
  all.push_back({At("fp32 sum : plain add loop", n), 12 * n, [&] { kernels::Add(a.y, a.x); },
                 [&] { PlainAdd(a.y, a.x); }, sum_bar});
  all.push_back({At("fp32 checked sum : sum, then check", n), 12 * n,
                 [&] { kernels::AddChecked(a.y, a.x); },
                 [&] {
                   kernels::AllFinite(a.x);
                   kernels::Add(a.y, a.x);
                 },
                 0});
  all.push_back({At("fp16 -> fp32 accumulate : scalar", n), 10 * n,
                 [&] { kernels::AddF16(a.y, a.half); }, [&] { scalar::AddF16(a.y, a.half); },
                 half_bar});
  all.push_back({At("bf16 -> fp32 accumulate : scalar", n), 10 * n,
                 [&] { kernels::AddBf16(a.y, a.half); }, [&] { scalar::AddBf16(a.y, a.half); }, 0});
  all.push_back({At("fp32 -> fp16 : scalar", n), 6 * n, [&] { kernels::F32ToF16(a.half, a.x); },
                 [&] { scalar::F32ToF16(a.half, a.x); }, 0});
}

void AddUpdates(std::vector<Comparison>& all, Arrays& a) {
  const size_t n = a.x.size();
  static constexpr kernels::MomentumStep kMomentum{1e-3f, 0.9f, false, 0};
  static constexpr kernels::AdamStep kAdam{1e-3f, 1, 0.9f, 0.1f, 0.999f, 0.001f, 1e-8f, 0};
  all.push_back({At("momentum : scalar", n), 20 * n,
                 [&] { kernels::MomentumUpdate(a.y, a.m, a.x, kMomentum); },
                 [&] { scalar::MomentumUpdate(a.y, a.m, a.x, kMomentum); }, 0});
  all.push_back({At("adam : scalar", n), 28 * n,
                 [&] { kernels::AdamUpdate(a.y, a.m, a.v, a.x, kAdam); },
                 [&] { scalar::AdamUpdate(a.y, a.m, a.v, a.x, kAdam); }, 0});
}

// A decoder reads what the comparison before it has left.
void AddCodecs(std::vector<Comparison>& all, Arrays& a) {
  const size_t n = a.x.size();
  const std::span<std::byte> int8 = std::span(a.bytes).first(kernels::Int8Bytes(n));
  const std::span<std::byte> two_bit = std::span(a.bytes).first(kernels::TwoBitBytes(n));
  const size_t k = n / 10;
  const std::span<std::byte> topk = std::span(a.bytes).first(kernels::TopKBytes(n, k));
  all.push_back({At("int8 encode : scalar", n), 5 * n, [=, &a] { kernels::EncodeInt8(int8, a.x); },
                 [=, &a] { scalar::EncodeInt8(int8, a.x); }, 0});
  all.push_back({At("int8 decode : scalar", n), 5 * n,
                 [=, &a] {
                   if (!kernels::DecodeInt8(a.y, int8)) std::abort();
                 },
                 [=, &a] {
                   if (!scalar::DecodeInt8(a.y, int8)) std::abort();
                 },
                 0});
  all.push_back({At("2bit encode : scalar", n), 17 * n / 4,
                 [=, &a] { kernels::EncodeTwoBit(two_bit, a.x, 0.01f); },
                 [=, &a] { scalar::EncodeTwoBit(two_bit, a.x, 0.01f); }, 0});
  all.push_back({At("2bit decode : scalar", n), 17 * n / 4,
                 [=, &a] {
                   if (!kernels::DecodeTwoBit(a.y, two_bit, 0.01f)) std::abort();
                 },
                 [=, &a] {
                   if (!scalar::DecodeTwoBit(a.y, two_bit, 0.01f)) std::abort();
                 },
                 0});
  all.push_back({At("topk 10 % encode : nth_element", n), 4 * n,
                 [=, &a] { kernels::EncodeTopK(topk, a.x, k); },
                 [=, &a] { scalar::KthMagnitude(a.x, k); }, 0});
}

int Main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(3, std::atoi(argv[1])) : 15;
  std::printf("instruction set %s, %d rounds in turn, GB/s of memory read and written\n",
              kernels::InstructionSet().c_str(), rounds);
  std::printf("%-50s %7s %7s %6s %8s %7s %6s %7s\n", "ours : other", "median", "best", "spread",
              "other", "best", "spread", "ratio");
  bool holds = true;
  for (size_t n : {kPiece, kLarge}) {
    Arrays arrays(n);
    std::vector<Comparison> all;
    AddSums(all, arrays);
    AddUpdates(all, arrays);
    AddCodecs(all, arrays);
    for (const Comparison& c : all) {
      std::fill(arrays.y.begin(), arrays.y.end(), 0.0f);
      holds = Run(c, rounds) && holds;
    }
  }
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) { return paceline::Main(argc, argv); }
