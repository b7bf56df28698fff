// paceline-sim: runs the scheduler's core without a cluster, and whole clusters without machines.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "simulation/explore.h"
#include "simulation/replay.h"

namespace {

int Replay(const std::string& path, const paceline::simulation::ReplayOptions& options) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  if (!file) {
    std::cerr << "paceline-sim: cannot read " << path << '\n';
    return 1;
  }
  const std::string trace = bytes.str();
  const absl::Status status = paceline::simulation::Replay(trace, options, std::cout);
  if (!status.ok()) {
    std::cerr << "paceline-sim: " << path << ": " << status.message() << '\n';
    return 1;
  }
  return 0;
}

// A failed check of our own code ends the process: say which seed it was.
void OnAbort(int /*signal*/) {
  char text[96];
  const int size =
      std::snprintf(text, sizeof text, "FAILED: a check, in seed %llu\n",
                    static_cast<unsigned long long>(paceline::simulation::CurrentSeed()));
  if (size > 0 && write(STDERR_FILENO, text, static_cast<size_t>(size)) < 0) _exit(2);
  _exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs Paceline without a cluster.", "paceline-sim");
  app.require_subcommand(1);

  paceline::simulation::ReplayOptions replaying;
  std::string path;
  CLI::App* replay =
      app.add_subcommand("replay", "Step the scheduler through a trace, print its decisions");
  replay->add_option("TRACE", path, "a trace written by paceline-scheduler")
      ->required()
      ->check(CLI::ExistingFile);
  replay->add_option("--job", replaying.job, "only decisions about this job");
  replay->add_flag("--directives", replaying.directives, "print what each node was told, too");
  replay->add_flag("--snapshot", replaying.snapshot, "print the state at the end");

  paceline::simulation::ExploreOptions exploring;
  uint64_t one_seed = 0;
  CLI::App* explore = app.add_subcommand(
      "explore", "Run clusters with faults on a virtual clock and network, check what must hold");
  explore->add_option("--seeds", exploring.seeds, "how many")->capture_default_str();
  explore->add_option("--first-seed", exploring.first_seed, "the first of them")
      ->capture_default_str();
  explore->add_option("--seed", one_seed, "only this one");
  explore->add_flag("--trace", exploring.trace, "print everything that happens");
  explore->add_option("--max-failures", exploring.max_failures, "end after so many")
      ->capture_default_str();
  explore->add_option("--last-lines", exploring.last_lines, "of the trace of a run that failed")
      ->capture_default_str();
  std::string bug;
  explore->add_option("--bug", bug, "put in on purpose, to see it found")
      ->check(CLI::IsMember({"answer-before-journal", "retry-applied-twice", "redo-keeps-sum"}));
  CLI11_PARSE(app, argc, argv);

  exploring.bugs.release_before_durable = bug == "answer-before-journal";
  exploring.bugs.retry_applied_twice = bug == "retry-applied-twice";
  exploring.bugs.redo_keeps_accumulator = bug == "redo-keeps-sum";
  if (!bug.empty()) exploring.command += " --bug " + bug;
  if (replay->parsed()) return Replay(path, replaying);
  if (one_seed != 0) {
    exploring.first_seed = one_seed;
    exploring.seeds = 1;
  }
  std::signal(SIGABRT, OnAbort);
  return paceline::simulation::Explore(exploring, std::cout).failed.empty() ? 0 : 1;
}
