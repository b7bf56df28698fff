#include "scheduler/journal.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

namespace paceline {
namespace {

namespace fs = std::filesystem;

class SqliteJournalTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "paceline-journal-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ / "journal";
  }
  void TearDown() override { fs::remove_all(directory_); }

  absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& cluster = "c") {
    return OpenSqliteJournal(path_.string(), cluster);
  }
  // Waits until the batch is durable.
  static absl::Status Append(Journal& journal, std::vector<JournalEntry> batch) {
    std::promise<absl::Status> done;
    journal.Append(std::move(batch), [&](absl::Status s) { done.set_value(std::move(s)); });
    return done.get_future().get();
  }
  // Runs SQL on the closed file, as damage would.
  void Execute(const char* sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    sqlite3_close(db);
  }

  fs::path directory_;
  fs::path path_;
};

TEST_F(SqliteJournalTest, ReturnsWhatWasAppendedInOrder) {
  const std::string binary("\0\xFF binary", 9);
  {
    auto journal = Open();
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_TRUE((*journal)->TakeRecovered().empty());
    ASSERT_TRUE(Append(**journal, {{1, "one"}, {2, binary}}).ok());
    ASSERT_TRUE(Append(**journal, {{3, ""}}).ok());
  }
  auto journal = Open();
  ASSERT_TRUE(journal.ok()) << journal.status();
  const std::vector<JournalEntry> entries = (*journal)->TakeRecovered();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].bytes, "one");
  EXPECT_EQ(entries[1].bytes, binary);
  EXPECT_EQ(entries[2].index, 3u);
  EXPECT_EQ(entries[2].bytes, "");
  // And goes on from there.
  EXPECT_TRUE(Append(**journal, {{4, "four"}}).ok());
}

TEST_F(SqliteJournalTest, TheFileIsTheOwnersOnly) {
  auto journal = Open();
  ASSERT_TRUE(journal.ok());
  ASSERT_TRUE(Append(**journal, {{1, "secret"}}).ok());
  for (const auto& file : fs::directory_iterator(directory_)) {
    struct stat info;
    ASSERT_EQ(stat(file.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << file.path();
  }
}

TEST_F(SqliteJournalTest, CompactionKeepsTheStateAndWhatFollows) {
  {
    auto journal = Open();
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE(Append(**journal, {{1, "a"}, {2, "b"}, {3, "c"}}).ok());
    (*journal)->Compact({2, "state of two"});
    ASSERT_TRUE(Append(**journal, {{4, "d"}}).ok());
  }
  auto journal = Open();
  ASSERT_TRUE(journal.ok());
  const std::vector<JournalEntry> entries = (*journal)->TakeRecovered();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].index, 2u);
  EXPECT_EQ(entries[0].bytes, "state of two");
  EXPECT_EQ(entries[1].bytes, "c");
  EXPECT_EQ(entries[2].bytes, "d");
}

TEST_F(SqliteJournalTest, AnAppendIsAllOrNothing) {
  {
    auto journal = Open();
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE(Append(**journal, {{1, "a"}}).ok());
    // The second entry of the batch has an index that is taken.
    EXPECT_FALSE(Append(**journal, {{2, "b"}, {1, "again"}}).ok());
    // From then on nothing is taken: what follows would leave a gap.
    EXPECT_FALSE(Append(**journal, {{2, "b"}}).ok());
  }
  auto journal = Open();
  ASSERT_TRUE(journal.ok());
  EXPECT_EQ((*journal)->TakeRecovered().size(), 1u);
}

// What a copy of the file has, or a scheduler after kill -9 and the loss of whatever lay beside it.
TEST_F(SqliteJournalTest, WhatIsAnsweredIsInTheFileItself) {
  auto journal = Open();
  ASSERT_TRUE(journal.ok());
  for (uint64_t index = 1; index <= 3; ++index) {
    ASSERT_TRUE(Append(**journal, {{index, "entry"}}).ok());
  }
  const std::string copy = path_.string() + ".copy";
  fs::copy_file(path_, copy);
  auto copied = OpenSqliteJournal(copy, "c");
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ((*copied)->TakeRecovered().size(), 3u);
}

TEST_F(SqliteJournalTest, RefusesASecondScheduler) {
  auto first = Open();
  ASSERT_TRUE(first.ok());
  const auto second = Open();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("in use by another scheduler"), std::string::npos)
      << second.status();
}

TEST_F(SqliteJournalTest, RefusesAnotherClustersJournal) {
  { ASSERT_TRUE(Open("blue").ok()); }
  const auto opened = Open("green");
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(opened.status().message().find("is of cluster \"blue\", not \"green\""),
            std::string::npos)
      << opened.status();
}

TEST_F(SqliteJournalTest, RefusesANewerFormat) {
  { ASSERT_TRUE(Open().ok()); }
  Execute("PRAGMA user_version=2");
  const auto opened = Open();
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(opened.status().message().find("has format 2, written by a newer scheduler"),
            std::string::npos)
      << opened.status();
}

TEST_F(SqliteJournalTest, RefusesAFileThatIsNoJournalAndLeavesItAlone) {
  for (const std::string& content : {std::string(), std::string(5000, 'x'), std::string("x")}) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << content;
    const auto opened = Open();
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kDataLoss) << opened.status();
    EXPECT_NE(opened.status().message().find("is damaged"), std::string::npos);
    EXPECT_NE(opened.status().message().find("restore it from a copy"), std::string::npos);
    EXPECT_EQ(fs::file_size(path_), content.size());
  }
}

TEST_F(SqliteJournalTest, SeesAChangedEntryAndAMissingOne) {
  {
    auto journal = Open();
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE(Append(**journal, {{1, "one"}, {2, "two"}, {3, "three"}}).ok());
  }
  Execute("UPDATE entries SET bytes=x'00' WHERE position=2");
  auto changed = Open();
  EXPECT_EQ(changed.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(changed.status().message().find("entry 2 does not match its checksum"),
            std::string::npos)
      << changed.status();
  Execute("DELETE FROM entries WHERE position=2");
  const auto missing = Open();
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(missing.status().message().find("entry 3 follows 1"), std::string::npos)
      << missing.status();
}

TEST_F(SqliteJournalTest, SeesATruncatedFile) {
  {
    auto journal = Open();
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE(Append(**journal, {{1, std::string(100'000, 'a')}}).ok());
  }
  fs::resize_file(path_, fs::file_size(path_) / 2);
  const auto opened = Open();
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kDataLoss) << opened.status();
}

TEST_F(SqliteJournalTest, ItsDirectoryMayBeALinkAndItsFileNot) {
  const fs::path link = directory_ / "link";
  fs::create_directory(directory_ / "real");
  fs::create_directory_symlink(directory_ / "real", link);
  path_ = link / "journal";
  {
    auto journal = Open();
    ASSERT_TRUE(journal.ok()) << journal.status();
    ASSERT_TRUE(Append(**journal, {{1, "one"}}).ok());
  }
  path_ = directory_ / "real" / "journal";
  {
    auto journal = Open();
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_EQ((*journal)->TakeRecovered().size(), 1u);
  }
  fs::create_symlink(path_, directory_ / "other");
  path_ = directory_ / "other";
  EXPECT_FALSE(Open().ok());
}

TEST_F(SqliteJournalTest, ANameThatIsMissingIsDamage) {
  ASSERT_TRUE(Open().ok());
  Execute("DROP TABLE cluster; CREATE TABLE cluster(name TEXT); INSERT INTO cluster VALUES(NULL)");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kDataLoss) << Open().status();
}

TEST_F(SqliteJournalTest, NamesADirectoryThatIsMissing) {
  path_ = directory_ / "missing" / "journal";
  const auto opened = Open();
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(opened.status().message().find("check that the directory exists"), std::string::npos);
}

TEST(InMemoryJournalTest, TheNextOneRecoversWhatOneAppended) {
  const auto store = InMemoryJournal::MakeStore();
  {
    InMemoryJournal journal(store);
    std::promise<absl::Status> done;
    journal.Append({{1, "a"}}, [&](absl::Status s) { done.set_value(std::move(s)); });
    EXPECT_TRUE(done.get_future().get().ok());
  }
  InMemoryJournal journal(store);
  const std::vector<JournalEntry> entries = journal.TakeRecovered();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].bytes, "a");
}

}  // namespace
}  // namespace paceline
