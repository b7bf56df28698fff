#include "cli/summary.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/text_table.h"
#include "cli/views.h"
#include "common/base/status.h"

namespace paceline {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity and no NaN.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// The newest of each name; of equally new ones that of the first worker by name.
std::map<std::string, const MetricView*> NewestMetrics(const JobView& view) {
  std::map<std::string, const MetricView*> newest;
  for (const MetricView& metric : view.metrics) {
    const MetricView*& slot = newest[metric.name];
    if (slot == nullptr || slot->step < metric.step ||
        (slot->step == metric.step && metric.worker < slot->worker)) {
      slot = &metric;
    }
  }
  return newest;
}

Json MetricsJson(const JobView& view) {
  Json json = Json::object();
  for (const auto& [name, metric] : NewestMetrics(view)) {
    json[name] = {{"value", Number(metric->value)},
                  {"worker", metric->worker},
                  {"step", metric->step.value()}};
  }
  return json;
}

Json StalenessJson(const JobView& view) {
  Json groups = Json::array();
  for (const GroupStalenessView& group : view.group_staleness) {
    groups.push_back({{"group", group.raw.group.value()},
                      {"members", group.members},
                      {"count", group.raw.tau.count},
                      {"mean", Number(group.mean)},
                      {"p95", Number(group.p95)},
                      {"max", group.raw.tau.max}});
  }
  Json workers = Json::array();
  for (const WorkerStalenessView& worker : view.worker_staleness) {
    workers.push_back({{"worker", worker.name},
                       {"group", worker.group.value()},
                       {"count", worker.tau.count},
                       {"mean", Number(worker.mean)},
                       {"p95", Number(worker.p95)},
                       {"max", worker.tau.max}});
  }
  return {{"count", view.tau.count}, {"mean", Number(view.mean)}, {"p50", Number(view.p50)},
          {"p95", Number(view.p95)}, {"max", view.tau.max},       {"by_group", groups},
          {"by_worker", workers}};
}

Json ProcessesJson(const std::vector<Process>& processes) {
  Json json = Json::array();
  for (const Process& process : processes) {
    const bool exited = process.ended && process.signal == 0;
    json.push_back({{"role", process.role},
                    {"name", process.name},
                    {"pid", process.pid},
                    {"exit_code", exited ? Json(process.exit_code) : Json(nullptr)},
                    {"signal", process.signal != 0 ? Json(process.signal) : Json(nullptr)},
                    {"seconds", process.seconds},
                    {"cpu_seconds", process.cpu_seconds},
                    {"peak_rss_bytes", process.peak_rss_bytes}});
  }
  return json;
}

Json RollbacksJson(const RollbackTotals& totals) {
  return {{"count", totals.count},
          {"steps", totals.steps},
          {"updates", totals.updates},
          {"samples", totals.samples.value()},
          {"seconds", static_cast<double>(totals.milliseconds) / 1000}};
}

const MetricView* FindLoss(const JobView& view) {
  const MetricView* found = nullptr;
  for (const MetricView& metric : view.metrics) {
    const bool is_loss = metric.name == "loss" || metric.name == "train_loss";
    if (is_loss && (found == nullptr || found->step <= metric.step)) found = &metric;
  }
  return found;
}

// Under a quorum: what became of pushes whose round went on without them.
std::string LatePushes(const JobView& view) {
  uint64_t carried = 0;
  uint64_t dropped = 0;
  for (const WorkerStalenessView& worker : view.worker_staleness) {
    carried += worker.carried;
    dropped += worker.dropped;
  }
  return absl::StrCat(carried, " pushes carried, ", dropped, " dropped");
}

}  // namespace

std::string_view Name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kSucceeded:
      return "succeeded";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

std::string SummaryJson(const RunSummary& summary, const std::vector<Process>& processes) {
  const JobView view = summary.view.value_or(JobView{});
  const Json json = {
      {"job", summary.job},
      {"outcome", std::string(Name(summary.outcome))},
      {"reason", summary.reason},
      {"seconds", summary.seconds},
      {"workers", summary.workers},
      {"servers", summary.servers},
      {"groups", GroupCount(view)},
      {"generations", view.group_generations},
      {"samples_drawn", view.drawn.value()},
      {"samples_applied", view.applied.value()},
      {"samples_discarded", view.discarded.value()},
      {"samples_returned", view.returned.value()},
      {"updates", view.updates},
      {"checkpoints", view.checkpoints.size()},
      {"newest_checkpoint",
       view.checkpoints.empty() ? Json(nullptr) : Json(view.checkpoints.back().path)},
      {"resumed_from", view.resumed_from.empty() ? Json(nullptr) : Json(view.resumed_from)},
      {"rollbacks", RollbacksJson(view.rollbacks)},
      {"not_finite_pushes", view.not_finite},
      {"refused_frames", view.refused_frames},
      {"metrics", MetricsJson(view)},
      {"staleness", StalenessJson(view)},
      {"processes", ProcessesJson(processes)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string SummaryText(const RunSummary& summary, const std::string& directory) {
  std::vector<std::pair<std::string, std::string>> rows;
  if (summary.view) {
    const JobView& view = *summary.view;
    rows.emplace_back("samples",
                      absl::StrCat(view.applied.value(), " applied of ", view.drawn.value(),
                                   " drawn, ", view.discarded.value(), " discarded, ",
                                   view.returned.value(), " returned", OpenSamples(view)));
    if (UsesVerdicts(view.spec)) rows.emplace_back("late", LatePushes(view));
    rows.emplace_back("updates", absl::StrCat(view.updates));
    for (const auto& [name, metric] : NewestMetrics(view)) {
      rows.emplace_back(name, absl::StrFormat("%.6g (%s, step %d)", metric->value, metric->worker,
                                              metric->step.value()));
    }
    if (view.rollbacks.count > 0) {
      rows.emplace_back(
          "lost", absl::StrFormat("%d steps, %d updates, %d samples, %.1f s in %d returns to a "
                                  "checkpoint",
                                  view.rollbacks.steps, view.rollbacks.updates,
                                  view.rollbacks.samples.value(),
                                  static_cast<double>(view.rollbacks.milliseconds) / 1000,
                                  view.rollbacks.count));
    }
    if (!view.checkpoints.empty()) {
      rows.emplace_back("checkpoint",
                        absl::StrCat(view.checkpoints.back().path, " (step ",
                                     LastStep(view.checkpoints.back().steps).value(), ")"));
    }
    for (const GroupStalenessView& group : view.group_staleness) {
      rows.emplace_back(absl::StrCat("group ", group.raw.group.value()),
                        absl::StrFormat("staleness mean %.2f p95 %.0f max %d over %d (%s)",
                                        group.mean, group.p95, group.raw.tau.max,
                                        group.raw.tau.count, absl::StrJoin(group.members, " ")));
    }
  }
  rows.emplace_back("files", directory + " (summary.json, a log a process)");
  int width = 0;
  for (const auto& [label, value] : rows) width = std::max(width, static_cast<int>(label.size()));
  std::string text = absl::StrCat("job ", summary.job, " ", Absl(Name(summary.outcome)), " after ",
                                  DurationText(summary.seconds), summary.reason.empty() ? "" : ": ",
                                  summary.reason, "\n");
  for (const auto& [label, value] : rows) {
    text += Wrap(absl::StrFormat("  %-*s  ", width, label), value, Style{});
  }
  return text;
}

std::string ProgressLine(const JobView& view, size_t width) {
  if (view.state == JobState::kForming) {
    return absl::StrCat("waiting for workers: ", view.workers_live, " of ", view.spec.workers,
                        " joined");
  }
  const std::string step = absl::StrCat("epoch ", EpochText(view), "  step ", view.step.value(),
                                        "  ", RateText(view.samples_per_s));
  std::string rest;
  if (view.total.value() > view.applied.value() && view.samples_per_s > 0) {
    const auto left = static_cast<double>((view.total - view.applied).value());
    absl::StrAppend(&rest, "  ETA ", DurationText(left / view.samples_per_s));
  }
  if (const MetricView* loss = FindLoss(view))
    absl::StrAppendFormat(&rest, "  loss %.4g", loss->value);
  const std::string mean = absl::StrFormat("%.2f", view.mean);
  const std::string members = absl::StrCat(view.workers_live, "/", view.spec.workers);
  std::string line =
      absl::StrCat(step, " samples/s", rest, "  staleness ", mean, "  members ", members);
  if (line.size() > width) line = absl::StrCat(step, "/s", rest, "  stale ", mean, "  ", members);
  return line.substr(0, width);
}

std::string EpochText(const JobView& view) {
  if (view.spec.epochs == 0) return absl::StrCat(view.epoch.value() + 1);
  return absl::StrCat(std::min(view.epoch.value() + 1, view.spec.epochs), "/", view.spec.epochs);
}

size_t GroupCount(const JobView& view) {
  const bool ended = view.state == JobState::kFinished || view.state == JobState::kStopped;
  return ended ? view.group_staleness.size() : view.groups.size();
}

std::string DurationText(double seconds) {
  if (!(seconds >= 0)) return "?";
  if (seconds < 10) return absl::StrFormat("%.1fs", seconds);
  if (seconds > 359'999) return ">99h";
  const auto whole = static_cast<uint64_t>(seconds);
  if (whole < 60) return absl::StrFormat("%ds", whole);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
}

std::string RateText(double value) {
  if (!(value >= 0)) return "?";
  if (value < 999.5) return absl::StrFormat("%.0f", value);
  if (value < 999'500) return absl::StrFormat("%.3gk", value / 1e3);
  if (value < 999'500'000) return absl::StrFormat("%.3gM", value / 1e6);
  return absl::StrFormat("%.3gG", value / 1e9);
}

absl::Status ReplaceFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(temporary.c_str(), "we"), fclose);
  const bool written = file != nullptr &&
                       fwrite(text.data(), 1, text.size(), file.get()) == text.size() &&
                       fflush(file.get()) == 0 && fsync(fileno(file.get())) == 0;
  if (written && rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
}

}  // namespace paceline
