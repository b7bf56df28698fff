// The views as JSON, for --json: stable names, documented in docs/cli.md.
// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "plan/operator_view.h"

namespace paceline {

// {"cluster", "version", "term", "uptime_ms", "nodes": [...], "jobs": [...]}; each subcommand gives
// the parts it shows.
std::string StatusJson(const ClusterView& view);
std::string JobsJson(const ClusterView& view);
std::string NodesJson(const ClusterView& view);
std::string GroupsJson(const ClusterView& view);
std::string StalenessJson(const ClusterView& view);
// One object a line, so that --watch can be piped.
std::string CheckpointJson(const CheckpointReply& reply);
std::string EventsJson(const std::vector<DecisionRecord>& events);

}  // namespace paceline
