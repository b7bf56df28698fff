#include "simulation/explore.h"

#include "simulation/run.h"

namespace paceline::simulation {
namespace {

volatile uint64_t current_seed = 0;

void Explain(uint64_t seed, const ExploreOptions& options, std::ostream& out) {
  RunOptions again;
  again.bugs = options.bugs;
  again.keep_lines = options.last_lines;
  const RunResult result = Run(seed, again);
  out << "seed " << seed << " (" << result.scenario << ")\n";
  for (const std::string& line : result.lines) out << "  " << line << '\n';
  if (!result.violation) {
    out << "  does not fail when it is run again: a run depends on something besides its seed\n";
    return;
  }
  const int64_t ms = result.violation->at.value() / 1'000'000;
  out << "FAILED: seed " << seed << " at +" << ms / 1000 << '.' << (ms % 1000) / 100
      << " s, invariant '" << result.violation->invariant << "': " << result.violation->what
      << "\nreplay with: " << options.command << " --seed " << seed << " --trace\n";
}

}  // namespace

uint64_t CurrentSeed() { return current_seed; }

ExploreResult Explore(const ExploreOptions& options, std::ostream& out) {
  ExploreResult total;
  for (uint64_t seed = options.first_seed; seed < options.first_seed + options.seeds; ++seed) {
    current_seed = seed;
    RunOptions run;
    run.bugs = options.bugs;
    if (options.trace) run.on_line = [&out](const std::string& line) { out << line << '\n'; };
    const RunResult result = Run(seed, run);
    ++total.runs;
    total.balanced += result.balanced ? 1 : 0;
    total.events += result.events;
    total.updates += result.updates;
    total.checkpoints += result.checkpoints;
    total.rollbacks += result.rollbacks;
    total.faults += result.faults;
    total.virtual_seconds += static_cast<double>(result.took.value()) / 1e9;
    if (!result.violation) continue;
    total.failed.push_back(seed);
    Explain(seed, options, out);
    if (total.failed.size() >= options.max_failures) break;
  }
  out << total.runs << " runs, " << total.failed.size() << " failed; " << total.balanced
      << " jobs finished with their books checked, " << total.updates << " updates, "
      << total.checkpoints << " checkpoints, " << total.rollbacks << " returns to one, "
      << total.faults << " faults, " << total.events << " events, "
      << static_cast<uint64_t>(total.virtual_seconds) << " virtual seconds\n";
  return total;
}

}  // namespace paceline::simulation
