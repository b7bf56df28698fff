#include "scheduler/core/journal_entry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace paceline::scheduler {
namespace {

constexpr uint8_t kFormat = 3;

}  // namespace

template <typename A>
void Fields(A& a, Is<TermStarted> auto& v) {
  a(v.term);
}
template <typename A>
void Fields(A& a, Is<JobCreated> auto& v) {
  a(v.job, v.spec, v.run, v.resume);
}
template <typename A>
void Fields(A& a, Is<NodeJoined> auto& v) {
  a(v.node);
}
template <typename A>
void Fields(A& a, Is<NodeGone> auto& v) {
  a(v.node, v.dead);
}
template <typename A>
void Fields(A& a, Is<JobStateChanged> auto& v) {
  a(v.job, v.state, v.reason);
}
template <typename A>
void Fields(A& a, Is<OptimizerSet> auto& v) {
  a(v.job, v.optimizer, v.generation);
}
template <typename A>
void Fields(A& a, Is<TensorsPlaced> auto& v) {
  a(v.job, v.generation, v.lead, v.tensors);
}
template <typename A>
void Fields(A& a, Is<InitWriterNamed> auto& v) {
  a(v.job, v.writer, v.generation);
}
template <typename A>
void Fields(A& a, Is<TensorsSealed> auto& v) {
  a(v.job, v.tensors);
}
template <typename A>
void Fields(A& a, Is<GroupsChanged> auto& v) {
  a(v.job, v.groups);
}
template <typename A>
void Fields(A& a, Is<SamplesDrawn> auto& v) {
  a(v.job, v.worker, v.ranges, v.used, v.for_step, v.step);
}
template <typename A>
void Fields(A& a, Is<SamplesReturned> auto& v) {
  a(v.job, v.worker, v.ranges, v.used);
}
template <typename A>
void Fields(A& a, Is<JobForgotten> auto& v) {
  a(v.job);
}
template <typename A>
void Fields(A& a, Is<ChunksMoved> auto& v) {
  a(v.job, v.generation, v.move, v.moves);
}
template <typename A>
void Fields(A& a, Is<MovesWithdrawn> auto& v) {
  a(v.job, v.generation);
}
template <typename A>
void Fields(A& a, Is<MovesDone> auto& v) {
  a(v.job, v.generation);
}
template <typename A>
void Fields(A& a, Is<AskedToLeave> auto& v) {
  a(v.worker, v.reason);
}
template <typename A>
void Fields(A& a, Is<ServerDraining> auto& v) {
  a(v.server, v.draining);
}
template <typename A>
void Fields(A& a, Is<NodeForgotten> auto& v) {
  a(v.node);
}
template <typename A>
void Fields(A& a, Is<CheckpointRecorded> auto& v) {
  a(v.job, v.record);
}
template <typename A>
void Fields(A& a, Is<RolledBack> auto& v) {
  a(v.job, v.generation, v.lineage, v.path, v.tensors, v.settled, v.updates, v.totals);
}
template <typename A>
void Fields(A& a, Is<Restored> auto& v) {
  a(v.job, v.totals);
}
template <typename A>
void Fields(A& a, Is<SamplesLost> auto& v) {
  a(v.job, v.worker, v.ranges);
}
template <typename A>
void Fields(A& a, Is<ResumePrepared> auto& v) {
  a(v.resume);
}
template <typename A>
void Fields(A& a, Is<StateCompacted> auto& v) {
  a(v.state);
}

std::string EncodeEntry(const Entry& entry) {
  Writer writer;
  writer(kFormat, entry);
  return writer.Take();
}

absl::StatusOr<Entry> DecodeEntry(std::string_view bytes) {
  Reader reader(bytes);
  uint8_t format = 0;
  reader(format);
  if (!reader.ok()) return absl::DataLossError("empty journal entry");
  if (format != kFormat) {
    return absl::DataLossError(absl::StrCat("journal entry of format ", +format,
                                            "; this scheduler reads format ", +kFormat));
  }
  Entry entry;
  reader(entry);
  if (!reader.AtEnd()) {
    return absl::DataLossError(
        absl::StrCat("journal entry of ", bytes.size(), " bytes is cut or damaged"));
  }
  return entry;
}

namespace {

class Applier {
 public:
  explicit Applier(State& state) : state_(state) {}

  absl::Status operator()(const TermStarted& e) {
    state_.term = e.term;
    return absl::OkStatus();
  }

  absl::Status operator()(const JobCreated& e) {
    JobRecord& job = state_.jobs[e.job];
    job.id = e.job;
    job.spec = e.spec;
    job.run = e.run;
    job.samples = SampleLedger(e.spec);
    state_.last_job = std::max(state_.last_job, e.job.value());
    if (e.resume) Resume(*e.resume, job);
    return absl::OkStatus();
  }

  absl::Status operator()(const NodeJoined& e) {
    state_.nodes[e.node.id] = e.node;
    state_.last_node = std::max(state_.last_node, e.node.id.value());
    state_.last_incarnation = std::max(state_.last_incarnation, e.node.incarnation.value());
    if (e.node.role != Role::kWorker) return absl::OkStatus();
    return OnJob(e.node.job, [&](JobRecord& job) { job.ranks[e.node.name] = e.node.rank; });
  }

  absl::Status operator()(const NodeGone& e) {
    auto it = state_.nodes.find(e.node.node);
    if (it == state_.nodes.end() || it->second.incarnation != e.node.incarnation) {
      return absl::FailedPreconditionError(absl::StrCat("journal: node ", e.node.node.value(),
                                                        " incarnation ", e.node.incarnation.value(),
                                                        " is not known"));
    }
    it->second.state = e.dead ? NodeState::kDead : NodeState::kLeft;
    return absl::OkStatus();
  }

  absl::Status operator()(const JobStateChanged& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.state = e.state;
      job.reason = e.reason;
    });
  }

  absl::Status operator()(const OptimizerSet& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.spec.optimizer = e.optimizer;
      job.generation = e.generation;
    });
  }

  absl::Status operator()(const TensorsPlaced& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.tensors.insert(job.tensors.end(), e.tensors.begin(), e.tensors.end());
      job.lead_tensor = e.lead;
      job.generation = e.generation;
      if (job.resumed_from.empty()) return;
      job.restore_from = job.resumed_from;
      job.restore_generation = e.generation;
    });
  }

  absl::Status operator()(const InitWriterNamed& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.init_writer = e.writer;
      job.generation = e.generation;
    });
  }

  absl::Status operator()(const TensorsSealed& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      for (TensorId id : e.tensors) {
        if (id.value() < job.tensors.size()) job.tensors[id.value()].sealed = true;
      }
    });
  }

  absl::Status operator()(const GroupsChanged& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      for (const GroupPlan& group : e.groups) {
        job.next_group = std::max(job.next_group, group.id.value() + 1);
        if (group.members.empty()) {
          job.groups.erase(group.id);
        } else {
          job.groups[group.id] = group;
        }
      }
      job.group_generations += e.groups.size();
    });
  }

  absl::Status operator()(const SamplesDrawn& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.samples.ApplyUsed(e.worker.node, e.used);
      job.samples.ApplyHolder(e.worker);
      if (e.for_step) {
        job.samples.ApplyDrawFor(e.worker.node, e.step.value(), e.ranges);
      } else {
        job.samples.ApplyDraw(e.worker.node, e.ranges);
      }
    });
  }

  absl::Status operator()(const SamplesReturned& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.samples.ApplyUsed(e.worker, e.used);
      job.samples.ApplyReturn(e.worker, e.ranges);
    });
  }

  absl::Status operator()(const JobForgotten& e) {
    std::erase_if(state_.nodes, [&](const auto& n) {
      return n.second.role == Role::kWorker && n.second.job == e.job;
    });
    state_.jobs.erase(e.job);
    return absl::OkStatus();
  }

  absl::Status operator()(const ChunksMoved& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      for (const ChunkMove& move : e.moves) {
        const uint32_t tensor = move.chunk.tensor.value();
        if (tensor >= job.tensors.size()) continue;
        std::vector<NodeId>& owners = job.tensors[tensor].owners;
        if (move.chunk.chunk.value() < owners.size()) owners[move.chunk.chunk.value()] = move.to;
      }
      job.generation = e.generation;
      job.move = e.move;
      job.moves = e.moves;
      job.withdrawn = false;
    });
  }

  absl::Status operator()(const MovesWithdrawn& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.generation = e.generation;
      job.withdrawn = true;
    });
  }

  absl::Status operator()(const MovesDone& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.generation = e.generation;
      job.move = 0;
      job.moves.clear();
      job.withdrawn = false;
    });
  }

  absl::Status operator()(const AskedToLeave& e) {
    auto it = state_.nodes.find(e.worker.node);
    if (it != state_.nodes.end() && it->second.incarnation == e.worker.incarnation) {
      it->second.asked_to_leave = e.reason;
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const ServerDraining& e) {
    auto it = state_.nodes.find(e.server.node);
    if (it != state_.nodes.end() && it->second.incarnation == e.server.incarnation) {
      it->second.draining = e.draining;
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const NodeForgotten& e) {
    state_.nodes.erase(e.node);
    return absl::OkStatus();
  }

  absl::Status operator()(const CheckpointRecorded& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.checkpoints.push_back(e.record);
      job.last_checkpoint = e.record.number;
      while (job.checkpoints.size() > job.spec.checkpoint_keep) {
        job.checkpoints.erase(job.checkpoints.begin());
      }
    });
  }

  absl::Status operator()(const RolledBack& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.generation = job.restore_generation = e.generation;
      job.lineage = e.lineage;
      job.restore_from = e.path;
      job.tensors = e.tensors;
      job.move = 0;
      job.moves.clear();
      job.withdrawn = false;
      job.settled = e.settled;
      job.settled_updates = e.updates;
      job.rollbacks = e.totals;
      for (const auto& [worker, settled] : e.settled) {
        job.samples.ApplyUsed(worker, settled.applied + settled.discarded);
      }
    });
  }

  absl::Status operator()(const Restored& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      job.restore_from.clear();
      job.rollbacks = e.totals;
    });
  }

  absl::Status operator()(const SamplesLost& e) {
    return OnJob(e.job, [&](JobRecord& job) {
      const uint64_t count = CountOf(e.ranges);
      job.samples.ApplyLost(e.worker, e.ranges);
      job.settled[e.worker].discarded += count;
      job.rollbacks.samples += Samples(count);
    });
  }

  absl::Status operator()(const ResumePrepared& e) {
    state_.resumes[e.resume.job] = e.resume;
    return absl::OkStatus();
  }

  absl::Status operator()(const StateCompacted& e) {
    state_ = e.state;
    return absl::OkStatus();
  }

 private:
  void Resume(const ResumeJobRequest& resume, JobRecord& job) {
    const CheckpointManifest& from = resume.manifest;
    job.resumed_from = resume.path;
    job.lineage = from.lineage + 1;
    job.first_step = LastStep(from.steps);
    job.samples.StartAt(from.samples, job.first_step.value());
    job.settled_updates = from.updates;
    CheckpointRecord record;
    record.path = resume.path;
    record.updates = from.updates;
    record.tensors = static_cast<uint32_t>(from.tensors.size());
    record.steps = from.steps;
    job.checkpoints.push_back(std::move(record));
    state_.resumes.erase(resume.job);
  }

  template <typename F>
  absl::Status OnJob(JobId id, F change) {
    auto it = state_.jobs.find(id);
    if (it == state_.jobs.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("journal: job ", id.value(), " is not known"));
    }
    change(it->second);
    return absl::OkStatus();
  }

  State& state_;
};

}  // namespace

absl::Status Apply(const Entry& entry, State& state) { return std::visit(Applier(state), entry); }

}  // namespace paceline::scheduler
