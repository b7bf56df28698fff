#include "common/config/config.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "common/base/status.h"
#include "common/config/command_line.h"
#include "common/config/job_keys.h"
#include "common/config/key_table.h"
#include "common/config/text_value.h"

namespace paceline {
namespace {

constexpr uint32_t kNoEnd32 = 0xffffffffu;

constexpr std::string_view kLaunchUsage =
    "pacelinectl run: starts the processes of one job and watches them\n\n"
    "  pacelinectl run [FLAG]... -- PROGRAM [ARGUMENT]...\n\n"
    "Without --scheduler it starts a scheduler and servers on this machine first.\n"
    "Logs of all processes and summary.json go to the output directory.\n\n"
    "  pacelinectl run --workers 4 --groups per-worker --epochs 3 -- ./train\n"
    "  pacelinectl run --scheduler head:4300 --insecure --workers 8 -- ./train\n"
    "  pacelinectl run --config job.yaml --set failure_timeout_ms=9000 -- ./train\n"
    "  pacelinectl run --resume runs/latest/checkpoints --workers 2 -- ./train\n\n"
    "Exit codes: 0 the job is done; 1 a process failed; 2 a wrong flag or key;\n"
    "3 the scheduler could not be reached; 130 interrupted (SIGINT), 143 (SIGTERM).\n";

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  std::string host(name.data());
  return IsName(host) ? host : "localhost";
}

void TlsKeys(KeyTable& table, bool& insecure, TlsConfig& tls) {
  table.Switch("insecure", "allow plaintext beyond loopback", &insecure);
  table.Text("tls.cert", "PEM file with this program's certificate", &tls.cert);
  table.Text("tls.key", "PEM file with its private key", &tls.key);
  table.Text("tls.ca", "PEM file with the authority that signed the other end", &tls.ca);
}

void LogLevelKey(KeyTable& table, std::string& level) {
  table.OneOf("log_level", "what is logged to stderr", {"debug", "info", "warning", "error"},
              &level);
}

void ReadyFdKey(KeyTable& table, std::string doc, int& fd) {
  Key key;
  key.path = "ready_fd";
  key.doc = std::move(doc);
  key.allowed = "3 .. 1023";
  key.set = [&fd](std::string_view text) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(const uint64_t value, ParseWhole(text));
    if (value < 3 || value > 1023) return absl::InvalidArgumentError("is out of range");
    fd = static_cast<int>(value);
    return absl::OkStatus();
  };
  key.get = [&fd] { return fd < 0 ? std::string() : std::to_string(fd); };
  table.Add(std::move(key));
}

// "key: what (origin)" with the origin of the key.
absl::Status Refused(const KeyTable& table, std::string_view path, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(path), ": ", Absl(what), " (", table.OriginOf(path), ")"));
}

absl::Status FinishTls(const KeyTable& table, const TlsConfig& tls) {
  const std::array<std::pair<std::string, const std::string*>, 3> files = {
      {{"tls.cert", &tls.cert}, {"tls.key", &tls.key}, {"tls.ca", &tls.ca}}};
  if (tls.cert.empty() && tls.key.empty() && tls.ca.empty()) return absl::OkStatus();
  for (const auto& [path, file] : files) {
    if (file->empty())
      return Refused(table, path, "is not set; TLS needs tls.cert, tls.key and tls.ca");
    if (access(file->c_str(), R_OK) != 0) {
      return Refused(table, path, absl::StrCat("\"", *file, "\" cannot be read"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckExposed(const KeyTable& table, std::string_view path, const std::string& address,
                          const TlsConfig& tls, bool insecure) {
  const absl::Status status = CheckExposure(path, address, tls, insecure);
  if (status.ok()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat(status.message(), " (", table.OriginOf(path), ")"));
}

bool IsWildcard(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  return parsed.ok() && (parsed->host == "0.0.0.0" || parsed->host == "::");
}

void SchedulerKeys(KeyTable& table, SchedulerConfig& c) {
  table.Address("listen", "where nodes and operators connect; port 0 = any free", false, &c.listen);
  table.Address("advertise", "what others are told to dial; default: listen", true, &c.advertise);
  table.Name("cluster", "name shown to operators", &c.cluster);
  table.Text("state_dir", "directory of the journal, created with mode 0700", &c.state_dir);
  table.Text("journal", "file of the journal; default: state_dir/journal.sqlite", &c.journal);
  table.Number("failure_timeout_ms", "silence after which a server is declared dead", 100,
               3'600'000, &c.failure_timeout_ms);
  table.Number("heartbeat_ms", "how often nodes beat; at most a third of failure_timeout_ms", 10,
               1'200'000, &c.heartbeat_ms);
  table.Number("max_jobs", "jobs at once", 1, 10'000, &c.max_jobs);
  table.Number("max_nodes", "nodes at once", 1, 100'000, &c.max_nodes);
  ReadyFdKey(table, "descriptor that gets \"host:port\" once listening", c.ready_fd);
  LogLevelKey(table, c.log_level);
  table.Number("trace.max_events", "events kept for replay", 0, 100'000'000, &c.trace_max_events);
  table.ByteCount("trace.max_bytes", "memory of the events kept", 0, 64ull << 30,
                  &c.trace_max_bytes);
  TlsKeys(table, c.insecure, c.tls);
}

absl::Status FinishScheduler(const KeyTable& table, SchedulerConfig& c) {
  if (c.heartbeat_ms > c.failure_timeout_ms / 3) {
    return Refused(table, "heartbeat_ms",
                   absl::StrCat(c.heartbeat_ms, " is more than a third of failure_timeout_ms ",
                                c.failure_timeout_ms, "; one lost beat would be a death"));
  }
  if (c.state_dir.empty()) return Refused(table, "state_dir", "is empty");
  if (c.journal.empty()) c.journal = c.state_dir + "/journal.sqlite";
  if (c.advertise.empty() && IsWildcard(c.listen)) c.advertise = HostName();
  PACELINE_RETURN_IF_ERROR(FinishTls(table, c.tls));
  return CheckExposed(table, "listen", c.listen, c.tls, c.insecure);
}

void ServerKeys(KeyTable& table, ServerConfig& c) {
  table.Name("name", "stable and unique in the cluster; default: host", &c.name);
  table.Spelled("--name", "PACELINE_SERVER_NAME");
  table.Address("scheduler", "address of paceline-scheduler", false, &c.scheduler);
  table.Address("bind", "where workers connect; port 0 = any free", false, &c.bind);
  table.Address("advertise", "what workers are told to dial; default: bind", true, &c.advertise);
  table.Name("host", "default: this machine's host name", &c.host);
  table.Labels("labels", "what placement knows about this machine", &c.labels);
  table.Number("threads", "threads that own shards; 0 = one a core, at most 8", 0, 256, &c.threads);
  table.ByteCount("memory_quota_bytes", "weights, optimizer state and open rounds of one job",
                  1 << 20, 1ull << 50, &c.memory_quota_bytes);
  table.Number("max_connections", "data connections at once", 1, 1'000'000, &c.max_connections);
  table.Number("join_timeout_ms", "how long to wait for the scheduler at the start", 100,
               86'400'000, &c.join_timeout_ms);
  ReadyFdKey(table, "descriptor that gets \"host:port\" once joined", c.ready_fd);
  LogLevelKey(table, c.log_level);
  TlsKeys(table, c.insecure, c.tls);
}

absl::Status FinishServer(const KeyTable& table, ServerConfig& c) {
  if (c.host.empty()) c.host = HostName();
  if (c.name.empty()) c.name = c.host;
  if (c.advertise.empty() && IsWildcard(c.bind)) c.advertise = c.host;
  PACELINE_RETURN_IF_ERROR(FinishTls(table, c.tls));
  PACELINE_RETURN_IF_ERROR(CheckExposed(table, "scheduler", c.scheduler, c.tls, c.insecure));
  return CheckExposed(table, "bind", c.bind, c.tls, c.insecure);
}

void IndexKey(KeyTable& table, std::optional<WorkerIndex>& index) {
  Key key;
  key.path = "index";
  key.variable = "PACELINE_WORKER_INDEX";
  key.doc = "the launcher's number of this worker, kept when it is started again";
  key.allowed = "0 .. 4294967294";
  key.set = [&index](std::string_view text) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(const uint64_t value, ParseWhole(text));
    if (value >= kNoEnd32) return absl::InvalidArgumentError("is out of range");
    index = WorkerIndex(static_cast<uint32_t>(value));
    return absl::OkStatus();
  };
  key.get = [&index] { return index ? ToString(*index) : std::string(); };
  table.Add(std::move(key));
}

void WorkerKeys(KeyTable& table, WorkerConfig& c) {
  table.Address("scheduler", "address of paceline-scheduler; paceline-worker wants it said", false,
                &c.scheduler);
  table.Name("name", "stable and unique in the job; default: worker-INDEX, else HOST-PID", &c.name);
  table.Spelled("--name", "PACELINE_WORKER_NAME");
  IndexKey(table, c.index);
  table.Name("host", "default: this machine's host name", &c.host);
  table.Labels("labels", "what grouping knows about this machine", &c.labels);
  table.Number("join_timeout_ms", "to reach the scheduler and for the job to form", 100, 86'400'000,
               &c.join_timeout_ms);
  table.Number("operation_timeout_ms", "of one operation before it is an error", 100, 86'400'000,
               &c.operation_timeout_ms);
  table.ByteCount("max_bytes_in_flight", "of one data connection", 1 << 20, 64ull << 30,
                  &c.max_bytes_in_flight);
  LogLevelKey(table, c.log_level);
  TlsKeys(table, c.insecure, c.tls);
  AddJobKeys(table, c.job);
}

absl::Status FinishWorker(const KeyTable& table, WorkerConfig& c) {
  if (c.job.name.empty()) {
    return absl::InvalidArgumentError(
        "job.name is not set; name the job with --job, PACELINE_JOB or job.name in the file");
  }
  if (c.host.empty()) c.host = HostName();
  if (c.name.empty()) {
    c.name = c.index ? absl::StrCat("worker-", c.index->value())
                     : absl::StrCat(c.host.substr(0, 100), "-", getpid());
  }
  PACELINE_RETURN_IF_ERROR(CheckJob(table, c.job));
  PACELINE_RETURN_IF_ERROR(FinishTls(table, c.tls));
  return CheckExposed(table, "scheduler", c.scheduler, c.tls, c.insecure);
}

void LaunchKeys(KeyTable& table, LaunchConfig& c) {
  table.Address("scheduler", "attach to this one instead of starting a scheduler and servers",
                false, &c.scheduler);
  table.Number("servers", "parameter servers to start", 1, 256, &c.servers);
  table.Text("output", "directory of logs and summary.json; default: runs/JOB-TIME", &c.output);
  table.Number("restarts", "how often one worker that failed is started again", 0, 1000,
               &c.restarts);
  table.Number("add", "workers to add to a running job, which keeps its settings; 0 = a new job", 0,
               16'384, &c.add);
  table.Text("resume", "go on from this checkpoint, or from the newest below this directory",
             &c.resume);
  TlsKeys(table, c.insecure, c.tls);
  AddJobKeys(table, c.job);
}

// "train" for "./train.py --lr 1" and for "python3 train.py".
std::string JobNameOf(const std::vector<std::string>& program) {
  std::string path = program.front();
  std::string name = path.substr(path.rfind('/') + 1);
  if (name.starts_with("python") && program.size() > 1 && !program[1].starts_with('-')) {
    name = program[1].substr(program[1].rfind('/') + 1);
  }
  name = name.substr(0, name.rfind('.'));
  return IsName(name) ? name : "job";
}

absl::Status FinishLaunch(const KeyTable& table, LaunchConfig& c) {
  if (c.program.empty()) {
    return absl::InvalidArgumentError(
        "no program to run; put it after --, as in: pacelinectl run --workers 2 -- ./train");
  }
  if (c.add != 0 && (c.job.name.empty() || c.scheduler.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("add: ", c.add, " workers for which job; give --scheduler and --job"));
  }
  if (c.job.name.empty()) c.job.name = JobNameOf(c.program);
  PACELINE_RETURN_IF_ERROR(CheckLaunchedJob(table, c.job));
  PACELINE_RETURN_IF_ERROR(FinishTls(table, c.tls));
  if (c.scheduler.empty()) return absl::OkStatus();
  return CheckExposed(table, "scheduler", c.scheduler, c.tls, c.insecure);
}

template <typename Config>
ParsedOrExit<Config> Parsed(Config config, CommandLineResult result) {
  return {std::move(config), result.exit_code, std::move(result.text)};
}

}  // namespace

std::string_view ProgramVersion() { return PACELINE_VERSION; }

absl::StatusOr<ParsedOrExit<SchedulerConfig>> LoadSchedulerConfig(int argc, const char* const* argv,
                                                                  const Environment& env) {
  SchedulerConfig config;
  KeyTable table;
  SchedulerKeys(table, config);
  const CommandLine line = {
      "paceline-scheduler",
      "paceline-scheduler: membership, groups, placement and staleness of a cluster\n\n"
      "  paceline-scheduler [--config FILE] [FLAG]...\n\n"
      "Runs until SIGTERM or SIGINT; exit code 0 then, 1 on a failure, 2 on a wrong\nflag or "
      "key.\n"};
  PACELINE_ASSIGN_OR_RETURN(CommandLineResult result, LoadTable(line, argc, argv, env, table, [&] {
                              return FinishScheduler(table, config);
                            }));
  return Parsed(std::move(config), std::move(result));
}

absl::StatusOr<ParsedOrExit<ServerConfig>> LoadServerConfig(int argc, const char* const* argv,
                                                            const Environment& env) {
  ServerConfig config;
  KeyTable table;
  ServerKeys(table, config);
  const CommandLine line = {"paceline-server",
                            "paceline-server: hosts shards of the models of a cluster's jobs\n\n"
                            "  paceline-server --scheduler HOST:PORT [--config FILE] [FLAG]...\n\n"
                            "Runs until SIGTERM or SIGINT; exit code 0 then, 1 on a failure, 2 on "
                            "a wrong\nflag or key.\n"};
  PACELINE_ASSIGN_OR_RETURN(CommandLineResult result, LoadTable(line, argc, argv, env, table, [&] {
                              return FinishServer(table, config);
                            }));
  return Parsed(std::move(config), std::move(result));
}

absl::StatusOr<ParsedOrExit<WorkerConfig>> LoadWorkerConfig(int argc, const char* const* argv,
                                                            const Environment& env,
                                                            KeyTable* program_keys) {
  WorkerConfig config;
  KeyTable table;
  if (program_keys != nullptr) table.Append(*program_keys);
  WorkerKeys(table, config);
  const CommandLine line = {
      "paceline-worker",
      "paceline-worker: trains a built-in model as one worker of a job\n\n"
      "  pacelinectl run --workers 4 -- paceline-worker [FLAG]...\n"
      "  paceline-worker --scheduler HOST:PORT --job NAME [--config FILE] [FLAG]...\n\n"
      "Exit code 0 when the job is done, or left on a signal or an operator's request;\n"
      "1 on a failure, 2 on a wrong flag or key.\n"};
  PACELINE_ASSIGN_OR_RETURN(CommandLineResult result, LoadTable(line, argc, argv, env, table, [&] {
                              return FinishWorker(table, config);
                            }));
  return Parsed(std::move(config), std::move(result));
}

absl::StatusOr<ParsedOrExit<LaunchConfig>> LoadLaunchConfig(int argc, const char* const* argv,
                                                            const Environment& env,
                                                            const JobSpec& defaults) {
  LaunchConfig config;
  config.job = defaults;
  KeyTable table;
  LaunchKeys(table, config);
  int flags = argc;
  for (int i = 1; i < argc && flags == argc; ++i) {
    if (std::string_view(argv[i]) == "--") flags = i;
  }
  for (int i = flags + 1; i < argc; ++i) config.program.emplace_back(argv[i]);
  const CommandLine line = {"pacelinectl run", std::string(kLaunchUsage)};
  PACELINE_ASSIGN_OR_RETURN(CommandLineResult result, LoadTable(line, flags, argv, env, table, [&] {
                              return FinishLaunch(table, config);
                            }));
  return Parsed(std::move(config), std::move(result));
}

absl::StatusOr<ParsedOrExit<ClientConfig>> LoadClientConfig(int argc, const char* const* argv,
                                                            const Environment& env,
                                                            std::string usage, size_t max_arguments,
                                                            KeyTable* command_keys) {
  ClientConfig config;
  KeyTable table;
  if (command_keys != nullptr) table.Append(*command_keys);
  table.Address("scheduler", "address of paceline-scheduler", false, &config.scheduler);
  table.Number("timeout_ms", "how long to wait for an answer", 10, 3'600'000, &config.timeout_ms);
  TlsKeys(table, config.insecure, config.tls);
  const CommandLine line = {absl::StrCat("pacelinectl ", argc > 0 ? argv[0] : ""), std::move(usage),
                            false, max_arguments};
  PACELINE_ASSIGN_OR_RETURN(
      CommandLineResult result, LoadTable(line, argc, argv, env, table, [&]() -> absl::Status {
        PACELINE_RETURN_IF_ERROR(FinishTls(table, config.tls));
        return CheckExposed(table, "scheduler", config.scheduler, config.tls, config.insecure);
      }));
  config.arguments = std::move(result.arguments);
  return Parsed(std::move(config), std::move(result));
}

absl::StatusOr<WorkerConfig> WorkerConfigFromEnvironment(const Environment& env) {
  WorkerConfig config;
  KeyTable table;
  WorkerKeys(table, config);
  if (const auto file = env.Get("PACELINE_CONFIG")) {
    PACELINE_RETURN_IF_ERROR(table.LoadFile(*file));
  }
  PACELINE_RETURN_IF_ERROR(table.LoadEnvironment(env));
  PACELINE_RETURN_IF_ERROR(FinishWorker(table, config));
  return config;
}

namespace {

// Calls `use` with each key of a spec that is not as by default, and always with name and workers.
void ForEachSet(const JobSpec& spec, const std::function<void(const Key&, std::string)>& use) {
  JobSpec copy = spec;
  KeyTable table;
  AddJobKeys(table, copy);
  JobSpec defaults;
  KeyTable default_table;
  AddJobKeys(default_table, defaults);
  for (size_t i = 0; i < table.keys().size(); ++i) {
    const Key& key = table.keys()[i];
    std::string value = key.get();
    const bool always = key.path == "job.name" || key.path == "job.workers";
    if (always || value != default_table.keys()[i].get()) use(key, std::move(value));
  }
}

constexpr std::string_view kJobPath = "job.";

}  // namespace

std::map<std::string, std::string> JobEnvironment(const JobSpec& spec) {
  std::map<std::string, std::string> variables;
  // What nobody asked for stays unset, so that the program's own file may say it.
  ForEachSet(spec, [&](const Key& key, std::string value) {
    variables.emplace(key.variable, std::move(value));
  });
  return variables;
}

std::map<std::string, std::string> JobTexts(const JobSpec& spec) {
  std::map<std::string, std::string> texts;
  ForEachSet(spec, [&](const Key& key, std::string value) {
    texts.emplace(key.path.substr(kJobPath.size()), std::move(value));
  });
  return texts;
}

absl::StatusOr<JobSpec> JobFromTexts(const std::map<std::string, std::string>& texts) {
  JobSpec spec;
  KeyTable table;
  AddJobKeys(table, spec);
  for (const auto& [name, text] : texts) {
    Key* const key = table.Find(absl::StrCat(Absl(kJobPath), name));
    if (key == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("job: \"", name.substr(0, 64), "\" is no key this version knows"));
    }
    PACELINE_RETURN_IF_ERROR(table.Set(*key, text, "a checkpoint's manifest"));
  }
  PACELINE_RETURN_IF_ERROR(Validate(spec));
  return spec;
}

}  // namespace paceline
