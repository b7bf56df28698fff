// The reading end of an authenticated channel against arbitrary bytes in arbitrary cuts. The input
// is a list of {how, size, bytes}: raw bytes, or a well-formed frame around them.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "common/base/check.h"
#include "transport/frame_reader.h"

namespace paceline {
namespace {

const PeerIdentity kPeer = {.job = JobId(3), .node = NodeId(7), .incarnation = Incarnation(11)};

class NoChannel final : public Channel {
 public:
  void Send(const FrameHeader&, std::span<const std::byte>, int32_t, Completion) override {}
  std::shared_ptr<std::byte[]> Allocate(size_t) override { return nullptr; }
  void Close(absl::Status) override {}
  const PeerIdentity& peer() const override { return kPeer; }
  std::string peer_address() const override { return ""; }
  std::string transport() const override { return ""; }
  ChannelStats stats() const override { return {}; }
};

// Names a destination for some frames, keeps some payloads.
class CheckingSink final : public FrameSink {
 public:
  absl::StatusOr<std::span<std::byte>> OnHeader(Channel&, const FrameHeader& header) override {
    if (header.codec == 9) return absl::InvalidArgumentError("codec 9");
    if (header.codec % 2 == 0) return std::span<std::byte>();
    destination_.assign(header.length, std::byte{0});
    return std::span<std::byte>(destination_);
  }
  absl::Status OnFrame(Channel&, const FrameHeader& header, Payload payload) override {
    PACELINE_CHECK(payload.bytes().size() == header.length);
    PACELINE_CHECK(Checksum(payload.bytes()) == header.checksum);
    PACELINE_CHECK(header.job == kPeer.job && header.sender == kPeer.node);
    if (header.codec % 2 == 0) kept.push_back(std::move(payload));
    return absl::OkStatus();
  }
  void OnClosed(Channel&, const absl::Status&) override {}
  std::vector<Payload> kept;

 private:
  std::vector<std::byte> destination_;
};

std::vector<std::byte> Build(std::span<const std::byte> input) {
  std::vector<std::byte> out;
  while (input.size() >= 3) {
    const auto how = std::to_integer<uint8_t>(input[0]);
    const size_t want = std::to_integer<size_t>(input[1]) * (how & 0x40 ? 40 : 1);
    const auto bytes = input.subspan(3, std::min(want, input.size() - 3));
    if (how & 1) {
      FrameHeader header;
      header.kind = static_cast<FrameKind>(how / 2 % 21 + 1);
      header.job = kPeer.job;
      header.sender = NodeId(how & 0x80 ? 8 : 7);
      header.incarnation = kPeer.incarnation;
      header.codec = std::to_integer<uint8_t>(input[2]);
      header.total = bytes.size();
      header.length = static_cast<uint32_t>(bytes.size());
      header.checksum = Checksum(bytes);
      EncodedHeader encoded;
      EncodeHeader(header, encoded);
      out.insert(out.end(), encoded.begin(), encoded.end());
    }
    out.insert(out.end(), bytes.begin(), bytes.end());
    input = input.subspan(3 + bytes.size());
  }
  return out;
}

void Run(size_t cut, std::span<const std::byte> stream) {
  NoChannel channel;
  CheckingSink sink;
  std::atomic<bool> stop = false;
  auto credit = std::make_shared<ReceiveCredit>(4096, std::make_shared<BufferPool>(1), [] {});
  FrameReader reader(&channel, &sink, IdentityCheck::OfClient(kPeer), credit, &stop);
  while (!stream.empty()) {
    const std::span<const iovec> space = reader.Space();
    if (space.empty()) {
      PACELINE_CHECK(!sink.kept.empty());  // or it would wait for ever
      sink.kept.clear();
      if (!reader.Resume().ok()) return;
      continue;
    }
    size_t moved = 0;
    for (const iovec& part : space) {
      const size_t n = std::min({part.iov_len, stream.size(), cut - moved});
      std::memcpy(part.iov_base, stream.data(), n);
      stream = stream.subspan(n);
      moved += n;
    }
    PACELINE_CHECK(moved > 0);
    if (!reader.Received(moved).ok()) return;
  }
}

}  // namespace
}  // namespace paceline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::vector<std::byte> stream =
      paceline::Build(std::as_bytes(std::span(data, size)).subspan(1));
  paceline::Run(size_t{1} + data[0] * size_t{37}, stream);
  return 0;
}
