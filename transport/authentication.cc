#include "transport/authentication.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/base/status.h"

namespace paceline {
namespace {

// Payload of a Hello: role, seven bytes of zero, nonce. The server's role byte is zero.
constexpr size_t kHelloRoleAt = 0;
constexpr size_t kHelloNonceAt = 8;
constexpr size_t kHelloBytes = kHelloNonceAt + sizeof(HandshakeNonce);
constexpr size_t kMacBytes = 32;
constexpr size_t kMaxReasonBytes = 200;

constexpr std::string_view kClientLabel = "paceline client auth v1";
constexpr std::string_view kServerLabel = "paceline server auth v1";

using Mac = std::array<std::byte, kMacBytes>;

void Append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Mac ComputeMac(const ChannelKey& key, std::string_view label,
               std::span<const std::byte> transcript) {
  std::vector<std::byte> input;
  input.reserve(label.size() + transcript.size());
  Append(input, AsBytes(label));
  Append(input, transcript);
  Mac mac;
  unsigned int length = 0;
  const unsigned char* result =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(input.data()), input.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &length);
  PACELINE_CHECK(result != nullptr && length == kMacBytes);
  return mac;
}

bool SameMac(const Mac& expected, std::span<const std::byte> said) {
  return said.size() == kMacBytes && CRYPTO_memcmp(expected.data(), said.data(), kMacBytes) == 0;
}

std::array<std::byte, kHelloBytes> HelloPayload(uint8_t role, const HandshakeNonce& nonce) {
  std::array<std::byte, kHelloBytes> payload{};
  payload[kHelloRoleAt] = static_cast<std::byte>(role);
  std::ranges::copy(std::as_bytes(std::span(nonce)), payload.begin() + kHelloNonceAt);
  return payload;
}

void AppendOffer(std::vector<std::byte>& payload, const LocalOffer& offer) {
  if (offer.socket.empty()) return;
  PACELINE_CHECK(offer.socket.size() <= kMaxLocalSocket);
  Append(payload, offer.boot);
  Append(payload, AsBytes(offer.socket));
}

// What follows a well-formed Hello of a server.
LocalOffer OfferIn(std::span<const std::byte> payload) {
  LocalOffer offer;
  const std::span<const std::byte> bytes = payload.subspan(kHelloBytes);
  if (bytes.empty()) return offer;
  std::ranges::copy(bytes.first(offer.boot.size()), offer.boot.begin());
  const std::span<const std::byte> name = bytes.subspan(offer.boot.size());
  offer.socket.assign(reinterpret_cast<const char*>(name.data()), name.size());
  return offer;
}

absl::Status CheckHelloPayload(std::span<const std::byte> payload, bool of_server) {
  const size_t more = payload.size() - std::min(payload.size(), kHelloBytes);
  const bool offers = of_server && more > sizeof(LocalOffer::boot) &&
                      more <= sizeof(LocalOffer::boot) + kMaxLocalSocket;
  if (payload.size() < kHelloBytes || (more > 0 && !offers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Hello has ", payload.size(), " bytes, not ", kHelloBytes));
  }
  for (size_t i = kHelloRoleAt + 1; i < kHelloNonceAt; ++i) {
    if (payload[i] != std::byte{0}) {
      return absl::InvalidArgumentError(absl::StrCat("reserved byte ", i, " of Hello is not 0"));
    }
  }
  return absl::OkStatus();
}

// What a peer wrote, fit for a log line.
std::string Printable(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte byte : bytes.first(std::min(bytes.size(), kMaxReasonBytes))) {
    const char c = static_cast<char>(byte);
    out.push_back(c >= 0x20 && c < 0x7f ? c : '?');
  }
  return out;
}

std::string Describe(const PeerIdentity& peer) {
  return absl::StrCat(peer.role == PeerRole::kServer ? "server" : "worker", " node ",
                      peer.node.value(), " (job ", peer.job.value(), ", incarnation ",
                      peer.incarnation.value(), ")");
}

absl::StatusCode CodeOfRefusal(FrameStatus reason) {
  switch (reason) {
    case FrameStatus::kNotYet:
      return absl::StatusCode::kUnavailable;
    case FrameStatus::kFenced:
    case FrameStatus::kDenied:
      return absl::StatusCode::kPermissionDenied;
    case FrameStatus::kQuota:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kInvalidArgument;
  }
}

}  // namespace

HandshakeNonce RandomNonce() {
  HandshakeNonce nonce;
  PACELINE_CHECK(RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) == 1);
  return nonce;
}

size_t Handshake::Consume(std::span<const std::byte> in) {
  size_t taken = 0;
  while (state_ == State::kRunning && taken < in.size()) {
    const size_t n = std::min(in.size() - taken, want_ - have_);
    std::ranges::copy(in.subspan(taken, n), message_.begin() + static_cast<ptrdiff_t>(have_));
    taken += n;
    have_ += n;
    if (have_ == want_) Parse();
  }
  return taken;
}

void Handshake::Parse() {
  const std::span<const std::byte> whole(message_.data(), have_);
  const absl::StatusOr<FrameHeader> header = DecodeHeader(whole);
  if (!header.ok()) return OnMalformed(header.status());
  if (header->length != header->total || header->length > kMaxHandshakePayload) {
    return OnMalformed(absl::InvalidArgumentError(
        absl::StrCat("handshake: ", std::string(Name(header->kind)), " of ", header->total,
                     " bytes, at most ", kMaxHandshakePayload, " are allowed")));
  }
  if (have_ < kFrameHeaderBytes + header->length) {
    want_ = kFrameHeaderBytes + header->length;
    return;
  }
  const std::span<const std::byte> payload = whole.subspan(kFrameHeaderBytes);
  if (Checksum(payload) != header->checksum) {
    return OnMalformed(absl::InvalidArgumentError(absl::StrCat(
        "handshake: checksum of ", std::string(Name(header->kind)), " does not match its bytes")));
  }
  have_ = 0;
  want_ = kFrameHeaderBytes;
  OnMessage({.header = *header, .payload = payload, .whole = whole});
}

std::span<const std::byte> Handshake::Emit(FrameHeader header, std::span<const std::byte> payload) {
  const size_t before = output_.size();
  header.total = payload.size();
  header.length = static_cast<uint32_t>(payload.size());
  header.checksum = Checksum(payload);
  EncodedHeader encoded;
  EncodeHeader(header, encoded);
  Append(output_, encoded);
  Append(output_, payload);
  return std::span(output_).subspan(before);
}

void Handshake::Fail(absl::Status status, bool not_yet) {
  state_ = State::kFailed;
  status_ = std::move(status);
  not_yet_ = not_yet;
}

ServerHandshake::ServerHandshake(const KeyStore* keys, const HandshakeNonce& nonce,
                                 LocalOffer offer)
    : keys_(keys), nonce_(nonce), offer_(std::move(offer)) {}

void ServerHandshake::OnMalformed(const absl::Status& status) {
  Refuse(FrameStatus::kBadRequest, status);
}

void ServerHandshake::Refuse(FrameStatus reason, absl::Status status) {
  FrameHeader header;
  header.kind = FrameKind::kRefuse;
  header.reply = true;
  header.status = reason;
  header.job = peer_.job;
  const std::string_view text = Std(status.message());
  Emit(header, AsBytes(text.substr(0, kMaxReasonBytes)));
  Fail(std::move(status), reason == FrameStatus::kNotYet);
}

void ServerHandshake::OnMessage(const Message& message) {
  if (!greeted_ && message.header.kind == FrameKind::kHello) return OnHello(message);
  if (greeted_ && message.header.kind == FrameKind::kAuth) return OnAuth(message);
  OnMalformed(
      absl::InvalidArgumentError(absl::StrCat("handshake: expected ", greeted_ ? "Auth" : "Hello",
                                              ", got ", std::string(Name(message.header.kind)))));
}

void ServerHandshake::OnHello(const Message& message) {
  if (const absl::Status status = CheckHelloPayload(message.payload, false); !status.ok()) {
    return OnMalformed(status);
  }
  const auto role = std::to_integer<uint8_t>(message.payload[kHelloRoleAt]);
  if (role != static_cast<uint8_t>(PeerRole::kServer) &&
      role != static_cast<uint8_t>(PeerRole::kWorker)) {
    return OnMalformed(absl::InvalidArgumentError(absl::StrCat("Hello: unknown role ", role)));
  }
  peer_ = {.job = message.header.job,
           .node = message.header.sender,
           .incarnation = message.header.incarnation,
           .role = static_cast<PeerRole>(role)};
  const absl::StatusOr<ChannelKey> key = keys_->Find(peer_);
  if (!key.ok()) {
    const bool not_yet = absl::IsUnavailable(key.status());
    return Refuse(not_yet ? FrameStatus::kNotYet : FrameStatus::kFenced,
                  not_yet ? absl::UnavailableError(absl::StrCat(Describe(peer_), ": not known yet"))
                          : Annotate(key.status(), Describe(peer_)));
  }
  key_ = *key;
  FrameHeader header;
  header.kind = FrameKind::kHello;
  header.reply = true;
  header.job = peer_.job;
  Append(transcript_, message.whole);
  const auto hello = HelloPayload(0, nonce_);
  std::vector<std::byte> payload(hello.begin(), hello.end());
  AppendOffer(payload, offer_);
  Append(transcript_, Emit(header, payload));
  greeted_ = true;
}

void ServerHandshake::OnAuth(const Message& message) {
  if (!SameMac(ComputeMac(key_, kClientLabel, transcript_), message.payload)) {
    return Refuse(FrameStatus::kDenied,
                  absl::PermissionDeniedError(absl::StrCat(
                      Describe(peer_), ": its key is not the one issued for this identity")));
  }
  FrameHeader header;
  header.kind = FrameKind::kAuth;
  header.reply = true;
  header.job = peer_.job;
  Emit(header, ComputeMac(key_, kServerLabel, transcript_));
  Succeed();
}

ClientHandshake::ClientHandshake(const PeerIdentity& self, const ChannelKey& key,
                                 const HandshakeNonce& nonce, std::optional<BootId> here)
    : self_(self), key_(key), here_(here) {
  FrameHeader header;
  header.kind = FrameKind::kHello;
  header.job = self.job;
  header.sender = self.node;
  header.incarnation = self.incarnation;
  Append(transcript_, Emit(header, HelloPayload(static_cast<uint8_t>(self.role), nonce)));
}

void ClientHandshake::OnMessage(const Message& message) {
  if (message.header.kind == FrameKind::kRefuse) return OnRefuse(message);
  if (!greeted_ && message.header.kind == FrameKind::kHello) return OnHello(message);
  if (greeted_ && message.header.kind == FrameKind::kAuth) return OnAuth(message);
  Fail(absl::InvalidArgumentError(absl::StrCat("handshake: expected ", greeted_ ? "Auth" : "Hello",
                                               ", got ", std::string(Name(message.header.kind)))));
}

void ClientHandshake::OnHello(const Message& message) {
  if (absl::Status status = CheckHelloPayload(message.payload, true); !status.ok()) {
    return Fail(std::move(status));
  }
  offer_ = OfferIn(message.payload);
  if (here_ && !offer_.socket.empty() && offer_.boot == *here_) return GoElsewhere();
  Append(transcript_, message.whole);
  greeted_ = true;
  FrameHeader header;
  header.kind = FrameKind::kAuth;
  header.job = self_.job;
  header.sender = self_.node;
  header.incarnation = self_.incarnation;
  Emit(header, ComputeMac(key_, kClientLabel, transcript_));
}

void ClientHandshake::OnAuth(const Message& message) {
  if (!SameMac(ComputeMac(key_, kServerLabel, transcript_), message.payload)) {
    return Fail(absl::PermissionDeniedError(
        absl::StrCat("the server does not hold the key of ", Describe(self_))));
  }
  Succeed();
}

void ClientHandshake::OnRefuse(const Message& message) {
  const FrameStatus reason = message.header.status;
  Fail(absl::Status(CodeOfRefusal(reason), absl::StrCat("refused (", std::string(Name(reason)),
                                                        "): ", Printable(message.payload))),
       reason == FrameStatus::kNotYet);
}

}  // namespace paceline
