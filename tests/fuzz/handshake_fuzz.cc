// The server's side of the handshake against arbitrary bytes: it ends, stays within its bounds and
// never lets in a peer that does not hold the key. The first byte says how the rest is made: as it
// is, or as payloads of well-formed messages.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/check.h"
#include "transport/authentication.h"

namespace paceline {
namespace {

class OneKey final : public KeyStore {
 public:
  absl::StatusOr<ChannelKey> Find(const PeerIdentity& peer) const override {
    if (peer.node == NodeId(1)) return absl::UnavailableError("not known yet");
    if (peer.node == NodeId(2)) return absl::PermissionDeniedError("fenced");
    ChannelKey key;
    key.fill(0x5a);
    return key;
  }
};

// Cuts the input into messages: kind, node, length, payload.
std::vector<std::byte> Frames(std::span<const std::byte> input) {
  std::vector<std::byte> out;
  while (input.size() >= 3) {
    FrameHeader header;
    header.kind = static_cast<FrameKind>(std::to_integer<uint8_t>(input[0]) % 21 + 1);
    header.sender = NodeId(std::to_integer<uint32_t>(input[1]));
    const size_t length = std::min<size_t>(std::to_integer<size_t>(input[2]), input.size() - 3);
    const auto payload = input.subspan(3, length);
    header.total = length;
    header.length = static_cast<uint32_t>(length);
    header.checksum = Checksum(payload);
    EncodedHeader encoded;
    EncodeHeader(header, encoded);
    out.insert(out.end(), encoded.begin(), encoded.end());
    out.insert(out.end(), payload.begin(), payload.end());
    input = input.subspan(3 + length);
  }
  return out;
}

void Run(std::span<const std::byte> input) {
  const OneKey keys;
  ServerHandshake handshake(&keys, HandshakeNonce{});
  size_t sent = 0;
  for (size_t step = 1; !input.empty(); step = step * 2 + 1) {
    const auto part = input.first(std::min(step, input.size()));
    const size_t taken = handshake.Consume(part);
    PACELINE_CHECK(taken == part.size() || handshake.state() != Handshake::State::kRunning);
    sent += handshake.TakeOutput().size();
    if (handshake.state() != Handshake::State::kRunning) break;
    input = input.subspan(taken);
  }
  PACELINE_CHECK(sent <= 2 * (kFrameHeaderBytes + kMaxHandshakePayload));
  // Nobody guesses 32 bytes.
  PACELINE_CHECK(handshake.state() != Handshake::State::kDone);
}

}  // namespace
}  // namespace paceline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size)).subspan(1);
  if (data[0] % 2 == 0) {
    paceline::Run(input);
  } else {
    paceline::Run(paceline::Frames(input));
  }
  return 0;
}
