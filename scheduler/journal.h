// Where the scheduler's decided changes become durable before anything that follows from them is
// told to anyone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/events.h"

namespace paceline {

// Thread rule: Append and Compact from one thread; `done` is called from a thread of the journal,
// once each, in the order of the appends. The destructor returns after the last of them.
class Journal {
 public:
  virtual ~Journal() = default;

  // Makes the batch durable, all or nothing. Indexes continue the last one without a gap. After an
  // error every later append fails too: the caller stops, restarts and recovers.
  virtual void Append(std::vector<JournalEntry> batch, std::function<void(absl::Status)> done) = 0;

  // `state` takes the place of all entries up to its index, which were appended before. A failure
  // is logged and costs only space.
  virtual void Compact(JournalEntry state) = 0;

  // What was there when the journal was opened, in order of index.
  virtual std::vector<JournalEntry> TakeRecovered() = 0;
};

// Keeps entries in memory, for tests: what one instance appended the next one recovers.
// Thread rule: Entries() from any thread.
class InMemoryJournal final : public Journal {
 public:
  struct Store;  // shared by successive journals, as a file would be

  explicit InMemoryJournal(std::shared_ptr<Store> store);
  ~InMemoryJournal() override;
  static std::shared_ptr<Store> MakeStore();
  static std::vector<JournalEntry> Entries(const Store& store);
  // While held, appends wait; after Fail they fail with `error`.
  static void Hold(Store& store, bool hold);
  static void Fail(Store& store, absl::Status error);

  void Append(std::vector<JournalEntry> batch, std::function<void(absl::Status)> done) override;
  void Compact(JournalEntry state) override;
  std::vector<JournalEntry> TakeRecovered() override;

 private:
  class Writer;
  std::unique_ptr<Writer> writer_;
};

// One SQLite file (mode 0600), in WAL mode with a sync per commit; batches that wait are committed
// together. Each entry carries a checksum over its index and bytes.
//
// Where there is no file a new cluster is started, which is logged. Errors say what to do:
// Unavailable (another scheduler holds the journal), DataLoss (damaged), FailedPrecondition (of
// another cluster, or written by a newer version). A journal that cannot be read is never replaced.
absl::StatusOr<std::unique_ptr<Journal>> OpenSqliteJournal(const std::string& path,
                                                           const std::string& cluster);

}  // namespace paceline
