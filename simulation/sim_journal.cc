#include <utility>

#include "simulation/sim_scheduler.h"

namespace paceline::simulation {

void SimJournal::Append(std::vector<JournalEntry> entries, std::function<void()> done) {
  queued_.push_back({std::move(entries), std::nullopt, std::move(done)});
  StartWriting();
}

void SimJournal::Compact(JournalEntry state) {
  queued_.push_back({{}, std::move(state), [] {}});
  StartWriting();
}

void SimJournal::StartWriting() {
  if (!writing_.empty() || queued_.empty()) return;
  writing_ = std::exchange(queued_, {});
  const bool slow = world_->now() < slow_until_;
  const Ticks typical = slow ? slow_sync_ : typical_sync_;
  const Ticks sync = world_->random().TimeBetween(Ticks(typical.value() / 2), typical + typical);
  world_->After(sync, [this, life = life_] {
    if (life != life_) return;
    std::vector<Write> written = std::exchange(writing_, {});
    MakeDurable(written);
    for (Write& write : written) write.done();
    StartWriting();
  });
}

void SimJournal::MakeDurable(const std::vector<Write>& writes) {
  for (const Write& write : writes) {
    if (write.compacted) {
      std::vector<JournalEntry> kept{*write.compacted};
      for (JournalEntry& entry : durable_) {
        if (entry.index > write.compacted->index) kept.push_back(std::move(entry));
      }
      durable_ = std::move(kept);
    }
    durable_.insert(durable_.end(), write.entries.begin(), write.entries.end());
    for (const JournalEntry& entry : write.entries) on_durable_(entry);
  }
}

void SimJournal::Lose() {
  ++life_;
  const std::vector<Write> written = std::exchange(writing_, {});
  queued_.clear();
  if (world_->random().OneIn(2)) MakeDurable(written);
}

}  // namespace paceline::simulation
