// What a simulated owner does about checkpoints, there and back: as server/agent.h and the cuts of
// parameter/host/router.h.
#include <algorithm>
#include <utility>

#include "simulation/sim_server.h"

namespace paceline::simulation {
namespace {

// A worker may have been in several groups.
std::vector<WorkerSamples> SamplesOf(const std::vector<WorkerStaleness>& by_group) {
  std::map<NodeId, WorkerSamples> totals;
  for (const WorkerStaleness& w : by_group) {
    WorkerSamples& total = totals[w.worker];
    total.worker = w.worker;
    total.applied += w.applied;
    total.discarded += w.discarded;
  }
  std::vector<WorkerSamples> out;
  for (const auto& [worker, total] : totals) out.push_back(total);
  return out;
}

}  // namespace

// One thing at a time, in order; what was queued or half written dies with the process.
void SimServer::PostToDisk(std::function<void()> task) {
  const bool slow = world()->random().OneIn(20);
  const Ticks takes = world()->random().TimeBetween(Milliseconds(1), Milliseconds(slow ? 600 : 20));
  disk_free_at_ = std::max(disk_free_at_, world()->now()) + takes;
  After(disk_free_at_ - world()->now(), std::move(task));
}

// What waits for it, as the disk thread comes to it, is loaded from the checkpoint.
void SimServer::Load(const Plan& plan, Done done) {
  PostToDisk([this, plan, done] {
    auto keys = std::make_shared<std::vector<ChunkKey>>();
    const auto read = [this, plan, done, keys] {
      if (keys->empty()) return done();
      PostToDisk([this, plan, done, keys] {
        const auto chunks = disk_->ReadChunks(plan.restore_from, *keys);
        if (!chunks.ok()) {
          return world()->Fail("checkpoint", std::string(chunks.status().message()));
        }
        OnEveryThread(
            [this, plan, chunks = *chunks](JobShards& job, Replies* replies) {
              job.Restore(plan.lineage, chunks, world()->now(), replies);
            },
            done);
      });
    };
    OnEveryThread(
        [keys](JobShards& job, Replies*) {
          const std::vector<ChunkKey> waiting = job.AwaitingRestore();
          keys->insert(keys->end(), waiting.begin(), waiting.end());
        },
        read);
  });
}

void SimServer::AbortCuts() {
  OnEveryThread(
      [this](JobShards& job, Replies* replies) {
        job.CutAbort(absl::AbortedError("the cut was aborted"), world()->now(), replies);
      },
      nullptr);
}

// Nobody may come to say when a cut's steps go on: a scheduler that is back begins another.
void SimServer::ReleaseCuts() {
  if (std::exchange(cutting_, false)) AbortCuts();
}

void SimServer::Apply(const CutDirective& cut) {
  if (cut.collect && !cut.abort) cutting_ = true;
  if (cut.abort || cut.manifest) cutting_ = false;
  if (!cut.drop.empty()) {
    return PostToDisk([this, drop = cut.drop] {
      for (const std::string& directory : drop) disk_->Remove(directory);
    });
  }
  if (cut.abort) {
    AbortCuts();
    if (!cut.directory.empty()) PostToDisk([this, cut] { disk_->Remove(cut.directory); });
    return;
  }
  if (cut.manifest) {
    return PostToDisk([this, cut] {
      const absl::Status written = disk_->WriteManifest(cut.directory, *cut.manifest);
      if (written.ok()) {
        checker_->OnCheckpoint(cut, disk_->ChunksOf(cut.directory));
      }
      AckRequest ack;
      ack.id = cut.cut;
      ack.error = std::string(written.message());
      Queue(ack);
    });
  }
  if (cut.collect) return Collect(cut);
  CopyAt(cut);
}

void SimServer::Collect(const CutDirective& cut) {
  auto applied = std::make_shared<std::map<GroupId, Step>>();
  OnEveryThread(
      [this, applied](JobShards& job, Replies* replies) {
        if (job.plan() == nullptr) return;
        for (const auto& [group, step] : job.CutCollect(world()->now(), replies)) {
          Step& highest = applied->try_emplace(group, step).first->second;
          highest = std::max(highest, step);
        }
      },
      [this, applied, id = cut.cut] {
        AckRequest ack;
        ack.id = id;
        ack.applied = *applied;
        Queue(ack);
      });
}

void SimServer::CopyAt(const CutDirective& cut) {
  struct Merged {
    uint32_t left = kThreads;
    absl::Status status;
    std::vector<ChunkSnapshot> chunks;
  };
  auto merged = std::make_shared<Merged>();
  const auto arrive = [this, cut, merged](absl::StatusOr<std::vector<ChunkSnapshot>> chunks) {
    merged->status.Update(chunks.status());
    if (chunks.ok()) {
      for (ChunkSnapshot& chunk : *chunks) merged->chunks.push_back(std::move(chunk));
    }
    if (--merged->left > 0) return;
    if (merged->status.ok()) return WritePart(cut, std::move(merged->chunks));
    AckRequest ack;
    ack.id = cut.cut;
    ack.error = std::string(merged->status.message());
    Queue(ack);
  };
  OnEveryThread(
      [this, cut, arrive](JobShards& job, Replies* replies) {
        if (job.plan() == nullptr) return arrive(absl::NotFoundError("no shards are here"));
        job.CutAt(cut.steps, arrive, world()->now(), replies);
      },
      nullptr);
}

// The groups go on; what was copied goes to the disk meanwhile.
void SimServer::WritePart(const CutDirective& cut, std::vector<ChunkSnapshot> chunks) {
  PostToDisk([this, cut, chunks = std::move(chunks)] {
    AckRequest ack;
    ack.id = cut.cut;
    ack.part = disk_->WritePart(cut.directory, name(), chunks);
    for (const ChunkSnapshot& chunk : chunks) {
      if (!chunk.workers) continue;
      ack.updates = chunk.state.version.count;
      ack.workers = SamplesOf(*chunk.workers);
    }
    Queue(std::move(ack));
  });
}

}  // namespace paceline::simulation
