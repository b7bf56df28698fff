#include "scheduler/core/core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "scheduler/core/core_impl.h"
#include "scheduler/core/journal_entry.h"

namespace paceline {

using scheduler::Cut;
using scheduler::Entry;

Core::Core(CoreOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Core::~Core() = default;
absl::Status Core::Recover(const std::vector<JournalEntry>& entries) {
  return impl_->Recover(entries);
}
void Core::Step(Ticks now, SchedulerEvent event) { impl_->Step(now, std::move(event)); }
Ready Core::TakeReady() { return impl_->TakeReady(); }
absl::Status Core::CheckNode(NodeRef node) const { return impl_->CheckNode(node); }
JournalEntry Core::Compacted() const { return impl_->Compacted(); }
std::string Core::Snapshot() const { return scheduler::Dump(impl_->state()); }
Term Core::term() const { return impl_->state().term; }

absl::Status Core::Impl::Recover(const std::vector<JournalEntry>& entries) {
  for (const JournalEntry& entry : entries) {
    PACELINE_ASSIGN_OR_RETURN(Entry decoded, scheduler::DecodeEntry(entry.bytes));
    const bool compacted = std::holds_alternative<scheduler::StateCompacted>(decoded);
    if (!compacted && entry.index != last_index_ + 1) {
      return absl::DataLossError(absl::StrCat("journal: entry ", entry.index, " follows entry ",
                                              last_index_, "; the ones between are missing; ",
                                              Absl(scheduler::kDamagedHelp)));
    }
    const absl::Status applied = scheduler::Apply(decoded, state_);
    if (!applied.ok()) {
      return absl::DataLossError(absl::StrCat("entry ", entry.index, ": ", applied.message()));
    }
    last_index_ = entry.index;
  }
  if (entries.empty()) return absl::OkStatus();
  Decide(scheduler::TermStarted{state_.term + Term(1)});
  // Ids of changes are never used twice, whichever scheduler drew them.
  last_change_ = state_.term.value() << 32;
  for (const auto& [id, job] : state_.jobs) {
    if (!job.active()) {
      ended_before_.insert(id);
      continue;
    }
    ExpectArrivals(id);
    for (const auto& [worker, account] : job.samples.accounts()) {
      const NodeRecord& record = node(worker);
      const bool gone = !record.live() || record.incarnation != account.holder;
      if (gone && !account.outstanding.empty()) runtime(id).unsettled.insert(worker);
    }
  }
  Say("", "term",
      absl::StrCat("recovered ", entries.size(), " journal entries, term ", state_.term.value()));
  return absl::OkStatus();
}

void Core::Impl::Step(Ticks now, SchedulerEvent event) {
  now_ = std::max(now_, now);
  if (!leases_running_) RestartLeases();
  std::visit([this](auto& e) { Handle(e); }, event);
}

void Core::Impl::RestartLeases() {
  leases_running_ = true;
  started_at_ = now_;
  for (const auto& [id, record] : state_.nodes) {
    if (record.live()) sessions_[id].last_seen = now_;
  }
  for (const auto& [id, job] : state_.jobs) {
    if (job.state == JobState::kRunning) runtime(id).started_at = now_;
  }
}

void Core::Impl::Decide(Entry entry) {
  const absl::Status applied = scheduler::Apply(entry, state_);
  PACELINE_CHECK(applied.ok());
  ready_.entries.push_back({++last_index_, scheduler::EncodeEntry(entry)});
}

void Core::Impl::Say(const std::string& job, std::string kind, std::string text) {
  // Parts of it are what others sent; it goes to terminals and logs.
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  DecisionRecord record{++last_decision_, 0, now_, job, std::move(kind), std::move(text)};
  decisions_.push_back(record);
  if (decisions_.size() > options_.limits.max_decisions) decisions_.pop_front();
  ready_.decisions.push_back(std::move(record));
}

void Core::Impl::Answer(RequestId request, AnyReply reply) {
  ready_.replies.push_back({request, std::move(reply)});
}

void Core::Impl::Refuse(RequestId request, absl::Status status) {
  PACELINE_CHECK(!status.ok());
  ready_.replies.push_back({request, std::move(status)});
}

void Core::Impl::Send(NodeId to, decltype(Directive::body) body) {
  NodeSession& session = sessions_[to];
  if (!session.watching) return;  // it gets the full state when it watches
  Directive directive{++session.last_sequence, state_.term, std::move(body)};
  ready_.directives.push_back({node(to).ref(), std::move(directive)});
}

absl::Status Core::Impl::CheckNode(NodeRef ref) const {
  auto it = state_.nodes.find(ref.node);
  if (it == state_.nodes.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "node ", ref.node.value(), " is not known to cluster ", options_.cluster, "; join first"));
  }
  const NodeRecord& record = it->second;
  if (record.incarnation != ref.incarnation) {
    return absl::AlreadyExistsError(
        absl::StrCat("node ", record.name, ": incarnation ", ref.incarnation.value(),
                     " is not the newest, which is ", record.incarnation.value(),
                     ": another process has joined under this name; give each a name of its own if "
                     "both are to run"));
  }
  if (!record.live()) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", record.name, ": incarnation ", ref.incarnation.value(), " (newest ",
                     record.incarnation.value(), ") ",
                     record.state == scheduler::NodeState::kLeft ? "has left" : "was declared dead",
                     "; join again"));
  }
  return absl::OkStatus();
}

JournalEntry Core::Impl::Compacted() const {
  return {last_index_, scheduler::EncodeEntry(scheduler::StateCompacted{state_})};
}

Core::Impl::JobRecord* Core::Impl::FindActiveJob(const std::string& name) {
  for (auto it = state_.jobs.rbegin(); it != state_.jobs.rend(); ++it) {
    if (it->second.spec.name == name && it->second.active()) return &it->second;
  }
  return nullptr;
}

std::vector<const Core::Impl::NodeRecord*> Core::Impl::LiveWorkers(JobId id) const {
  std::vector<const NodeRecord*> workers;
  for (const auto& [node_id, record] : state_.nodes) {
    if (record.role == Role::kWorker && record.job == id && record.live()) {
      workers.push_back(&record);
    }
  }
  std::sort(workers.begin(), workers.end(),
            [](const NodeRecord* a, const NodeRecord* b) { return a->rank < b->rank; });
  return workers;
}

std::vector<NodeId> Core::Impl::LiveServers() const {
  std::vector<NodeId> servers;
  for (const auto& [id, record] : state_.nodes) {
    if (record.role == Role::kServer && record.live()) servers.push_back(id);
  }
  return servers;
}

std::set<NodeId> Core::Impl::OwnersOf(const JobRecord& job) const {
  std::set<NodeId> owners;
  for (const TensorPlan& tensor : job.tensors) {
    owners.insert(tensor.owners.begin(), tensor.owners.end());
  }
  for (const ChunkMove& move : job.moves) owners.insert(move.from);
  return owners;
}

std::optional<NodeId> Core::Impl::LeadOwnerOf(const JobRecord& job) const {
  if (job.lead_tensor.value() >= job.tensors.size()) return std::nullopt;
  return job.tensors[job.lead_tensor.value()].owners.front();
}

// The lead owner's, or of the one before until the newest has counted.
const JobAtServer* Core::Impl::LeadReport(JobId id) const {
  auto run = runtimes_.find(id);
  if (run == runtimes_.end()) return nullptr;
  const std::optional<NodeId> lead = LeadOwnerOf(state_.jobs.at(id));
  const JobAtServer* newest = nullptr;
  for (const auto& [server, report] : run->second.at_server) {
    if (!report.lead) continue;
    if (lead == server) return &report;
    newest = &report;
  }
  return newest;
}

void Core::Impl::Handle(NodeEvent& event) {
  const absl::Status known = CheckNode(event.from);
  if (!known.ok()) {
    auto it = state_.nodes.find(event.from.node);
    const bool left_before = it != state_.nodes.end() && it->second.ref() == event.from &&
                             it->second.state == scheduler::NodeState::kLeft;
    if (left_before && std::holds_alternative<LeaveRequest>(event.body)) {
      return Answer(event.request, NodeReply(Empty()));
    }
    return Refuse(event.request, known);
  }
  sessions_[event.from.node].last_seen = now_;
  sessions_[event.from.node].heard = true;
  const NodeRecord& from = node(event.from.node);
  const bool needs_job = std::visit(
      [](const auto& body) {
        using T = std::decay_t<decltype(body)>;
        return std::is_same_v<T, RegisterTensorsRequest> || std::is_same_v<T, InitDoneRequest> ||
               std::is_same_v<T, SetOptimizerRequest> || std::is_same_v<T, DrawSamplesRequest> ||
               std::is_same_v<T, ReturnSamplesRequest> || std::is_same_v<T, BarrierRequest> ||
               std::is_same_v<T, CheckpointRequest> || std::is_same_v<T, LeaveRequest> ||
               std::is_same_v<T, AdoptedRequest> || std::is_same_v<T, NotFiniteRequest>;
      },
      event.body);
  const bool leaving = std::holds_alternative<LeaveRequest>(event.body);
  if (needs_job && from.role != Role::kWorker && !leaving) {
    return Refuse(event.request, absl::InvalidArgumentError(absl::StrCat(
                                     "node ", from.name, " is a ", Absl(Name(from.role)),
                                     "; only workers of a job may ask this")));
  }
  if (needs_job && !leaving && !job(from.job).active()) {
    return Refuse(event.request, absl::AbortedError(absl::StrCat(
                                     "job ", job(from.job).spec.name, " is ",
                                     Absl(Name(job(from.job).state)), ": ", job(from.job).reason)));
  }
  std::visit([&](auto& body) { On(from, event.request, body); }, event.body);
}

void Core::Impl::Handle(WatchEvent& event) {
  if (!CheckNode(event.from).ok()) return;
  NodeSession& session = sessions_[event.from.node];
  session.last_seen = now_;
  StreamEnded(event.from.node);  // the one before, if that has not been told
  session.watching = true;
  session.heard = true;
  const NodeRecord& record = node(event.from.node);
  for (const auto& [id, job] : state_.jobs) {
    // Who owned chunks may hold operations for one that is no longer to come.
    const bool concerned =
        record.role == Role::kWorker
            ? record.job == id
            : OwnersOf(job).count(record.id) > 0 || runtime(id).released.count(record.id) > 0;
    if (!concerned) continue;
    if (job.active()) {
      SendPlan(job, record.id);
      SendOpenWork(job, record);
    } else if (record.role == Role::kWorker || runtime(id).ending.count(record.id) == 0) {
      Send(record.id, EndJobDirective{id, job.state == JobState::kStopped, job.reason});
    }
  }
}

void Core::Impl::Handle(WatchClosedEvent& event) {
  if (CheckNode(event.from).ok()) StreamEnded(event.from.node);
}

void Core::Impl::StreamEnded(NodeId id) {
  NodeSession& session = sessions_[id];
  if (!std::exchange(session.watching, false)) return;
  const NodeRecord& record = node(id);
  if (record.role != Role::kServer) return;
  // It has let go what a cut held there.
  for (const auto& [job_id, job] : state_.jobs) {
    if (job.active() && OwnersOf(job).count(record.id) > 0 && HoldsSteps(job_id)) {
      AbortCut(job_id, absl::StrCat("the stream of server ", record.name, " ended"));
    }
  }
}

void Core::Impl::Handle(ProcessEndedEvent& event) {
  if (CheckNode(event.node).ok()) DeclareDead(event.node.node, event.cause);
}

void Core::Impl::Handle(OperatorEvent& event) {
  std::visit([&](auto& body) { On(event.request, body); }, event.body);
}

void Core::Impl::Handle(TickEvent&) {
  std::vector<std::pair<NodeId, std::string>> dead;
  for (const auto& [id, record] : state_.nodes) {
    if (!record.live()) continue;
    const Ticks silent = now_ - sessions_[id].last_seen;
    if (silent > Milliseconds(FailureTimeoutMs(record))) {
      dead.emplace_back(id, absl::StrCat("no heartbeat for ", silent.value() / 1'000'000, " ms"));
    }
  }
  for (const auto& [id, cause] : dead) {
    if (node(id).live()) DeclareDead(id, cause);
  }
  std::vector<JobId> jobs;
  for (const auto& [id, job] : state_.jobs) jobs.push_back(id);
  for (JobId id : jobs) TickJob(id);
}

void Core::Impl::TickJob(JobId id) {
  constexpr Ticks kLastReportWait = Seconds(3);
  JobRuntime& run = runtime(id);
  if (!run.ending.empty() && now_ - run.ended_at > kLastReportWait) {
    for (const auto& [owner, reported] : std::exchange(run.ending, {})) {
      Send(owner, EndJobDirective{id, job(id).state == JobState::kStopped, job(id).reason});
    }
  }
  if (!job(id).active()) return;
  ServeDraws(id);
  ProposeChange(id);
  UpdateWaiting(id);
  ProposeMoves(id);
  TickCut(id);
}

}  // namespace paceline
