// Back to a checkpoint: a job that resumes, and one that lost a server.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "plan/chunking.h"
#include "plan/placement.h"
#include "scheduler/core/core_impl.h"

namespace paceline {

using scheduler::SettledSamples;

SettledSamples Core::Impl::SettledOf(const JobRecord& job, NodeId worker) const {
  const auto it = job.settled.find(worker);
  return it == job.settled.end() ? SettledSamples() : it->second;
}

// ---- A job that resumes -------------------------------------------------------------------------

void Core::Impl::On(RequestId request, ResumeJobRequest& body) {
  const std::string name = absl::StrCat("resume of job ", body.job, ": ");
  if (FindActiveJob(body.job) != nullptr) {
    return Refuse(
        request, absl::FailedPreconditionError(absl::StrCat(name, "it is running; stop it first")));
  }
  if (body.path.empty() || body.path.front() != '/') {
    return Refuse(request, absl::InvalidArgumentError(absl::StrCat(
                               name, "path \"", body.path.substr(0, 256), "\" is not absolute")));
  }
  if (state_.resumes.size() >= options_.limits.max_jobs && state_.resumes.count(body.job) == 0) {
    return Refuse(request, absl::ResourceExhaustedError(absl::StrCat(
                               name, state_.resumes.size(), " jobs wait to resume; start those")));
  }
  scheduler::SampleLedger samples(body.manifest.spec);
  const SamplePosition& at = body.manifest.samples;
  const uint64_t count = body.manifest.spec.sample_count;
  if (!samples.Valid(at.left) || at.position > count) {
    return Refuse(request, absl::InvalidArgumentError(absl::StrCat(
                               name, "the manifest's sample position is not within its ", count,
                               " samples; verify the checkpoint")));
  }
  body.manifest.parts.clear();                                   // of no use here
  for (TensorSpec& tensor : body.manifest.tensors) tensor = {};  // their number is
  Decide(scheduler::ResumePrepared{std::move(body)});
  Answer(request, OperatorReply(Empty()));
}

// Whether a job of this spec can go on from the checkpoint that waits for its name.
absl::Status Core::Impl::CheckResume(const JobSpec& spec) const {
  const auto it = state_.resumes.find(spec.name);
  if (it == state_.resumes.end()) return absl::OkStatus();
  const JobSpec& held = it->second.manifest.spec;
  const auto check = [&](const char* field, uint64_t holds, uint64_t joins) {
    if (holds == joins) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("job ", spec.name, " resumes from ",
                                                   it->second.path, ", whose ", field, " is ",
                                                   holds, ", not ", joins, "; keep it"));
  };
  PACELINE_RETURN_IF_ERROR(check("chunk_bytes", held.chunk_bytes, spec.chunk_bytes));
  PACELINE_RETURN_IF_ERROR(check("sample_count", held.sample_count, spec.sample_count));
  PACELINE_RETURN_IF_ERROR(check("seed", held.seed, spec.seed));
  if (spec.deterministic && !it->second.manifest.samples.left.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job ", spec.name, " resumes from ", it->second.path,
        ", which was not deterministic and has samples left; leave deterministic out"));
  }
  return absl::OkStatus();
}

// ---- A job that lost a server -------------------------------------------------------------------

// Empty when the job can return to its newest checkpoint.
std::string Core::Impl::WhyNoRollBack(const JobRecord& job) const {
  if (job.spec.on_server_loss == ServerLoss::kStop) return "on_server_loss is stop";
  if (job.checkpoints.empty()) return "there is no checkpoint";
  if (LiveServers().empty()) return "no server is left";
  const CheckpointRecord& newest = job.checkpoints.back();
  if (job.tensors.size() > newest.tensors) {
    return absl::StrCat(job.tensors.size() - newest.tensors,
                        " tensors were registered after the newest checkpoint, ", newest.path);
  }
  return "";
}

std::vector<TensorPlan> Core::Impl::PlaceAnew(const JobRecord& job, size_t* moved) const {
  std::vector<TensorPlan> tensors = job.tensors;
  std::map<NodeId, Bytes> load;
  for (NodeId server : ServersForChunks()) load[server] = Bytes(0);
  std::vector<ChunkSize> homeless;
  for (const TensorPlan& tensor : tensors) {
    const std::vector<ChunkRange> cut = CutIntoChunks(tensor.spec, job.spec.chunk_bytes);
    for (size_t i = 0; i < cut.size(); ++i) {
      const Bytes bytes(cut[i].length * SizeOf(tensor.spec.dtype));
      const auto owner = load.find(tensor.owners[i]);
      if (owner != load.end()) {
        owner->second += bytes;
      } else {
        homeless.push_back({{tensor.id, ChunkIndex(static_cast<uint32_t>(i))}, bytes});
      }
    }
  }
  *moved = homeless.size();
  for (const auto& [key, owner] : Place(homeless, load)) {
    tensors[key.tensor.value()].owners[key.chunk.value()] = owner;
  }
  return tensors;
}

// What each worker's samples come to when only what is in the checkpoint counts as applied.
std::map<NodeId, SettledSamples> Core::Impl::SettleAt(JobId id, const CheckpointRecord& record,
                                                      uint64_t* lost) const {
  const JobRecord& of = state_.jobs.at(id);
  std::map<NodeId, SettledSamples> settled = of.settled;
  for (const auto& [worker, account] : of.samples.accounts()) settled[worker];
  std::map<NodeId, WorkerSamples> kept;
  for (const WorkerSamples& w : record.workers) {
    kept[w.worker] = w;
    settled[w.worker];
  }
  *lost = 0;
  for (auto& [worker, samples] : settled) {
    const WorkerSamples& keeps = kept[worker];
    const uint64_t in_it = keeps.applied.value() + keeps.discarded.value();
    const SettledSamples counted = CountedByOwners(id, worker);
    uint64_t used = std::max(counted.applied + counted.discarded, in_it);
    const uint64_t applied = std::max(counted.applied, keeps.applied.value());
    const auto account = of.samples.accounts().find(worker);
    if (account != of.samples.accounts().end()) used = std::max(used, account->second.used);
    *lost += applied - keeps.applied.value();
    samples = {keeps.applied.value(), used - keeps.applied.value()};
  }
  return settled;
}

void Core::Impl::RollBack(JobId id, NodeId dead, const std::string& reason) {
  JobRuntime& run = runtime(id);
  const CheckpointRecord to = job(id).checkpoints.back();
  AbortChange(id, reason);
  for (auto it = run.fences.begin(); it != run.fences.end();) {
    it->second.awaited.erase(dead);
    it = it->second.awaited.empty() ? run.fences.erase(it) : std::next(it);
  }
  uint64_t updates = std::max(to.updates, job(id).settled_updates);
  for (const auto& [server, report] : run.at_server) {
    for (const GroupStaleness& group : report.groups) updates = std::max(updates, group.last);
  }
  uint64_t steps = 0;
  for (const auto& [group_id, group] : job(id).groups) {
    const auto in_it = to.steps.find(group_id);
    const uint64_t from =
        in_it == to.steps.end() ? job(id).first_step.value() : in_it->second.value();
    for (const Member& m : group.members) {
      if (sessions_[m.node].worker.group != group_id) continue;  // on its way
      const uint64_t at = sessions_[m.node].worker.step.value();
      steps = std::max(steps, at - std::min(at, from));
    }
  }
  const auto taken = run.taken_at.find(to.number);
  const int64_t ms = taken == run.taken_at.end() ? 0 : (now_ - taken->second).value() / 1'000'000;
  size_t moved = 0;
  uint64_t samples = 0;
  scheduler::RolledBack back;
  back.job = id;
  back.generation = job(id).generation + JobGeneration(1);
  back.lineage = job(id).lineage + 1;
  back.path = to.path;
  back.tensors = PlaceAnew(job(id), &moved);
  back.settled = SettleAt(id, to, &samples);
  back.updates = to.updates;
  back.totals = job(id).rollbacks;
  ++back.totals.count;
  back.totals.steps += steps;
  back.totals.updates += updates - to.updates;
  back.totals.samples += Samples(samples);
  back.totals.milliseconds += static_cast<uint64_t>(ms);
  Decide(std::move(back));
  run.moving_to.clear();
  run.missing.clear();
  run.at_server.clear();
  run.applied_history.clear();
  run.restoring_since = now_;
  // What gone workers drew and no owner had counted trained nothing that is left.
  SettleAll(id);
  Say(job(id).spec.name, "rollback",
      absl::StrCat(reason, "; all shards return to ", to.path, " (step ",
                   LastStep(to.steps).value(), ", update ", to.updates, "), ", moved,
                   " chunks to other servers: lost ", steps, " steps, ", updates - to.updates,
                   " updates, ", samples, " samples, ", ms, " ms of training; lineage ",
                   job(id).lineage));
  AbortCut(id, reason);
  SendPlanToAll(id);
}

// A program that resumes may register them later, or has none of these names any more.
std::string Core::Impl::TensorsLeftOut(const JobRecord& job) const {
  if (job.checkpoints.empty()) return "";
  const uint32_t held = job.checkpoints.front().tensors;
  const bool from_it = job.checkpoints.front().path == job.restore_from;
  if (!from_it || job.tensors.size() >= held) return "";
  return absl::StrCat(", with ", job.tensors.size(), " of its ", held, " tensors");
}

// Once every owner has loaded its shards the job goes on.
void Core::Impl::FinishRestore(JobId id) {
  if (job(id).restore_from.empty()) return;
  const std::string path = job(id).restore_from;
  for (NodeId owner : OwnersOf(job(id))) {
    NodeSession& session = sessions_[owner];
    if (const auto refused = session.refused.find(id); refused != session.refused.end()) {
      return EndJob(id, JobState::kStopped, true,
                    absl::StrCat("server ", node(owner).name, " cannot load its shards from ", path,
                                 ": ", refused->second));
    }
    const auto acked = session.acked.find(id);
    if (acked == session.acked.end() || acked->second < job(id).restore_generation) return;
  }
  JobRuntime& run = runtime(id);
  // Unknown to a scheduler that started again meanwhile.
  const Ticks since = run.restoring_since == Ticks() ? now_ : run.restoring_since;
  const auto ms = static_cast<uint64_t>((now_ - since).value() / 1'000'000);
  scheduler::Restored restored{id, job(id).rollbacks};
  if (job(id).rollbacks.count > 0) restored.totals.milliseconds += ms;
  const std::string left_out = TensorsLeftOut(job(id));
  Decide(restored);
  Say(job(id).spec.name, "restored",
      absl::StrCat("all shards are loaded from ", path, " after ", ms, " ms, on ",
                   OwnersOf(job(id)).size(), " servers", left_out));
  std::vector<TensorId> open;
  for (const TensorPlan& tensor : job(id).tensors) {
    if (!tensor.sealed) open.push_back(tensor.id);
  }
  if (!open.empty()) {
    Decide(scheduler::TensorsSealed{id, open});
    for (NodeId owner : OwnersOf(job(id))) Send(owner, SealedDirective{id, open});
    for (const NodeRecord* worker : LiveWorkers(id)) Send(worker->id, SealedDirective{id, open});
  }
  StartCut(id);
  PlaceRegistrations(id);
}

// The worker goes on from the checkpoint's weights: of what it drew before, it holds `held` still;
// the rest trained nothing that is left.
void Core::Impl::On(const NodeRecord& from, RequestId request, AdoptedRequest& body) {
  const JobId id = from.job;
  const NodeId worker = from.id;
  if (!job(id).samples.Valid(body.held)) {
    return Refuse(request, absl::InvalidArgumentError(absl::StrCat(
                               "adopted: a range held is not within [0, ",
                               job(id).spec.sample_count, ") of an epoch of the job")));
  }
  Answer(request, NodeReply(Empty()));
  const auto account = job(id).samples.accounts().find(worker);
  if (account == job(id).samples.accounts().end()) return;
  const uint64_t used = UsedByOwners(id, worker);
  std::vector<SampleRange> lost = job(id).samples.Missing(worker, used, body.held);
  if (lost.empty()) return;
  const uint64_t count = scheduler::CountOf(lost);
  Decide(scheduler::SamplesLost{id, worker, std::move(lost)});
  Say(job(id).spec.name, "samples",
      absl::StrCat(count, " samples that worker ", from.name,
                   " trained on before the return to the checkpoint are discarded: rollback"));
}

}  // namespace paceline
