// Whatever bytes a peer sends as a frame header, the parser answers with a header within bounds or
// an error, and a header it accepts is the one way to write those bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "transport/frame.h"

namespace paceline {
namespace {

// docs/wire_format.md: the last eight bytes are the checksum of those before.
constexpr size_t kSealedBytes = kFrameHeaderBytes - sizeof(uint64_t);

void CheckAccepted(const FrameHeader& header, std::span<const std::byte> bytes) {
  PACELINE_CHECK(header.length <= kMaxPieceBytes);
  PACELINE_CHECK(header.total <= kMaxMessageBytes);
  PACELINE_CHECK(header.offset <= header.total);
  PACELINE_CHECK(header.length <= header.total - header.offset);
  EncodedHeader again;
  EncodeHeader(header, again);
  PACELINE_CHECK(std::equal(again.begin(), again.end(), bytes.begin()));
}

// A random header never has the right checksum, so the fields behind it get one here.
void DecodeSealed(std::span<const std::byte> bytes) {
  EncodedHeader sealed;
  std::copy_n(bytes.begin(), kFrameHeaderBytes, sealed.begin());
  const uint64_t checksum = Checksum(std::span(sealed).first(kSealedBytes));
  for (size_t i = 0; i < sizeof(checksum); ++i) {
    sealed[kSealedBytes + i] = static_cast<std::byte>(checksum >> (8 * i));
  }
  const absl::StatusOr<FrameHeader> header = DecodeHeader(sealed);
  if (header.ok()) CheckAccepted(*header, sealed);
}

}  // namespace
}  // namespace paceline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const absl::StatusOr<paceline::FrameHeader> header = paceline::DecodeHeader(bytes);
  if (header.ok()) paceline::CheckAccepted(*header, bytes);
  if (size >= paceline::kFrameHeaderBytes) paceline::DecodeSealed(bytes);
  return 0;
}
