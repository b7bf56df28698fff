#include "simulation/replay.h"

#include <iomanip>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "scheduler/core/core.h"
#include "scheduler/core/describe.h"
#include "scheduler/core/trace.h"

namespace paceline::simulation {
namespace {

void Print(const Ready& ready, Ticks start, const ReplayOptions& options, std::ostream& out) {
  for (const DecisionRecord& d : ready.decisions) {
    if (!options.job.empty() && d.job != options.job) continue;
    const int64_t ms = (d.at - start).value() / 1'000'000;
    out << '+' << ms / 1000 << '.' << std::setfill('0') << std::setw(3) << ms % 1000 << ' '
        << (d.job.empty() ? "-" : d.job) << ' ' << d.kind << ": " << d.text << '\n';
  }
  if (!options.directives) return;
  for (const DirectiveAction& action : ready.directives) {
    out << "  to node " << action.to.node << '.' << action.to.incarnation << ": "
        << scheduler::Describe(action.directive) << '\n';
  }
}

}  // namespace

absl::Status Replay(std::string_view trace, const ReplayOptions& options, std::ostream& out) {
  PACELINE_ASSIGN_OR_RETURN(scheduler::TraceReader reader, scheduler::TraceReader::Open(trace));
  CoreOptions core_options;
  core_options.cluster = reader.header().cluster;
  core_options.heartbeat_interval_ms = reader.header().heartbeat_interval_ms;
  core_options.failure_timeout_ms = reader.header().failure_timeout_ms;
  Core core(core_options);
  PACELINE_RETURN_IF_ERROR(Annotate(core.Recover(reader.header().recovered), "trace header"));
  uint64_t events = 0;
  Ticks start;
  absl::Status damage;
  for (;;) {
    absl::StatusOr<std::optional<scheduler::TraceRecord>> record = reader.Next();
    if (!record.ok()) {
      damage = record.status();
      break;
    }
    if (!record->has_value()) break;
    if (events++ == 0) start = (*record)->now;
    core.Step((*record)->now, std::move((*record)->event));
    Print(core.TakeReady(), start, options, out);
  }
  out << events << " events replayed\n";
  if (options.snapshot) out << core.Snapshot();
  return damage;
}

}  // namespace paceline::simulation
