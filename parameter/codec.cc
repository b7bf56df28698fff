#include "parameter/codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/kernels/codec_kernels.h"
#include "common/kernels/kernels.h"
#include "common/kernels/topk.h"

namespace paceline {
namespace {

// Sums and decoded copies are made in blocks that stay in the first-level cache. A multiple of what
// int8 and 2bit may be cut at.
constexpr size_t kBlock = 1024;
static_assert(kBlock % kernels::kInt8Block == 0 && kBlock % 4 == 0);
using Block = std::array<float, kBlock>;

template <typename Visit>
void ForEachBlock(size_t size, Visit visit) {
  for (size_t at = 0; at < size; at += kBlock) visit(at, std::min(kBlock, size - at));
}

// values + residual, or values where there is none, is finite everywhere.
bool SumIsFinite(std::span<const float> values, std::span<const float> residual) {
  if (residual.empty()) return kernels::AllFinite(values);
  Block sum;
  bool finite = true;
  ForEachBlock(values.size(), [&](size_t at, size_t n) {
    const std::span<float> block(sum.data(), n);
    std::copy_n(values.data() + at, n, block.data());
    kernels::Add(block, residual.subspan(at, n));
    finite = finite && kernels::AllFinite(block);
  });
  return finite;
}

absl::Status NotFinite(std::string_view codec) {
  return absl::InvalidArgumentError(
      absl::StrCat("codec ", Absl(codec),
                   ": a value, or its sum with the residual, is not finite; "
                   "leave this contribution out, or send the tensor without a codec"));
}

class Fp16Codec final : public Codec {
 public:
  std::string_view name() const override { return "fp16"; }
  uint64_t EncodedBytes(uint64_t values) const override { return 2 * values; }
  bool error_feedback() const override { return false; }

  absl::Status Encode(std::span<const float> values, std::span<float> residual,
                      std::span<std::byte> out) const override {
    PACELINE_CHECK(residual.empty());
    kernels::F32ToF16(out, values);
    return absl::OkStatus();
  }

 private:
  bool DecodeSized(std::span<const std::byte> in, std::span<float> values) const override {
    kernels::F16ToF32(values, in);
    return true;
  }
};

class Bf16Codec final : public Codec {
 public:
  std::string_view name() const override { return "bf16"; }
  uint64_t EncodedBytes(uint64_t values) const override { return 2 * values; }
  bool error_feedback() const override { return false; }

  absl::Status Encode(std::span<const float> values, std::span<float> residual,
                      std::span<std::byte> out) const override {
    PACELINE_CHECK(residual.empty());
    kernels::F32ToBf16(out, values);
    return absl::OkStatus();
  }

 private:
  bool DecodeSized(std::span<const std::byte> in, std::span<float> values) const override {
    kernels::Bf16ToF32(values, in);
    return true;
  }
};

// Codecs whose payload may be cut at block boundaries.
class BlockCodec : public Codec {
 public:
  absl::Status Encode(std::span<const float> values, std::span<float> residual,
                      std::span<std::byte> out) const final {
    PACELINE_CHECK(residual.empty() || residual.size() == values.size());
    PACELINE_CHECK(out.size() == EncodedBytes(values.size()));
    if (!SumIsFinite(values, residual)) return NotFinite(name());
    if (residual.empty()) {
      EncodeBlock(out, values);
      return absl::OkStatus();
    }
    Block decoded;
    ForEachBlock(values.size(), [&](size_t at, size_t n) {
      const std::span<float> x = residual.subspan(at, n);
      const std::span<std::byte> to = out.subspan(EncodedBytes(at), EncodedBytes(n));
      kernels::Add(x, values.subspan(at, n));
      EncodeBlock(to, x);
      PACELINE_CHECK(DecodeSized(to, {decoded.data(), n}));
      kernels::Subtract(x, x, {decoded.data(), n});
    });
    return absl::OkStatus();
  }

 private:
  virtual void EncodeBlock(std::span<std::byte> out, std::span<const float> x) const = 0;
};

class Int8Codec final : public BlockCodec {
 public:
  std::string_view name() const override { return "int8"; }
  uint64_t EncodedBytes(uint64_t values) const override { return kernels::Int8Bytes(values); }
  bool error_feedback() const override { return false; }

 private:
  void EncodeBlock(std::span<std::byte> out, std::span<const float> x) const override {
    kernels::EncodeInt8(out, x);
  }
  bool DecodeSized(std::span<const std::byte> in, std::span<float> values) const override {
    return kernels::DecodeInt8(values, in);
  }
};

class TwoBitCodec final : public BlockCodec {
 public:
  explicit TwoBitCodec(float threshold) : threshold_(threshold) {}

  std::string_view name() const override { return "2bit"; }
  uint64_t EncodedBytes(uint64_t values) const override { return kernels::TwoBitBytes(values); }
  bool error_feedback() const override { return true; }

 private:
  void EncodeBlock(std::span<std::byte> out, std::span<const float> x) const override {
    kernels::EncodeTwoBit(out, x, threshold_);
  }
  bool DecodeSized(std::span<const std::byte> in, std::span<float> values) const override {
    return kernels::DecodeTwoBit(values, in, threshold_);
  }

  const float threshold_;
};

class TopKCodec final : public Codec {
 public:
  explicit TopKCodec(double ratio) : ratio_(ratio) {}

  std::string_view name() const override { return "topk"; }
  uint64_t EncodedBytes(uint64_t values) const override {
    return kernels::TopKBytes(values, Kept(values));
  }
  bool error_feedback() const override { return true; }

  absl::Status Encode(std::span<const float> values, std::span<float> residual,
                      std::span<std::byte> out) const override {
    PACELINE_CHECK(residual.empty() || residual.size() == values.size());
    if (!SumIsFinite(values, residual)) return NotFinite(name());
    if (residual.empty()) {
      kernels::EncodeTopK(out, values, Kept(values.size()));
      return absl::OkStatus();
    }
    kernels::Add(residual, values);
    kernels::EncodeTopK(out, residual, Kept(values.size()));
    kernels::ClearTopK(residual, out, Kept(values.size()));
    return absl::OkStatus();
  }

 private:
  uint64_t Kept(uint64_t values) const {
    const auto rounded = static_cast<uint64_t>(ratio_ * static_cast<double>(values) + 0.5);
    return std::min(values, std::max<uint64_t>(rounded, 1));
  }
  bool DecodeSized(std::span<const std::byte> in, std::span<float> values) const override {
    return kernels::DecodeTopK(values, in, Kept(values.size()));
  }

  const double ratio_;
};

// ---- Registry -----------------------------------------------------------------------------------

struct Kind {
  std::string_view name;
  std::string_view parameter;  // empty: takes none
  double otherwise;            // the parameter's value when it is not given
  std::string_view range;
  bool (*valid)(double);
  std::unique_ptr<const Codec> (*make)(double);
};

bool IsThreshold(double x) {
  return x >= std::numeric_limits<float>::min() && x <= std::numeric_limits<float>::max();
}
bool IsRatio(double x) { return x > 0 && x <= 1; }

template <typename T>
std::unique_ptr<const Codec> Make(double /*parameter*/) {
  return std::make_unique<T>();
}
std::unique_ptr<const Codec> MakeTwoBit(double threshold) {
  return std::make_unique<TwoBitCodec>(static_cast<float>(threshold));
}
std::unique_ptr<const Codec> MakeTopK(double ratio) { return std::make_unique<TopKCodec>(ratio); }

constexpr Kind kKinds[] = {
    {"2bit", "threshold", 0.5, "above 0, as fp32", IsThreshold, MakeTwoBit},
    {"bf16", "", 0, "", nullptr, Make<Bf16Codec>},
    {"fp16", "", 0, "", nullptr, Make<Fp16Codec>},
    {"int8", "", 0, "", nullptr, Make<Int8Codec>},
    {"topk", "ratio", 0.1, "above 0 up to 1", IsRatio, MakeTopK},
};

absl::StatusOr<double> Resolve(const Kind& kind, const NamedSpec& spec) {
  double value = kind.otherwise;
  for (const auto& [name, given] : spec.parameters) {
    if (kind.parameter.empty() || name != kind.parameter) {
      return absl::InvalidArgumentError(
          absl::StrCat("codec ", Absl(kind.name), ": parameter \"", name, "\" is not known; ",
                       kind.parameter.empty() ? "leave it out" : "use ", Absl(kind.parameter)));
    }
    if (!kind.valid(given)) {
      return absl::InvalidArgumentError(absl::StrCat("codec ", Absl(kind.name), ": ", name, " = ",
                                                     given, " must be ", Absl(kind.range)));
    }
    value = given;
  }
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Codec>> Codec::Create(const NamedSpec& spec) {
  for (const Kind& kind : kKinds) {
    if (kind.name != spec.name) continue;
    PACELINE_ASSIGN_OR_RETURN(const double parameter, Resolve(kind, spec));
    return kind.make(parameter);
  }
  return absl::InvalidArgumentError(absl::StrCat("codec \"", spec.name, "\" is not known; use ",
                                                 absl::StrJoin(CodecNames(), ", ")));
}

absl::Status Codec::Decode(std::span<const std::byte> in, std::span<float> values) const {
  PACELINE_CHECK(values.size() <= kMaxValues);
  const uint64_t expected = EncodedBytes(values.size());
  if (in.size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat("codec ", Absl(name()), ": a payload of ",
                                                   in.size(), " bytes for ", values.size(),
                                                   " values must have ", expected));
  }
  if (!DecodeSized(in, values)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "codec ", Absl(name()), ": the payload of ", in.size(), " bytes for ", values.size(),
        " values holds what no encoder writes; both ends must have the "
        "same codecs and version"));
  }
  return absl::OkStatus();
}

absl::Status ValidateCodec(const NamedSpec& spec) { return Codec::Create(spec).status(); }

std::vector<std::string> CodecNames() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

}  // namespace paceline
