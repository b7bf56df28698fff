// Client and server over a real socket, around a service whose answers the test sets.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "control/grpc/client.h"
#include "control/grpc/samples_for_test.h"
#include "control/grpc/server.h"
#include "plan/permutation.h"

namespace paceline {
namespace {

// Keeps what came, answers with what the test put in.
class RecordingService final : public ControlService {
 public:
  void Join(JoinRequest request, std::function<void(absl::StatusOr<JoinReply>)> done) override {
    MutexLock lock(&mutex);
    joins.push_back(std::move(request));
    done(join_reply);
  }
  void Call(NodeRef from, NodeRequest request,
            std::function<void(absl::StatusOr<NodeReply>)> done) override {
    MutexLock lock(&mutex);
    calls.emplace_back(from, std::move(request));
    if (silent) {
      kept.push_back(std::move(done));
    } else {
      done(node_reply);
    }
  }
  void Operate(OperatorRequest request,
               std::function<void(absl::StatusOr<OperatorReply>)> done) override {
    MutexLock lock(&mutex);
    operations.push_back(request);
    if (std::holds_alternative<StatusQuery>(request)) done(OperatorReply(samples::Cluster()));
    if (std::holds_alternative<EventsQuery>(request)) done(OperatorReply(samples::Decisions()));
    if (std::holds_alternative<CheckpointJobRequest>(request)) {
      done(OperatorReply(CheckpointReply{"/c/1", {{GroupId(1), Step(2)}}}));
    }
    if (std::holds_alternative<ResumeJobRequest>(request)) done(OperatorReply(Empty{}));
    if (std::holds_alternative<StopJobRequest>(request)) {
      done(absl::NotFoundError("no job \"x\""));
    }
    if (std::holds_alternative<ProcessEndedRequest>(request)) done(OperatorReply(Empty()));
    if (std::holds_alternative<RemoveWorkerRequest>(request)) done(OperatorReply(Empty()));
    if (std::holds_alternative<MoveWorkerRequest>(request)) done(OperatorReply(Empty()));
    if (std::holds_alternative<DrainServerRequest>(request)) done(OperatorReply(Empty()));
  }
  void OpenWatch(NodeRef from, std::shared_ptr<DirectiveSink> sink) override {
    MutexLock lock(&mutex);
    sinks[from] = std::move(sink);
    changed.SignalAll();
  }
  void CloseWatch(NodeRef from, const DirectiveSink* sink) override {
    MutexLock lock(&mutex);
    if (sinks.contains(from) && sinks[from].get() == sink) sinks.erase(from);
    changed.SignalAll();
  }

  std::shared_ptr<DirectiveSink> WaitForSink(NodeRef node) {
    MutexLock lock(&mutex);
    while (!sinks.contains(node)) changed.Wait(&mutex);
    return sinks[node];
  }
  void WaitForNoSink() {
    MutexLock lock(&mutex);
    while (!sinks.empty()) changed.Wait(&mutex);
  }

  Mutex mutex;
  CondVar changed;
  absl::StatusOr<JoinReply> join_reply = JoinReply{
      {NodeId(1), Incarnation(2)}, JobId(3), JobRank(4), Term(5), samples::Key(7), 500, 5000};
  absl::StatusOr<NodeReply> node_reply = NodeReply(Empty{});
  bool silent = false;
  std::vector<JoinRequest> joins;
  std::vector<std::pair<NodeRef, NodeRequest>> calls;
  std::vector<OperatorRequest> operations;
  std::vector<std::function<void(absl::StatusOr<NodeReply>)>> kept;
  std::map<NodeRef, std::shared_ptr<DirectiveSink>> sinks;
};

constexpr NodeRef kSelf{NodeId(12), Incarnation(34)};

class GrpcTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = GrpcControlServer::Start("127.0.0.1:0", {}, &service_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    auto client = MakeGrpcControlClient(server_->address(), {});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  RecordingService service_;
  std::unique_ptr<GrpcControlServer> server_;
  std::unique_ptr<ControlClient> client_;
};

TEST_F(GrpcTest, CarriesAJoin) {
  const auto reply = client_->Join(samples::ServerJoin(), Seconds(30));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(*reply, *service_.join_reply);
  EXPECT_EQ(service_.joins, std::vector<JoinRequest>{samples::ServerJoin()});
  EXPECT_EQ(client_->Peer(), server_->address());
}

TEST_F(GrpcTest, CarriesEveryRequestOfANode) {
  const std::vector<NodeRequest> all = samples::NodeRequests();
  for (const NodeRequest& request : all) {
    if (std::holds_alternative<RegisterTensorsRequest>(request)) {
      service_.node_reply = RegisterTensorsReply{{TensorId(3)}, JobGeneration(1)};
    } else if (std::holds_alternative<DrawSamplesRequest>(request)) {
      service_.node_reply = DrawSamplesReply{{{Epoch(1), 2, 3}}, true};
    } else if (std::holds_alternative<CheckpointRequest>(request)) {
      service_.node_reply = CheckpointReply{"/c", {{GroupId(1), Step(2)}}};
    } else {
      service_.node_reply = NodeReply(Empty{});
    }
    const auto reply = client_->Call(kSelf, request, Seconds(30));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(*reply == *service_.node_reply) << request.index();
    EXPECT_EQ(service_.calls.back().first, kSelf);
    EXPECT_TRUE(service_.calls.back().second == request) << request.index();
  }
  EXPECT_EQ(service_.calls.size(), all.size());
}

TEST_F(GrpcTest, CarriesWhatAnOperatorAsks) {
  const auto view = client_->Operate(StatusQuery{"a"}, Seconds(30));
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_TRUE(std::get<ClusterView>(*view) == samples::Cluster());
  const auto events = client_->Operate(EventsQuery{5, 6, "a"}, Seconds(30));
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_EQ(std::get<std::vector<DecisionRecord>>(*events), samples::Decisions());
  const auto stopped = client_->Operate(StopJobRequest{"x", true, "r"}, Seconds(30));
  EXPECT_EQ(stopped.status(), absl::NotFoundError("no job \"x\""));
  const ProcessEndedRequest ended{"x", "w-1", 77, "signal 9"};
  EXPECT_TRUE(client_->Operate(ended, Seconds(30)).ok());
  const RemoveWorkerRequest removed{"x", "w-1", "r"};
  EXPECT_TRUE(client_->Operate(removed, Seconds(30)).ok());
  const MoveWorkerRequest moved{"x", "w-1", GroupId(3), "r"};
  EXPECT_TRUE(client_->Operate(moved, Seconds(30)).ok());
  const DrainServerRequest drained{"server-0", true};
  EXPECT_TRUE(client_->Operate(drained, Seconds(30)).ok());
  const auto taken = client_->Operate(CheckpointJobRequest{"x", "/c"}, Seconds(30));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(std::get<CheckpointReply>(*taken), (CheckpointReply{"/c/1", {{GroupId(1), Step(2)}}}));
  const ResumeJobRequest resume{"x", "/c/1", samples::Manifest()};
  EXPECT_TRUE(client_->Operate(resume, Seconds(30)).ok());
  const std::vector<OperatorRequest> expected{StatusQuery{"a"},
                                              EventsQuery{5, 6, "a"},
                                              StopJobRequest{"x", true, "r"},
                                              ended,
                                              removed,
                                              moved,
                                              drained,
                                              CheckpointJobRequest{"x", "/c"},
                                              resume};
  EXPECT_TRUE(service_.operations == expected);
}

TEST_F(GrpcTest, EveryErrorCodeArrivesAsItLeft) {
  for (int code = 1; code <= 16; ++code) {
    if (code == 4 || code == 14) continue;  // get the scheduler's address added
    service_.node_reply = absl::Status(static_cast<absl::StatusCode>(code), "the reason");
    const auto reply = client_->Call(kSelf, Heartbeat{}, Seconds(30));
    EXPECT_EQ(reply.status(), service_.node_reply.status());
  }
}

TEST_F(GrpcTest, RefusesABadFieldBeforeTheServiceSeesIt) {
  JoinRequest join = samples::ServerJoin();
  join.name = "";
  EXPECT_EQ(client_->Join(join, Seconds(30)).status(),
            absl::InvalidArgumentError("name: \"\"; use [a-zA-Z0-9._-]{1,128}"));
  EXPECT_EQ(client_->Call({NodeId(0), Incarnation(1)}, Heartbeat{}, Seconds(30)).status(),
            absl::InvalidArgumentError("from.node: 0; use 1..4294967295"));
  EXPECT_EQ(
      client_->Call(kSelf, DrawSamplesRequest{Samples(uint64_t{1} << 33), {}, {}}, Seconds(30))
          .status(),
      absl::InvalidArgumentError("wanted: 8589934592; use 0..4294967296"));
  EXPECT_TRUE(service_.joins.empty());
  EXPECT_TRUE(service_.calls.empty());
}

TEST_F(GrpcTest, RefusesAMessageBeyondTheLimit) {
  RegisterTensorsRequest request;
  request.tensors.assign(60'000, {std::string(400, 'n'), {1}, DType::kF32, false});
  const auto reply = client_->Call(kSelf, request, Seconds(30));
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kResourceExhausted) << reply.status();
  EXPECT_TRUE(client_->Call(kSelf, Heartbeat{}, Seconds(30)).ok());
}

TEST_F(GrpcTest, ADeadlineEndsACallThatIsNotAnswered) {
  service_.silent = true;
  const auto reply = client_->Call(kSelf, Heartbeat{}, Milliseconds(100));
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(reply.status().message(),
            absl::StrCat("scheduler at ", server_->address(), " did not answer in time"));
  // The answer that comes too late harms nobody.
  ASSERT_EQ(service_.kept.size(), 1u);
  service_.kept[0](NodeReply(Empty{}));
}

TEST_F(GrpcTest, WithoutASchedulerTheErrorNamesTheAddress) {
  const std::string address = server_->address();
  server_->Stop();
  const auto reply = client_->Join(samples::ServerJoin(), Seconds(30));
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(reply.status().message().find("scheduler at " + address), std::string::npos)
      << reply.status();
}

TEST_F(GrpcTest, AClientFindsASchedulerThatCameBack) {
  ASSERT_TRUE(client_->Call(kSelf, Heartbeat{}, Seconds(30)).ok());
  const std::string address = server_->address();
  server_->Stop();
  ASSERT_FALSE(client_->Call(kSelf, Heartbeat{}, Seconds(30)).ok());
  auto again = GrpcControlServer::Start(address, {}, &service_);
  ASSERT_TRUE(again.ok()) << again.status();
  server_ = *std::move(again);
  const Ticks deadline = Clock::Real().Now() + Seconds(20);
  absl::Status status = absl::UnknownError("");
  while (!status.ok() && Clock::Real().Now() < deadline) {
    status = client_->Call(kSelf, Heartbeat{}, Seconds(1)).status();
  }
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(GrpcTest, AnAddressInUseIsAnError) {
  const auto second = GrpcControlServer::Start(server_->address(), {}, &service_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(server_->address()), std::string::npos);
}

TEST_F(GrpcTest, AMissingPemFileIsNamed) {
  const GrpcSecurity security{"/missing/cert.pem", "/missing/key.pem", "/missing/ca.pem"};
  EXPECT_EQ(MakeGrpcControlClient("127.0.0.1:1", security).status().code(),
            absl::StatusCode::kNotFound);
  const auto server = GrpcControlServer::Start("127.0.0.1:0", security, &service_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(server.status().message().find("/missing/ca.pem"), std::string::npos);
}

TEST_F(GrpcTest, APemFileOfSomethingElseIsNamed) {
  const std::string path = testing::TempDir() + "/not-a-certificate-" + std::to_string(getpid());
  std::ofstream(path) << "hello\n";
  const auto server = GrpcControlServer::Start("127.0.0.1:0", {path, path, path}, &service_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(server.status().message().find(path + "\" holds no CERTIFICATE"), std::string::npos)
      << server.status();
  std::remove(path.c_str());
}

// ---- Watch --------------------------------------------------------------------------------------

struct Watched {
  std::vector<Directive> directives;
  std::promise<absl::Status> closed;

  void Open(ControlClient& client, NodeRef self) {
    client.Watch(
        self, [this](Directive d) { directives.push_back(std::move(d)); },
        [this](absl::Status s) { closed.set_value(std::move(s)); });
  }
};

TEST_F(GrpcTest, WatchDeliversEveryDirectiveInOrderThenTheCause) {
  Watched watched;
  watched.Open(*client_, kSelf);
  const auto sink = service_.WaitForSink(kSelf);
  std::vector<Directive> expected;
  for (int round = 0; round < 20; ++round) {
    for (Directive directive : samples::Directives()) {
      directive.sequence += round * 1000;
      sink->Send(directive);
      expected.push_back(std::move(directive));
    }
  }
  sink->Close(absl::AbortedError("another stream took its place"));
  EXPECT_EQ(watched.closed.get_future().get(), absl::AbortedError("another stream took its place"));
  EXPECT_TRUE(watched.directives == expected);
  client_->StopWatch();
}

TEST_F(GrpcTest, StopWatchEndsTheStreamOnBothSides) {
  Watched watched;
  watched.Open(*client_, kSelf);
  const auto sink = service_.WaitForSink(kSelf);
  client_->StopWatch();
  EXPECT_EQ(watched.closed.get_future().get().code(), absl::StatusCode::kCancelled);
  service_.WaitForNoSink();
  sink->Send(samples::Directives()[0]);  // was on its way
  sink->Close(absl::AbortedError("late"));
}

TEST_F(GrpcTest, AWatchOfNobodyIsRefused) {
  Watched watched;
  watched.Open(*client_, NodeRef{});
  EXPECT_EQ(watched.closed.get_future().get(),
            absl::InvalidArgumentError("from.node: 0; use 1..4294967295"));
  client_->StopWatch();
}

TEST_F(GrpcTest, AWatchEndsWhenTheServerStops) {
  Watched watched;
  watched.Open(*client_, kSelf);
  service_.WaitForSink(kSelf);
  server_->Stop();
  EXPECT_FALSE(watched.closed.get_future().get().ok());
  client_->StopWatch();
}

TEST_F(GrpcTest, ManyClientsAtOnce) {
  constexpr int kThreads = 8;
  constexpr int kCalls = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        EXPECT_TRUE(client_->Call(kSelf, Heartbeat{}, Seconds(30)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(service_.calls.size(), size_t{kThreads} * kCalls);
}

// ---- What is not gRPC ---------------------------------------------------------------------------

// A connected socket; reads give up after ten seconds.
int Dial(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const timeval timeout{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  return fd;
}

// Sends until the other end has enough, then ends its direction and reads what comes.
void Throw(const std::string& address, const std::string& bytes) {
  const int fd = Dial(address);
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  shutdown(fd, SHUT_WR);
  char buffer[4096];
  while (recv(fd, buffer, sizeof(buffer), 0) > 0) {
  }
  close(fd);
}

std::string RandomBytes(uint64_t seed, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(SplitMix64(seed));
  return bytes;
}

TEST_F(GrpcTest, GarbageOnThePortIsHarmless) {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Throw(server_->address(), RandomBytes(seed, 1 + 997 * (seed % 9)));
    Throw(server_->address(), preface + RandomBytes(seed, 4096));
  }
  Throw(server_->address(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  Throw(server_->address(), std::string(1u << 20, '\0'));
  // Connected and silent: holds nobody up.
  const int idle = Dial(server_->address());
  const auto view = client_->Operate(StatusQuery{}, Seconds(30));
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(std::get<ClusterView>(*view).cluster, "blue");
  EXPECT_TRUE(client_->Join(samples::ServerJoin(), Seconds(30)).ok());
  close(idle);
}

}  // namespace
}  // namespace paceline
