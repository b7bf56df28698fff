#include "transport/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace paceline {
namespace {

// The example of docs/wire_format.md. Only the two checksums are not written out: they are tested
// against values of the xxHash specification below.
FrameHeader Example() {
  FrameHeader header;
  header.kind = FrameKind::kPushPull;
  header.reply = true;
  header.status = FrameStatus::kNotFinite;
  header.job = JobId(0x01020304);
  header.job_generation = JobGeneration(0x1112131415161718);
  header.group = GroupId(0x05060708);
  header.group_generation = GroupGeneration(0x2122232425262728);
  header.step = Step(0x3132333435363738);
  header.origin_step = Step(0x4142434445464748);
  header.ordinal = Ordinal(0x51525354);
  header.tensor = TensorId(0x61626364);
  header.chunk = ChunkIndex(0x71727374);
  header.version = {.lineage = 0x81828384, .count = 0x9192939495969798};
  header.sender = NodeId(0xa1a2a3a4);
  header.incarnation = Incarnation(0xb1b2b3b4b5b6b7b8);
  header.sequence = Sequence(0xc1c2c3c4c5c6c7c8);
  header.acknowledged = Sequence(0xd1d2d3d4d5d6d7d8);
  header.samples = Samples(0xe1e2e3e4e5e6e7e8);
  header.lineage = 0x4a4b4c4d;
  header.learning_rate = 0.5f;  // 0x3f000000
  header.dtype = DType::kBF16;
  header.codec = 7;
  header.total = 0x0a0b0c0d;
  header.offset = 0x00040000;
  header.length = 0x0003f1f2;
  header.checksum = 0xf1f2f3f4f5f6f7f8;
  header.placement = {.arena = 0x1a1b1c1d, .ticket = 0x2a2b2c2d, .offset = 0x3132333435363738};
  return header;
}

// clang-format off
constexpr uint8_t kGolden[184] = {
    'P', 'C', 'L', '1',  1,  6,  0xc0, 0x00,                          //   0 magic, version, kind, 192
    0x01, 0x00,  9,  4,  7,  0, 0, 0,                                 //   8 flags, status, dtype, codec
    0x04, 0x03, 0x02, 0x01,  0x08, 0x07, 0x06, 0x05,                  //  16 job, group
    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,                   //  24 job generation
    0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,                   //  32 group generation
    0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31,                   //  40 step
    0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41,                   //  48 origin step
    0x54, 0x53, 0x52, 0x51,  0x64, 0x63, 0x62, 0x61,                  //  56 ordinal, tensor
    0x74, 0x73, 0x72, 0x71,  0x84, 0x83, 0x82, 0x81,                  //  64 chunk, lineage
    0x98, 0x97, 0x96, 0x95, 0x94, 0x93, 0x92, 0x91,                   //  72 count of updates
    0xa4, 0xa3, 0xa2, 0xa1,  0x00, 0x00, 0x00, 0x3f,                  //  80 sender, learning rate
    0xb8, 0xb7, 0xb6, 0xb5, 0xb4, 0xb3, 0xb2, 0xb1,                   //  88 incarnation
    0xc8, 0xc7, 0xc6, 0xc5, 0xc4, 0xc3, 0xc2, 0xc1,                   //  96 sequence
    0xd8, 0xd7, 0xd6, 0xd5, 0xd4, 0xd3, 0xd2, 0xd1,                   // 104 acknowledged
    0xe8, 0xe7, 0xe6, 0xe5, 0xe4, 0xe3, 0xe2, 0xe1,                   // 112 samples
    0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0,                               // 120 total
    0x00, 0x00, 0x04, 0x00, 0, 0, 0, 0,                               // 128 offset
    0xf2, 0xf1, 0x03, 0x00,  0, 0, 0, 0,                              // 136 length, reserved
    0xf8, 0xf7, 0xf6, 0xf5, 0xf4, 0xf3, 0xf2, 0xf1,                   // 144 payload checksum
    0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31,                   // 152 place in the arena
    0x1d, 0x1c, 0x1b, 0x1a,  0x2d, 0x2c, 0x2b, 0x2a,                  // 160 arena, ticket
    0x4d, 0x4c, 0x4b, 0x4a,  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,      // 168 adopted, reserved
};
// clang-format on

// Makes the header checksum fit again after bytes were changed on purpose.
void Reseal(EncodedHeader& bytes) {
  const uint64_t sum = Checksum(std::span(bytes).first(184));
  for (size_t i = 0; i < 8; ++i) bytes[184 + i] = static_cast<std::byte>(sum >> (8 * i));
}

EncodedHeader Encoded(const FrameHeader& header) {
  EncodedHeader out;
  EncodeHeader(header, out);
  return out;
}

std::string ErrorAfterPutting(size_t position, std::vector<uint8_t> bytes, FrameHeader base) {
  EncodedHeader encoded = Encoded(base);
  std::memcpy(encoded.data() + position, bytes.data(), bytes.size());
  Reseal(encoded);
  const auto decoded = DecodeHeader(encoded);
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(decoded.status().message());
}

TEST(Frame, EveryByteOfTheHeaderIsWhereTheFormatSays) {
  const EncodedHeader encoded = Encoded(Example());
  for (size_t i = 0; i < sizeof(kGolden); ++i) {
    EXPECT_EQ(std::to_integer<int>(encoded[i]), int{kGolden[i]}) << "byte " << i;
  }
  uint64_t checksum = 0;
  for (size_t i = 0; i < 8; ++i) checksum |= std::to_integer<uint64_t>(encoded[184 + i]) << (8 * i);
  EXPECT_EQ(checksum, Checksum(std::as_bytes(std::span(kGolden))));
}

TEST(Frame, ChecksumIsXxh3OfSixtyFourBits) {
  EXPECT_EQ(Checksum({}), 0x2d06800538d394c2u);  // the specification's value for no bytes, seed 0
}

TEST(Frame, DecodeGivesBackWhatWasEncoded) {
  const auto decoded = DecodeHeader(Encoded(Example()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Example());
}

TEST(Frame, EveryFlippedBitIsFound) {
  const EncodedHeader good = Encoded(Example());
  for (size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    EncodedHeader bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_EQ(DecodeHeader(bad).status().code(), absl::StatusCode::kInvalidArgument)
        << "bit " << bit;
  }
}

TEST(Frame, FewerBytesThanAHeaderAreAnError) {
  const EncodedHeader good = Encoded(Example());
  for (size_t n = 0; n < kFrameHeaderBytes; ++n) {
    EXPECT_FALSE(DecodeHeader(std::span(good).first(n)).ok()) << n;
  }
}

TEST(Frame, ErrorsNameFieldAndValue) {
  const FrameHeader empty;
  EXPECT_NE(ErrorAfterPutting(0, {'G', 'E', 'T', ' '}, empty).find("magic is 0x20544547"),
            std::string::npos);
  EXPECT_NE(ErrorAfterPutting(4, {9}, empty).find("wire version is 9"), std::string::npos);
  EXPECT_NE(ErrorAfterPutting(6, {0, 1}, empty).find("header length is 256"), std::string::npos);
  EXPECT_NE(ErrorAfterPutting(5, {0}, empty).find("unknown kind 0"), std::string::npos);
  EXPECT_NE(ErrorAfterPutting(5, {22}, empty).find("unknown kind 22"), std::string::npos);
  EXPECT_NE(ErrorAfterPutting(8, {2}, empty).find("flags are 0x2"), std::string::npos);
  EXPECT_NE(ErrorAfterPutting(10, {200}, empty).find("unknown status 200"), std::string::npos);
  EXPECT_NE(ErrorAfterPutting(11, {0}, empty).find("unknown dtype 0"), std::string::npos);
  EXPECT_NE(ErrorAfterPutting(14, {1}, empty).find("reserved byte 14"), std::string::npos);
  EXPECT_NE(ErrorAfterPutting(143, {1}, empty).find("reserved byte 143"), std::string::npos);
  EXPECT_NE(ErrorAfterPutting(152, {5}, empty).find("place 5 of ticket 0 in no arena"),
            std::string::npos);
  EXPECT_NE(ErrorAfterPutting(164, {5}, empty).find("place 0 of ticket 5 in no arena"),
            std::string::npos);
  EXPECT_NE(ErrorAfterPutting(183, {1}, empty).find("reserved byte 183"), std::string::npos);
}

TEST(Frame, ExtentsThatDoNotFitAreAnErrorWithoutOverflow) {
  FrameHeader header;
  header.total = 100;
  header.length = 50;
  header.offset = 50;
  EXPECT_TRUE(DecodeHeader(Encoded(header)).ok());

  header.offset = 51;
  EXPECT_FALSE(DecodeHeader(Encoded(header)).ok());
  header.offset = std::numeric_limits<uint64_t>::max() - 10;  // + length wraps to 39
  EXPECT_FALSE(DecodeHeader(Encoded(header)).ok());

  header = {};
  header.total = kMaxMessageBytes;
  header.length = kMaxPieceBytes;
  EXPECT_TRUE(DecodeHeader(Encoded(header)).ok());
  header.length = kMaxPieceBytes + 1;
  EXPECT_FALSE(DecodeHeader(Encoded(header)).ok());
  header.length = std::numeric_limits<uint32_t>::max();
  EXPECT_FALSE(DecodeHeader(Encoded(header)).ok());
  header.length = 1;
  header.total = kMaxMessageBytes + 1;
  EXPECT_FALSE(DecodeHeader(Encoded(header)).ok());
  header.total = std::numeric_limits<uint64_t>::max();
  EXPECT_FALSE(DecodeHeader(Encoded(header)).ok());

  header = {};
  header.total = 8;  // an empty piece would never finish its message
  EXPECT_FALSE(DecodeHeader(Encoded(header)).ok());
}

TEST(Frame, EveryKindAndStatusHasAName) {
  for (int kind = 1; kind <= 19; ++kind) EXPECT_NE(Name(static_cast<FrameKind>(kind)), "?");
  for (int status = 0; status <= 14; ++status) {
    EXPECT_NE(Name(static_cast<FrameStatus>(status)), "?");
  }
}

}  // namespace
}  // namespace paceline
