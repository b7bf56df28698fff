#include "simulation/sim_worker.h"

#include <limits>
#include <utility>

#include "common/base/check.h"

namespace paceline::simulation {
namespace {

constexpr Ticks kJoinTimeout = Seconds(5);
constexpr Ticks kPause = Milliseconds(50);
constexpr Ticks kCallTimeout = Seconds(60);
constexpr Ticks kLastBoundaryPatience = Seconds(5);
constexpr Step kForGood(uint64_t{1} << 40);     // further than a group gets
constexpr Ticks kForGoodPatience = Seconds(1);  // nobody is lost without it
constexpr uint32_t kBatchesAhead = 4;

const char* const kPhases[] = {"joins",
                               "waits for the job to form",
                               "registers",
                               "waits for the placement",
                               "waits for initial values",
                               "writes initial values",
                               "is in its start round",
                               "is at a boundary",
                               "draws samples",
                               "computes",
                               "reduces",
                               "exchanges",
                               "adopts the weights of a checkpoint",
                               "returns samples",
                               "tells owners that it goes",
                               "leaves",
                               "waits for its group to go on without it",
                               "passes on",
                               "has left"};

}  // namespace

SimWorker::SimWorker(World* world, const Scenario* scenario, Checker* checker,
                     SimScheduler* scheduler, Network* network, FindServer find_server,
                     uint32_t index)
    : Process(world, absl::StrCat("worker-", index)),
      scenario_(scenario),
      checker_(checker),
      scheduler_(scheduler),
      network_(network),
      find_server_(std::move(find_server)),
      index_(index) {}

std::string SimWorker::Doing() const {
  std::string text = absl::StrCat(name(), alive() ? (stopped() ? " (stopped) " : " ") : " (dead) ",
                                  kPhases[static_cast<size_t>(phase_)]);
  if (!group_ || !group_->in_group()) return text;
  absl::StrAppend(&text, ", group ", group_->current().id.value(), " generation ",
                  group_->current().generation.value(), " step ", group_->step().value(),
                  group_->MayAdvance() ? "" : ", holds for a change");
  for (const auto& [owner, link] : links_) {
    for (const auto& [sequence, op] : link.pending) {
      absl::StrAppend(&text, "; waits for ", link.server->name(), " about chunk ",
                      op->operation.chunk.tensor.value(), "/", op->operation.chunk.chunk.value(),
                      op->operation.kind == OperationKind::kBoundary ? " (Boundary)" : "");
    }
  }
  return text;
}

void SimWorker::Enter(Phase phase) {
  phase_ = phase;
  since_ = world()->now();
}

std::optional<GroupId> SimWorker::waiting_group() const {
  const bool waits = phase_ == Phase::kStartRound || phase_ == Phase::kReducing ||
                     phase_ == Phase::kExchanging || phase_ == Phase::kBoundary ||
                     phase_ == Phase::kPassingOn;
  if (!running() || !waits) return std::nullopt;
  return group_->current().id;
}

// ---- Joining ----------------------------------------------------------------------------------

void SimWorker::OnStart() {
  Enter(Phase::kJoining);
  self_ = {};
  group_.reset();
  plan_ = {};
  have_plan_ = false;
  lineage_.reset();
  covering_.clear();
  written_ = false;
  chunks_.clear();
  passed_.reset();
  bases_.clear();
  links_.clear();
  outstanding_ = 0;
  lease_.reset();
  samples_finished_ = false;
  in_hand_.clear();
  used_this_step_ = 0;
  returns_rest_ = false;
  group_is_in_ = Step();
  step_began_ = world()->now();
  step_took_ = {};
  ledger_ = {};
  outbox_.clear();
  calling_ = busy_ = asked_to_leave_ = gone_ = false;
  reported_at_ = world()->now();
  Join();
}

void SimWorker::OnKill() {
  scheduler_->StopWatch(stream_);
  stream_ = nullptr;
  network_->BreakAllOf(this);
  if (phase_ != Phase::kLeft) phase_ = Phase::kJoining;
}

void SimWorker::Join() {
  JoinRequest request;
  request.role = Role::kWorker;
  request.name = name();
  request.host = "host-" + name();
  request.job = scenario_->job;
  request.index = WorkerIndex(index_);
  scheduler_->Join(this, std::move(request), kJoinTimeout,
                   [this](const absl::StatusOr<JoinReply>& reply) {
                     if (!reply.ok()) return After(kPause, [this] { Join(); });
                     self_ = reply->self;
                     heartbeat_interval_ms_ = reply->heartbeat_interval_ms;
                     group_.emplace(self_.node);
                     Enter(Phase::kForming);
                     OpenWatch();
                     After(Milliseconds(heartbeat_interval_ms_), [this] { OnHeartbeatDue(); });
                   });
}

// Looks whether what the caller's thread waits for has come.
void SimWorker::Go() {
  if (!alive() || busy_ || outstanding_ > 0) return;
  switch (phase_) {
    case Phase::kForming:
      if (have_plan_ && group_->in_group()) Register();
      return;
    case Phase::kPlacing:
      if (plan_.generation >= placed_at_) Place();
      return;
    case Phase::kSealing:
      return AwaitSeal();
    case Phase::kWriting: {
      InitDoneRequest done;
      for (const TensorPlan& tensor : plan_.tensors) done.tensors.push_back(tensor.id);
      return CallScheduler(std::move(done), [this](const NodeReply&) {
        written_ = true;
        Enter(Phase::kSealing);
        Go();
      });
    }
    case Phase::kStartRound:
      return BeginBoundary();
    case Phase::kBoundary:
      return AwaitBoundary();
    case Phase::kDrawing:
      return Draw();
    case Phase::kExchanging:
      return Reduce();
    case Phase::kReducing:
      return BeginBoundary();
    case Phase::kAdopting:
      return ReturnUnused();
    case Phase::kReturning:
      if (outbox_.empty()) Cover();
      return;
    case Phase::kCovering:
      return Leave();
    case Phase::kLeaveWait:
      return AwaitLeave();
    case Phase::kPassingOn:
      return Finish();
    default:
      return;
  }
}

void SimWorker::CallScheduler(NodeRequest request, std::function<void(const NodeReply&)> done) {
  busy_ = true;
  scheduler_->Call(this, self_, request, kCallTimeout,
                   [this, request, done](const absl::StatusOr<NodeReply>& reply) {
                     if (absl::IsUnavailable(reply.status())) {
                       return After(kPause,
                                    [this, request, done] { CallScheduler(request, done); });
                     }
                     busy_ = false;
                     if (!reply.ok()) return Fail(std::string(reply.status().message()));
                     done(*reply);
                   });
}

void SimWorker::Register() {
  Enter(Phase::kRegistering);
  CallScheduler(RegisterTensorsRequest{scenario_->tensors}, [this](const NodeReply& reply) {
    placed_at_ = std::get<RegisterTensorsReply>(reply).generation;
    Enter(Phase::kPlacing);
    Go();
  });
}

void SimWorker::Place() {
  for (const TensorPlan& tensor : plan_.tensors) {
    auto chunks = Partition(plan_, tensor.id);
    PACELINE_CHECK(chunks.ok());
    chunks_.insert(chunks_.end(), chunks->begin(), chunks->end());
  }
  bases_.assign(chunks_.size(), Version());
  Enter(Phase::kSealing);
  Go();
}

void SimWorker::AwaitSeal() {
  bool sealed = true;
  for (const TensorPlan& tensor : plan_.tensors) sealed = sealed && tensor.sealed;
  if (sealed) return StartRound();
  if (plan_.init_writer == self_.node && !written_) WriteInitial();
}

void SimWorker::WriteInitial() {
  Enter(Phase::kWriting);
  for (const PlacedChunk& chunk : chunks_) {
    auto op = std::make_shared<Op>();
    op->operation = Header(OperationKind::kInit);
    op->operation.chunk = chunk.key;
    op->operation.total_bytes = chunk.range.length * sizeof(float);
    op->owner = chunk.owner;
    std::vector<float> values(chunk.range.length);
    for (uint64_t i = 0; i < values.size(); ++i) values[i] = InitialAt(self_.node, chunk.key, i);
    op->payload = std::make_shared<const std::vector<float>>(std::move(values));
    Issue(std::move(op));
  }
}

void SimWorker::StartRound() {
  Enter(Phase::kStartRound);
  IssueChunks(OperationKind::kPushPull, 0, chunks_.size(), Ordinal(0), Samples(0));
}

// ---- Steps ------------------------------------------------------------------------------------

void SimWorker::BeginBoundary() {
  Enter(Phase::kBoundary);
  next_step_ = std::max(group_->step() + Step(1), group_is_in_);
  AccountForStep();
  Pass(Owners(), group_->step(), group_->PassesThrough(next_step_), false);
  Go();
}

bool SimWorker::IsCurrent(TensorId tensor) const {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].key.tensor == tensor && bases_[i].lineage < plan_.lineage) return false;
  }
  return true;
}

// As Session::Lapses: what was computed on weights that a checkpoint has replaced trains nothing.
bool SimWorker::Lapses(TensorId tensor) const {
  return (lineage_ && plan_.lineage > *lineage_) || !IsCurrent(tensor);
}

bool SimWorker::MustAdopt(bool leaving) const {
  if (!lineage_ || plan_.lineage <= *lineage_) return false;
  return leaving || std::all_of(plan_.tensors.begin(), plan_.tensors.end(),
                                [this](const TensorPlan& tensor) { return IsCurrent(tensor.id); });
}

// As Session::Adopt. What is given back is no longer held, and must not be taken for lost.
void SimWorker::Adopt() {
  if (!outbox_.empty()) return;
  AdoptedRequest adopted;
  adopted.lineage = plan_.lineage;
  if (lease_) adopted.held = lease_->Peek();
  adopted.held.insert(adopted.held.end(), in_hand_.begin(), in_hand_.end());
  CallScheduler(adopted, [this, lineage = adopted.lineage](const NodeReply&) {
    lineage_ = lineage;
    Go();
  });
}

// What was drawn and not used is discarded; given back, when it could not be used here.
void SimWorker::AccountForStep() {
  ReturnSamplesRequest rest;
  uint64_t used = std::exchange(used_this_step_, 0);
  for (SampleRange range : std::exchange(in_hand_, {})) {
    const uint64_t of_it = std::min(used, range.end - range.begin);
    used -= of_it;
    range.begin += of_it;
    if (range.begin < range.end) rest.ranges.push_back(range);
  }
  const uint64_t count = scheduler::CountOf(rest.ranges);
  if (!std::exchange(returns_rest_, false)) {
    ledger_.discarded += count;
    return;
  }
  ledger_.returned += count;
  checker_->OnGivenBack(self_, rest.ranges);
  if (count > 0) outbox_.push_back(std::move(rest));
  Pump();
}

void SimWorker::AwaitBoundary() {
  if (MustAdopt(false)) return Adopt();
  if (!group_->MayBegin(next_step_)) return;
  group_is_in_ = Step();
  step_took_ = world()->now() - std::exchange(step_began_, world()->now());
  const GroupId before = group_->current().id;
  group_->AdvanceTo(next_step_);
  if (group_->current().id != before) {
    // As a joiner it takes part in its first round there with nothing.
    passed_.reset();
    return StartRound();
  }
  if (!lease_) {
    lease_.emplace(plan_.spec.seed, static_cast<uint32_t>(plan_.spec.sample_count));
  }
  if (asked_to_leave_) return Return();
  Draw();
}

void SimWorker::Draw() {
  Enter(Phase::kDrawing);
  const bool refill = plan_.spec.deterministic || lease_->available() == 0;
  if (refill && samples_finished_ && lease_->available() == 0) return Return();
  if (!refill) return TakeBatch();
  // What is given back may come again with this draw: the scheduler has to know of it first.
  if (!outbox_.empty()) return;
  const uint64_t count = plan_.spec.batch_size;
  DrawSamplesRequest request;
  request.wanted = Samples(plan_.spec.deterministic ? count : count * kBatchesAhead);
  request.step = group_->step() - Step(1);
  request.received = Samples(ledger_.drawn);
  CallScheduler(request, [this](const NodeReply& reply) {
    const auto& drawn = std::get<DrawSamplesReply>(reply);
    for (const SampleRange& range : drawn.ranges) ledger_.drawn += range.end - range.begin;
    lease_->Add(drawn.ranges);
    samples_finished_ = drawn.finished;
    TakeBatch();
  });
}

void SimWorker::TakeBatch() {
  SampleLease::Batch batch = lease_->Take(static_cast<uint32_t>(plan_.spec.batch_size));
  const bool empty = batch.indices.empty();
  in_hand_.insert(in_hand_.end(), batch.ranges.begin(), batch.ranges.end());
  if (empty && samples_finished_) return Return();
  if (empty && !plan_.spec.deterministic && group_->alone()) {
    // All that is left is leased to others, who may return it.
    busy_ = true;
    return After(Milliseconds(10), [this] {
      busy_ = false;
      Draw();
    });
  }
  Compute();
}

void SimWorker::Compute() {
  Enter(Phase::kComputing);
  const bool slow = world()->random().OneIn(150);
  const Ticks longest = slow ? Milliseconds(300) : scenario_->longest_step;
  busy_ = true;
  After(world()->random().TimeBetween(Milliseconds(1), longest), [this] {
    busy_ = false;
    Exchange();
  });
}

void SimWorker::Reduce() {
  if (!scenario_->reduces) return BeginBoundary();
  Enter(Phase::kReducing);
  uint64_t samples = 0;
  for (const SampleRange& range : in_hand_) samples += range.end - range.begin;
  // The start round of a joiner is the first operation of its step on each chunk.
  IssueChunks(OperationKind::kReduce, 0, 1, Ordinal(1), Samples(samples));
}

void SimWorker::Exchange() {
  Enter(Phase::kExchanging);
  uint64_t samples = 0;
  for (const SampleRange& range : in_hand_) samples += range.end - range.begin;
  if (samples > 0) checker_->OnPush(self_, group_->current().id, group_->step(), in_hand_);
  IssueChunks(OperationKind::kPushPull, 0, chunks_.size(), Ordinal(0), Samples(samples));
}

// ---- Leaving ----------------------------------------------------------------------------------

void SimWorker::Return() {
  Enter(Phase::kAdopting);
  Go();
}

void SimWorker::ReturnUnused() {
  if (MustAdopt(true)) return Adopt();
  Enter(Phase::kReturning);
  ReturnSamplesRequest unused;
  if (lease_) unused.ranges = lease_->TakeAll();
  unused.ranges.insert(unused.ranges.end(), in_hand_.begin(), in_hand_.end());
  in_hand_.clear();
  for (const SampleRange& range : unused.ranges) ledger_.returned += range.end - range.begin;
  checker_->OnGivenBack(self_, unused.ranges);
  if (!unused.ranges.empty()) outbox_.push_back(std::move(unused));
  Pump();
  Go();
}

// As Session::CoverForGood: should it end before it hears from which step the others do without it,
// nobody waits for it; nor does a checkpoint.
void SimWorker::Cover() {
  Enter(Phase::kCovering);
  covering_ = Pass(Owners(), group_->step(), group_->step() + kForGood, true);
  After(kForGoodPatience, [this] {
    if (phase_ != Phase::kCovering) return;
    for (const OpPtr& op : covering_) op->waited_for = false;
    outstanding_ = 0;  // it waits for nothing else
    Leave();
  });
  Go();
}

void SimWorker::Leave() {
  covering_.clear();
  Enter(Phase::kLeaving);
  LeaveRequest request;
  request.reason = "it is done";
  request.last = MakeReport();
  CallScheduler(std::move(request), [this](const NodeReply&) {
    Enter(Phase::kLeaveWait);
    // Nobody tells it any more when the scheduler forgot what it agreed.
    After(Seconds(10), [this] {
      gone_ = true;
      Go();
    });
    Go();
  });
}

void SimWorker::AwaitLeave() {
  const bool alone = group_->alone();
  const std::optional<Step> leaves_at = group_->leaves_at();
  if (!alone && !gone_ && !leaves_at) return;
  Enter(Phase::kPassingOn);
  // The others still count on it up to the step in which they do without it.
  const Step through = leaves_at ? group_->PassesThrough(*leaves_at) : group_->counted_on_through();
  if (alone || through < group_->step()) return Finish();
  Pass(Owners(), group_->step(), through, true);
  if (!leaves_at) After(kLastBoundaryPatience, [this] { Finish(); });
}

void SimWorker::Finish() {
  if (group_->goes_over()) {
    // Those that it was on its way to count on it, too.
    group_->AdvanceTo(std::max(*group_->leaves_at(), group_->step() + Step(1)));
    Enter(Phase::kLeaveWait);
    return AwaitLeave();
  }
  world()->Trace(name(), ": has left");
  checker_->OnLeft(self_, ledger_);
  Enter(Phase::kLeft);
  Kill();
}

void SimWorker::Fail(const std::string& why) {
  if (!alive()) return;
  world()->Trace(name(), ": ends: ", why);
  Kill();
  on_failed();
}

}  // namespace paceline::simulation
