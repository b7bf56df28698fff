#include "cli/views.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "cli/summary.h"
#include "cli/view_json.h"

namespace paceline {
namespace {

const Style kPlain;

ClusterView Example() {
  ClusterView view;
  view.version = "0.1.0";
  view.cluster = "lab";
  view.term = Term(2);
  view.uptime_ms = 192'000;
  JobView job;
  job.spec.name = "mnist";
  job.spec.workers = 4;
  job.spec.epochs = 3;
  job.spec.groups = *ParseGroupSpec("3,1");
  job.state = JobState::kRunning;
  job.epoch = Epoch(0);
  job.step = Step(1200);
  job.samples_per_s = 5234;
  job.applied = Samples(50'000);
  job.total = Samples(180'000);
  job.workers_live = 4;
  job.seconds_running = 75;
  job.mean = 1.25;
  job.tau = {8, 10, 2, {2, 2, 4}};
  GroupView group;
  group.plan.id = GroupId(0);
  group.plan.generation = GroupGeneration(3);
  group.plan.activation_step = Step(100);
  group.plan.reason = "equal speed: 20 ms, 21 ms and 20 ms a step; worker-3 is twice as slow";
  group.step = Step(1200);
  group.step_time_us = 20'500;
  for (uint32_t i = 0; i < 3; ++i) {
    Member member;
    member.name = "worker-" + std::to_string(i);
    member.rank = JobRank(i);
    member.host = "node-with-a-long-name";
    group.plan.members.push_back(member);
  }
  job.groups = {group};
  GroupStalenessView stale;
  stale.raw.tau = job.tau;
  stale.members = {"worker-0", "worker-1", "worker-2"};
  stale.mean = 1.25;
  stale.p95 = 2;
  stale.last_seen_ms = 40;
  job.group_staleness = {stale};
  WorkerStalenessView worker;
  worker.name = "worker-0";
  worker.tau = job.tau;
  worker.mean = 1.25;
  worker.p95 = 2;
  worker.excess_mean = 0.25;
  worker.step_lag = 1;
  worker.drawn_by_worker = Samples(77);
  worker.last_seen_ms = 1500;
  job.worker_staleness = {worker};
  view.jobs = {job};
  return view;
}

size_t WidestLine(const std::string& text) {
  size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST(Views, Status) {
  EXPECT_EQ(StatusText(Example(), kPlain),
            "cluster lab, version 0.1.0, up 3m12s, term 2; live: 0 servers, 0 workers\n"
            "\n"
            "JOB    STATE    EPOCH  STEP  SAMP/S  DONE  STALE  WORKERS  GROUPS   TIME\n"
            "mnist  running    1/3  1200   5.23k   28%   1.25      4/4       1  1m15s\n");
}

TEST(Views, GroupsSayWhy) {
  EXPECT_EQ(GroupsText(Example(), kPlain),
            "job mnist (running): 1 groups (3,1), 0 group plans so far\n"
            "  group 0: step 1200, 20.5 ms a step, generation 3 from step 100\n"
            "    members  worker-0 (rank 0, node-with-a-long-name), worker-1 (rank 1,\n"
            "             node-with-a-long-name), worker-2 (rank 2, node-with-a-long-name)\n"
            "    why      equal speed: 20 ms, 21 ms and 20 ms a step; worker-3 is twice as\n"
            "             slow\n");
}

TEST(Views, HistogramBarsAreProportional) {
  Style style;
  style.width = 36;  // four columns for the longest bar
  EXPECT_EQ(HistogramText({8, 10, 2, {2, 2, 4}}, style),
            "        0 |## 2 (25.0%)\n"
            "        1 |## 2 (25.0%)\n"
            "        2 |#### 4 (50.0%)\n");
  EXPECT_EQ(HistogramText({}, style), "  no pushes were applied yet\n");
}

TEST(Views, HistogramHasAtMostSixteenLinesAndCountsAll) {
  StalenessCounts counts;
  counts.buckets.assign(StalenessCounts::kExact + 1, 1);
  counts.count = counts.buckets.size();
  const std::string text = HistogramText(counts, kPlain);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 16);
  EXPECT_NE(text.find("+ |"), std::string::npos) << text;
  EXPECT_LE(WidestLine(text), 80u);
}

TEST(Views, EverythingFitsEightyColumns) {
  ClusterView view = Example();
  NodeView node;
  node.name = std::string(90, 'n');
  node.host = std::string(90, 'h');
  node.data_address = "node-with-a-long-name.example.org:12345";
  node.state = "live";
  node.job = std::string(100, 'j');
  view.nodes = {node};
  view.jobs[0].spec.name = std::string(128, 'j');
  view.jobs[0].reason = std::string(200, 'r');
  view.jobs[0].groups[0].plan.reason = std::string(200, 'w');
  view.jobs[0].group_staleness[0].members.assign(50, "worker-with-a-name");
  for (const auto& text : {StatusText(view, kPlain), NodesText(view, kPlain)}) {
    EXPECT_LE(WidestLine(text), 80u) << text;
  }
  for (const auto& text :
       {JobsText(view, kPlain), GroupsText(view, kPlain), StalenessText(view, kPlain)}) {
    EXPECT_LE(WidestLine(text), 80u) << text;
  }
  const std::string events =
      EventsText({{7, 0, Ticks(0), "mnist", "placement", std::string(300, 'x')}}, kPlain);
  EXPECT_LE(WidestLine(events), 80u) << events;
}

TEST(Views, NodesSayOverWhatEachLinkGoesAndWhy) {
  ClusterView view = Example();
  NodeView node;
  node.name = "worker-0";
  node.worker.links = {"server-0: shm (same host)", "server-1: tcp (another host)"};
  view.nodes = {node};
  EXPECT_NE(NodesText(view, kPlain)
                .find("links of worker-0  server-0: shm (same host), server-1: tcp (another host)"),
            std::string::npos)
      << NodesText(view, kPlain);
}

TEST(Views, ColoursOnlyWhenAsked) {
  Style color;
  color.color = true;
  EXPECT_NE(StatusText(Example(), color).find("\x1b[32mrunning"), std::string::npos);
  EXPECT_EQ(StatusText(Example(), kPlain).find('\x1b'), std::string::npos);
}

TEST(Views, JsonNamesAreThere) {
  const nlohmann::json json = nlohmann::json::parse(StalenessJson(Example()));
  EXPECT_EQ(json["jobs"][0]["by_worker"][0]["worker"], "worker-0");
  EXPECT_EQ(json["jobs"][0]["by_worker"][0]["step_lag"], 1);
  EXPECT_EQ(json["jobs"][0]["by_worker"][0]["own_counts"]["samples_drawn"], 77);
  EXPECT_EQ(json["jobs"][0]["buckets"], (std::vector<uint64_t>{2, 2, 4}));
  EXPECT_EQ(nlohmann::json::parse(GroupsJson(Example()))["jobs"][0]["groups"][0]["generation"], 3);
}

TEST(Summary, ProgressLine) {
  JobView job = Example().jobs[0];
  job.metrics = {{"loss", 0.3125, "worker-0", Step(3)}};
  // 130000 samples at 5234 a second: 24.8 s.
  EXPECT_EQ(ProgressLine(job, 120),
            "epoch 1/3  step 1200  5.23k samples/s  ETA 24s  loss 0.3125  staleness 1.25  "
            "members 4/4");
  // Where that does not fit, shorter words do.
  EXPECT_EQ(ProgressLine(job, 79),
            "epoch 1/3  step 1200  5.23k/s  ETA 24s  loss 0.3125  stale 1.25  4/4");
  job.state = JobState::kForming;
  job.workers_live = 1;
  EXPECT_EQ(ProgressLine(job, 79), "waiting for workers: 1 of 4 joined");
}

TEST(Summary, Durations) {
  EXPECT_EQ(DurationText(3.14), "3.1s");
  EXPECT_EQ(DurationText(59.9), "59s");
  EXPECT_EQ(DurationText(192), "3m12s");
  EXPECT_EQ(DurationText(7500), "2h05m");
}

int Command(std::vector<const char*> argv, std::string* out, std::string* err,
            std::map<std::string, std::string> variables = {}) {
  std::ostringstream out_stream, err_stream;
  CommandContext context;
  context.environment = Environment(std::move(variables));
  context.connect = [](const std::string&,
                       const TlsConfig&) -> absl::StatusOr<std::unique_ptr<ControlClient>> {
    return absl::UnavailableError("connection refused");
  };
  context.out = &out_stream;
  context.err = &err_stream;
  argv.insert(argv.begin(), "pacelinectl");
  const int code = RunCommand(static_cast<int>(argv.size()), argv.data(), context);
  *out = out_stream.str();
  *err = err_stream.str();
  return code;
}

TEST(Command, ExitCodes) {
  std::string out, err;
  EXPECT_EQ(Command({"--help"}, &out, &err), 0);
  EXPECT_LE(WidestLine(out), 80u);
  EXPECT_EQ(Command({"--version"}, &out, &err), 0);
  EXPECT_EQ(Command({}, &out, &err), 2);
  EXPECT_EQ(Command({"statsu"}, &out, &err), 2);
  EXPECT_EQ(Command({"status", "--jsn"}, &out, &err), 2);
  EXPECT_NE(err.find("did you mean --json"), std::string::npos) << err;
  EXPECT_EQ(Command({"status", "--watch", "soon"}, &out, &err), 2);
  EXPECT_EQ(Command({"status", "mnist"}, &out, &err), 2);
  EXPECT_EQ(Command({"status"}, &out, &err), 3);
  EXPECT_EQ(Command({"status"}, &out, &err, {{"PACELINE_SCHEDULER", "nowhere"}}), 2);
  EXPECT_EQ(Command({"status", "--scheduler", "head:4300"}, &out, &err), 2);
  EXPECT_NE(err.find("beyond loopback"), std::string::npos) << err;
  EXPECT_EQ(Command({"completion", "fish"}, &out, &err), 2);
  EXPECT_EQ(Command({"completion", "bash"}, &out, &err), 0);
  EXPECT_NE(out.find("complete -o default -F _pacelinectl pacelinectl"), std::string::npos);
  for (const char* name :
       {"run", "status", "nodes", "groups", "staleness", "events", "jobs", "stop"}) {
    EXPECT_EQ(Command({name, "--help"}, &out, &err), 0) << name;
    EXPECT_NE(out.find("Exit codes"), std::string::npos) << name;
    EXPECT_LE(WidestLine(out), 80u) << out;
  }
}

// What bash offers for these words; the last one is being typed.
std::string Completed(const std::string& words) {
  const std::string script = CompletionScript("bash") + "COMP_WORDS=(" + words +
                             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _pacelinectl; "
                             "echo ${COMPREPLY[*]}";
  const std::string path = testing::TempDir() + "/completion_" + std::to_string(getpid());
  std::ofstream(path) << script;
  FILE* pipe = popen(("bash " + path + " 2>&1").c_str(), "r");
  std::string output;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) output += static_cast<char>(c);
  pclose(pipe);
  std::remove(path.c_str());
  return output;
}

TEST(Completion, BashOffersWhatFits) {
  EXPECT_EQ(Completed("pacelinectl sta"), "status staleness\n");
  EXPECT_EQ(Completed("pacelinectl events --l"), "--limit\n");
  EXPECT_EQ(Completed("pacelinectl run --wo"), "--workers\n");
  EXPECT_EQ(Completed("pacelinectl completion ''"), "bash zsh\n");
}

}  // namespace
}  // namespace paceline
