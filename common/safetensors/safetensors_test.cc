#include "common/safetensors/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/safetensors/header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paceline {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "paceline-safetensors-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string Path(const std::string& name) const { return (directory_ / name).string(); }

  std::string WriteBytes(const std::string& bytes) const {
    const std::string path = Path("given.safetensors");
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }
  // A file of this header and so many bytes of data.
  std::string WriteFile(const std::string& header, size_t data_bytes) const {
    std::string bytes(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    return WriteBytes(bytes + header + std::string(data_bytes, 'x'));
  }
  absl::Status OpenStatus(const std::string& header, size_t data_bytes) const {
    return SafetensorsReader::Open(WriteFile(header, data_bytes)).status();
  }
  static std::string Contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path directory_;
};

template <typename T>
std::span<const std::byte> BytesOf(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST_F(SafetensorsTest, WritesTheBytesThatTheFormatSays) {
  const std::vector<float> w = {1.0f, -2.0f};
  const std::vector<uint8_t> a = {7};
  const std::vector<double> d = {0.5};
  const SafetensorsView views[] = {{"a", DType::kU8, {1}, BytesOf(a)},
                                   {"w", DType::kF32, {2, 1}, BytesOf(w)},
                                   {"d", DType::kF64, {}, BytesOf(d)}};
  ASSERT_TRUE(WriteSafetensors(Path("f"), {{"k", "v"}}, views).ok());

  // Worked out by hand from the format: eight-byte elements first, then four, then one.
  std::string header = R"({"__metadata__":{"k":"v"},)"
                       R"("d":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                       R"("w":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},)"
                       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[16,17]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string want = {static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  want += header;
  want +=
      std::string("\0\0\0\0\0\0\xe0\x3f", 8) + std::string("\0\0\x80\x3f\0\0\0\xc0", 8) + "\x07";
  EXPECT_EQ(Contents(Path("f")), want);
}

TEST_F(SafetensorsTest, ReadsBackWhatWasWritten) {
  std::vector<float> w(1000);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i) / 3;
  const std::vector<int64_t> steps = {-1, int64_t{1} << 62};
  const SafetensorsView views[] = {{"layer.weight", DType::kF32, {10, 100}, BytesOf(w)},
                                   {"empty", DType::kF32, {0, 5}, {}},
                                   {"steps \"\xc3\xa9", DType::kI64, {2}, BytesOf(steps)}};
  ASSERT_TRUE(WriteSafetensors(Path("f"), {{"job", "a\nb"}}, views).ok());

  auto reader = SafetensorsReader::Open(Path("f"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->metadata().at("job"), "a\nb");
  ASSERT_EQ(reader->tensors().size(), 3u);
  EXPECT_EQ(reader->ReadFloats("layer.weight", {10, 100}).value(), w);
  EXPECT_TRUE(reader->ReadFloats("empty", {0, 5}).value().empty());
  const SafetensorsEntry* entry = reader->Find("steps \"\xc3\xa9");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->elements(), 2u);
  int64_t second = 0;
  ASSERT_TRUE(reader->Read(*entry, 8, std::as_writable_bytes(std::span(&second, 1))).ok());
  EXPECT_EQ(second, int64_t{1} << 62);
  EXPECT_EQ(reader->Read(*entry, 9, std::as_writable_bytes(std::span(&second, 1))).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(reader->ReadFloats("nothing", {1}).status().code(), absl::StatusCode::kNotFound);
  const auto wrong = reader->ReadFloats("layer.weight", {100, 10}).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("f32[10,100], expected f32[100,10]"));
  for (const SafetensorsEntry& e : reader->tensors()) EXPECT_EQ(e.offset % SizeOf(e.dtype), 0u);
}

TEST_F(SafetensorsTest, AFileWithoutTensorsIsAFile) {
  ASSERT_TRUE(WriteSafetensors(Path("f"), {}, {}).ok());
  auto reader = SafetensorsReader::Open(Path("f"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(reader->tensors().empty());
}

TEST_F(SafetensorsTest, EveryTruncationAndAnExtraByteAreErrors) {
  const std::vector<float> w = {1, 2, 3, 4, 5};
  const SafetensorsView view{"w", DType::kF32, {5}, BytesOf(w)};
  ASSERT_TRUE(WriteSafetensors(Path("f"), {{"k", "v"}}, {&view, 1}).ok());
  const std::string whole = Contents(Path("f"));
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto status = SafetensorsReader::Open(WriteBytes(whole.substr(0, length))).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << length << ": " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr("given.safetensors: "));
  }
  EXPECT_EQ(SafetensorsReader::Open(WriteBytes(whole + "x")).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_TRUE(SafetensorsReader::Open(WriteBytes(whole)).ok());
}

TEST_F(SafetensorsTest, NoChangedByteCrashesTheReader) {
  const std::vector<float> w = {1, 2};
  const SafetensorsView view{"w", DType::kF32, {2}, BytesOf(w)};
  ASSERT_TRUE(WriteSafetensors(Path("f"), {{"k", "v"}}, {&view, 1}).ok());
  const std::string whole = Contents(Path("f"));
  for (size_t at = 0; at < whole.size() - 8; ++at) {
    for (char change : {'\x01', '\x10', '\x7f', '\xff'}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      auto reader = SafetensorsReader::Open(WriteBytes(bytes));
      if (!reader.ok()) continue;  // a letter of a name or of the metadata may change
      for (const SafetensorsEntry& entry : reader->tensors()) {
        std::vector<std::byte> out(entry.bytes);
        EXPECT_TRUE(reader->Read(entry, 0, out).ok());
      }
    }
  }
}

TEST_F(SafetensorsTest, ABadHeaderIsAnErrorThatSaysWhatIsWrong) {
  struct Case {
    const char* header;
    size_t data_bytes;
    const char* message;
  };
  const Case cases[] = {
      {"", 0, "does not begin"},
      {"[]", 0, "does not begin"},
      {"{", 0, "not JSON"},
      {"{} {}", 0, "not JSON"},
      {"{\"\xff\":1}", 0, "not JSON"},
      {R"({"w":1})", 0, "'w': is a number"},
      {R"({"w":{}})", 0, "'w': dtype, shape and data_offsets must all be there"},
      {R"({"w":{"dtype":"F32","shape":[1]}})", 4, "must all be there"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "unknown field 'x'"},
      {R"({"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "twice"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "'w' is there twice"},
      {R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "a negative number"},
      {R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "a fraction"},
      {R"({"w":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "an array"},
      {R"({"w":{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}})", 4, "an object"},
      {R"({"w":{"dtype":"F32","shape":null,"data_offsets":[0,4]}})", 4, "null"},
      {R"({"w":{"dtype":"F32","shape":"1","data_offsets":[0,4]}})", 4, "a text"},
      {R"({"w":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", 4, "an array"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "two numbers"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "end before they begin"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8, "the shape needs 4"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "after a hole"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "only 3 bytes"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "but 5 bytes"},
      {R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "'w': starts at 4, within another"},
      {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4, "2^48"},
      {R"({"w":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4, "2^48"},
      {R"({"__metadata__":{"k":1}})", 0, "metadata 'k' is a number"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "'k' is there twice"},
      {R"({"":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0, "empty name"},
  };
  for (const Case& c : cases) {
    const auto status = OpenStatus(c.header, c.data_bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.header << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.header;
  }
  EXPECT_EQ(OpenStatus(R"({"w":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}})", 2).code(),
            absl::StatusCode::kUnimplemented);
  std::string dimensions = "1";
  for (int i = 0; i < 32; ++i) dimensions += ",1";
  EXPECT_THAT(std::string(OpenStatus(R"({"w":{"dtype":"F32","shape":[)" + dimensions +
                                         R"(],"data_offsets":[0,4]}})",
                                     4)
                              .message()),
              HasSubstr("more than 32"));
}

TEST_F(SafetensorsTest, TakesHeadersInAnyOrder) {
  auto reader = SafetensorsReader::Open(
      WriteFile(R"({"b":{"shape":[1],"data_offsets":[4,8],"dtype":"F32"},)"
                R"("a":{"data_offsets":[0,4],"dtype":"I32","shape":[1]}}   )",
                8));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->tensors()[0].name, "a");
  EXPECT_EQ(reader->Find("b")->dtype, DType::kF32);
}

TEST_F(SafetensorsTest, ALengthBeyondTheLimitIsRefusedBeforeItIsRead) {
  std::string bytes(8, '\xff');
  EXPECT_EQ(SafetensorsReader::Open(WriteBytes(bytes + "{}")).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(SafetensorsReader::Open(Path("absent")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsReader::Open(directory_.string()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, WhatCannotBeWrittenLeavesTheOldFileAndNothingElse) {
  const std::vector<float> w = {1, 2};
  const SafetensorsView good{"w", DType::kF32, {2}, BytesOf(w)};
  ASSERT_TRUE(WriteSafetensors(Path("f"), {}, {&good, 1}).ok());
  const std::string before = Contents(Path("f"));

  const std::vector<std::vector<SafetensorsView>> bad = {
      {{"", DType::kF32, {2}, BytesOf(w)}},
      {{"__metadata__", DType::kF32, {2}, BytesOf(w)}},
      {{"w", DType::kF32, {3}, BytesOf(w)}},
      {{"\xff", DType::kF32, {2}, BytesOf(w)}},
      {good, good},
  };
  for (const auto& views : bad) {
    EXPECT_EQ(WriteSafetensors(Path("f"), {}, views).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(WriteSafetensors(Path("f"), {{"k", "\xff"}}, {&good, 1}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WriteSafetensors(Path("no/such/f"), {}, {&good, 1}).code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(fs::create_directory(directory_ / "directory"));
  EXPECT_FALSE(WriteSafetensors(Path("directory"), {}, {&good, 1}).ok());

  EXPECT_EQ(Contents(Path("f")), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 2);
}

}  // namespace
}  // namespace paceline
