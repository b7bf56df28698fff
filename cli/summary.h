// What a run of the launcher leaves behind: summary.json, and a few lines for people.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/process.h"
#include "plan/operator_view.h"

namespace paceline {

enum class Outcome : uint8_t { kSucceeded, kFailed, kInterrupted };
std::string_view Name(Outcome outcome);

struct RunSummary {
  std::string job;
  Outcome outcome = Outcome::kInterrupted;
  std::string reason;
  double seconds = 0;
  uint32_t workers = 0;
  uint32_t servers = 0;
  std::optional<JobView> view;  // the scheduler's last answer
};

// docs/cli.md lists the fields. Ends with a line feed.
std::string SummaryJson(const RunSummary& summary, const std::vector<Process>& processes);

// Outcome, time, metrics, staleness by group, where the files are.
std::string SummaryText(const RunSummary& summary, const std::string& directory);

// One line of at most `width` columns: epoch, step, rate, time left, loss, staleness, members; in
// shorter words where they do not fit.
std::string ProgressLine(const JobView& view, size_t width);

// "2/5": the epoch under way, counted from 1, of how many.
std::string EpochText(const JobView& view);

// Groups of the job now; when it has ended, those that trained.
size_t GroupCount(const JobView& view);

// "47s", "3m12s", "2h05m".
std::string DurationText(double seconds);
// "950", "12.3k", "4.56M".
std::string RateText(double value);

// Writes `text` beside `path` and renames it there, so that readers see a whole file at any time.
absl::Status ReplaceFile(const std::string& path, const std::string& text);

}  // namespace paceline
