#include "cli/views.h"

#include <time.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/summary.h"
#include "common/base/status.h"

namespace paceline {
namespace {

constexpr size_t kBins = 16;

Tint TintOf(JobState state) {
  switch (state) {
    case JobState::kForming:
      return Tint::kYellow;
    case JobState::kRunning:
      return Tint::kGreen;
    case JobState::kFinished:
      return Tint::kDim;
    case JobState::kStopped:
      return Tint::kRed;
  }
  return Tint::kNone;
}

Tint TintOfNode(const std::string& state) {
  if (state == "live") return Tint::kGreen;
  return state == "dead" ? Tint::kRed : Tint::kDim;
}

std::string Fixed(double value) { return absl::StrFormat("%.2f", value); }

std::string Share(Samples part, Samples whole) {
  if (whole.value() == 0) return "-";
  return absl::StrFormat(
      "%.0f%%", 100.0 * static_cast<double>(part.value()) / static_cast<double>(whole.value()));
}

std::string JobTable(const ClusterView& view, const Style& style) {
  std::vector<std::vector<Cell>> rows;
  for (const JobView& job : view.jobs) {
    rows.push_back({job.spec.name,
                    {std::string(Name(job.state)), TintOf(job.state)},
                    EpochText(job),
                    absl::StrCat(job.step.value()),
                    RateText(job.samples_per_s),
                    Share(job.applied, job.total),
                    Fixed(job.mean),
                    absl::StrCat(job.workers_live, "/", job.spec.workers),
                    absl::StrCat(GroupCount(job)),
                    DurationText(static_cast<double>(job.seconds_running))});
  }
  return TextTable(
      {"JOB", "STATE", "EPOCH", "STEP", "SAMP/S", "DONE", "STALE", "WORKERS", "GROUPS", "TIME"},
      rows, style);
}

uint64_t CountNodes(const ClusterView& view, Role role, std::string_view state) {
  return static_cast<uint64_t>(
      std::count_if(view.nodes.begin(), view.nodes.end(),
                    [&](const NodeView& n) { return n.role == role && n.state == state; }));
}

std::string StepText(const NodeView& node) {
  return node.role == Role::kWorker ? absl::StrCat(node.worker.step.value()) : std::string("-");
}

std::string WorkerRows(const JobView& job, const Style& style) {
  std::vector<std::string> columns = {"WORKER", "GROUP",  "PUSHES", "MEAN", "P95",
                                      "MAX",    "EXCESS", "LAG",    "SEEN"};
  const bool late = UsesVerdicts(job.spec);
  if (late) columns.insert(columns.end(), {"CARRIED", "DROPPED"});
  std::vector<std::vector<Cell>> rows;
  for (const WorkerStalenessView& w : job.worker_staleness) {
    rows.push_back({w.name, absl::StrCat(w.group.value()), absl::StrCat(w.tau.count), Fixed(w.mean),
                    absl::StrFormat("%.0f", w.p95), absl::StrCat(w.tau.max), Fixed(w.excess_mean),
                    absl::StrCat(w.step_lag), AgoText(w.last_seen_ms)});
    if (!late) continue;
    rows.back().push_back(absl::StrCat(w.carried));
    rows.back().push_back(absl::StrCat(w.dropped));
  }
  return TextTable(columns, rows, style);
}

std::string GroupRows(const JobView& job, const Style& style) {
  std::vector<std::vector<Cell>> rows;
  for (const GroupStalenessView& g : job.group_staleness) {
    rows.push_back({absl::StrCat(g.raw.group.value()), absl::StrCat(g.raw.tau.count), Fixed(g.mean),
                    absl::StrFormat("%.0f", g.p95), absl::StrCat(g.raw.tau.max),
                    Fixed(g.excess_mean), absl::StrCat(g.step_lag), AgoText(g.last_seen_ms),
                    absl::StrJoin(g.members, " ")});
  }
  return TextTable({"GROUP", "PUSHES", "MEAN", "P95", "MAX", "EXCESS", "LAG", "SEEN", "MEMBERS"},
                   rows, style);
}

// Names may have 128 letters; a title has room for fewer.
std::string JobTitle(const JobView& job, const Style& style) {
  constexpr size_t kRoom = 24;
  const std::string& name = job.spec.name;
  return Tinted("job " + (name.size() <= kRoom ? name : name.substr(0, kRoom - 1) + "~"),
                Tint::kBold, style);
}

std::string MemberText(const Member& member) {
  return absl::StrCat(member.name, " (rank ", member.rank.value(), member.host.empty() ? "" : ", ",
                      member.host, ")");
}

std::string NoJobs(const ClusterView& view) {
  return absl::StrCat("no jobs in cluster ", view.cluster, "\n");
}

}  // namespace

std::string TimeText(int64_t unix_time_ms) {
  if (unix_time_ms == 0) return "-";
  const auto seconds = static_cast<time_t>(unix_time_ms / 1000);
  tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

std::string AgoText(uint32_t ms) {
  if (ms < 1000) return absl::StrCat(ms, "ms");
  return DurationText(ms / 1000.0);
}

std::string StatusText(const ClusterView& view, const Style& style) {
  std::string text =
      Wrap("",
           absl::StrCat("cluster ", view.cluster, ", version ", view.version, ", up ",
                        DurationText(static_cast<double>(view.uptime_ms) / 1000), ", term ",
                        view.term.value(), "; live: ", CountNodes(view, Role::kServer, "live"),
                        " servers, ", CountNodes(view, Role::kWorker, "live"), " workers"),
           style);
  if (view.jobs.empty()) return text + NoJobs(view);
  absl::StrAppend(&text, "\n", JobTable(view, style));
  for (const JobView& job : view.jobs) {
    if (!job.reason.empty())
      text += Wrap("  ", absl::StrCat(job.spec.name, ": ", job.reason), style);
  }
  return text;
}

std::string OpenSamples(const JobView& job) {
  const uint64_t known = (job.applied + job.discarded + job.returned).value();
  return job.drawn.value() <= known ? "" : absl::StrCat(" + ", job.drawn.value() - known, " open");
}

// Nothing for a job without checkpoints.
std::string CheckpointLines(const JobView& job, const Style& style) {
  std::string text;
  if (!job.resumed_from.empty()) text += Wrap("  resumed  ", "from " + job.resumed_from, style);
  if (!job.checkpoints.empty()) {
    const CheckpointRecord& newest = job.checkpoints.back();
    text += Wrap("  saved    ",
                 absl::StrCat("step ", LastStep(newest.steps).value(), ", update ", newest.updates,
                              " in ", newest.path),
                 style);
  }
  if (job.rollbacks.count > 0) {
    text +=
        Wrap("  lost     ",
             absl::StrFormat("%d returns to a checkpoint: %d steps, %d updates, %d samples, "
                             "%.1f s; lineage %d",
                             job.rollbacks.count, job.rollbacks.steps, job.rollbacks.updates,
                             job.rollbacks.samples.value(),
                             static_cast<double>(job.rollbacks.milliseconds) / 1000, job.lineage),
             style);
  }
  if (job.not_finite > 0) {
    text +=
        Wrap("  nan      ",
             absl::StrCat(job.not_finite, " pushes held NaN or infinity and were left out"), style);
  }
  if (job.refused_frames > 0) {
    text += Wrap("  refused  ",
                 absl::StrCat(job.refused_frames,
                              " messages, of workers declared dead or of a plan that is over"),
                 style);
  }
  return text;
}

std::string JobsText(const ClusterView& view, const Style& style) {
  if (view.jobs.empty()) return NoJobs(view);
  std::string text = JobTable(view, style);
  for (const JobView& job : view.jobs) {
    absl::StrAppend(&text, "\n", JobTitle(job, style), "\n");
    text += Wrap("  samples  ",
                 absl::StrCat(job.drawn.value(), " drawn = ", job.applied.value(), " applied + ",
                              job.discarded.value(), " discarded + ", job.returned.value(),
                              " returned", OpenSamples(job), "; ", job.updates, " updates"),
                 style);
    text +=
        Wrap("  plan     ",
             absl::StrCat("generation ", job.generation.value(), ", ",
                          Absl(Name(job.spec.aggregation)), " aggregation, groups ",
                          ToString(job.spec.groups), ", ", job.tensors.size(), " tensors on ",
                          job.servers, " servers, policy ", job.spec.policy.name, ", optimizer ",
                          job.spec.optimizer.name.empty() ? "not set" : job.spec.optimizer.name),
             style);
    text += CheckpointLines(job, style);
    for (const MetricView& metric : job.metrics) {
      text += Wrap("  metric   ",
                   absl::StrFormat("%s %.6g (%s, step %d)", metric.name, metric.value,
                                   metric.worker, metric.step.value()),
                   style);
    }
  }
  return text;
}

std::string NodesText(const ClusterView& view, const Style& style) {
  if (view.nodes.empty()) return absl::StrCat("no nodes in cluster ", view.cluster, "\n");
  std::vector<std::vector<Cell>> rows;
  for (const NodeView& node : view.nodes) {
    rows.push_back({node.name,
                    std::string(Name(node.role)),
                    {node.state, TintOfNode(node.state)},
                    node.host,
                    node.data_address.empty() ? "-" : node.data_address,
                    node.job.empty() ? "-" : node.job,
                    node.rank ? absl::StrCat(node.rank->value()) : std::string("-"),
                    StepText(node),
                    AgoText(node.last_seen_ms)});
  }
  std::string text = TextTable(
      {"NODE", "ROLE", "STATE", "HOST", "ADDRESS", "JOB", "RANK", "STEP", "SEEN"}, rows, style);
  for (const NodeView& node : view.nodes) {
    if (node.worker.links.empty()) continue;
    text += Wrap(absl::StrCat("links of ", node.name.substr(0, 30), "  "),
                 absl::StrJoin(node.worker.links, ", "), style);
  }
  return text;
}

std::string GroupsText(const ClusterView& view, const Style& style) {
  if (view.jobs.empty()) return NoJobs(view);
  std::string text;
  for (const JobView& job : view.jobs) {
    if (!text.empty()) text += "\n";
    absl::StrAppend(&text, JobTitle(job, style), " (", Absl(Name(job.state)),
                    "): ", job.groups.size(), " groups (", ToString(job.spec.groups), "), ",
                    job.group_generations, " group plans so far\n");
    for (const GroupView& group : job.groups) {
      std::vector<std::string> members;
      for (const Member& member : group.plan.members) members.push_back(MemberText(member));
      absl::StrAppendFormat(&text,
                            "  group %d: step %d, %.1f ms a step, generation %d from step %d\n",
                            group.plan.id.value(), group.step.value(), group.step_time_us / 1000.0,
                            group.plan.generation.value(), group.plan.activation_step.value());
      text += Wrap("    members  ", absl::StrJoin(members, ", "), style);
      text += Wrap("    why      ", group.plan.reason, style);
    }
  }
  return text;
}

std::string HistogramText(const StalenessCounts& counts, const Style& style) {
  if (counts.count == 0 || counts.buckets.empty()) return "  no pushes were applied yet\n";
  const size_t bin = (counts.buckets.size() + kBins - 1) / kBins;
  std::vector<uint64_t> sums;
  for (size_t tau = 0; tau < counts.buckets.size(); ++tau) {
    if (tau / bin == sums.size()) sums.push_back(0);
    sums.back() += counts.buckets[tau];
  }
  const uint64_t largest = std::max<uint64_t>(1, *std::max_element(sums.begin(), sums.end()));
  const size_t room = style.width - 32;
  std::string text;
  for (size_t i = 0; i < sums.size(); ++i) {
    const size_t low = i * bin;
    const size_t high = std::min(low + bin, counts.buckets.size()) - 1;
    std::string label = low == high ? absl::StrCat(low) : absl::StrCat(low, "-", high);
    if (high == StalenessCounts::kExact) label = absl::StrCat(low, "+");
    const auto bar = static_cast<size_t>(
        static_cast<double>(sums[i]) / static_cast<double>(largest) * static_cast<double>(room) +
        0.5);
    absl::StrAppendFormat(&text, "  %7s |%s%s%d (%.1f%%)\n", label, std::string(bar, '#'),
                          bar > 0 ? " " : "", sums[i],
                          100.0 * static_cast<double>(sums[i]) / static_cast<double>(counts.count));
  }
  return text;
}

std::string StalenessText(const ClusterView& view, const Style& style) {
  if (view.jobs.empty()) return NoJobs(view);
  std::string text;
  for (const JobView& job : view.jobs) {
    if (!text.empty()) text += "\n";
    absl::StrAppendFormat(&text, "%s: %d pushes, mean %.2f, p50 %.0f, p95 %.0f, max %d\n\n",
                          JobTitle(job, style), job.tau.count, job.mean, job.p50, job.p95,
                          job.tau.max);
    text += GroupRows(job, style) + "\n" + WorkerRows(job, style) + "\n";
    text += "pushes by staleness (updates between base and application):\n";
    text += HistogramText(job.tau, style);
  }
  return text;
}

std::string EventsText(const std::vector<DecisionRecord>& events, const Style& style) {
  std::string text;
  for (const DecisionRecord& event : events) {
    const std::string head = absl::StrFormat("%s %5d %-10s ", TimeText(event.unix_time_ms),
                                             event.sequence, event.kind.substr(0, 10));
    text += Wrap(head, event.job.empty() ? event.text : event.job + ": " + event.text, style);
  }
  return text;
}

}  // namespace paceline
