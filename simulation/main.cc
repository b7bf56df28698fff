// paceline-sim: runs the scheduler's core without a cluster.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "simulation/replay.h"

int main(int argc, char** argv) {
  CLI::App app("Runs Paceline's scheduler without a cluster.", "paceline-sim");
  app.require_subcommand(1);
  paceline::simulation::ReplayOptions options;
  std::string path;
  CLI::App* replay =
      app.add_subcommand("replay", "Step the scheduler through a trace, print its decisions");
  replay->add_option("TRACE", path, "a trace written by paceline-scheduler")
      ->required()
      ->check(CLI::ExistingFile);
  replay->add_option("--job", options.job, "only decisions about this job");
  replay->add_flag("--directives", options.directives, "print what each node was told, too");
  replay->add_flag("--snapshot", options.snapshot, "print the state at the end");
  CLI11_PARSE(app, argc, argv);

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
