// The SDK: one training process's part in a job. Start here; docs/sdk.md shows a training loop.
//
// A session joins a job at the scheduler, learns the plan, and exchanges gradients and weights with
// the owners of the tensors. The owners sum the gradients of a synchronous group, apply them, and
// answer with new weights; how stale an update was is measured there.
//
// A step of a training loop: DrawSamples, compute, PushPull of every tensor, Wait, AtStepBoundary.
// Every member of a group makes the same operations in a step, in any order; what a member leaves
// out counts as zero samples once it passes AtStepBoundary.
//
// Thread rule: every method may be called from any thread. Operations (Push, Pull, PushPull,
// Reduce) return at once; their result comes through Wait or the callback, which runs on a thread
// of the session and must not block or call methods that do. All others block, at most until the
// deadline of SessionOptions (DeadlineExceeded names what was waited for and from whom).
//
// Errors: InvalidArgument (what you passed; names it), FailedPrecondition (order of calls, a full
// server, or this incarnation was fenced), NotFound, Unavailable (a peer; names both ends),
// DeadlineExceeded, Aborted (the job was stopped; says why), Cancelled (the session was closed).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "control/control_client.h"
#include "plan/job_spec.h"
#include "plan/permutation.h"
#include "plan/tensor_spec.h"
#include "transport/channel.h"

namespace paceline {

struct SessionOptions {
  JobSpec job;              // the first joiner's holds; a different one is refused by field
  std::string worker_name;  // stable: a restart under the same name keeps node id and rank
  std::optional<WorkerIndex> index;           // the launcher's number
  std::string host;                           // label of the machine
  std::map<std::string, std::string> labels;  // "rack", ...
  Ticks deadline = Seconds(60);         // of every blocking call, and of an operation to its reply
  Ticks start_deadline = Seconds(120);  // of Connect and Init: the others may start later
  uint64_t max_lease_samples = 1u << 20;
  // Whether the program is to end, as after a signal: AtStepBoundary then does not wait for more
  // workers, and a call that waits for others 3 s longer in vain ends with Cancelled. Called from
  // the session's threads and the caller's; must not block.
  std::function<bool()> stop = {};
};

// What an operation gave.
struct OperationResult {
  Version base;                   // PushPull, Push: version the gradient counted as computed on
  Version version;                // of the chunk with the newest version after it
  std::vector<Version> bases;     // the same, per chunk
  std::vector<Version> versions;  // per chunk, after the operation
  Samples samples;                // Reduce: in the sum
};

// An operation under way. 0 is none.
using OperationHandle = Strong<struct OperationTag, uint64_t>;

struct OperationOptions {
  Samples samples{1};       // in this gradient; 0: takes part with nothing (payload is not sent)
  float learning_rate = 0;  // 0: the optimizer's own
  int32_t priority = 0;     // higher first
  std::function<void(const absl::StatusOr<OperationResult>&)> done;  // instead of Wait
};

// One batch of samples to train on, in draw order.
struct SampleBatch {
  Epoch epoch;                    // of the first sample
  std::vector<uint32_t> indices;  // into the training set
  bool finished = false;          // the job has no more samples: leave
  double progress = 0;            // ProgressAt the first sample (plan/permutation.h)
};

// A tensor's state as read from its owners.
struct TensorState {
  std::vector<Version> versions;                    // per chunk
  std::vector<uint64_t> applied_steps;              // Adam's t, per chunk
  std::vector<Samples> samples;                     // in all updates so far, per chunk
  std::map<std::string, std::vector<float>> slots;  // "weights" and optimizer slots, elements each
};

struct SessionCounters {
  Samples drawn, applied, discarded, returned;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
};

class Session {
 public:
  // Joins the job and waits until it runs (all its workers have joined). `control` and `transport`
  // belong to the session from here on.
  static absl::StatusOr<std::unique_ptr<Session>> Connect(const SessionOptions& options,
                                                          std::unique_ptr<ControlClient> control,
                                                          std::unique_ptr<Transport> transport);
  // Closes without a word to the scheduler if Leave was not called (it will find out).
  virtual ~Session() = default;

  // The optimizer at the owners; the first one set holds, a different one is InvalidArgument.
  virtual absl::Status SetOptimizer(const NamedSpec& optimizer) = 0;

  // Queued until the first use of any tensor, so that all are registered and placed in one batch.
  // A name registered with another shape or dtype is InvalidArgument (here, or at first use when
  // another worker was first).
  virtual absl::StatusOr<TensorId> RegisterTensor(const TensorSpec& spec) = 0;

  // Gives initial values; they count on the one worker that the scheduler named as writer. Queued
  // until the first use; `values` is copied. After the first use every worker has the same values.
  virtual absl::Status Init(TensorId tensor, std::span<const float> values) = 0;

  // Blocks until all registered tensors are placed, initialised and readable (first use does it).
  virtual absl::Status WaitReady() = 0;

  // Memory for the elements of `tensor`, 64-byte aligned, values not set; freed with the pointer.
  // To owners on this host what is sent from it is not moved at all, and the operation ends only
  // once they have let go of it. Any other memory will do, too, and costs a copy.
  virtual absl::StatusOr<std::shared_ptr<float[]>> AllocateTensor(TensorId tensor) = 0;

  // Contributes `gradient` and receives the new weights into `weights`; both of the tensor's
  // elements, may be the same memory, and belong to the session until the operation is done.
  virtual absl::StatusOr<OperationHandle> PushPull(TensorId tensor, std::span<const float> gradient,
                                                   std::span<float> weights,
                                                   const OperationOptions& options) = 0;
  virtual absl::StatusOr<OperationHandle> Push(TensorId tensor, std::span<const float> gradient,
                                               const OperationOptions& options) = 0;
  // The group's sum into `sum`; nothing is applied. Zeros of 0 samples, where late contributions
  // are dropped (JobSpec::late) and the group went on without this one, and in the step in which
  // the job returns to a checkpoint.
  virtual absl::StatusOr<OperationHandle> Reduce(TensorId tensor, std::span<const float> values,
                                                 std::span<float> sum,
                                                 const OperationOptions& options) = 0;
  virtual absl::StatusOr<OperationHandle> Pull(TensorId tensor, std::span<float> weights,
                                               const OperationOptions& options) = 0;

  // The operation's result; each operation is waited for once, and not one with a callback.
  virtual absl::StatusOr<OperationResult> Wait(OperationHandle operation) = 0;
  // All operations issued so far that have no callback; the first error wins.
  virtual absl::Status WaitAll() = 0;

  // Ends the step: what this member did not push counts as zero samples, changes of the group that
  // are due take effect, the step number grows. Call it after the step's operations were issued
  // and waited for. When the worker has gone over to another group with it, group() and step() are
  // the new ones, and the program's weights are of the old one: Pull them. What is pushed before
  // they have come counts as nothing, and its samples are given back. While the job has fewer than
  // min_workers it waits, for as long as that takes, but not when this worker is to end
  // (asked_to_leave(), SessionOptions.stop): then it returns without beginning a step, and Leave is
  // what may be called.
  virtual absl::Status AtStepBoundary() = 0;

  // Released when all live workers of the job have arrived at `name`.
  virtual absl::Status Barrier(const std::string& name) = 0;

  // The next batch of at most `count` samples. In a deterministic job it is this (step, rank)'s
  // part, possibly empty: then take part in the step with samples 0.
  // What is not pushed by the end of the step it was drawn in is discarded, and counted as that.
  // The order of an epoch takes 4 bytes a sample of the training set in every worker (8 while the
  // epoch changes), and its first batch takes as long as making it: about 10 ns a sample.
  virtual absl::StatusOr<SampleBatch> DrawSamples(uint32_t count) = 0;

  virtual absl::StatusOr<TensorState> ReadState(TensorId tensor) = 0;
  // On the writer of initial values only; replaces weights, slots and versions, which start a new
  // lineage. Gradients that are under way count as discarded, and their senders get the new
  // weights; other workers hold old ones until they pull, so let them pull before they go on.
  virtual absl::Status WriteState(TensorId tensor, const TensorState& state) = 0;

  // A consistent cut of the job over all servers, written below `directory` at the servers.
  // Returns the path of the checkpoint. Between AtStepBoundary and the first push of the next step;
  // FailedPrecondition once this worker has pushed, as the cut would wait for the end of its step.
  virtual absl::StatusOr<std::string> Checkpoint(const std::string& directory) = 0;

  // Named values for the operator: the newest of each name is shown. Sent with the next report.
  virtual void ReportProgress(const std::map<std::string, double>& metrics) = 0;

  // Leaves at a step boundary: unused samples go back, the group goes on without this worker. After
  // an error it may be called again and nothing else: the others wait for this worker no longer.
  virtual absl::Status Leave(const std::string& reason) = 0;

  // The reason, once an operator asked this worker to leave; the program calls Leave after its
  // step.
  virtual std::optional<std::string> asked_to_leave() const = 0;

  // After calls have failed: true when the scheduler declared this incarnation dead (it was stopped
  // or cut off for longer than failure_timeout). The job goes on; connect again under the same name
  // to take part in it with current weights. False when another process has taken the name. May ask
  // the scheduler, which takes up to 1 s.
  virtual bool declared_dead() = 0;

  virtual JobId job() const = 0;
  virtual JobRank rank() const = 0;
  virtual NodeId node() const = 0;
  virtual Step step() const = 0;
  virtual JobSpec spec() const = 0;  // what holds
  virtual uint32_t group_size() const = 0;
  virtual GroupId group() const = 0;
  // Nobody else is in the group or is to be, as far as is agreed, and this worker stays in it: no
  // one waits for its steps.
  virtual bool alone() const = 0;
  virtual SessionCounters counters() const = 0;
};

}  // namespace paceline
