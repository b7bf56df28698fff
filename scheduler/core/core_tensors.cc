#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "plan/chunking.h"
#include "plan/placement.h"
#include "scheduler/core/core_impl.h"

namespace paceline {
namespace {

using scheduler::Waiting;

std::string FirstDifferenceOf(const NamedSpec& holds, const NamedSpec& asks) {
  if (holds.name != asks.name) return absl::StrCat("optimizer: ", holds.name, " != ", asks.name);
  for (const auto& [name, value] : holds.parameters) {
    auto it = asks.parameters.find(name);
    if (it == asks.parameters.end()) {
      return absl::StrCat("optimizer.", name, ": ", value, " != (not given)");
    }
    if (it->second != value) {
      return absl::StrCat("optimizer.", name, ": ", value, " != ", it->second);
    }
  }
  for (const auto& [name, value] : asks.parameters) {
    if (holds.parameters.count(name) == 0) {
      return absl::StrCat("optimizer.", name, ": (not given) != ", value);
    }
  }
  return "";
}

}  // namespace

void Core::Impl::On(const NodeRecord& from, RequestId request, Heartbeat&) {
  Answer(request, NodeReply(Empty()));
}

absl::Status Core::Impl::CheckTensors(const JobRecord& job,
                                      const std::vector<TensorSpec>& tensors) const {
  std::map<std::string, const TensorSpec*> known;
  uint64_t chunks = 0;
  for (const TensorPlan& tensor : job.tensors) {
    known[tensor.spec.name] = &tensor.spec;
    chunks += tensor.owners.size();
  }
  for (const TensorSpec& spec : tensors) {
    PACELINE_RETURN_IF_ERROR(Validate(spec));
    auto [it, first] = known.emplace(spec.name, &spec);
    if (!first && *it->second != spec) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", spec.name, ": registered as ", ToString(*it->second), ", now as ",
                       ToString(spec), "; every worker must register the same"));
    }
    const uint64_t per_chunk = std::max<uint64_t>(1, job.spec.chunk_bytes);
    if (first) chunks += spec.whole ? 1 : spec.bytes().value() / per_chunk + 1;
  }
  if (known.size() > options_.limits.max_tensors || chunks > options_.limits.max_chunks) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.spec.name, ": ", known.size(), " tensors of ", chunks, " chunks; at most ",
        options_.limits.max_tensors, " and ", options_.limits.max_chunks));
  }
  return absl::OkStatus();
}

void Core::Impl::On(const NodeRecord& from, RequestId request, RegisterTensorsRequest& body) {
  const absl::Status valid = CheckTensors(job(from.job), body.tensors);
  if (!valid.ok()) return Refuse(request, valid);
  auto [it, first] = runtime(from.job).registrations.try_emplace(from.id);
  if (!first) {
    Refuse(it->second.request, absl::AbortedError("registration: superseded by a newer one"));
  }
  it->second = {request, std::move(body.tensors)};
  PlaceRegistrations(from.job);
}

void Core::Impl::PlaceRegistrations(JobId id) {
  JobRuntime& run = runtime(id);
  // While shards are loaded from one checkpoint no others are told to load from another.
  if (job(id).state != JobState::kRunning || !job(id).restore_from.empty()) return;
  std::vector<NodeId> nodes;
  for (const auto& [node_id, registration] : run.registrations) nodes.push_back(node_id);
  for (NodeId from : nodes) {
    scheduler::PendingRegistration registration = run.registrations[from];
    // Checked again: another worker may have registered meanwhile.
    const absl::Status valid = CheckTensors(job(id), registration.tensors);
    if (!valid.ok()) {
      Refuse(registration.request, valid);
      run.registrations.erase(from);
      continue;
    }
    std::map<std::string, TensorId> ids;
    for (const TensorPlan& tensor : job(id).tensors) ids[tensor.spec.name] = tensor.id;
    std::vector<TensorSpec> fresh;
    for (const TensorSpec& spec : registration.tensors) {
      const TensorId next(static_cast<uint32_t>(job(id).tensors.size() + fresh.size()));
      if (ids.emplace(spec.name, next).second) fresh.push_back(spec);
    }
    if (!fresh.empty()) {
      if (LiveServers().empty()) {
        if (!std::exchange(run.said_no_server, true)) {
          Say(job(id).spec.name, "placement",
              absl::StrCat(fresh.size(), " tensors wait: no server has joined"));
        }
        continue;
      }
      PlaceNew(id, fresh);
    }
    RegisterTensorsReply reply;
    for (const TensorSpec& spec : registration.tensors) reply.ids.push_back(ids.at(spec.name));
    reply.generation = job(id).generation;
    run.registrations.erase(from);
    AwaitOwners(id, {registration.request, from, reply.generation, reply});
  }
  ReleaseWaiting(id);
}

void Core::Impl::PlaceNew(JobId id, const std::vector<TensorSpec>& tensors) {
  const JobRecord& planned = job(id);
  std::map<NodeId, Bytes> load;
  for (NodeId server : ServersForChunks()) load[server] = Bytes(0);
  for (const TensorPlan& tensor : planned.tensors) {
    const std::vector<ChunkRange> cut = CutIntoChunks(tensor.spec, planned.spec.chunk_bytes);
    for (size_t i = 0; i < cut.size(); ++i) {
      if (load.count(tensor.owners[i]) == 0) continue;  // it drains
      load[tensor.owners[i]] += Bytes(cut[i].length * SizeOf(tensor.spec.dtype));
    }
  }
  scheduler::TensorsPlaced placed{
      id, planned.generation + JobGeneration(1), planned.lead_tensor, {}};
  std::vector<ChunkSize> chunks;
  uint64_t bytes = 0;
  for (const TensorSpec& spec : tensors) {
    TensorPlan tensor;
    tensor.id = TensorId(static_cast<uint32_t>(planned.tensors.size() + placed.tensors.size()));
    tensor.spec = spec;
    for (const ChunkRange& range : CutIntoChunks(spec, planned.spec.chunk_bytes)) {
      const ChunkIndex index(static_cast<uint32_t>(tensor.owners.size()));
      chunks.push_back({{tensor.id, index}, Bytes(range.length * SizeOf(spec.dtype))});
      tensor.owners.emplace_back();
    }
    bytes += spec.bytes().value();
    placed.tensors.push_back(std::move(tensor));
  }
  const size_t first = planned.tensors.size();
  if (first == 0) placed.lead = placed.tensors.front().id;
  for (const auto& [key, owner] : Place(chunks, load)) {
    placed.tensors[key.tensor.value() - first].owners[key.chunk.value()] = owner;
  }
  Decide(std::move(placed));
  Say(planned.spec.name, "placement",
      absl::StrCat(tensors.size(), " tensors (", bytes, " bytes, ", chunks.size(), " chunks) on ",
                   load.size(), load.size() == 1 ? " server" : " servers", ", largest first"));
  runtime(id).said_no_server = false;
  if (!NameInitWriter(id)) SendPlanToAll(id);
  AbortCut(id, "tensors were registered meanwhile");
}

// The lowest-rank live worker writes initial values until all tensors are sealed.
bool Core::Impl::NameInitWriter(JobId id) {
  const JobRecord& planned = job(id);
  if (!planned.resumed_from.empty()) return false;  // the checkpoint has the values
  const bool open = std::any_of(planned.tensors.begin(), planned.tensors.end(),
                                [](const TensorPlan& t) { return !t.sealed; });
  if (!open) return false;
  const std::vector<const NodeRecord*> workers = LiveWorkers(id);
  if (workers.empty()) return false;
  if (planned.init_writer.value() != 0 && node(planned.init_writer).live()) return false;
  const NodeRecord& writer = *workers.front();
  Decide(scheduler::InitWriterNamed{id, writer.id, planned.generation + JobGeneration(1)});
  Say(planned.spec.name, "writer",
      absl::StrCat("worker ", writer.name, " writes initial values: lowest live rank ",
                   writer.rank.value()));
  SendPlanToAll(id);
  return true;
}

// Answered when all owners have the plan. A node has one request of a kind waiting: it asks again
// when its earlier one ran out of time.
void Core::Impl::AwaitOwners(JobId id, scheduler::Waiting waiting) {
  JobRuntime& run = runtime(id);
  std::erase_if(run.waiting, [&](const Waiting& earlier) {
    if (earlier.node != waiting.node || earlier.reply.index() != waiting.reply.index())
      return false;
    Refuse(earlier.request, absl::AbortedError("superseded by a newer request of the same node"));
    return true;
  });
  run.waiting.push_back(std::move(waiting));
}

void Core::Impl::ReleaseWaiting(JobId id) {
  JobRuntime& run = runtime(id);
  const std::set<NodeId> owners = OwnersOf(job(id));
  std::erase_if(run.waiting, [&](const Waiting& waiting) {
    for (NodeId owner : owners) {
      NodeSession& session = sessions_[owner];
      auto refused = session.refused.find(id);
      if (refused != session.refused.end()) {
        // Not ResourceExhausted, which asks for another try: the plan stays what it is.
        Refuse(waiting.request, absl::FailedPreconditionError(absl::StrCat(
                                    "server ", node(owner).name, ": ", refused->second)));
        return true;
      }
      auto acked = session.acked.find(id);
      if (acked == session.acked.end() || acked->second < waiting.generation) return false;
    }
    Answer(waiting.request, waiting.reply);
    return true;
  });
}

void Core::Impl::On(const NodeRecord& from, RequestId request, InitDoneRequest& body) {
  JobRecord& of = job(from.job);
  std::vector<TensorId> open;
  for (TensorId id : body.tensors) {
    if (id.value() >= of.tensors.size()) {
      return Refuse(request, absl::InvalidArgumentError(absl::StrCat(
                                 "init done: tensor ", id.value(), " of job ", of.spec.name,
                                 " is not registered; ids are below ", of.tensors.size())));
    }
    if (!of.tensors[id.value()].sealed) open.push_back(id);
  }
  if (!open.empty() && of.init_writer != from.id) {
    return Refuse(request, absl::FailedPreconditionError(absl::StrCat(
                               "init done from ", from.name, ": the writer of initial values is ",
                               node(of.init_writer).name)));
  }
  Answer(request, NodeReply(Empty()));
  if (open.empty()) return;
  const JobId id = from.job;
  Decide(scheduler::TensorsSealed{id, open});
  Say(of.spec.name, "sealed",
      absl::StrCat(open.size(), " tensors have their initial values from ", from.name));
  for (NodeId owner : OwnersOf(of)) Send(owner, SealedDirective{id, open});
  for (const NodeRecord* worker : LiveWorkers(id)) Send(worker->id, SealedDirective{id, open});
}

void Core::Impl::On(const NodeRecord& from, RequestId request, SetOptimizerRequest& body) {
  const JobId id = from.job;
  JobSpec with = job(id).spec;
  with.optimizer = body.optimizer;
  if (body.optimizer.name.empty()) {
    return Refuse(request, absl::InvalidArgumentError("optimizer: \"\"; give its name"));
  }
  const absl::Status valid = Validate(with);
  if (!valid.ok()) return Refuse(request, valid);
  if (!job(id).spec.optimizer.name.empty()) {
    const std::string difference = FirstDifferenceOf(job(id).spec.optimizer, body.optimizer);
    if (!difference.empty()) {
      return Refuse(request, absl::InvalidArgumentError(
                                 absl::StrCat("job ", job(id).spec.name, " holds another value of ",
                                              difference, "; the first one set holds")));
    }
  } else {
    Decide(scheduler::OptimizerSet{id, body.optimizer, job(id).generation + JobGeneration(1)});
    Say(job(id).spec.name, "optimizer",
        absl::StrCat(body.optimizer.name, ", first set by worker ", from.name));
    SendPlanToAll(id);
  }
  AwaitOwners(id, {request, from.id, job(id).generation, NodeReply(Empty())});
  ReleaseWaiting(id);
}

void Core::Impl::On(const NodeRecord& from, RequestId request, BarrierRequest& body) {
  JobRuntime& run = runtime(from.job);
  if (body.name.size() > 512) {
    return Refuse(request, absl::InvalidArgumentError(absl::StrCat(
                               "barrier: name of ", body.name.size(), " bytes; use 0..512")));
  }
  if (run.barriers.size() >= options_.limits.max_barriers && run.barriers.count(body.name) == 0) {
    return Refuse(request, absl::ResourceExhaustedError(absl::StrCat(
                               "barrier ", body.name, ": ", run.barriers.size(), " others open")));
  }
  auto [it, first] = run.barriers[body.name].emplace(from.id, request);
  if (!first) {
    Refuse(std::exchange(it->second, request),
           absl::AbortedError(absl::StrCat("barrier ", body.name, ": superseded by a retry")));
  }
  ReleaseBarriers(from.job);
}

void Core::Impl::ReleaseBarriers(JobId id) {
  JobRuntime& run = runtime(id);
  if (job(id).state != JobState::kRunning) return;
  const std::vector<const NodeRecord*> workers = LiveWorkers(id);
  std::erase_if(run.barriers, [&](auto& barrier) {
    for (const NodeRecord* worker : workers) {
      if (run.leavers.count(worker->id) == 0 && barrier.second.count(worker->id) == 0) return false;
    }
    for (const auto& [node_id, request] : barrier.second) Answer(request, NodeReply(Empty()));
    return true;
  });
}

void Core::Impl::On(const NodeRecord& from, RequestId request, AckRequest& body) {
  Answer(request, NodeReply(Empty()));
  const NodeId sender = from.id;
  NodeSession& session = sessions_[sender];
  if (auto plan = session.plans.find(body.id); plan != session.plans.end()) {
    const auto [id, generation] = plan->second;
    session.plans.erase(plan);
    if (body.error.empty()) {
      session.acked[id] = std::max(session.acked[id], generation);
      session.refused.erase(id);
    } else {
      session.refused[id] = body.error;
      Say(job(id).spec.name, "refused",
          absl::StrCat("server ", from.name, " cannot take the plan: ", body.error));
      OnPlanRefused(id, sender, body.error);
    }
    if (job(id).active()) {
      ReleaseWaiting(id);
      FinishRestore(id);
    }
    return;
  }
  for (auto& [id, run] : runtimes_) {
    if (!job(id).active()) continue;
    if (run.plan.change() && run.plan.change()->id == body.id) {
      if (!body.error.empty()) {
        const std::string reason = absl::StrCat("node ", from.name, ": ", body.error);
        return AbortChange(id, reason);  // proposed again with the next tick
      }
      if (run.plan.Ack(body.id, sender, body.step)) CommitChange(id);
      return;
    }
    if (auto fence = run.fences.find(body.id); fence != run.fences.end()) {
      fence->second.awaited.erase(sender);
      if (fence->second.awaited.empty()) run.fences.erase(fence);
      return;
    }
    if (!run.cuts.empty() && run.cuts.front().id == body.id) return AckCut(id, sender, body);
    if (!job(id).moves.empty() && job(id).move == body.id) return AckMove(id, sender, body.missing);
  }
}

void Core::Impl::On(const NodeRecord& from, RequestId request, NotFiniteRequest& body) {
  Answer(request, NodeReply(Empty()));
  ++runtime(from.job).not_finite;
  Say(from.job_name, "nan",
      absl::StrCat("worker ", from.name, ", tensor ", body.tensor, ", step ", body.step.value(),
                   ": the gradient holds NaN or infinity and was left out (", body.in_a_row,
                   body.in_a_row == 1 ? " push" : " pushes", " in a row)"));
}

void Core::Impl::On(const NodeRecord& from, RequestId request, LinkDownRequest& body) {
  Answer(request, NodeReply(Empty()));
  auto peer = state_.nodes.find(body.peer);
  Say(from.job_name, "link",
      absl::StrCat(
          "link of ", from.name, " to ",
          peer == state_.nodes.end() ? absl::StrCat("node ", body.peer.value()) : peer->second.name,
          " is down since ", body.since_ms, " ms: ", body.cause.substr(0, 512)));
  if (from.role == Role::kServer) OnLinkOfMove(from.id, body);
}

}  // namespace paceline
