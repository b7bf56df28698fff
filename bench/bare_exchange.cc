// What the sockets alone can do: every worker sends its tensors over one TCP connection, a server
// sums them in pieces of 256 KB and sends the sums back over the same connections. No header, no
// checksum, no protocol. For compare_mxnet.py; one process per role, as the others have.
//
//   bare_exchange TENSORS WORKERS ROUNDS BLOCKS
//
// Marks and turns as transfer_bench.cc.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bench/tensor_lists.h"

namespace paceline {
namespace {

constexpr size_t kPieceFloats = 64 * 1024;

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  _exit(1);
}

void ReadAll(int fd, void* to, size_t bytes) {
  for (char* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t n = read(fd, at, bytes);
    if (n <= 0) Die("read");
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void WriteAll(int fd, const void* from, size_t bytes) {
  for (const char* at = static_cast<const char*>(from); bytes > 0;) {
    const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
    if (n <= 0) Die("write");
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void WithoutDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// The sums of one round, piece by piece. Rounds overlap: a worker may be one ahead of another, so
// there are two of them in turn.
class Sums {
 public:
  Sums(size_t floats, size_t workers)
      : workers_(workers), values_(floats), pieces_((floats + kPieceFloats - 1) / kPieceFloats) {}

  size_t pieces() const { return pieces_.size(); }
  size_t LengthOf(size_t piece) const {
    return std::min(kPieceFloats, values_.size() - piece * kPieceFloats);
  }
  const float* Values(size_t piece) const { return &values_[piece * kPieceFloats]; }

  void Add(size_t piece, const float* from) {
    std::unique_lock lock(pieces_[piece].mutex);
    Piece& at = pieces_[piece];
    at.changed.wait(lock, [&] { return at.added < workers_; });  // the round before is sent
    float* const to = &values_[piece * kPieceFloats];
    const size_t n = LengthOf(piece);
    if (at.added == 0) {
      std::copy(from, from + n, to);
    } else {
      for (size_t i = 0; i < n; ++i) to[i] += from[i];
    }
    if (++at.added == workers_) at.changed.notify_all();
  }
  void AwaitWhole(size_t piece) {
    std::unique_lock lock(pieces_[piece].mutex);
    Piece& at = pieces_[piece];
    at.changed.wait(lock, [&] { return at.added == workers_; });
  }
  void Sent(size_t piece) {
    std::unique_lock lock(pieces_[piece].mutex);
    Piece& at = pieces_[piece];
    if (++at.sent < workers_) return;
    at.sent = at.added = 0;
    at.changed.notify_all();
  }

 private:
  struct Piece {
    std::mutex mutex;
    std::condition_variable changed;
    size_t added = 0;
    size_t sent = 0;
  };
  const size_t workers_;
  std::vector<float> values_;
  std::vector<Piece> pieces_;
};

void Serve(int listening, size_t floats, size_t workers, int rounds) {
  std::vector<Sums> sums;
  sums.reserve(2);
  for (int i = 0; i < 2; ++i) sums.emplace_back(floats, workers);
  std::vector<std::thread> threads;
  for (size_t w = 0; w < workers; ++w) {
    const int fd = accept(listening, nullptr, nullptr);
    if (fd < 0) Die("accept");
    WithoutDelay(fd);
    threads.emplace_back([&, fd] {
      std::vector<float> piece(kPieceFloats);
      for (int round = 0; round < rounds; ++round) {
        Sums& sum = sums[static_cast<size_t>(round) % 2];
        for (size_t p = 0; p < sum.pieces(); ++p) {
          ReadAll(fd, piece.data(), sum.LengthOf(p) * sizeof(float));
          sum.Add(p, piece.data());
        }
      }
    });
    threads.emplace_back([&, fd] {
      for (int round = 0; round < rounds; ++round) {
        Sums& sum = sums[static_cast<size_t>(round) % 2];
        for (size_t p = 0; p < sum.pieces(); ++p) {
          sum.AwaitWhole(p);
          WriteAll(fd, sum.Values(p), sum.LengthOf(p) * sizeof(float));
          sum.Sent(p);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A worker's tensors, exchanged over its connection.
class Worker {
 public:
  Worker(uint16_t port, const std::vector<size_t>& sizes) {
    for (const size_t size : sizes) {
      gradients_.emplace_back(size, 1.0f);
      sums_.emplace_back(size);
    }
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = port;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) Die("connect");
    WithoutDelay(fd_);
  }

  void Round() {
    std::thread writer([this] {
      for (const auto& tensor : gradients_) {
        WriteAll(fd_, tensor.data(), tensor.size() * sizeof(float));
      }
    });
    for (auto& tensor : sums_) ReadAll(fd_, tensor.data(), tensor.size() * sizeof(float));
    writer.join();
  }

  void Check(float expected) const {
    for (const auto& tensor : sums_) {
      for (const float value : tensor) {
        if (value == expected) continue;
        std::fprintf(stderr, "bare_exchange: a sum is %g, not %g\n", value, expected);
        _exit(1);
      }
    }
  }

 private:
  int fd_ = -1;
  std::vector<std::vector<float>> gradients_, sums_;
};

void AwaitTurn(int block) {
  const char* const folder = std::getenv("PACELINE_BENCH_GO");
  if (folder == nullptr) return;
  const std::filesystem::path turn = std::filesystem::path(folder) / std::to_string(block);
  while (!std::filesystem::exists(turn)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void Exchange(Worker& worker, size_t workers, int rounds, int blocks) {
  for (int i = 0; i < 3; ++i) worker.Round();
  worker.Check(static_cast<float>(workers));
  for (int block = 0; block < blocks; ++block) {
    Say("ready");
    AwaitTurn(block);
    worker.Round();
    Say("begin");
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) worker.Round();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    Say("end");
    Say("block " + std::to_string(took.count()));
  }
}

int Main(int argc, char** argv) {
  const std::vector<size_t> sizes = TensorList(argc == 5 ? argv[1] : "");
  const int workers = argc == 5 ? std::atoi(argv[2]) : 0;
  const int rounds = argc == 5 ? std::atoi(argv[3]) : 0;
  const int blocks = argc == 5 ? std::atoi(argv[4]) : 0;
  if (sizes.empty() || workers < 1 || rounds < 1 || blocks < 1) {
    std::fprintf(stderr, "usage: bare_exchange TENSORS WORKERS ROUNDS BLOCKS\n");
    return 2;
  }
  size_t floats = 0;
  for (const size_t size : sizes) floats += size;
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(at);
  if (bind(listening, reinterpret_cast<sockaddr*>(&at), length) != 0 ||
      listen(listening, 64) != 0 ||
      getsockname(listening, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    Die("listen");
  }
  const int server = fork();
  if (server == 0) {
    Serve(listening, floats, static_cast<size_t>(workers), 3 + blocks * (rounds + 1));
    _exit(0);
  }
  std::vector<pid_t> children = {server};
  for (int w = 0; w < workers; ++w) {
    const pid_t child = fork();
    if (child == 0) {
      Worker worker(at.sin_port, sizes);
      Exchange(worker, static_cast<size_t>(workers), rounds, blocks);
      _exit(0);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed |= status;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) { return paceline::Main(argc, argv); }
