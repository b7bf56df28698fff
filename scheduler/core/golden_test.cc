// Runs the scripts in testdata/ and compares what the core said, in the manner of etcd's raft.
// `scheduler_core_test --rewrite` records the output anew: read the difference before you keep it.
//
// A script is blocks of a command, "----", its output, and an empty line. Commands:
//   server NAME | worker NAME [workers=N] [groups=SPEC] [samples=N] [batch=N] [deterministic]
//   register NAME TENSOR:ELEMENTS... | init-done NAME ID... | draw NAME COUNT [step=S]
//   return NAME EPOCH BEGIN END | barrier NAME WHAT | checkpoint NAME DIR | leave NAME | beat
//   NAME... step NAME S (acks with it) | mute NAME | unmute NAME | unwatch NAME | died NAME | tick
//   MS | stop JOB applied SERVER WORKER N [lineage=L] | status JOB | recover | progress WORKER STEP
//   counted WORKER APPLIED UPDATES (what owners say with their parts of cuts from now on)
//   checkpoint-job JOB | adopted WORKER LINEAGE [EPOCH BEGIN END] | resume JOB PATH [step=S]
//   [epoch=E] [position=P] [samples=N] [lineage=L] [tensors=N] | manifest (the newest, in short)
//   move WORKER GROUP|new | in WORKER GROUP STEP [us=STEP-TIME] (a report)
//   Options of worker: every=STEPS dir=DIR keep=N loss=stop
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "scheduler/core/cluster_for_test.h"
#include "scheduler/core/describe.h"

namespace paceline::scheduler {

bool rewrite_golden = false;

namespace {

using Words = std::vector<std::string>;

class Script {
 public:
  Script() {
    c_.on_ready = [this](const Ready& ready) { Record(ready); };
  }

  std::string Run(const std::string& line) {
    out_.clear();
    std::istringstream stream(line);
    Words words;
    for (std::string word; stream >> word;) words.push_back(word);
    const std::string command = words.front();
    words.erase(words.begin());
    if (!Nodes(command, words) && !Requests(command, words) && !Operators(command, words)) {
      out_ = "unknown command\n";
    }
    return out_.empty() ? "ok\n" : out_;
  }

 private:
  static uint64_t Number(const std::string& text) { return std::stoull(text); }
  static std::string Option(const Words& words, const std::string& key, std::string otherwise) {
    for (const std::string& word : words) {
      if (word.substr(0, key.size() + 1) == key + "=") return word.substr(key.size() + 1);
    }
    return otherwise;
  }

  std::string NameOf(NodeId id) const {
    for (const auto& [name, reply] : c_.joined) {
      if (reply.self.node == id) return name;
    }
    return absl::StrCat("node ", id.value());
  }

  void Record(const Ready& ready) {
    for (const DecisionRecord& d : ready.decisions) {
      absl::StrAppend(&out_, d.job.empty() ? "" : d.job + " ", d.kind, ": ", d.text, "\n");
    }
    for (const DirectiveAction& a : ready.directives) {
      absl::StrAppend(&out_, "  -> ", NameOf(a.to.node), " ", Describe(a.directive), "\n");
    }
  }

  void Ask(const std::string& name, NodeRequest body) {
    const RequestId id = c_.Ask(name, std::move(body));
    const bool open = !c_.Answered(id);
    absl::StrAppend(&out_, "reply: ", open ? "waits" : c_.StatusOf(id).ToString(), "\n");
    if (open || !c_.StatusOf(id).ok()) return;
    const NodeReply reply = c_.AnyReplyOf(id);
    if (const auto* drawn = std::get_if<DrawSamplesReply>(&reply)) {
      for (const SampleRange& r : drawn->ranges) {
        absl::StrAppend(&out_, "  epoch ", r.epoch.value(), " [", r.begin, ", ", r.end, ")\n");
      }
      if (drawn->finished) out_ += "  finished\n";
    }
  }

  bool Nodes(const std::string& command, const Words& w) {
    if (command == "server" || command == "worker") {
      JoinRequest join = c_.Server(w[0]);
      if (command == "worker") {
        JobSpec spec;
        spec.name = "job";
        spec.workers = static_cast<uint32_t>(Number(Option(w, "workers", "2")));
        spec.groups = *ParseGroupSpec(Option(w, "groups", "one"));
        spec.sample_count = Number(Option(w, "samples", "100"));
        spec.epochs = 1;
        spec.batch_size = Number(Option(w, "batch", "10"));
        spec.deterministic = std::count(w.begin(), w.end(), "deterministic") > 0;
        spec.checkpoint_every_steps = Number(Option(w, "every", "0"));
        spec.checkpoint_dir = Option(w, "dir", "");
        spec.checkpoint_keep = static_cast<uint32_t>(Number(Option(w, "keep", "3")));
        if (Option(w, "loss", "") == "stop") spec.on_server_loss = ServerLoss::kStop;
        join = c_.Worker(w[0], spec, ++last_index_);
      }
      const absl::Status status = c_.Join(join);
      if (!status.ok()) absl::StrAppend(&out_, "reply: ", status.ToString(), "\n");
    } else if (command == "beat") {
      for (const std::string& name : w) c_.Ask(name, Heartbeat{});
    } else if (command == "step") {
      c_.steps[c_.joined[w[0]].self.node] = paceline::Step(Number(w[1]));
    } else if (command == "mute") {
      c_.silent.insert(c_.joined[w[0]].self.node);
    } else if (command == "unmute") {
      c_.silent.erase(c_.joined[w[0]].self.node);
      c_.Feed(WatchEvent{c_.joined[w[0]].self});
    } else if (command == "unwatch") {
      c_.Feed(WatchClosedEvent{c_.joined[w[0]].self});
    } else if (command == "died") {
      c_.Feed(ProcessEndedEvent{c_.joined[w[0]].self, "signal 9"});
    } else if (command == "tick") {
      c_.Tick(static_cast<int64_t>(Number(w[0])));
    } else {
      return false;
    }
    return true;
  }

  bool Requests(const std::string& command, const Words& w) {
    if (command == "register") {
      RegisterTensorsRequest request;
      for (size_t i = 1; i < w.size(); ++i) {
        const size_t colon = w[i].find(':');
        request.tensors.push_back(
            {w[i].substr(0, colon), {Number(w[i].substr(colon + 1))}, DType::kF32, false});
      }
      Ask(w[0], std::move(request));
    } else if (command == "init-done") {
      InitDoneRequest request;
      for (size_t i = 1; i < w.size(); ++i) {
        request.tensors.emplace_back(static_cast<uint32_t>(Number(w[i])));
      }
      Ask(w[0], std::move(request));
    } else if (command == "draw") {
      Ask(w[0], DrawSamplesRequest{
                    Samples(Number(w[1])), paceline::Step(Number(Option(w, "step", "0"))), {}});
    } else if (command == "return") {
      Ask(w[0], ReturnSamplesRequest{{{Epoch(Number(w[1])), Number(w[2]), Number(w[3])}}});
    } else if (command == "barrier") {
      Ask(w[0], BarrierRequest{w[1]});
    } else if (command == "checkpoint") {
      Ask(w[0], CheckpointRequest{w[1]});
    } else if (command == "leave") {
      Ask(w[0], LeaveRequest{"done", 0, {}});
    } else if (command == "progress") {
      WorkerReport report;
      report.step = paceline::Step(Number(w[1]));
      c_.applied_by_all({{GroupId(0), report.step}});
      Ask(w[0], std::move(report));
    } else if (command == "in") {
      WorkerReport report;
      report.group = GroupId(static_cast<uint32_t>(Number(w[1])));
      report.step = paceline::Step(Number(w[2]));
      report.step_time_us = static_cast<uint32_t>(Number(Option(w, "us", "0")));
      Ask(w[0], std::move(report));
    } else if (command == "adopted") {
      AdoptedRequest request;
      request.lineage = static_cast<uint32_t>(Number(w[1]));
      if (w.size() > 2) request.held = {{Epoch(Number(w[2])), Number(w[3]), Number(w[4])}};
      Ask(w[0], std::move(request));
    } else if (command == "applied") {
      JobAtServer at;
      at.job = c_.joined[w[1]].job;
      at.lead = true;
      at.lineage = static_cast<uint32_t>(Number(Option(w, "lineage", "0")));
      at.workers.emplace_back();
      at.workers.back().worker = c_.joined[w[1]].self.node;
      at.workers.back().applied = Samples(Number(w[2]));
      Ask(w[0], ServerReport{Bytes(0), Bytes(0), 0, 0, {at}});
    } else {
      return false;
    }
    return true;
  }

  bool Operators(const std::string& command, const Words& w) {
    if (command == "stop") {
      c_.Operate(StopJobRequest{w[0], true, "asked"});
    } else if (command == "move") {
      MoveWorkerRequest request{"job", w[0], std::nullopt, ""};
      if (w[1] != "new") request.group = GroupId(static_cast<uint32_t>(Number(w[1])));
      const RequestId id(1'000'000 + ++moves_);
      c_.Feed(OperatorEvent{id, std::move(request)});
      absl::StrAppend(&out_, "reply: ", c_.Answered(id) ? c_.StatusOf(id).ToString() : "waits",
                      "\n");
    } else if (command == "checkpoint-job") {
      const absl::Status status = c_.TryOperate(CheckpointJobRequest{w[0], ""});
      absl::StrAppend(&out_, "reply: ", status.ToString(), "\n");
    } else if (command == "resume") {
      ResumeJobRequest request{w[0], w[1], {}};
      CheckpointManifest& m = request.manifest;
      m.spec.sample_count = Number(Option(w, "samples", "100"));
      m.steps = {{GroupId(0), paceline::Step(Number(Option(w, "step", "0")))}};
      m.lineage = static_cast<uint32_t>(Number(Option(w, "lineage", "0")));
      m.updates = LastStep(m.steps).value();
      m.samples.epoch = Epoch(Number(Option(w, "epoch", "0")));
      m.samples.position = Number(Option(w, "position", "0"));
      m.tensors.resize(Number(Option(w, "tensors", "1")));
      const absl::Status status = c_.TryOperate(request);
      absl::StrAppend(&out_, "reply: ", status.ToString(), "\n");
    } else if (command == "counted") {
      c_.cut_workers = {{c_.joined[w[0]].self.node, Samples(Number(w[1])), Samples(0)}};
      c_.cut_updates = Number(w[2]);
    } else if (command == "manifest") {
      const CheckpointManifest& m = c_.manifests.back();
      absl::StrAppend(&out_, "number ", m.number, " lineage ", m.lineage, " step ",
                      LastStep(m.steps).value(), " update ", m.updates, " applied ",
                      m.applied.value(), " epoch ", m.samples.epoch.value(), " from ",
                      m.samples.position, " left");
      for (const SampleRange& r : m.samples.left) {
        absl::StrAppend(&out_, " ", r.epoch.value(), ":[", r.begin, ", ", r.end, ")");
      }
      absl::StrAppend(&out_, " parts ", m.parts.size(), "\n");
    } else if (command == "status") {
      const JobView job = c_.Job(w[0]);
      absl::StrAppend(&out_, "job ", job.id.value(), " ", std::string(Name(job.state)),
                      " live=", job.workers_live, " drawn=", job.drawn.value(),
                      " applied=", job.applied.value(), " discarded=", job.discarded.value(),
                      " returned=", job.returned.value(), " reason=", job.reason, "\n");
    } else if (command == "recover") {
      const std::string before = c_.core().Snapshot();
      c_.RestartScheduler();
      out_ += c_.core().Snapshot() == before ? "the same state\n" : "ANOTHER STATE\n";
    } else {
      return false;
    }
    return true;
  }

  ClusterForTest c_;
  uint32_t last_index_ = 0;
  uint64_t moves_ = 0;
  std::string out_;
};

std::string RunFile(const std::string& text) {
  Script script;
  std::istringstream lines(text);
  std::string result, line;
  while (std::getline(lines, line)) {
    if (line.empty() || line[0] == '#') {
      result += line + "\n";
      continue;
    }
    absl::StrAppend(&result, line, "\n----\n", script.Run(line));
    // The output recorded before, up to the empty line.
    while (std::getline(lines, line) && !line.empty()) {
    }
    result += "\n";
  }
  return result;
}

TEST(GoldenTest, Scripts) {
  int scripts = 0;
  for (const auto& file : std::filesystem::directory_iterator("testdata")) {
    if (file.path().extension() != ".txt") continue;
    SCOPED_TRACE(file.path().string());
    std::ifstream in(file.path());
    std::stringstream text;
    text << in.rdbuf();
    const std::string result = RunFile(text.str());
    if (rewrite_golden) {
      std::ofstream(file.path()) << result;
    } else {
      EXPECT_EQ(result, text.str());
    }
    ++scripts;
  }
  EXPECT_GE(scripts, 5);
}

}  // namespace
}  // namespace paceline::scheduler

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  paceline::scheduler::rewrite_golden = argc > 1 && std::string(argv[1]) == "--rewrite";
  return RUN_ALL_TESTS();
}
