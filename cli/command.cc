#include "cli/command.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "cli/checkpoint_command.h"
#include "cli/conversation.h"
#include "cli/operator_commands.h"
#include "cli/text_table.h"
#include "cli/view_json.h"
#include "cli/views.h"
#include "common/base/status.h"
#include "common/config/key_table.h"
#include "common/config/text_value.h"

namespace paceline {
namespace {

constexpr std::string_view kUsage =
    "pacelinectl: runs jobs and shows what a Paceline cluster is doing\n\n"
    "  pacelinectl run [FLAG]... -- PROGRAM [ARGUMENT]...   start a job here\n"
    "  pacelinectl status                 cluster and jobs at a glance\n"
    "  pacelinectl jobs [JOB]             samples, plan and metrics of jobs\n"
    "  pacelinectl nodes                  servers and workers, live and gone\n"
    "  pacelinectl groups [JOB]           members, step, generation and why\n"
    "  pacelinectl staleness [JOB]        per worker and group, with histogram\n"
    "  pacelinectl events [JOB]           decisions with their reasons and times\n"
    "  pacelinectl stop JOB               ends a job\n"
    "  pacelinectl remove JOB WORKER      lets a worker leave its job\n"
    "  pacelinectl move JOB WORKER --group G   lets a worker change its group\n"
    "  pacelinectl drain SERVER           moves all chunks off a server\n"
    "  pacelinectl checkpoint JOB         takes a checkpoint of a running job now\n"
    "  pacelinectl checkpoint list|verify|show DIR   looks at checkpoints on disk\n"
    "  pacelinectl completion bash|zsh    prints a completion script\n\n"
    "Each takes --help and --scheduler HOST:PORT (PACELINE_SCHEDULER, default\n"
    "127.0.0.1:4300), and what shows something --json and --watch [SECONDS].\n\n"
    "Exit codes: 0 done; 1 failed or refused; 2 a wrong command, flag or key;\n"
    "3 the scheduler could not be reached; 4 there is no such job;\n"
    "128 + signal when interrupted.\n";

// Longer than the scheduler waits for the servers.
constexpr Ticks kCheckpointTimeout = Seconds(150);
struct ViewCommand {
  std::string_view name;
  std::string_view usage;
  size_t max_arguments;
  std::string (*text)(const ClusterView&, const Style&);
  std::string (*json)(const ClusterView&);
};

constexpr std::array<ViewCommand, 5> kViews = {
    ViewCommand{"status",
                "pacelinectl status: cluster and jobs at a glance\n\n"
                "  pacelinectl status\n  pacelinectl status --watch 1\n"
                "  pacelinectl status --scheduler head:4300 --insecure --json\n\n",
                0, StatusText, StatusJson},
    ViewCommand{"jobs",
                "pacelinectl jobs [JOB]: samples, plan and metrics of jobs\n\n"
                "  pacelinectl jobs\n  pacelinectl jobs mnist --json\n\n",
                1, JobsText, JobsJson},
    ViewCommand{"nodes",
                "pacelinectl nodes: servers and workers, live and gone\n\n"
                "  pacelinectl nodes\n  pacelinectl nodes --watch\n\n",
                0, NodesText, NodesJson},
    ViewCommand{"groups",
                "pacelinectl groups [JOB]: members, step, generation and why\n\n"
                "  pacelinectl groups\n  pacelinectl groups mnist\n\n",
                1, GroupsText, GroupsJson},
    ViewCommand{"staleness",
                "pacelinectl staleness [JOB]: updates between the version a gradient was\n"
                "computed on and its application, per group and worker, with a histogram\n\n"
                "  pacelinectl staleness\n  pacelinectl staleness mnist --watch 2\n\n",
                1, StalenessText, StalenessJson}};

struct Options {
  bool json = false;
  uint32_t watch_s = 0;  // 0: once
  uint64_t after = 0;
  uint32_t limit = 100;
};

Style StyleOf(const CommandContext& context) {
  Style style;
  style.color = context.terminal && !context.environment.Get("NO_COLOR");
  return style;
}

void AddShowKeys(KeyTable& table, Options& options) {
  table.Switch("json", "print JSON", &options.json);
  table.Spelled("--json", "");
  table.Number("watch", "show again every so many seconds (2 without a number)", 1, 86'400,
               &options.watch_s);
  table.keys().back().implied = "2";
  table.Spelled("--watch", "");
}

// Calls `show` once, or every options.watch_s seconds until it fails: but a scheduler that answered
// once may be restarting.
int Repeat(const Options& options, const std::function<int()>& show) {
  bool answered = false;
  while (true) {
    const int code = show();
    answered = answered || code == kExitDone;
    const bool restarting = answered && code == kExitUnreachable;
    if (options.watch_s == 0 || (code != kExitDone && !restarting)) return code;
    poll(nullptr, 0, static_cast<int>(options.watch_s) * 1000);
  }
}

int RunView(const ViewCommand& command, int argc, const char* const* argv,
            const CommandContext& context) {
  Options options;
  KeyTable keys;
  AddShowKeys(keys, options);
  const auto body = [&](Conversation& conversation) {
    return Repeat(options, [&]() -> int {
      const absl::StatusOr<ClusterView> view = conversation.View();
      if (!view.ok()) return Complain(context, view.status());
      const std::string text =
          options.json ? command.json(*view) : command.text(*view, StyleOf(context));
      const bool redraw = options.watch_s > 0 && context.terminal && !options.json;
      *context.out << (redraw ? "\x1b[H\x1b[2J" : "") << text << std::flush;
      return context.out->good() ? kExitDone : kExitFailed;
    });
  };
  return WithConversation(argc, argv, context, std::string(command.usage), command.max_arguments,
                          keys, body);
}

int RunEvents(int argc, const char* const* argv, const CommandContext& context) {
  Options options;
  KeyTable keys;
  AddShowKeys(keys, options);
  keys.Number("after", "only events after this number", uint64_t{0}, ~uint64_t{0}, &options.after);
  keys.Spelled("--after", "");
  keys.Number("limit", "at most so many", 1, 100'000, &options.limit);
  keys.Spelled("--limit", "");
  const std::string usage =
      "pacelinectl events [JOB]: decisions with their reasons and times\n\n"
      "  pacelinectl events\n  pacelinectl events mnist --watch   (goes on with new ones)\n\n";
  const auto body = [&](Conversation& conversation) {
    return Repeat(options, [&]() -> int {
      const auto reply =
          conversation.Ask(EventsQuery{options.after, options.limit, conversation.job()});
      if (!reply.ok()) return Complain(context, reply.status());
      const auto* events = std::get_if<std::vector<DecisionRecord>>(&*reply);
      if (events == nullptr) {
        return Complain(context, absl::InternalError("the scheduler answered something else"));
      }
      if (!events->empty()) options.after = events->back().sequence;
      *context.out << (options.json ? EventsJson(*events) : EventsText(*events, StyleOf(context)))
                   << std::flush;
      return context.out->good() ? kExitDone : kExitFailed;
    });
  };
  return WithConversation(argc, argv, context, usage, 1, keys, body);
}

constexpr std::string_view kCheckpointUsage =
    "pacelinectl checkpoint: takes one of a running job, looks at those on disk\n\n"
    "  pacelinectl checkpoint JOB [--directory DIR]  takes one now, at the servers\n"
    "  pacelinectl checkpoint list DIR               what is in a directory, oldest first\n"
    "  pacelinectl checkpoint verify DIR             reads every byte; 1 if one is damaged\n"
    "  pacelinectl checkpoint show DIR               one of them, or the newest, in full\n\n"
    "  pacelinectl checkpoint mnist\n"
    "  pacelinectl checkpoint verify runs/latest/checkpoints --json\n\n"
    "A job named list, verify or show is reached as: pacelinectl checkpoint -- list\n\n";

int TakeCheckpoint(Conversation& conversation, const CommandContext& context,
                   const std::string& directory, bool json) {
  const auto reply =
      conversation.Ask(CheckpointJobRequest{conversation.job(), directory}, kCheckpointTimeout);
  if (!reply.ok()) return Complain(context, reply.status());
  const auto* taken = std::get_if<CheckpointReply>(&*reply);
  if (taken == nullptr) {
    return Complain(context, absl::InternalError("the scheduler answered something else"));
  }
  *context.out << (json ? CheckpointJson(*taken)
                        : absl::StrCat("step ", LastStep(taken->cut).value(), " is in ",
                                       taken->path, "\n"))
               << std::flush;
  return kExitDone;
}

// Needs no scheduler: the files are here.
int LookAtCheckpoints(std::string_view verb, const std::string& directory, bool json,
                      const CommandContext& context) {
  const Style style = StyleOf(context);
  const CheckpointText said = verb == "list"     ? ListCheckpointsText(directory, json, style)
                              : verb == "verify" ? VerifyCheckpointsText(directory, json, style)
                                                 : ShowCheckpointText(directory, json, style);
  *context.out << said.text << std::flush;
  return said.status.ok() ? static_cast<int>(kExitDone)
                          : (Complain(context, said.status), static_cast<int>(kExitFailed));
}

int RunCheckpoint(int argc, const char* const* argv, const CommandContext& context) {
  Options options;
  std::string directory;
  KeyTable keys;
  keys.Switch("json", "print JSON", &options.json);
  keys.Spelled("--json", "");
  keys.Text("directory", "absolute, at the servers; default: the job's checkpoint_dir", &directory);
  keys.Spelled("--directory", "");
  const auto body = [&](Conversation& conversation) {
    const std::vector<std::string>& words = conversation.arguments();
    if (words.empty()) {
      return Complain(context, absl::InvalidArgumentError(
                                   "checkpoint: name a job, or list, verify or show and a "
                                   "directory; pacelinectl checkpoint --help says more"));
    }
    const bool look = words[0] == "list" || words[0] == "verify" || words[0] == "show";
    if (look && words.size() == 2) {
      return LookAtCheckpoints(words[0], words[1], options.json, context);
    }
    if (look && words.size() != 2) {
      return Complain(context, absl::InvalidArgumentError(
                                   absl::StrCat("checkpoint ", words[0], ": name a directory")));
    }
    if (words.size() > 1) {
      return Complain(context, absl::InvalidArgumentError(absl::StrCat(
                                   "checkpoint: \"", words[1], "\" is too much; name one job")));
    }
    return TakeCheckpoint(conversation, context, directory, options.json);
  };
  return WithConversation(argc, argv, context, std::string(kCheckpointUsage), 2, keys, body);
}

// What --resume or PACELINE_RESUME says, before the rest is read: the checkpoint's job is what
// holds where the rest says nothing.
std::optional<std::string> ResumeOf(int argc, const char* const* argv,
                                    const Environment& environment) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view argument(argv[i]);
    if (argument.starts_with("--resume=")) return std::string(argument.substr(9));
    if (argument == "--resume" && i + 1 < argc) return argv[i + 1];
  }
  const auto variable = environment.Get("PACELINE_RESUME");
  return variable == "" ? std::nullopt : variable;
}

int RunRun(int argc, const char* const* argv, const CommandContext& context) {
  std::optional<ResumeJobRequest> resume;
  JobSpec defaults;
  if (const auto from = ResumeOf(argc, argv, context.environment)) {
    if (from->empty()) {
      Complain(context,
               absl::InvalidArgumentError(
                   "--resume is empty: name a checkpoint, or a directory with some below"));
      return kExitUsage;
    }
    const auto found = NewestCheckpoint(*from);
    if (!found.ok()) {
      Complain(context, Annotate(found.status(), "resume"));
      return kExitUsage;
    }
    for (const std::string& fault : found->passed_over) {
      *context.err << "pacelinectl: resume: passed over, " << fault << "\n" << std::flush;
    }
    resume = ResumeJobRequest{found->manifest->spec.name, found->path, *found->manifest};
    defaults = found->manifest->spec;
    // Of that run's directory; this one's is its own unless it is named.
    defaults.checkpoint_dir.clear();
  }
  auto parsed = LoadLaunchConfig(argc, argv, context.environment, defaults);
  if (!parsed.ok()) {
    Complain(context, parsed.status());
    return kExitUsage;
  }
  if (parsed->exit_code) {
    *context.out << parsed->text << std::flush;
    return *parsed->exit_code;
  }
  if (resume) {
    resume->job = parsed->config.job.name;
    // The cluster's servers know that directory; those started here get this run's.
    std::string& directory = parsed->config.job.checkpoint_dir;
    if (!parsed->config.scheduler.empty() && directory.empty()) {
      directory = resume->manifest.spec.checkpoint_dir;
    }
  }
  LauncherContext launcher = {context.environment, context.binary_directory,
                              context.connect,     context.out,
                              context.err,         context.terminal};
  launcher.resume = std::move(resume);
  return RunLauncher(parsed->config, launcher);
}

int RunCompletion(int argc, const char* const* argv, const CommandContext& context) {
  if (argc == 2 && std::string_view(argv[1]) == "--help") {
    *context.out << "pacelinectl completion bash|zsh: prints a completion script\n\n"
                    "  source <(pacelinectl completion bash)\n"
                 << std::flush;
    return kExitDone;
  }
  const std::string script = CompletionScript(argc == 2 ? argv[1] : "");
  if (script.empty()) {
    return Complain(context,
                    absl::InvalidArgumentError(
                        "completion: name bash or zsh, as in: pacelinectl completion bash"));
  }
  *context.out << script << std::flush;
  return kExitDone;
}

}  // namespace

int RunCommand(int argc, const char* const* argv, const CommandContext& context) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    *context.out << kUsage << std::flush;
    return kExitDone;
  }
  if (name == "--version") {
    *context.out << "pacelinectl " << ProgramVersion() << "\n" << std::flush;
    return kExitDone;
  }
  if (name.empty()) {
    *context.err << kUsage << std::flush;
    return kExitUsage;
  }
  --argc;
  ++argv;
  if (name == "run") return RunRun(argc, argv, context);
  if (name == "events") return RunEvents(argc, argv, context);
  if (name == "stop") return RunStop(argc, argv, context);
  if (name == "remove") return RunRemove(argc, argv, context);
  if (name == "move") return RunMove(argc, argv, context);
  if (name == "drain") return RunDrain(argc, argv, context);
  if (name == "checkpoint") return RunCheckpoint(argc, argv, context);
  if (name == "completion") return RunCompletion(argc, argv, context);
  for (const ViewCommand& command : kViews) {
    if (command.name == name) return RunView(command, argc, argv, context);
  }
  std::vector<std::string> known = {"run",  "events", "stop",       "remove",
                                    "move", "drain",  "checkpoint", "completion"};
  for (const ViewCommand& command : kViews) known.emplace_back(command.name);
  const std::string nearest = NearestOf(name, known);
  return Complain(context,
                  absl::InvalidArgumentError(absl::StrCat(
                      "unknown command \"", Absl(name), "\"; ",
                      nearest.empty() ? "" : absl::StrCat("did you mean \"", nearest, "\"? "),
                      "pacelinectl --help lists all")));
}

}  // namespace paceline
