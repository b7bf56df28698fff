// What the operator's subcommands print: functions from the scheduler's view to text of at most
// style.width columns.
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/text_table.h"
#include "plan/operator_view.h"

namespace paceline {

std::string StatusText(const ClusterView& view, const Style& style);
std::string JobsText(const ClusterView& view, const Style& style);
// " + 12 open", or nothing: samples drawn that no count has, being on their way, or of a worker
// that was the last and is gone.
std::string OpenSamples(const JobView& job);
std::string NodesText(const ClusterView& view, const Style& style);
// Members, hosts, step, generation and why the workers are grouped so.
std::string GroupsText(const ClusterView& view, const Style& style);
// Per worker and group, and the distribution drawn as bars.
std::string StalenessText(const ClusterView& view, const Style& style);
std::string EventsText(const std::vector<DecisionRecord>& events, const Style& style);

// "tau" bins and bars; at most 16 lines.
std::string HistogramText(const StalenessCounts& counts, const Style& style);

// "2026-11-30 04:42:52", local time.
std::string TimeText(int64_t unix_time_ms);
// "12ms", "3.4s", "2m10s".
std::string AgoText(uint32_t ms);

}  // namespace paceline
