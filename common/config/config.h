// The configuration of each program: plain structs, read once at the start, validated, passed down
// by value. A value comes from a flag, else a PACELINE_* variable, else the file of --config, else
// the default given here. docs/configuration.md lists every key. Start here.
// Thread rule: values; the Load functions may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/config/environment.h"
#include "plan/job_spec.h"

namespace paceline {

// Paths of PEM files. All empty: plaintext. Otherwise all three are needed (both ends prove
// themselves).
struct TlsConfig {
  std::string cert;
  std::string key;
  std::string ca;

  bool enabled() const { return !cert.empty(); }
};

struct SchedulerConfig {
  std::string listen = "127.0.0.1:4300";     // host:port; port 0 = any free one
  std::string advertise;                     // host or host:port told to others; empty = `listen`
  std::string cluster = "paceline";          // shown to operators
  std::string state_dir = "paceline-state";  // created with mode 0700
  std::string journal;                       // after loading never empty: default state_dir/journal
  uint64_t trace_max_events = 100'000;       // of the event trace kept in memory
  uint64_t trace_max_bytes = 64u << 20;
  uint32_t failure_timeout_ms = 5000;  // of servers; a job brings its own for its workers
  uint32_t heartbeat_ms = 500;         // at most a third of failure_timeout_ms
  uint32_t max_jobs = 64;              // running at once
  uint32_t max_nodes = 4096;           // joined at once
  bool insecure = false;               // plaintext beyond loopback is wanted
  TlsConfig tls;
  int ready_fd = -1;               // gets "host:port\n" once listening, then is closed
  std::string log_level = "info";  // debug, info, warning, error
};

struct ServerConfig {
  std::string name;  // stable and unique in the cluster; default: host
  std::string scheduler = "127.0.0.1:4300";
  std::string bind = "127.0.0.1:0";           // of the data plane
  std::string advertise;                      // host or host:port told to workers; empty = `bind`
  std::string host;                           // default: this machine's host name
  std::map<std::string, std::string> labels;  // "rack", ...
  uint32_t threads = 0;                       // shard threads; 0 = one a core, at most 8
  uint64_t memory_quota_bytes = 16ull << 30;  // of one job
  uint32_t max_connections = 4096;
  uint32_t join_timeout_ms = 60'000;  // how long to wait for a scheduler at the start
  bool insecure = false;
  TlsConfig tls;
  int ready_fd = -1;  // gets "host:port\n" once joined, then is closed
  std::string log_level = "info";
};

struct WorkerConfig {
  std::string scheduler = "127.0.0.1:4300";
  JobSpec job;                       // keys under `job:`; job.name is never empty
  std::string name;                  // default: worker-INDEX, else HOST-PID
  std::optional<WorkerIndex> index;  // the launcher's number
  std::string host;                  // default: this machine's host name
  std::map<std::string, std::string> labels;
  uint32_t join_timeout_ms = 60'000;           // to reach the scheduler and for the job to form
  uint32_t operation_timeout_ms = 300'000;     // of one operation before it is an error
  uint64_t max_bytes_in_flight = 64ull << 20;  // per data connection
  bool insecure = false;
  TlsConfig tls;
  std::string log_level = "info";
};

// `pacelinectl run`.
struct LaunchConfig {
  std::string scheduler;  // empty: start one, and `servers` servers, on this machine
  uint32_t servers = 1;
  JobSpec job;
  std::string output;     // default: runs/JOB-TIME
  uint32_t restarts = 0;  // how often a worker that failed is started again
  uint32_t add = 0;    // not 0: so many more workers for a job that runs; `job` is its name alone
  std::string resume;  // a checkpoint, or a directory of checkpoints
  bool insecure = false;
  TlsConfig tls;
  std::vector<std::string> program;  // and its arguments; never empty
};

// How a subcommand of pacelinectl reaches the scheduler.
struct ClientConfig {
  std::string scheduler = "127.0.0.1:4300";
  uint32_t timeout_ms = 5000;  // of one question
  bool insecure = false;
  TlsConfig tls;
  std::vector<std::string> arguments;  // positional
};

// Either a configuration to run with, or (--help, --version, --print-config) a text to print on
// stdout and an exit code.
template <typename Config>
struct ParsedOrExit {
  Config config;
  std::optional<int> exit_code;
  std::string text;
};

class KeyTable;  // common/config/key_table.h

// Errors are InvalidArgument with one message that names the key, the value, what is allowed and
// where the value came from (flag, variable, or file:line); an unknown key or flag comes with the
// nearest known one. A program prints it to stderr and exits with 2.
absl::StatusOr<ParsedOrExit<SchedulerConfig>> LoadSchedulerConfig(int argc, const char* const* argv,
                                                                  const Environment& env);
absl::StatusOr<ParsedOrExit<ServerConfig>> LoadServerConfig(int argc, const char* const* argv,
                                                            const Environment& env);
// `program_keys` are the program's own (a model, a data set): loaded, checked and printed the same
// way. May be null.
absl::StatusOr<ParsedOrExit<WorkerConfig>> LoadWorkerConfig(int argc, const char* const* argv,
                                                            const Environment& env,
                                                            KeyTable* program_keys = nullptr);
// argv[0] is "run". What follows "--" is the program. `defaults` is what holds for keys of the job
// that nothing says: those of a checkpoint to resume from.
absl::StatusOr<ParsedOrExit<LaunchConfig>> LoadLaunchConfig(int argc, const char* const* argv,
                                                            const Environment& env,
                                                            const JobSpec& defaults = {});

// A subcommand: argv[0] is its name. `command_keys` are its own; `usage` is printed by --help.
absl::StatusOr<ParsedOrExit<ClientConfig>> LoadClientConfig(int argc, const char* const* argv,
                                                            const Environment& env,
                                                            std::string usage, size_t max_arguments,
                                                            KeyTable* command_keys);

// For a process that the launcher, Kubernetes or Slurm started: PACELINE_* (and the file that
// PACELINE_CONFIG names) only.
absl::StatusOr<WorkerConfig> WorkerConfigFromEnvironment(const Environment& env);

// The PACELINE_* variables that make WorkerConfigFromEnvironment return this spec: name, workers,
// and what differs from the defaults.
std::map<std::string, std::string> JobEnvironment(const JobSpec& spec);

// A spec as texts by key ("workers" -> "4"), without what has its default, and back.
std::map<std::string, std::string> JobTexts(const JobSpec& spec);
absl::StatusOr<JobSpec> JobFromTexts(const std::map<std::string, std::string>& texts);

// "0.1.0"
std::string_view ProgramVersion();

// ---- Security ----------------------------------------------------------------------------------

// 127.0.0.0/8, ::1 and "localhost", with or without a port. Another host name is not: what it
// resolves to may change.
bool IsLoopback(std::string_view address);

// FailedPrecondition unless `address` is loopback, TLS is on, or `insecure` is set. `key` names the
// setting in the message.
absl::Status CheckExposure(std::string_view key, std::string_view address, const TlsConfig& tls,
                           bool insecure);

// ---- Addresses ---------------------------------------------------------------------------------

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};
// "host:port" or "[v6]:port". InvalidArgument names the text.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
std::string ToString(const HostPort& address);

// What to tell others: `advertise` where it is set (its port, when it has none, is that of
// `bound`), else `bound`.
std::string AdvertisedAddress(std::string_view advertise, std::string_view bound);

}  // namespace paceline
