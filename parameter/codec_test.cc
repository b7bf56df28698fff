#include "parameter/codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace paceline {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<const Codec> Make(const NamedSpec& spec) {
  auto codec = Codec::Create(spec);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return codec.ok() ? *std::move(codec) : nullptr;
}

std::vector<float> Normal(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// What the receiver has of one push; checks the size of the payload.
std::vector<float> Carry(const Codec& codec, const std::vector<float>& values,
                         std::span<float> residual) {
  std::vector<std::byte> payload(codec.EncodedBytes(values.size()));
  EXPECT_TRUE(codec.Encode(values, residual, payload).ok());
  std::vector<float> received(values.size(), 77);
  EXPECT_TRUE(codec.Decode(payload, received).ok());
  return received;
}

const NamedSpec kAll[] = {{"fp16", {}},
                          {"bf16", {}},
                          {"int8", {}},
                          {"2bit", {{"threshold", 0.75}}},
                          {"topk", {{"ratio", 0.1}}}};

TEST(CodecTest, BytesByTheFormula) {
  EXPECT_EQ(Make({"fp16", {}})->EncodedBytes(1001), 2002u);
  EXPECT_EQ(Make({"bf16", {}})->EncodedBytes(1001), 2002u);
  EXPECT_EQ(Make({"int8", {}})->EncodedBytes(1001), 1001u + 4 * 4);
  EXPECT_EQ(Make({"2bit", {}})->EncodedBytes(1001), 251u);
  // k = 100 of 1001; a bitmap of 126 bytes is shorter than 100 indices.
  EXPECT_EQ(Make({"topk", {}})->EncodedBytes(1001), 400u + 126);
  EXPECT_EQ(Make({"topk", {{"ratio", 0.01}}})->EncodedBytes(1000), 40u + 40);
  EXPECT_EQ(Make({"topk", {{"ratio", 0.01}}})->EncodedBytes(1), 4u + 1);  // at least one
  EXPECT_EQ(Make({"topk", {{"ratio", 1}}})->EncodedBytes(8), 32u + 1);
  for (const NamedSpec& spec : kAll) EXPECT_EQ(Make(spec)->EncodedBytes(0), 0u) << spec.name;
}

TEST(CodecTest, TwoBitSendsAFifthOfItsThresholdLater) {
  const auto codec = Make({"2bit", {{"threshold", 0.5}}});
  const std::vector<float> gradient(10, 0.2f);
  std::vector<float> residual(10);
  EXPECT_EQ(Carry(*codec, gradient, residual), std::vector<float>(10, 0));
  EXPECT_EQ(Carry(*codec, gradient, residual), std::vector<float>(10, 0));
  EXPECT_EQ(Carry(*codec, gradient, residual), std::vector<float>(10, 0.5f));
  EXPECT_EQ(residual, std::vector<float>(10, 0.2f + 0.2f + 0.2f - 0.5f));
}

// A pull codes new weights - what the group holds: the error is in the next difference by itself.
TEST(CodecTest, TwoBitOnAPullCatchesUp) {
  const auto codec = Make({"2bit", {{"threshold", 0.5}}});
  float weight = 0, held = 0;
  std::vector<float> results;
  for (int round = 0; round < 3; ++round) {
    weight += 0.2f;
    const float moved = Carry(*codec, {weight - held}, {})[0];
    held += moved;
    results.push_back(moved);
  }
  EXPECT_EQ(results, (std::vector<float>{0, 0, 0.5f}));
}

// The rule of the original, written as it is there: one element at a time.
TEST(CodecTest, TwoBitIsMxnetsArithmetic) {
  const float threshold = 0.75f;
  const auto codec = Make({"2bit", {{"threshold", threshold}}});
  std::vector<float> residual(2501), want_residual(2501);
  for (uint32_t round = 0; round < 10; ++round) {
    const auto gradient = Normal(residual.size(), round);
    const auto received = Carry(*codec, gradient, residual);
    for (size_t i = 0; i < residual.size(); ++i) {
      float want = 0;
      want_residual[i] += gradient[i];
      if (want_residual[i] >= threshold) {
        want = threshold;
        want_residual[i] -= threshold;
      } else if (want_residual[i] <= -threshold) {
        want = -threshold;
        want_residual[i] += threshold;
      }
      ASSERT_EQ(received[i], want) << round << " " << i;
      ASSERT_EQ(residual[i], want_residual[i]) << round << " " << i;
    }
  }
}

TEST(CodecTest, ErrorFeedbackLosesNothing) {
  for (const NamedSpec& spec : {kAll[2], kAll[3], kAll[4]}) {
    const auto codec = Make(spec);
    std::vector<float> residual(1500);
    std::vector<double> sent(residual.size()), received(residual.size());
    for (uint32_t round = 0; round < 20; ++round) {
      const auto gradient = Normal(residual.size(), round);
      const auto got = Carry(*codec, gradient, residual);
      for (size_t i = 0; i < got.size(); ++i) {
        sent[i] += gradient[i];
        received[i] += got[i];
      }
    }
    for (size_t i = 0; i < residual.size(); ++i) {
      EXPECT_NEAR(sent[i], received[i] + residual[i], 1e-4) << spec.name << " " << i;
    }
  }
}

TEST(CodecTest, TopKKeepsTheLargestAndTheRestForLater) {
  const auto codec = Make({"topk", {{"ratio", 0.5}}});
  std::vector<float> residual(4);
  EXPECT_EQ(Carry(*codec, {1, -4, 2, 3}, residual), (std::vector<float>{0, -4, 0, 3}));
  EXPECT_EQ(residual, (std::vector<float>{1, 0, 2, 0}));
  EXPECT_EQ(Carry(*codec, {1, 1, 1, 1}, residual), (std::vector<float>{2, 0, 3, 0}));
  EXPECT_EQ(residual, (std::vector<float>{0, 1, 0, 1}));
}

TEST(CodecTest, HalvesRoundToNearestEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Carry(*Make({"fp16", {}}), {2049, 65504, 65520, -infinity, 0x1p-24f}, {}),
            (std::vector<float>{2048, 65504, infinity, -infinity, 0x1p-24f}));
  EXPECT_EQ(Carry(*Make({"bf16", {}}), {257, 259, 1e38f, -infinity}, {}),
            (std::vector<float>{256, 260, 0x1.2cp126f, -infinity}));
}

TEST(CodecTest, WhatIsNotFiniteIsRefusedAndTheResidualStays) {
  const float bad[] = {std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::max()};  // with the residual: infinite
  for (const NamedSpec& spec : {kAll[2], kAll[3], kAll[4]}) {
    const auto codec = Make(spec);
    for (float value : bad) {
      std::vector<float> values(2000, 1), residual(2000, 0x1p127f);
      values[1900] = value;
      const auto before = residual;
      std::vector<std::byte> payload(codec->EncodedBytes(2000), std::byte{7});
      const auto untouched = payload;
      const absl::Status status = codec->Encode(values, residual, payload);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(spec.name));
      EXPECT_EQ(residual, before);
      EXPECT_EQ(payload, untouched);
      if (std::isfinite(value)) continue;
      EXPECT_FALSE(codec->Encode(values, {}, payload).ok());
    }
  }
}

TEST(CodecTest, APayloadOfAnotherLengthIsRefused) {
  std::vector<float> values(1000);
  for (const NamedSpec& spec : kAll) {
    const auto codec = Make(spec);
    const uint64_t right = codec->EncodedBytes(values.size());
    for (uint64_t size : {uint64_t{0}, right - 1, right + 1, 4 * right}) {
      const absl::Status status = codec->Decode(std::vector<std::byte>(size), values);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spec.name << " " << size;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("for 1000 values must have " + std::to_string(right)));
    }
  }
}

// Any bytes: an error or finite values (fp16 and bf16 can carry others), never more.
TEST(CodecTest, HostilePayloads) {
  std::mt19937 random(1);
  for (const NamedSpec& spec : kAll) {
    const auto codec = Make(spec);
    for (size_t n : {1, 5, 63, 256, 300, 1025}) {
      std::vector<float> values(n);
      const auto gradient = Normal(n, 3);
      std::vector<std::byte> good(codec->EncodedBytes(n));
      ASSERT_TRUE(codec->Encode(gradient, {}, good).ok());
      for (int round = 0; round < 200; ++round) {
        auto bytes = good;
        for (uint32_t flips = 1 + random() % 9; flips > 0; --flips) {
          bytes[random() % bytes.size()] ^= std::byte{1} << (random() % 8);
        }
        const absl::Status status = codec->Decode(bytes, values);
        if (!status.ok()) {
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        } else if (spec.name == "int8" || spec.name == "2bit") {
          for (float v : values) ASSERT_TRUE(std::isfinite(v)) << spec.name;
        }
      }
    }
  }
}

TEST(CodecTest, WhatIsNotKnownIsNamed) {
  const auto message = [](const NamedSpec& spec) {
    return std::string(ValidateCodec(spec).message());
  };
  EXPECT_EQ(message({"3bit", {}}), "codec \"3bit\" is not known; use 2bit, bf16, fp16, int8, topk");
  EXPECT_EQ(message({"2bit", {{"ratio", 0.1}}}),
            "codec 2bit: parameter \"ratio\" is not known; use threshold");
  EXPECT_EQ(message({"int8", {{"block", 64}}}),
            "codec int8: parameter \"block\" is not known; leave it out");
  EXPECT_THAT(message({"2bit", {{"threshold", 0}}}), HasSubstr("threshold = 0 must be above 0"));
  EXPECT_THAT(message({"2bit", {{"threshold", 1e-60}}}), HasSubstr("must be above 0, as fp32"));
  EXPECT_THAT(message({"topk", {{"ratio", 1.5}}}),
              HasSubstr("ratio = 1.5 must be above 0 up to 1"));
  EXPECT_THAT(message({"topk", {{"ratio", std::nan("")}}}), HasSubstr("ratio = nan"));
  for (const std::string& name : CodecNames()) EXPECT_TRUE(ValidateCodec({name, {}}).ok()) << name;
}

}  // namespace
}  // namespace paceline
