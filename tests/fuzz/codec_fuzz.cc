// Whatever bytes a peer sends as a coded tensor, the decoder answers with values or an error; and
// what it accepts of a codec that keeps all it decodes (2bit, topk) is the same after one more
// turn. Input: which codec (1 byte), number of values (2 bytes), payload.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "parameter/codec.h"

namespace paceline {
namespace {

std::vector<std::unique_ptr<const Codec>> AllCodecs() {
  std::vector<std::unique_ptr<const Codec>> codecs;
  for (const std::string& name : CodecNames()) codecs.push_back(*Codec::Create({name, {}}));
  return codecs;
}

void CheckSecondTurn(const Codec& codec, const std::vector<float>& values) {
  std::vector<std::byte> payload(codec.EncodedBytes(values.size()));
  const absl::Status status = codec.Encode(values, {}, payload);
  for (float v : values) {
    if (std::isfinite(v)) continue;
    PACELINE_CHECK(!status.ok());  // topk carries such a value, and does not make one
    return;
  }
  std::vector<float> again(values.size());
  PACELINE_CHECK(status.ok() && codec.Decode(payload, again).ok());
  PACELINE_CHECK(again == values);
}

void Decode(const Codec& codec, size_t size, std::span<const uint8_t> data) {
  const auto bytes = std::as_bytes(data);
  std::vector<std::byte> payload(bytes.begin(), bytes.end());
  std::vector<float> values(size);
  const bool fits = payload.size() == codec.EncodedBytes(size);
  PACELINE_CHECK(fits || !codec.Decode(payload, values).ok());
  payload.resize(codec.EncodedBytes(size));  // a random length is never the right one
  if (!codec.Decode(payload, values).ok()) return;
  if (codec.error_feedback()) CheckSecondTurn(codec, values);
}

}  // namespace
}  // namespace paceline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const codecs =
      new std::vector<std::unique_ptr<const paceline::Codec>>(paceline::AllCodecs());
  if (size < 3) return 0;
  const size_t values = data[1] | static_cast<size_t>(data[2]) << 8;
  paceline::Decode(*(*codecs)[data[0] % codecs->size()], values, {data + 3, size - 3});
  return 0;
}
