// Checkpoints: when one is due, the three phases of a cut, the manifest, which older ones go.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "scheduler/core/core_impl.h"

namespace paceline {
namespace {

using scheduler::Cut;
using Phase = scheduler::Cut::Phase;

constexpr uint32_t kMaxCutAttempts = 10;
constexpr size_t kMaxPathBytes = 3072;
constexpr size_t kMaxAbandoned = 64;
constexpr paceline::Step kForGood(uint64_t{1} << 40);  // further than a group gets

// Never the name of another checkpoint: a scheduler that starts again may not know of the last.
std::string DirectoryOf(const scheduler::JobRecord& job, uint64_t number, Term term) {
  const std::string name = absl::StrFormat("%s-%s-%06d", job.spec.name, job.run, number);
  return term == Term(1) ? name : absl::StrCat(name, "-t", term.value());
}

// A server that answers no sooner writes less than the slowest of disks, or hangs.
Ticks CutTimeout(const scheduler::JobRecord& job) {
  constexpr uint64_t kLeastSeconds = 120;
  constexpr uint64_t kLeastBytesPerSecond = 8u << 20;
  constexpr uint64_t kArrays = 3;  // weights, and what Adam keeps
  uint64_t bytes = 0;
  for (const TensorPlan& tensor : job.tensors) {
    bytes += kArrays * tensor.spec.elements() * sizeof(float);
  }
  return Seconds(static_cast<int64_t>(kLeastSeconds + bytes / kLeastBytesPerSecond));
}

// Of the groups there are: owners remember those that ended, whose steps mean nothing any more.
std::map<GroupId, paceline::Step> StepsOf(const scheduler::JobRecord& job, const Cut& cut) {
  std::map<GroupId, paceline::Step> steps;
  for (const auto& [group, step] : cut.steps) {
    if (job.groups.contains(group)) steps.emplace(group, step);
  }
  return steps;
}

}  // namespace

// ---- Asking for one -----------------------------------------------------------------------------

absl::Status Core::Impl::QueueCut(JobId id, Cut cut) {
  const JobRecord& of = job(id);
  JobRuntime& run = runtime(id);
  const std::string name = absl::StrCat("checkpoint of job ", of.spec.name, ": ");
  if (cut.below.empty()) cut.below = of.spec.checkpoint_dir;
  if (cut.below.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, "no directory; set job.checkpoint_dir, or name one that all servers can write"));
  }
  if (cut.below.front() != '/' || cut.below.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, "directory \"", cut.below.substr(0, 256),
                                                   "\"; use an absolute path of at most ",
                                                   kMaxPathBytes, " bytes"));
  }
  const bool open = std::any_of(of.tensors.begin(), of.tensors.end(),
                                [](const TensorPlan& t) { return !t.sealed; });
  if (of.tensors.empty() || open) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, of.tensors.empty() ? "it has no tensors yet" : "initial values are not complete yet",
        "; try again when it trains"));
  }
  if (run.cuts.size() >= options_.limits.max_cuts) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name, run.cuts.size(), " wait already; try again later"));
  }
  run.cuts.push_back(std::move(cut));
  if (run.cuts.size() == 1) StartCut(id);
  return absl::OkStatus();
}

void Core::Impl::On(const NodeRecord& from, RequestId request, CheckpointRequest& body) {
  Cut cut;
  cut.request = request;
  cut.from = from.id;
  cut.below = std::move(body.directory);
  const absl::Status status = QueueCut(from.job, std::move(cut));
  if (!status.ok()) Refuse(request, status);
}

void Core::Impl::On(RequestId request, CheckpointJobRequest& body) {
  const JobRecord* of = FindActiveJob(body.job);
  if (of == nullptr) {
    return Refuse(
        request, absl::NotFoundError(absl::StrCat("job ", body.job, " is not forming or running")));
  }
  Cut cut;
  cut.request = request;
  cut.below = std::move(body.directory);
  const absl::Status status = QueueCut(of->id, std::move(cut));
  if (!status.ok()) Refuse(request, status);
}

paceline::Step Core::Impl::FastestStep(const JobRecord& job) const {
  paceline::Step fastest = job.first_step;
  for (const auto& [id, group] : job.groups) {
    for (const Member& m : group.members) {
      const auto session = sessions_.find(m.node);
      if (session != sessions_.end()) fastest = std::max(fastest, session->second.worker.step);
    }
  }
  return fastest;
}

void Core::Impl::CheckpointIfDue(JobId id) {
  const JobRecord& of = job(id);
  JobRuntime& run = runtime(id);
  if (of.spec.checkpoint_every_steps == 0 && of.spec.checkpoint_every_s == 0) return;
  if (of.state != JobState::kRunning || !of.restore_from.empty() || !run.cuts.empty()) return;
  const paceline::Step step = FastestStep(of);
  if (!run.last_cut) {
    const paceline::Step last =
        of.checkpoints.empty() ? of.first_step : LastStep(of.checkpoints.back().steps);
    run.last_cut = {now_, last};
  }
  // The fastest group may have ended since.
  run.last_cut->step = std::min(step, run.last_cut->step);
  const uint64_t steps = step.value() - run.last_cut->step.value();
  const bool due = of.spec.checkpoint_every_steps != 0
                       ? steps >= of.spec.checkpoint_every_steps
                       : now_ - run.last_cut->at >= Seconds(of.spec.checkpoint_every_s);
  // Nothing has changed since the last one.
  if (!due || steps == 0) return;
  const absl::Status status = QueueCut(id, Cut());
  if (status.ok() || absl::IsFailedPrecondition(status)) return;
  run.last_cut = {now_, step};
  Say(of.spec.name, "checkpoint", std::string(status.message()));
}

void Core::Impl::TickCut(JobId id) {
  CheckpointIfDue(id);
  JobRuntime& run = runtime(id);
  if (run.cuts.empty()) return;
  if (run.cuts.front().phase == Phase::kWaiting) return StartCut(id);
  const Cut& cut = run.cuts.front();
  const Ticks limit = CutTimeout(job(id));
  if (now_ - cut.since <= limit) return;
  std::string silent;
  for (NodeId owner : cut.awaited) absl::StrAppend(&silent, " ", node(owner).name);
  FinishCut(
      id, absl::DeadlineExceededError(absl::StrCat(
              "checkpoint: no answer within ", limit.value() / 1'000'000'000, " s from", silent)));
}

bool Core::Impl::HoldsSteps(JobId id) {
  const JobRuntime& run = runtime(id);
  if (run.cuts.empty()) return false;
  const Phase phase = run.cuts.front().phase;
  return phase == Phase::kCollect || phase == Phase::kCopy;
}

// ---- The cut ------------------------------------------------------------------------------------

// Begins when all shards are back, where they are to stay, and have their values; and only with
// owners that hear of it: the steps of the others would be held until one is back.
bool Core::Impl::MayCut(const JobRecord& of) {
  if (!of.restore_from.empty() || !of.moves.empty()) return false;
  for (const TensorPlan& tensor : of.tensors) {
    if (!tensor.sealed) return false;
  }
  for (NodeId owner : OwnersOf(of)) {
    if (!sessions_[owner].watching) return false;
  }
  return true;
}

void Core::Impl::StartCut(JobId id) {
  JobRuntime& run = runtime(id);
  if (run.cuts.empty()) return;
  Cut& cut = run.cuts.front();
  cut.phase = Phase::kWaiting;
  cut.id = 0;  // no answer to an earlier attempt counts
  cut.awaited.clear();
  if (!MayCut(job(id))) return;
  run.last_cut = {now_, FastestStep(job(id))};
  run.cut_number = std::max(run.cut_number, job(id).last_checkpoint) + 1;
  cut.number = run.cut_number;
  cut.path = absl::StrCat(cut.below, "/", DirectoryOf(job(id), cut.number, state_.term));
  cut.phase = Phase::kCollect;
  cut.steps.clear();
  cut.parts.clear();
  cut.workers.clear();
  cut.awaited = OwnersOf(job(id));
  cut.since = now_;
  ++cut.attempts;
  if (run.cut_fault.empty()) {
    Say(job(id).spec.name, "checkpoint",
        absl::StrCat("cut ", cut.number, " into ", cut.path, ", attempt ", cut.attempts));
  }
  // Each phase has an id of its own: an answer that comes twice is no answer to the next phase.
  cut.id = NextChange();
  for (NodeId owner : cut.awaited) Send(owner, CutDirective{cut.id, id, true, false, {}, ""});
}

void Core::Impl::AckCut(JobId id, NodeId from, const AckRequest& ack) {
  Cut& cut = runtime(id).cuts.front();
  if (cut.awaited.count(from) == 0) return;
  if (!ack.error.empty()) {
    return FinishCut(id, absl::InternalError(absl::StrCat("checkpoint: server ", node(from).name,
                                                          ": ", ack.error)));
  }
  cut.awaited.erase(from);
  if (cut.phase == Phase::kCollect) {
    for (const auto& [group, step] : ack.applied) {
      auto [it, first] = cut.steps.emplace(group, step);
      if (!first) it->second = std::max(it->second, step);
    }
  } else if (cut.phase == Phase::kCopy) {
    if (ack.part.file.empty()) {
      return FinishCut(id, absl::InternalError(absl::StrCat("checkpoint: server ", node(from).name,
                                                            ": wrote no part")));
    }
    cut.parts.push_back(ack.part);
    if (LeadOwnerOf(job(id)) == from) {
      cut.updates = ack.updates;
      cut.workers = ack.workers;
    }
  }
  if (!cut.awaited.empty()) return;
  if (cut.phase == Phase::kCollect) return CopyCut(id);
  if (cut.phase == Phase::kCopy) return WriteManifest(id);
  FinishCut(id, absl::OkStatus());
}

// Whether the job has a member of this group, or one that is on its way from it.
bool Core::Impl::MayStillPush(JobId id, GroupId group) {
  const auto& going = runtime(id).on_their_way;
  return job(id).groups.contains(group) ||
         std::any_of(going.begin(), going.end(),
                     [group](const auto& way) { return way.second.contains(group); });
}

// An owner that has not had the last word of a member would wait for it to no end.
void Core::Impl::AbortCutOfEndedGroups(JobId id) {
  const JobRuntime& run = runtime(id);
  if (run.cuts.empty() || run.cuts.front().phase != Phase::kCopy) return;
  for (const auto& [group, step] : run.cuts.front().steps) {
    if (step == kForGood || MayStillPush(id, group)) continue;
    return AbortCut(id, absl::StrCat("group ", group.value(), " has ended"));
  }
}

void Core::Impl::CopyCut(JobId id) {
  Cut& cut = runtime(id).cuts.front();
  cut.phase = Phase::kCopy;
  cut.id = NextChange();
  // All steps of a group that ended are in. Up to its last one owners would wait for the last word
  // of members that are gone; up to here they are members no longer.
  for (auto& [group, step] : cut.steps) {
    if (!MayStillPush(id, group)) step = kForGood;
  }
  // Whatever a step up to the cut used was drawn by now; what was used of it comes with the parts.
  cut.samples = job(id).samples;
  cut.awaited = OwnersOf(job(id));
  for (NodeId owner : cut.awaited) {
    Send(owner, CutDirective{cut.id, id, false, false, cut.steps, cut.path});
  }
}

CheckpointManifest Core::Impl::ManifestOf(const JobRecord& job, const Cut& cut) const {
  CheckpointManifest manifest;
  manifest.run = job.run;
  manifest.number = cut.number;
  manifest.spec = job.spec;
  manifest.lineage = job.lineage;
  manifest.updates = cut.updates;
  manifest.steps = StepsOf(job, cut);
  scheduler::SampleLedger samples = cut.samples;
  for (const WorkerSamples& w : cut.workers) {
    const scheduler::SettledSamples before = SettledOf(job, w.worker);
    samples.ApplyUsed(w.worker,
                      before.applied + before.discarded + w.applied.value() + w.discarded.value());
  }
  const bool by_step = job.spec.deterministic && job.spec.groups.kind == GroupSpec::Kind::kOne;
  manifest.samples = by_step && job.spec.sample_count > 0
                         ? samples.PositionAfter(LastStep(manifest.steps).value())
                         : samples.Position();
  manifest.applied = RecordOf(job, cut).applied;
  for (const TensorPlan& tensor : job.tensors) manifest.tensors.push_back(tensor.spec);
  manifest.parts = cut.parts;
  std::sort(manifest.parts.begin(), manifest.parts.end(),
            [](const CheckpointPart& a, const CheckpointPart& b) { return a.file < b.file; });
  return manifest;
}

CheckpointRecord Core::Impl::RecordOf(const JobRecord& job, const Cut& cut) const {
  CheckpointRecord record;
  record.number = cut.number;
  record.path = cut.path;
  record.updates = cut.updates;
  record.tensors = static_cast<uint32_t>(job.tensors.size());
  record.steps = StepsOf(job, cut);
  std::map<NodeId, WorkerSamples> totals;
  for (const auto& [worker, settled] : job.settled) {
    totals[worker] = {worker, Samples(settled.applied), Samples(settled.discarded)};
  }
  for (const WorkerSamples& w : cut.workers) {
    WorkerSamples& total = totals[w.worker];
    total.worker = w.worker;
    total.applied += w.applied;
    total.discarded += w.discarded;
  }
  for (const auto& [worker, total] : totals) {
    record.applied += total.applied;
    record.workers.push_back(total);
  }
  return record;
}

// All parts are there: one owner makes them a checkpoint.
void Core::Impl::WriteManifest(JobId id) {
  JobRuntime& run = runtime(id);
  Cut& cut = run.cuts.front();
  cut.phase = Phase::kManifest;
  cut.id = NextChange();
  const NodeId writer = *OwnersOf(job(id)).begin();
  cut.awaited = {writer};
  CutDirective directive{cut.id, id, false, false, cut.steps, cut.path};
  directive.manifest = ManifestOf(job(id), cut);
  Send(writer, std::move(directive));
}

void Core::Impl::Drop(JobId id, std::vector<std::string> directories) {
  if (directories.empty()) return;
  for (NodeId owner : OwnersOf(job(id))) {
    if (!sessions_[owner].watching) continue;
    CutDirective directive{0, id, false, false, {}, ""};
    directive.drop = std::move(directories);
    return Send(owner, std::move(directive));
  }
  // Nobody hears it now: after the next cut.
  runtime(id).abandoned = std::move(directories);
}

void Core::Impl::AbortCut(JobId id, const std::string& reason) {
  JobRuntime& run = runtime(id);
  if (run.cuts.empty() || run.cuts.front().phase == Phase::kWaiting) return;
  Cut& cut = run.cuts.front();
  const bool asker_gone = cut.from != NodeId(0) && !node(cut.from).live();
  if (cut.attempts >= kMaxCutAttempts || asker_gone) {
    return FinishCut(id, absl::AbortedError(absl::StrCat("checkpoint: ", reason)));
  }
  Say(job(id).spec.name, "checkpoint",
      absl::StrCat("cut ", cut.number, " aborted (", reason, "), tried again"));
  LetGo(id, cut);
  StartCut(id);
}

// The owners hold steps no longer, and nothing is to stay of what they wrote.
void Core::Impl::LetGo(JobId id, const Cut& cut) {
  JobRuntime& run = runtime(id);
  if (run.abandoned.size() < kMaxAbandoned) run.abandoned.push_back(cut.path);
  for (NodeId owner : OwnersOf(job(id))) {
    Send(owner, CutDirective{cut.id, id, false, true, {}, cut.path});
  }
}

// Nobody comes later who would clear away.
void Core::Impl::ClearCuts(JobId id) {
  JobRuntime& run = runtime(id);
  if (!run.cuts.empty() && run.cuts.front().phase != Phase::kWaiting) LetGo(id, run.cuts.front());
  Drop(id, std::exchange(run.abandoned, {}));
}

void Core::Impl::FinishCut(JobId id, const absl::Status& status) {
  JobRuntime& run = runtime(id);
  const Cut cut = std::move(run.cuts.front());
  run.cuts.pop_front();
  if (status.ok()) {
    CutTaken(id, cut);
  } else {
    CutFailed(id, cut, status);
  }
  StartCut(id);
}

void Core::Impl::CutTaken(JobId id, const Cut& cut) {
  JobRuntime& run = runtime(id);
  std::vector<std::string> dropped = std::exchange(run.abandoned, {});
  run.cut_fault.clear();
  run.taken_at[cut.number] = cut.since;
  if (run.taken_at.size() > 2 * job(id).spec.checkpoint_keep) {
    run.taken_at.erase(run.taken_at.begin());
  }
  const std::vector<CheckpointRecord>& kept = job(id).checkpoints;
  for (size_t i = 0; i + job(id).spec.checkpoint_keep < kept.size() + 1; ++i) {
    // The one resumed from belongs to another run.
    if (kept[i].number != 0) dropped.push_back(kept[i].path);
  }
  Decide(scheduler::CheckpointRecorded{id, RecordOf(job(id), cut)});
  Drop(id, std::move(dropped));
  Say(job(id).spec.name, "checkpoint",
      absl::StrCat("cut ", cut.number, " complete in ", cut.path, ": step ",
                   LastStep(StepsOf(job(id), cut)).value(), ", update ", cut.updates, ", ",
                   cut.parts.size(), cut.parts.size() == 1 ? " part" : " parts"));
  if (!cut.request) return;
  CheckpointReply reply{cut.path, StepsOf(job(id), cut)};
  if (cut.from == NodeId(0)) {
    Answer(*cut.request, OperatorReply(std::move(reply)));
  } else {
    Answer(*cut.request, NodeReply(std::move(reply)));
  }
}

void Core::Impl::CutFailed(JobId id, const Cut& cut, const absl::Status& status) {
  JobRuntime& run = runtime(id);
  if (cut.phase != Phase::kWaiting) LetGo(id, cut);
  // A disk that stays full is said once, however often a checkpoint is due.
  std::string fault = absl::StrReplaceAll(status.message(), {{cut.path, cut.below}});
  if (cut.request || fault != run.cut_fault) {
    Say(job(id).spec.name, "checkpoint",
        absl::StrCat("cut ", cut.number, " failed: ", status.message()));
  }
  run.cut_fault = std::move(fault);
  if (cut.request) Refuse(*cut.request, status);
}

}  // namespace paceline
