#include "common/config/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/text_value.h"

namespace paceline {
namespace {

constexpr size_t kColumns = 80;

// Words of `text` in lines of at most 80 columns, each after `indent` blanks.
std::string Wrapped(std::string_view text, size_t indent) {
  std::string out;
  std::string line;
  for (const absl::string_view word : absl::StrSplit(Absl(text), ' ', absl::SkipEmpty())) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&out, std::string(indent, ' '), line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  return absl::StrCat(out, std::string(indent, ' '), line, "\n");
}

std::string HelpOf(const Key& key) {
  std::string text = absl::StrCat("  ", key.flag, key.implied.empty() ? " VALUE" : "", "\n");
  const std::string value = key.get();
  absl::StrAppend(&text, Wrapped(absl::StrCat(key.doc, key.allowed.empty() ? "" : "; ", key.allowed,
                                              value.empty() ? "" : "; default ", value,
                                              key.variable.empty() ? "" : " (", key.variable,
                                              key.variable.empty() ? "" : ")"),
                                 6));
  return text;
}

std::string Help(const CommandLine& line, const KeyTable& table) {
  std::string text = line.usage + "\nFlags (then the PACELINE_* variable, then the file):\n";
  if (!line.has_file) text = line.usage + "\nFlags (then the PACELINE_* variable):\n";
  for (const Key& key : table.keys()) {
    if (!key.flag.empty()) text += HelpOf(key);
  }
  if (line.has_file) {
    text +=
        "  --config FILE\n      YAML with the same keys (PACELINE_CONFIG)\n"
        "  --set KEY=VALUE\n      any key by its name in the file; keys of a job without \"job.\"\n"
        "  --print-config\n      print the effective configuration and where each value is from\n";
  }
  text += "  --help, --version\n";
  return text;
}

absl::Status UnknownFlag(const std::string& flag, const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_name());
  const std::string name = flag.substr(0, flag.find('='));
  const std::string nearest = NearestOf(name, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag ", name,
                   nearest.empty() ? "; --help lists all" : "; did you mean " + nearest + "?"));
}

// The parsed flags, before they are put into the table.
class Flags {
 public:
  Flags(const CommandLine& line, KeyTable& table) : line_(line), app_("", line.program) {
    app_.set_help_flag("");
    app_.allow_extras();
    help_ = app_.add_flag("--help,-h");
    version_ = app_.add_flag("--version");
    if (line.has_file) {
      print_ = app_.add_flag("--print-config");
      config_ = app_.add_option("--config");
      set_ = app_.add_option("--set")->expected(1)->multi_option_policy(
          CLI::MultiOptionPolicy::TakeAll);
    }
    for (Key& key : table.keys()) {
      if (key.flag.empty()) continue;
      CLI::Option* option =
          key.implied == "true" ? app_.add_flag(key.flag) : app_.add_option(key.flag);
      if (!key.implied.empty() && key.implied != "true") option->expected(0, 1);
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      options_.emplace_back(option, &key);
    }
  }

  absl::Status Parse(int argc, const char* const* argv) {
    std::vector<std::string> reversed(argv + std::min(argc, 1), argv + argc);
    std::reverse(reversed.begin(), reversed.end());
    app_.parse(std::move(reversed));
    for (const std::string& extra : app_.remaining()) {
      if (extra.size() > 1 && extra.front() == '-') return UnknownFlag(extra, app_);
      if (arguments.size() == line_.max_arguments) {
        return absl::InvalidArgumentError(
            absl::StrCat("unexpected argument \"", extra, "\"; --help shows the usage"));
      }
      arguments.push_back(extra);
    }
    return absl::OkStatus();
  }

  bool help() const { return help_->count() > 0; }
  bool version() const { return version_->count() > 0; }
  bool print() const { return print_ != nullptr && print_->count() > 0; }

  std::optional<std::string> file(const Environment& env) const {
    if (!line_.has_file) return std::nullopt;
    if (config_->count() > 0) return config_->results().back();
    return env.Get("PACELINE_CONFIG");
  }

  absl::Status Apply(KeyTable& table) const {
    for (const auto& [option, key] : options_) {
      if (option->count() == 0) continue;
      const std::vector<std::string>& given = option->results();
      const bool bare = given.empty() || given.back().empty() || given.back() == "{}";
      const std::string text = !key->implied.empty() && bare ? key->implied : given.back();
      PACELINE_RETURN_IF_ERROR(table.Set(*key, text, "flag " + key->flag));
    }
    if (set_ == nullptr) return absl::OkStatus();
    for (const std::string& assignment : set_->results()) {
      PACELINE_RETURN_IF_ERROR(table.LoadAssignment(assignment));
    }
    return absl::OkStatus();
  }

  std::vector<std::string> arguments;

 private:
  const CommandLine& line_;
  CLI::App app_;
  CLI::Option* help_ = nullptr;
  CLI::Option* version_ = nullptr;
  CLI::Option* print_ = nullptr;
  CLI::Option* config_ = nullptr;
  CLI::Option* set_ = nullptr;
  std::vector<std::pair<CLI::Option*, Key*>> options_;
};

absl::StatusOr<CommandLineResult> Load(const CommandLine& line, int argc, const char* const* argv,
                                       const Environment& env, KeyTable& table,
                                       const std::function<absl::Status()>& finish) {
  Flags flags(line, table);
  PACELINE_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help()) return CommandLineResult{0, Help(line, table), {}};
  if (flags.version()) {
    return CommandLineResult{0, absl::StrCat(line.program, " ", Absl(ProgramVersion()), "\n"), {}};
  }
  if (const auto file = flags.file(env)) PACELINE_RETURN_IF_ERROR(table.LoadFile(*file));
  PACELINE_RETURN_IF_ERROR(table.LoadEnvironment(env));
  PACELINE_RETURN_IF_ERROR(flags.Apply(table));
  PACELINE_RETURN_IF_ERROR(finish());
  if (flags.print()) {
    return CommandLineResult{
        0, absl::StrCat("# ", line.program, ": effective configuration\n", table.ToYaml()), {}};
  }
  return CommandLineResult{std::nullopt, "", std::move(flags.arguments)};
}

}  // namespace

absl::StatusOr<CommandLineResult> LoadTable(const CommandLine& line, int argc,
                                            const char* const* argv, const Environment& env,
                                            KeyTable& table,
                                            const std::function<absl::Status()>& finish) {
  try {
    return Load(line, argc, argv, env, table, finish);
  } catch (const CLI::Error& e) {
    return absl::InvalidArgumentError(absl::StrCat(e.what(), "; --help shows the usage"));
  }
}

}  // namespace paceline
