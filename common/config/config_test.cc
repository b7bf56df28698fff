#include "common/config/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "common/config/key_table.h"
#include "common/config/text_value.h"

namespace paceline {
namespace {

// A file that is removed at the end of the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    path_ = testing::TempDir() + "/config_test_" + std::to_string(getpid()) + ".yaml";
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

enum class Program { kScheduler, kServer, kWorker, kLaunch };

struct Input {
  Program program;
  std::vector<std::string> flags;
  std::map<std::string, std::string> variables;
  std::string yaml;
};

template <typename Parsed>
std::string ErrorOf(const absl::StatusOr<Parsed>& parsed) {
  return parsed.ok() ? "" : std::string(parsed.status().message());
}

std::string Load(const Input& input) {
  const TemporaryFile file(input.yaml);
  std::vector<const char*> argv = {"program"};
  if (!input.yaml.empty()) {
    argv.push_back("--config");
    argv.push_back(file.path().c_str());
  }
  for (const std::string& flag : input.flags) argv.push_back(flag.c_str());
  const int argc = static_cast<int>(argv.size());
  const Environment env(input.variables);
  switch (input.program) {
    case Program::kScheduler:
      return ErrorOf(LoadSchedulerConfig(argc, argv.data(), env));
    case Program::kServer:
      return ErrorOf(LoadServerConfig(argc, argv.data(), env));
    case Program::kWorker:
      return ErrorOf(LoadWorkerConfig(argc, argv.data(), env));
    case Program::kLaunch:
      return ErrorOf(LoadLaunchConfig(argc, argv.data(), env));
  }
  return "";
}

struct WrongInput {
  Input input;
  std::vector<std::string> parts;  // of the one message
};

std::vector<WrongInput> WrongFlags() {
  const Program scheduler = Program::kScheduler;
  const Program server = Program::kServer;
  const Program worker = Program::kWorker;
  const Program launch = Program::kLaunch;
  return {
      {{scheduler, {"--lissten", "1"}, {}, ""}, {"unknown flag --lissten", "--listen"}},
      {{scheduler, {"--lissten=1"}, {}, ""}, {"unknown flag --lissten", "--listen"}},
      {{scheduler, {"--zzzzzzzzzz"}, {}, ""}, {"unknown flag --zzzzzzzzzz", "--help"}},
      {{scheduler, {"extra"}, {}, ""}, {"unexpected argument \"extra\""}},
      {{scheduler, {"--listen"}, {}, ""}, {"--listen"}},
      {{scheduler, {"--listen", "nowhere"}, {}, ""},
       {"listen", "nowhere", "flag --listen", "host:port"}},
      {{scheduler, {"--listen", "127.0.0.1:70000"}, {}, ""}, {"listen", "70000"}},
      {{scheduler, {"--listen", "[::1:4300"}, {}, ""}, {"listen", "[::1:4300"}},
      {{scheduler, {"--listen", ":4300"}, {}, ""}, {"listen", "host:port"}},
      {{scheduler, {"--listen", "0.0.0.0:4300"}, {}, ""},
       {"listen", "beyond loopback", "insecure", "flag --listen"}},
      {{scheduler, {"--listen", "node7:4300"}, {}, ""}, {"node7:4300", "beyond loopback"}},
      {{scheduler, {"--heartbeat-ms", "abc"}, {}, ""},
       {"heartbeat_ms", "abc", "not a whole number", "10 .. 1200000"}},
      {{scheduler, {"--heartbeat-ms", "-5"}, {}, ""}, {"heartbeat_ms", "-5", "not a whole number"}},
      {{scheduler, {"--heartbeat-ms", "5"}, {}, ""},
       {"heartbeat_ms", "out of range", "10 .. 1200000"}},
      {{scheduler, {"--heartbeat-ms", "4000"}, {}, ""},
       {"heartbeat_ms", "4000", "failure_timeout_ms 5000"}},
      {{scheduler, {"--failure-timeout-ms=1"}, {}, ""}, {"failure_timeout_ms", "100 .. 3600000"}},
      {{scheduler, {"--ready-fd", "1"}, {}, ""}, {"ready_fd", "3 .. 1023"}},
      {{scheduler, {"--log-level", "inof"}, {}, ""},
       {"log_level", "inof", "did you mean \"info\""}},
      {{scheduler, {"--tls-cert", "/nowhere/c.pem"}, {}, ""},
       {"tls.cert", "/nowhere/c.pem", "cannot be read"}},
      {{scheduler, {"--tls-key", "/nowhere/k.pem"}, {}, ""}, {"tls.cert", "is not set"}},
      {{scheduler, {"--config", "/nowhere/x.yaml"}, {}, ""}, {"/nowhere/x.yaml", "No such file"}},
      {{scheduler, {"--set", "listen"}, {}, ""}, {"--set listen", "key=value"}},
      {{scheduler, {"--set", "lsten=1"}, {}, ""}, {"unknown key \"lsten\"", "\"listen\""}},
      {{scheduler, {"--cluster", "a b"}, {}, ""}, {"cluster", "a b", "not a name"}},
      {{server, {"--bind", "0.0.0.0:0"}, {}, ""}, {"bind", "beyond loopback", "flag --bind"}},
      {{server, {"--scheduler", "head:4300"}, {}, ""},
       {"scheduler", "head:4300", "beyond loopback"}},
      {{server, {"--threads", "1000"}, {}, ""}, {"threads", "0 .. 256"}},
      {{server, {"--memory-quota-bytes", "1Zi"}, {}, ""},
       {"memory_quota_bytes", "1Zi", "number of bytes"}},
      {{server, {"--memory-quota-bytes", "99999999TiB"}, {}, ""},
       {"memory_quota_bytes", "too large"}},
      {{server, {"--labels", "rack"}, {}, ""}, {"labels", "rack", "name=value"}},
      {{server, {"--labels", "a=1,a=2"}, {}, ""}, {"labels", "\"a\" twice"}},
      {{server, {"--insecure=maybe"}, {}, ""}, {"insecure", "maybe"}},
      {{worker, {}, {}, ""}, {"job.name is not set", "PACELINE_JOB"}},
      {{worker, {"--job", "a/b"}, {}, ""}, {"job.name", "a/b", "not a name"}},
      {{worker, {"--job", "j", "--set", "epoch=2"}, {}, ""},
       {"unknown key \"epoch\"", "\"job.epochs\""}},
      {{worker, {"--job", "j", "--groups", "some"}, {}, ""}, {"job.groups", "some", "per-worker"}},
      {{worker, {"--job", "j", "--workers", "4", "--groups", "3,2"}, {}, ""},
       {"groups", "3,2", "flag --groups"}},
      {{worker, {"--job", "j", "--min-workers", "2"}, {}, ""},
       {"min_workers", "flag --min-workers"}},
      {{worker, {"--job", "j", "--chunk-bytes", "1"}, {}, ""},
       {"job.chunk_bytes", "4KiB .. 256MiB"}},
      {{worker, {"--job", "j", "--optimizer", "sgd:momentum=x"}, {}, ""},
       {"job.optimizer", "momentum", "\"x\""}},
      {{worker, {"--job", "j", "--normalization", "avg"}, {}, ""},
       {"job.normalization", "avg", "mean, sum"}},
      {{worker, {"--job", "j", "--codecs", "fp16"}, {}, ""}, {"job.codecs", "PATTERN=NAME"}},
      {{launch, {"--workers", "2"}, {}, ""}, {"no program", "after --"}},
      {{launch, {"--workers", "0", "--", "x"}, {}, ""}, {"job.workers", "\"0\"", "flag --workers"}},
      {{launch, {"./train"}, {}, ""}, {"unexpected argument \"./train\""}},
  };
}

std::vector<WrongInput> WrongVariablesAndFiles() {
  const Program scheduler = Program::kScheduler;
  const Program worker = Program::kWorker;
  const Program launch = Program::kLaunch;
  return {
      {{scheduler, {}, {{"PACELINE_LISTEN", "x"}}, ""}, {"listen", "variable PACELINE_LISTEN"}},
      {{worker, {}, {{"PACELINE_JOB", "j"}, {"PACELINE_WORKER_INDEX", "first"}}, ""},
       {"index", "first", "variable PACELINE_WORKER_INDEX"}},
      {{worker, {}, {{"PACELINE_JOB", "j"}, {"PACELINE_EPOCHS", "1.5"}}, ""},
       {"job.epochs", "1.5", "variable PACELINE_EPOCHS"}},
      {{scheduler, {}, {}, "listten: 127.0.0.1:1\n"},
       {"unknown key \"listten\"", ".yaml:1", "\"listen\""}},
      {{scheduler, {}, {}, "\n\nheartbeat_ms: often\n"}, {"heartbeat_ms", "often", ".yaml:3"}},
      {{scheduler, {}, {}, "tls:\n  crt: x\n"},
       {"unknown key \"tls.crt\"", ".yaml:2", "\"tls.cert\""}},
      {{scheduler, {}, {}, "tls: yes\n"}, {"tls", "section", ".yaml:1"}},
      {{scheduler, {}, {}, "listen: [a, b]\n"}, {"listen", "single value", ".yaml:1"}},
      {{scheduler, {}, {}, "listen:\n"}, {"listen", "no value", ".yaml:1"}},
      {{scheduler, {}, {}, "- a\n- b\n"}, {"is not a map"}},
      {{scheduler, {}, {}, "listen: \"abc\nheartbeat_ms: 1\n"}, {".yaml:"}},
      {{scheduler, {}, {}, "cluster: a\ncluster: b\n"}, {"cluster", "twice", ".yaml:2"}},
      {{worker, {}, {}, "job:\n  name: j\n  epoch: 3\n"},
       {"unknown key \"job.epoch\"", ".yaml:3", "\"job.epochs\""}},
      {{worker, {}, {}, "job:\n  name: j\nepochs: 3\n"},
       {"unknown key \"epochs\"", ".yaml:3", "\"job.epochs\""}},
      {{worker, {}, {}, "job:\n  name: j\n  optimizer: {momentum: 0.9}\n"},
       {"job.optimizer", "no \"name\"", ".yaml:3"}},
      {{worker, {}, {}, "job: {name: j, workers: 2, min_workers: 3}\n"},
       {"min_workers", "3", ".yaml:1"}},
      {{launch, {"--", "x"}, {}, "server: 2\n"}, {"unknown key \"server\"", "\"servers\""}},
  };
}

void ExpectRefused(const std::vector<WrongInput>& table) {
  for (const WrongInput& wrong : table) {
    const std::string message = Load(wrong.input);
    EXPECT_NE(message, "") << wrong.parts.front();
    for (const std::string& part : wrong.parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" in: " << message;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Config, EveryWrongFlagGivesOneMessageThatNamesIt) { ExpectRefused(WrongFlags()); }

TEST(Config, EveryWrongVariableAndFileGivesOneMessageThatNamesIt) {
  ExpectRefused(WrongVariablesAndFiles());
}

TEST(Config, FlagBeatsVariableBeatsFileBeatsDefault) {
  const TemporaryFile file("cluster: file\nheartbeat_ms: 100\nmax_jobs: 3\n");
  const Environment env({{"PACELINE_CLUSTER", "variable"},
                         {"PACELINE_HEARTBEAT_MS", "200"},
                         {"PACELINE_CONFIG", file.path()}});
  const char* argv[] = {"p", "--cluster=flag"};
  const auto parsed = LoadSchedulerConfig(2, argv, env);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.cluster, "flag");
  EXPECT_EQ(parsed->config.heartbeat_ms, 200u);
  EXPECT_EQ(parsed->config.max_jobs, 3u);
  EXPECT_EQ(parsed->config.max_nodes, 4096u);
  EXPECT_EQ(parsed->config.journal, "paceline-state/journal.sqlite");
}

TEST(Config, JobSectionTakesMapsListsAndTexts) {
  const TemporaryFile file(
      "job:\n  name: mnist\n  workers: 4\n  groups: [3, 1]\n  chunk_bytes: 64KiB\n"
      "  optimizer: {name: sgd, momentum: 0.9}\n  policy: 'xdc:lambda=100'\n"
      "  codecs: {'dense*': fp16}\n  gate: yes\n"
      "labels: {rack: r1}\n");
  const Environment env;
  const char* argv[] = {"p", "--config", file.path().c_str(), "--set", "epochs=3"};
  const auto parsed = LoadWorkerConfig(5, argv, env);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const JobSpec& job = parsed->config.job;
  EXPECT_EQ(job.groups.sizes, (std::vector<uint32_t>{3, 1}));
  EXPECT_EQ(job.chunk_bytes, 65536u);
  EXPECT_EQ(job.optimizer, (NamedSpec{"sgd", {{"momentum", 0.9}}}));
  EXPECT_EQ(job.policy, (NamedSpec{"xdc", {{"lambda", 100}}}));
  EXPECT_EQ(job.codecs.at("dense*").name, "fp16");
  EXPECT_TRUE(job.gate);
  EXPECT_EQ(job.epochs, 3u);
  EXPECT_EQ(parsed->config.labels.at("rack"), "r1");
}

TEST(Config, WhatIsPrintedLoadsToTheSame) {
  const char* first[] = {"p",  "--listen=127.0.0.1:9", "--cluster", "x", "--heartbeat-ms",
                         "77", "--print-config"};
  const Environment env;
  const auto printed = LoadSchedulerConfig(7, first, env);
  ASSERT_TRUE(printed.ok()) << printed.status();
  EXPECT_EQ(printed->exit_code, 0);
  EXPECT_NE(printed->text.find("flag --heartbeat-ms"), std::string::npos) << printed->text;
  const TemporaryFile file(printed->text);
  const char* second[] = {"p", "--config", file.path().c_str()};
  const auto loaded = LoadSchedulerConfig(3, second, env);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.listen, "127.0.0.1:9");
  EXPECT_EQ(loaded->config.cluster, "x");
  EXPECT_EQ(loaded->config.heartbeat_ms, 77u);
}

TEST(Config, JobEnvironmentBringsTheSpecToTheWorker) {
  JobSpec spec;
  spec.name = "j";
  spec.workers = 4;
  spec.groups = *ParseGroupSpec("3,1");
  spec.optimizer = {"adam", {{"beta1", 0.9}, {"epsilon", 1e-8}}};
  spec.codecs = {{"a*", {"fp16", {}}}};
  spec.normalization = Normalization::kSum;
  spec.deterministic = true;
  spec.batch_size = 32;
  spec.max_step_lag = 3;
  const auto variables = JobEnvironment(spec);
  EXPECT_EQ(variables.at("PACELINE_JOB"), "j");
  EXPECT_EQ(variables.at("PACELINE_WORKERS"), "4");
  Environment env(variables);
  env.Set("PACELINE_WORKER_INDEX", "2");
  const auto config = WorkerConfigFromEnvironment(env);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->job, spec);
  EXPECT_EQ(config->name, "worker-2");
}

TEST(Config, LaunchTakesTheProgramAfterTheDashes) {
  const char* argv[] = {"run", "--workers=2", "--", "python3", "my/train.py", "--workers", "9"};
  const auto parsed = LoadLaunchConfig(7, argv, Environment());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->config.job.workers, 2u);
  EXPECT_EQ(parsed->config.job.name, "train");
  EXPECT_EQ(parsed->config.program,
            (std::vector<std::string>{"python3", "my/train.py", "--workers", "9"}));
}

TEST(Config, TheExamplesLoad) {
  // CTest runs the tests of a folder in it.
  const std::string folder = "../../configs/";
  const std::string scheduler = folder + "scheduler.yaml";
  const char* first[] = {"p", "--config", scheduler.c_str()};
  const auto one = LoadSchedulerConfig(3, first, Environment());
  EXPECT_TRUE(one.ok()) << one.status();
  const std::string server = folder + "server.yaml";
  const char* second[] = {"p", "--config", server.c_str()};
  const auto two = LoadServerConfig(3, second, Environment());
  EXPECT_TRUE(two.ok()) << two.status();
  const std::string job = folder + "job.yaml";
  const char* third[] = {"run", "--config", job.c_str(), "--", "x"};
  const auto three = LoadLaunchConfig(5, third, Environment());
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(three->config.job.optimizer.Get("learning_rate", 0), 0.05);
}

TEST(Config, HelpFitsEightyColumns) {
  const char* argv[] = {"p", "--help"};
  const auto parsed = LoadWorkerConfig(2, argv, Environment());
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->exit_code, 0);
  for (const std::string& line : SplitTrimmed(parsed->text, '\n'))
    EXPECT_LE(line.size(), 80u) << line;
}

TEST(Config, LoopbackAndExposure) {
  for (const char* near : {"127.0.0.1:1", "127.9.9.9", "[::1]:0", "::1", "localhost:4300"}) {
    EXPECT_TRUE(IsLoopback(near)) << near;
  }
  for (const char* far : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "localhost.example:1", "node", ""}) {
    EXPECT_FALSE(IsLoopback(far)) << far;
  }
  EXPECT_TRUE(CheckExposure("listen", "0.0.0.0:1", {}, true).ok());
  EXPECT_TRUE(CheckExposure("listen", "0.0.0.0:1", {"c", "k", "a"}, false).ok());
  EXPECT_FALSE(CheckExposure("listen", "0.0.0.0:1", {}, false).ok());
}

TEST(Config, AdvertisedAddressTakesThePortThatWasBound) {
  EXPECT_EQ(AdvertisedAddress("", "127.0.0.1:5"), "127.0.0.1:5");
  EXPECT_EQ(AdvertisedAddress("node7", "0.0.0.0:5"), "node7:5");
  EXPECT_EQ(AdvertisedAddress("node7:6", "0.0.0.0:5"), "node7:6");
  EXPECT_EQ(AdvertisedAddress("[::1]:6", "[::]:5"), "[::1]:6");
}

TEST(TextValue, EditDistanceOfKnownPairs) {
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("abc", "abc"), 0u);
}

TEST(TextValue, ByteCountsReadBack) {
  EXPECT_EQ(*ParseByteCount("4MiB"), 4194304u);
  EXPECT_EQ(*ParseByteCount("4M"), 4194304u);
  EXPECT_EQ(ByteCountText(4194304), "4MiB");
  EXPECT_EQ(ByteCountText(4194305), "4194305");
  EXPECT_FALSE(ParseByteCount("MiB").ok());
  EXPECT_FALSE(ParseByteCount("4MB").ok());
}

}  // namespace
}  // namespace paceline
