#include "simulation/replay.h"

#include <gtest/gtest.h>

#include <sstream>

#include "scheduler/core/core.h"
#include "scheduler/core/trace.h"

namespace paceline::simulation {
namespace {

using scheduler::EncodeTraceHeader;
using scheduler::EncodeTraceRecord;

JoinEvent Join(uint64_t request, Role role, const std::string& name) {
  JoinEvent event{RequestId(request), {}, {}};
  event.join.role = role;
  event.join.name = name;
  event.join.data_address = "127.0.0.1:1";
  event.join.job.name = "mnist";
  event.key.fill(0xAB);
  return event;
}

std::string Recorded() {
  std::string trace = EncodeTraceHeader({"lab", 500, 5000, {}});
  trace += EncodeTraceRecord(Seconds(10), Join(1, Role::kServer, "server-0"));
  trace += EncodeTraceRecord(Seconds(11), Join(2, Role::kWorker, "worker-0"));
  trace += EncodeTraceRecord(Milliseconds(17'500), TickEvent{});
  return trace;
}

TEST(ReplayTest, PrintsTheDecisionsOfTheRecordedRun) {
  std::ostringstream out;
  ASSERT_TRUE(Replay(Recorded(), {}, out).ok());
  const std::string text = out.str();
  EXPECT_NE(text.find("+0.000 - join: server server-0 at 127.0.0.1:1\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("+1.000 mnist running: 1 of 1 joined\n"), std::string::npos) << text;
  // Both were silent for longer than 5 s: at 17.5 s the server for 7.5 s, the worker for 6.5 s.
  EXPECT_NE(text.find("server server-0 () died: no heartbeat for 7500 ms"), std::string::npos);
  EXPECT_NE(text.find("no heartbeat for 6500 ms; it was the last"), std::string::npos) << text;
  EXPECT_NE(text.find("3 events replayed\n"), std::string::npos);
}

TEST(ReplayTest, KeysAreNotRecorded) {
  EXPECT_EQ(Recorded().find("\xAB\xAB\xAB\xAB"), std::string::npos);
}

TEST(ReplayTest, DamageIsAnErrorNeverACrash) {
  std::ostringstream out;
  EXPECT_EQ(Replay("nonsense", {}, out).message(), "not a trace: it does not begin with PLTRACE3");
  const std::string trace = Recorded();
  for (size_t size = 0; size < trace.size(); ++size) {
    std::ostringstream cut;
    (void)Replay(std::string_view(trace).substr(0, size), {}, cut);
    std::string flipped = trace;
    flipped[size] = static_cast<char>(flipped[size] ^ 0x40);
    (void)Replay(flipped, {}, cut);
  }
  EXPECT_EQ(Replay(std::string_view(trace).substr(0, trace.size() - 1), {}, out).code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace paceline::simulation
