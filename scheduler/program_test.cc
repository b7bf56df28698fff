// The program itself: started, asked, thrown at, killed and started again.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "control/grpc/client.h"
#include "plan/permutation.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

constexpr int kReadyFd = 3;

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "paceline-scheduler-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override {
    if (pid_ > 0) End(SIGKILL);
    fs::remove_all(directory_);
  }

  // Starts the program and waits until it serves.
  void Start(std::vector<std::string> more = {}) {
    int ready[2];
    ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
    std::vector<std::string> args{PACELINE_SCHEDULER,      "--listen",           "127.0.0.1:0",
                                  "--state-dir",           directory_ / "state", "--ready-fd",
                                  std::to_string(kReadyFd)};
    args.insert(args.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    char* no_environment[] = {nullptr};  // PACELINE_* of who runs the test must not matter
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ready[1], kReadyFd);
    ASSERT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), no_environment), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ready[1]);
    address_.clear();
    for (char c; read(ready[0], &c, 1) == 1 && c != '\n';) address_ += c;
    close(ready[0]);
    if (address_.empty()) return;
    auto client = MakeGrpcControlClient(address_, {});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  // Sends the signal and returns the exit code, or minus the signal that ended it.
  int End(int signal) {
    client_.reset();
    kill(pid_, signal);
    return WaitForEnd();
  }
  int WaitForEnd() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  absl::StatusOr<JoinReply> JoinServer(const std::string& name) {
    JoinRequest join;
    join.role = Role::kServer;
    join.name = name;
    join.host = "h";
    join.data_address = "127.0.0.1:7000";
    return client_->Join(join, Seconds(30));
  }
  absl::StatusOr<ClusterView> View() {
    auto reply = client_->Operate(StatusQuery{}, Seconds(30));
    if (!reply.ok()) return reply.status();
    return std::get<ClusterView>(*std::move(reply));
  }

  fs::path directory_;
  pid_t pid_ = 0;
  std::string address_;
  std::unique_ptr<ControlClient> client_;
};

TEST_F(ProgramTest, ServesAndEndsWhenTold) {
  for (int signal : {SIGTERM, SIGINT}) {
    Start({"--cluster", "blue"});
    ASSERT_FALSE(address_.empty());
    const auto view = View();
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->cluster, "blue");
    EXPECT_EQ(End(signal), 0);
  }
}

TEST_F(ProgramTest, AWatchAndAWaitingCallDoNotHoldUpTheEnd) {
  Start();
  const auto self = JoinServer("server-0");
  ASSERT_TRUE(self.ok()) << self.status();
  std::promise<void> closed;
  client_->Watch(
      self->self, [](Directive) {}, [&](absl::Status) { closed.set_value(); });
  ASSERT_TRUE(client_->Call(self->self, Heartbeat{}, Seconds(30)).ok());
  kill(pid_, SIGTERM);
  closed.get_future().wait();
  EXPECT_EQ(WaitForEnd(), 0);
}

// The last client of a process takes gRPC down with it: nothing of a stream that has stopped may be
// left to gRPC's threads then. (A call that was left aborted the process once in ten thousand.)
TEST_F(ProgramTest, AClientMayGoAsSoonAsItsStreamHasStopped) {
  Start();
  const auto self = JoinServer("server-0");
  ASSERT_TRUE(self.ok()) << self.status();
  client_.reset();
  for (int i = 0; i < 1000; ++i) {
    const auto client = MakeGrpcControlClient(address_, {});
    ASSERT_TRUE(client.ok()) << client.status();
    std::atomic<int> closed{0};
    (*client)->Watch(
        self->self, [](const Directive&) {}, [&](const absl::Status&) { ++closed; });
    if (i % 3 == 0) {
      EXPECT_TRUE((*client)->Call(self->self, Heartbeat{}, Seconds(30)).ok());
    }
    (*client)->StopWatch();
    EXPECT_EQ(closed, 1);
  }
  EXPECT_EQ(End(SIGTERM), 0);
}

TEST_F(ProgramTest, ANodeKeepsItsIdentityAcrossAKilledScheduler) {
  Start();
  const auto before = JoinServer("server-0");
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  Start();
  // The incarnation that joined before is still a member: what was told is what is recovered.
  EXPECT_TRUE(client_->Call(before->self, Heartbeat{}, Seconds(30)).ok());
  const auto view = View();
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_GT(view->term, before->term);
  ASSERT_EQ(view->nodes.size(), 1u);
  EXPECT_EQ(view->nodes[0].name, "server-0");
  const auto after = JoinServer("server-0");
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->self.node, before->self.node);
  EXPECT_GT(after->self.incarnation, before->self.incarnation);
  EXPECT_NE(after->key, before->key);
  // And the one it supersedes is told so.
  EXPECT_EQ(client_->Call(before->self, Heartbeat{}, Seconds(30)).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(ProgramTest, ADamagedJournalIsRefusedAndKept) {
  Start();
  ASSERT_TRUE(JoinServer("server-0").ok());
  EXPECT_EQ(End(SIGTERM), 0);
  const fs::path journal = directory_ / "state" / "journal.sqlite";
  ASSERT_TRUE(fs::exists(journal));
  fs::resize_file(journal, 50);
  Start();
  EXPECT_EQ(address_, "");
  EXPECT_EQ(WaitForEnd(), 1);
  EXPECT_EQ(fs::file_size(journal), 50u);
}

TEST_F(ProgramTest, GarbageOnThePortIsHarmless) {
  Start();
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1))));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    std::string bytes(512 * (seed % 7) + 1, '\0');
    uint64_t state = seed;
    for (char& byte : bytes) byte = static_cast<char>(SplitMix64(state));
    if (seed % 2 == 0) bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes;
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(fd);
  }
  const auto view = View();
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_TRUE(JoinServer("server-0").ok());
  EXPECT_EQ(End(SIGTERM), 0);
}

}  // namespace
}  // namespace paceline
