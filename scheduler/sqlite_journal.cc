#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/base/status.h"
#include "common/runtime/log.h"
#include "scheduler/core/journal_entry.h"
#include "scheduler/journal.h"
#include "scheduler/journal_writer.h"

namespace paceline {
namespace {

constexpr int kApplicationId = 0x50434c4e;  // "PCLN", in the file's header
constexpr int kFormat = 1;                  // user_version; a reader refuses a newer one

absl::Status Damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(absl::StrCat("journal ", path, " is damaged: ", Absl(what), "; ",
                                          Absl(scheduler::kDamagedHelp)));
}

uint64_t Checksum(const JournalEntry& entry) {
  return XXH3_64bits_withSeed(entry.bytes.data(), entry.bytes.size(), entry.index);
}

// A prepared statement, finalized at the end of its scope.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) {
    code_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  bool ok() const { return code_ == SQLITE_OK; }
  int Step() { return ok() ? sqlite3_step(statement_) : code_; }
  void Reset() { sqlite3_reset(statement_); }
  sqlite3_stmt* get() { return statement_; }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int code_;
};

class SqliteFile {
 public:
  explicit SqliteFile(std::string path) : path_(std::move(path)) {}
  ~SqliteFile() { sqlite3_close_v2(db_); }
  SqliteFile(const SqliteFile&) = delete;
  SqliteFile& operator=(const SqliteFile&) = delete;

  absl::Status Open() {
    if (sqlite3_open_v2(path_.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW,
                        nullptr) != SQLITE_OK) {
      return Failure("open");
    }
    // Exclusive: a second scheduler on the same file is refused.
    PACELINE_RETURN_IF_ERROR(Execute("PRAGMA locking_mode=EXCLUSIVE"));
    // No write-ahead log: SQLite takes a damaged one for one that ended earlier, and without a word
    // the newest entries are gone. So every entry is in the file itself once it is answered.
    PACELINE_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=PERSIST"));
    PACELINE_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
    PACELINE_RETURN_IF_ERROR(Execute("BEGIN EXCLUSIVE"));
    return Execute("COMMIT");
  }

  absl::Status Create(const std::string& cluster) {
    PACELINE_RETURN_IF_ERROR(Open());
    PACELINE_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    PACELINE_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA application_id=", kApplicationId)));
    PACELINE_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA user_version=", kFormat)));
    PACELINE_RETURN_IF_ERROR(Execute("CREATE TABLE cluster(name TEXT NOT NULL)"));
    PACELINE_RETURN_IF_ERROR(
        Execute("CREATE TABLE entries(position INTEGER PRIMARY KEY, bytes BLOB NOT NULL, "
                "checksum INTEGER NOT NULL)"));
    {
      Statement insert(db_, "INSERT INTO cluster VALUES(?)");
      if (insert.ok()) sqlite3_bind_text(insert.get(), 1, cluster.c_str(), -1, SQLITE_TRANSIENT);
      if (insert.Step() != SQLITE_DONE) return Failure("create");
    }
    return Execute("COMMIT");
  }

  // Refuses what is not this cluster's journal in a format this program reads.
  absl::Status CheckIdentity(const std::string& cluster) {
    PACELINE_ASSIGN_OR_RETURN(const int64_t id, Number("PRAGMA application_id"));
    PACELINE_ASSIGN_OR_RETURN(const int64_t format, Number("PRAGMA user_version"));
    if (id != kApplicationId) return Damaged(path_, "it is not a journal of a Paceline scheduler");
    if (format > kFormat) {
      return absl::FailedPreconditionError(absl::StrCat(
          "journal ", path_, " has format ", format, ", written by a newer scheduler; this one ",
          "reads up to ", kFormat, ": start the newer version, or restore a copy made before"));
    }
    if (format != kFormat) return Damaged(path_, absl::StrCat("it has format ", format));
    Statement select(db_, "SELECT name FROM cluster");
    if (select.Step() != SQLITE_ROW) return Damaged(path_, "it does not say whose it is");
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(select.get(), 0));
    if (text == nullptr) return Damaged(path_, "it does not say whose it is");
    const std::string name(text);
    if (name == cluster) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("journal ", path_, " is of cluster \"", name, "\", not \"", cluster,
                     "\": give --cluster ", name, ", or another --state-dir or --journal"));
  }

  absl::Status CheckIntegrity() {
    Statement check(db_, "PRAGMA integrity_check(1)");
    if (check.Step() != SQLITE_ROW) return Damaged(path_, sqlite3_errmsg(db_));
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(check.get(), 0));
    if (text != nullptr && std::strcmp(text, "ok") == 0) return absl::OkStatus();
    return Damaged(path_, text == nullptr ? "unreadable" : text);
  }

  absl::StatusOr<std::vector<JournalEntry>> Read() {
    std::vector<JournalEntry> entries;
    Statement select(db_, "SELECT position, bytes, checksum FROM entries ORDER BY position");
    int code = SQLITE_ROW;
    while ((code = select.Step()) == SQLITE_ROW) {
      JournalEntry entry;
      entry.index = static_cast<uint64_t>(sqlite3_column_int64(select.get(), 0));
      const void* bytes = sqlite3_column_blob(select.get(), 1);
      const int size = sqlite3_column_bytes(select.get(), 1);
      if (size > 0) entry.bytes.assign(static_cast<const char*>(bytes), size);
      if (static_cast<uint64_t>(sqlite3_column_int64(select.get(), 2)) != Checksum(entry)) {
        return Damaged(path_, absl::StrCat("entry ", entry.index, " does not match its checksum"));
      }
      if (!entries.empty() && entry.index != entries.back().index + 1) {
        return Damaged(path_,
                       absl::StrCat("entry ", entry.index, " follows ", entries.back().index));
      }
      entries.push_back(std::move(entry));
    }
    if (code != SQLITE_DONE) return Damaged(path_, sqlite3_errmsg(db_));
    return entries;
  }

  absl::Status Commit(const std::vector<JournalEntry>& entries) {
    PACELINE_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    return CommitIf(Insert(entries));
  }

  absl::Status Compact(const JournalEntry& state) {
    PACELINE_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    absl::Status done =
        Execute(absl::StrCat("DELETE FROM entries WHERE position <= ", state.index));
    if (done.ok()) done = Insert({state});
    return CommitIf(std::move(done));
  }

 private:
  // Leaves no transaction open: the next one could not begin.
  absl::Status CommitIf(absl::Status done) {
    if (done.ok()) done = Execute("COMMIT");
    if (!done.ok()) Execute("ROLLBACK").IgnoreError();
    return done;
  }

  absl::Status Insert(const std::vector<JournalEntry>& entries) {
    Statement insert(db_, "INSERT INTO entries VALUES(?, ?, ?)");
    for (const JournalEntry& entry : entries) {
      if (!insert.ok()) break;
      sqlite3_bind_int64(insert.get(), 1, static_cast<int64_t>(entry.index));
      sqlite3_bind_blob64(insert.get(), 2, entry.bytes.data() ? entry.bytes.data() : "",
                          entry.bytes.size(), SQLITE_STATIC);
      sqlite3_bind_int64(insert.get(), 3, static_cast<int64_t>(Checksum(entry)));
      if (insert.Step() != SQLITE_DONE) return Failure("write");
      insert.Reset();
    }
    return insert.ok() ? absl::OkStatus() : Failure("write");
  }

  absl::Status Execute(const std::string& sql) {
    if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) {
      return absl::OkStatus();
    }
    return Failure(sql);
  }

  absl::StatusOr<int64_t> Number(const char* sql) {
    Statement select(db_, sql);
    if (select.Step() != SQLITE_ROW) return Failure(sql);
    return sqlite3_column_int64(select.get(), 0);
  }

  absl::Status Failure(std::string_view what) {
    const int code = sqlite3_errcode(db_);
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
      return absl::UnavailableError(
          absl::StrCat("journal ", path_, " is in use by another scheduler; stop that one first, ",
                       "or give this one another --state-dir"));
    }
    if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT) return Damaged(path_, sqlite3_errmsg(db_));
    return absl::UnavailableError(absl::StrCat("journal ", path_, ": ", Absl(what), ": ",
                                               sqlite3_errmsg(db_),
                                               "; check the disk's space and permissions"));
  }

  const std::string path_;
  sqlite3* db_ = nullptr;
};

absl::Status SystemError(const std::string& path, std::string_view what) {
  return absl::UnavailableError(absl::StrCat("journal ", path, ": ", Absl(what), ": ",
                                             std::strerror(errno),
                                             "; check that the directory exists and is writable"));
}

// `path` with its directory's links followed: SQLite, told to follow none, would refuse those too.
absl::StatusOr<std::string> Resolve(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(directory.c_str(), nullptr), ::free);
  if (real == nullptr) return SystemError(path, "open directory");
  return absl::StrCat(real.get(), "/", path.substr(slash == std::string::npos ? 0 : slash + 1));
}

// SQLite takes a file shorter than its header for a new database and would overwrite it.
absl::Status CheckHeader(const std::string& path) {
  constexpr std::string_view kMagic("SQLite format 3\0", 16);
  std::array<char, 100> header;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(path, "open");
  const ssize_t count = ::pread(fd, header.data(), header.size(), 0);
  ::close(fd);
  if (count < 0) return SystemError(path, "read");
  if (count == static_cast<ssize_t>(header.size()) &&
      std::string_view(header.data(), kMagic.size()) == kMagic) {
    return absl::OkStatus();
  }
  return Damaged(path, "it does not begin as a journal");
}

// Written beside and moved into place, so that a crash leaves no half-made journal.
absl::Status CreateFile(const std::string& path, const std::string& cluster) {
  const std::string made = path + ".new";
  for (const char* suffix : {"", "-journal"}) ::unlink((made + suffix).c_str());
  const int fd = ::open(made.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return SystemError(path, "create");
  ::close(fd);
  {
    SqliteFile file(made);
    PACELINE_RETURN_IF_ERROR(file.Create(cluster));
  }
  ::unlink((made + "-journal").c_str());
  if (::rename(made.c_str(), path.c_str()) != 0) return SystemError(path, "rename");
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int dir = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return SystemError(path, "open directory");
  const int synced = ::fsync(dir);
  ::close(dir);
  if (synced != 0) return SystemError(path, "sync directory");
  LogInfo("scheduler", "no journal at ", path, ": starting new cluster \"", cluster, "\"");
  return absl::OkStatus();
}

class SqliteJournal final : public Journal {
 public:
  SqliteJournal(std::unique_ptr<SqliteFile> file, std::vector<JournalEntry> recovered)
      : file_(std::move(file)),
        recovered_(std::move(recovered)),
        writer_([this](const std::vector<JournalEntry>& e) { return file_->Commit(e); },
                [this](const JournalEntry& state) {
                  const absl::Status done = file_->Compact(state);
                  if (!done.ok()) LogWarning("scheduler", "compaction: ", done.message());
                }) {}

  void Append(std::vector<JournalEntry> batch, std::function<void(absl::Status)> done) override {
    writer_.Append(std::move(batch), std::move(done));
  }
  void Compact(JournalEntry state) override { writer_.Compact(std::move(state)); }
  std::vector<JournalEntry> TakeRecovered() override { return std::move(recovered_); }

 private:
  const std::unique_ptr<SqliteFile> file_;
  std::vector<JournalEntry> recovered_;
  JournalWriter writer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> OpenSqliteJournal(const std::string& named,
                                                           const std::string& cluster) {
  PACELINE_ASSIGN_OR_RETURN(const std::string path, Resolve(named));
  struct stat info;
  const bool is_new = ::stat(path.c_str(), &info) != 0;
  if (is_new) {
    if (errno != ENOENT) return SystemError(path, "stat");
    PACELINE_RETURN_IF_ERROR(CreateFile(path, cluster));
  } else {
    PACELINE_RETURN_IF_ERROR(CheckHeader(path));
  }
  // It holds the keys of data connections.
  if (::chmod(path.c_str(), 0600) != 0) return SystemError(path, "chmod");
  auto file = std::make_unique<SqliteFile>(path);
  PACELINE_RETURN_IF_ERROR(file->Open());
  PACELINE_RETURN_IF_ERROR(file->CheckIdentity(cluster));
  PACELINE_RETURN_IF_ERROR(file->CheckIntegrity());
  PACELINE_ASSIGN_OR_RETURN(std::vector<JournalEntry> entries, file->Read());
  if (entries.empty() && !is_new) {
    LogInfo("scheduler", "journal ", path, " holds nothing yet: cluster \"", cluster, "\" is new");
  }
  return std::unique_ptr<Journal>(new SqliteJournal(std::move(file), std::move(entries)));
}

}  // namespace paceline
