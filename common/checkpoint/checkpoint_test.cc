#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/manifest.h"
#include "common/safetensors/safetensors.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "checkpoint-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    base_ = name;
  }
  void TearDown() override { fs::remove_all(base_); }

  // A tensor of three chunks of 1024 floats but the last, in two parts.
  std::string Write(const std::string& name, uint64_t number) {
    const std::string path = absl::StrCat(base_, "/", name);
    fs::create_directories(path);
    CheckpointManifest m;
    m.run = "0123abcd";
    m.number = number;
    m.spec.name = "job";
    m.spec.workers = 3;
    m.spec.groups = *ParseGroupSpec("2,1");
    m.spec.optimizer = {"adam", {{"learning_rate", 0.001}}};
    m.spec.chunk_bytes = 4096;
    m.spec.sample_count = 100;
    m.spec.checkpoint_every_s = 600;
    m.lineage = 2;
    m.updates = 17;
    m.applied = Samples(340);
    m.steps = {{GroupId(0), Step(9)}, {GroupId(1), Step(8)}};
    m.samples = {{{Epoch(3), 10, 20}}, Epoch(4), 60};
    m.tensors = {{"a/b", {2500}, DType::kF32, false}};
    m.unix_time_ms = 1'700'000'000'000 + static_cast<int64_t>(number);
    WritePart(path, "s0", {{0, 1024}, {2, 452}}, &m);
    WritePart(path, "s1", {{1, 1024}}, &m);
    EXPECT_TRUE(WriteManifest(path, m).ok());
    written_ = m;
    return path;
  }

  void WritePart(const std::string& path, const std::string& server,
                 const std::map<uint32_t, size_t>& chunks, CheckpointManifest* m) {
    std::map<std::string, std::string> metadata;
    std::vector<std::vector<float>> arrays;
    std::vector<SafetensorsView> views;
    for (const auto& [index, size] : chunks) {
      const std::string chunk = ChunkName("a/b", ChunkIndex(index));
      metadata[chunk] = ToText({{2, 17}, 17, Samples(340)});
      arrays.emplace_back(size, static_cast<float>(index));
      views.push_back(
          {chunk + "/weights", DType::kF32, {size}, std::as_bytes(std::span(arrays.back()))});
    }
    const std::string file = PartFile(server);
    ASSERT_TRUE(WriteSafetensors(absl::StrCat(path, "/", file), metadata, views).ok());
    const auto part = DescribePart(path, file);
    ASSERT_TRUE(part.ok()) << part.status();
    m->parts.push_back(*part);
  }

  // One bit of a file is another.
  static void Flip(const std::string& file, uint64_t offset) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(offset));
    const char c = static_cast<char>(f.get() ^ 1);
    f.seekp(static_cast<std::streamoff>(offset));
    f.put(c);
  }

  static std::string Fault(const absl::Status& status) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  }

  std::string base_;
  CheckpointManifest written_;
};

TEST_F(CheckpointTest, AManifestComesBackAsItWas) {
  const std::string path = Write("one", 1);
  const auto read = ReadManifest(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == written_);
  EXPECT_TRUE(VerifyCheckpoint(path, *read).ok());
}

// XXH3 of nothing with seed 0, from the reference implementation's documentation.
TEST_F(CheckpointTest, PartsAreDescribedByXxh3) {
  std::ofstream(base_ + "/empty").flush();
  const auto part = DescribePart(base_, "empty");
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->checksum, 0x2D06800538D394C2u);
  EXPECT_EQ(part->bytes, Bytes(0));
}

TEST_F(CheckpointTest, CountsOfAChunkAreText) {
  const ChunkCounts counts{{3, 1u << 30}, 7, Samples(9)};
  EXPECT_EQ(ToText(counts), "lineage=3 version=1073741824 updates=7 samples=9");
  EXPECT_EQ(*ParseChunkCounts(ToText(counts)), counts);
  for (const char* bad : {"", "lineage=3", "lineage=3 version=x updates=7 samples=9",
                          "lineage=4294967296 version=1 updates=7 samples=9",
                          "version=1 lineage=3 updates=7 samples=9"}) {
    EXPECT_FALSE(ParseChunkCounts(bad).ok()) << bad;
  }
}

TEST_F(CheckpointTest, EveryDamageIsFound) {
  const std::string path = Write("one", 1);
  const std::string part = path + "/part-s0.safetensors";
  const uint64_t size = fs::file_size(part);
  const CheckpointManifest m = *ReadManifest(path);
  for (uint64_t offset = 0; offset < size; offset += 97) {
    Flip(part, offset);
    EXPECT_FALSE(VerifyCheckpoint(path, m).ok()) << offset;
    Flip(part, offset);
  }
  ASSERT_TRUE(VerifyCheckpoint(path, m).ok());
  const std::string manifest = path + "/manifest.json";
  const uint64_t manifest_size = fs::file_size(manifest);
  int refused = 0;
  for (uint64_t offset = 0; offset < manifest_size; offset += 13) {
    Flip(manifest, offset);
    const auto read = ReadManifest(path);
    // A flipped blank between tokens may leave the same JSON; nothing else may.
    if (read.ok()) {
      EXPECT_TRUE(*read == m) << offset;
    } else {
      ++refused;
    }
    Flip(manifest, offset);
  }
  EXPECT_GT(refused, 20);
}

TEST_F(CheckpointTest, AManifestThatWasCutIsNone) {
  const std::string path = Write("one", 1);
  const std::string manifest = path + "/manifest.json";
  for (uint64_t size = fs::file_size(manifest) - 2; size > 0; size = size * 2 / 3) {
    fs::resize_file(manifest, size);
    EXPECT_TRUE(absl::IsDataLoss(ReadManifest(path).status())) << size;
  }
}

// A NUL ends the text for the JSON library, whatever comes after it.
TEST_F(CheckpointTest, AManifestHoldsNoNul) {
  const std::string path = Write("one", 1);
  std::ofstream(path + "/manifest.json", std::ios::app | std::ios::binary) << '\0';
  EXPECT_NE(Fault(ReadManifest(path).status()).find("NUL"), std::string::npos);
}

TEST_F(CheckpointTest, AMissingOrShortPartIsNamed) {
  const std::string path = Write("one", 1);
  const CheckpointManifest m = *ReadManifest(path);
  fs::resize_file(path + "/part-s1.safetensors", 100);
  EXPECT_NE(Fault(VerifyCheckpoint(path, m)).find("part-s1.safetensors: 100 bytes"),
            std::string::npos);
  fs::remove(path + "/part-s1.safetensors");
  EXPECT_TRUE(absl::IsNotFound(VerifyCheckpoint(path, m)));
  // Whole files, but a chunk is missing.
  CheckpointManifest less = m;
  less.parts.pop_back();
  EXPECT_NE(Fault(VerifyCheckpoint(path, less)).find("chunk a/b/1 is in no part"),
            std::string::npos);
}

TEST_F(CheckpointTest, TheNewestThatIsWholeIsTaken) {
  const std::string one = Write("one", 1);
  const std::string two = Write("two", 2);
  const std::string three = Write("three", 3);
  fs::create_directories(base_ + "/unrelated");
  fs::remove(three + "/manifest.json");  // cut short
  auto listed = ListCheckpoints(base_);
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->size(), 3u);
  EXPECT_EQ((*listed)[0].path, one);
  EXPECT_EQ((*listed)[1].path, two);
  EXPECT_TRUE(absl::IsNotFound((*listed)[2].manifest.status()));
  EXPECT_EQ(NewestCheckpoint(base_)->path, two);
  EXPECT_EQ(NewestCheckpoint(one + "/")->path, one);
  Flip(two + "/part-s0.safetensors", 4000);
  const absl::StatusOr<FoundCheckpoint> older = NewestCheckpoint(base_);
  EXPECT_EQ(older->path, one);
  ASSERT_EQ(older->passed_over.size(), 2u);
  EXPECT_NE(older->passed_over.back().find("part-s0.safetensors: its checksum"), std::string::npos);
  fs::remove_all(one);
  EXPECT_NE(NewestCheckpoint(base_).status().message().find("part-s0.safetensors: its checksum"),
            std::string::npos);
  EXPECT_TRUE(absl::IsNotFound(NewestCheckpoint(base_ + "/nothing").status()));
}

// The clocks of two servers that write manifests in turn are an hour apart.
TEST_F(CheckpointTest, WithinARunTheNumberTellsTheAgeAndNotTheClock) {
  const std::string one = Write("one", 1);
  CheckpointManifest ahead = written_;
  ahead.unix_time_ms += 3'600'000;
  ASSERT_TRUE(WriteManifest(one, ahead).ok());
  const std::string two = Write("two", 2);
  EXPECT_EQ(NewestCheckpoint(base_)->path, two);
  // A run that began later, by the clock, is newer whatever its numbers.
  const std::string three = Write("three", 1);
  CheckpointManifest other = written_;
  other.run = "00000001";
  other.unix_time_ms += 7'200'000;
  ASSERT_TRUE(WriteManifest(three, other).ok());
  EXPECT_EQ(NewestCheckpoint(base_)->path, three);
}

// As when servers do not share the directory: each would be written without the other's part.
TEST_F(CheckpointTest, AManifestIsNotWrittenBesideMissingParts) {
  const std::string path = Write("one", 1);
  fs::remove(path + "/manifest.json");
  fs::remove(path + "/part-s1.safetensors");
  const absl::Status status = WriteManifest(path, written_);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_NE(status.message().find("part-s1.safetensors"), std::string::npos) << status;
  EXPECT_NE(status.message().find("must share the directory"), std::string::npos) << status;
  EXPECT_FALSE(fs::exists(path + "/manifest.json"));
}

TEST_F(CheckpointTest, DirectoriesAreMadeWithThoseAbove) {
  EXPECT_TRUE(MakeCheckpointDirectory(base_ + "/a/b/c").ok());
  EXPECT_TRUE(fs::is_directory(base_ + "/a/b/c"));
  EXPECT_TRUE(MakeCheckpointDirectory(base_ + "/a/b/c").ok());
  std::ofstream(base_ + "/file").flush();
  const absl::Status status = MakeCheckpointDirectory(base_ + "/file/c");
  EXPECT_NE(status.message().find(base_ + "/file/c"), std::string::npos) << status;
}

TEST_F(CheckpointTest, RemovingLeavesWhatIsNotOurs) {
  const std::string one = Write("one", 1);
  const std::string two = Write("two", 2);
  std::ofstream(two + "/notes.txt") << "mine";
  EXPECT_TRUE(RemoveCheckpoint(one).ok());
  EXPECT_TRUE(RemoveCheckpoint(two).ok());
  EXPECT_TRUE(RemoveCheckpoint(base_ + "/never-was").ok());
  EXPECT_FALSE(fs::exists(one));
  EXPECT_TRUE(fs::exists(two + "/notes.txt"));
  EXPECT_FALSE(fs::exists(two + "/manifest.json"));
  EXPECT_FALSE(fs::exists(two + "/part-s0.safetensors"));
}

}  // namespace
}  // namespace paceline
