#include "common/base/status.h"
#include "scheduler/journal.h"
#include "scheduler/journal_writer.h"

namespace paceline {

struct InMemoryJournal::Store {
  mutable Mutex mutex;
  CondVar changed;
  std::vector<JournalEntry> entries GUARDED_BY(mutex);
  bool hold GUARDED_BY(mutex) = false;
  absl::Status error GUARDED_BY(mutex);
};

class InMemoryJournal::Writer {
 public:
  explicit Writer(std::shared_ptr<Store> store)
      : store_(store),
        recovered_(Entries(*store)),
        writer_([this](const std::vector<JournalEntry>& batch) { return Commit(batch); },
                [this](const JournalEntry& state) { Compact(state); }) {}

  JournalWriter& writer() { return writer_; }
  std::vector<JournalEntry> TakeRecovered() { return std::move(recovered_); }

 private:
  absl::Status Commit(const std::vector<JournalEntry>& batch) {
    MutexLock lock(&store_->mutex);
    while (store_->hold) store_->changed.Wait(&store_->mutex);
    if (!store_->error.ok()) return store_->error;
    for (const JournalEntry& entry : batch) {
      if (!store_->entries.empty() && entry.index != store_->entries.back().index + 1) {
        return absl::InternalError(
            absl::StrCat("journal entry ", entry.index, " follows ", store_->entries.back().index));
      }
      store_->entries.push_back(entry);
    }
    return absl::OkStatus();
  }
  void Compact(const JournalEntry& state) {
    MutexLock lock(&store_->mutex);
    std::vector<JournalEntry> kept{state};
    for (JournalEntry& entry : store_->entries) {
      if (entry.index > state.index) kept.push_back(std::move(entry));
    }
    store_->entries = std::move(kept);
  }

  const std::shared_ptr<Store> store_;
  std::vector<JournalEntry> recovered_;
  JournalWriter writer_;
};

InMemoryJournal::InMemoryJournal(std::shared_ptr<Store> store)
    : writer_(std::make_unique<Writer>(std::move(store))) {}
InMemoryJournal::~InMemoryJournal() = default;

std::shared_ptr<InMemoryJournal::Store> InMemoryJournal::MakeStore() {
  return std::make_shared<Store>();
}

std::vector<JournalEntry> InMemoryJournal::Entries(const Store& store) {
  MutexLock lock(&store.mutex);
  return store.entries;
}

void InMemoryJournal::Hold(Store& store, bool hold) {
  MutexLock lock(&store.mutex);
  store.hold = hold;
  store.changed.SignalAll();
}

void InMemoryJournal::Fail(Store& store, absl::Status error) {
  MutexLock lock(&store.mutex);
  store.error = std::move(error);
}

void InMemoryJournal::Append(std::vector<JournalEntry> batch,
                             std::function<void(absl::Status)> done) {
  writer_->writer().Append(std::move(batch), std::move(done));
}

void InMemoryJournal::Compact(JournalEntry state) { writer_->writer().Compact(std::move(state)); }

std::vector<JournalEntry> InMemoryJournal::TakeRecovered() { return writer_->TakeRecovered(); }

}  // namespace paceline
