#include "transport/frame.h"

#include <xxhash.h>

#include <bit>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace paceline {
namespace {

// Where each field stands (docs/wire_format.md).
enum Position : size_t {
  kAtMagic = 0,
  kAtWireVersion = 4,
  kAtKind = 5,
  kAtHeaderLength = 6,
  kAtFlags = 8,
  kAtStatus = 10,
  kAtDType = 11,
  kAtCodec = 12,
  kAtReserved1 = 13,
  kAtJob = 16,
  kAtGroup = 20,
  kAtJobGeneration = 24,
  kAtGroupGeneration = 32,
  kAtStep = 40,
  kAtOriginStep = 48,
  kAtOrdinal = 56,
  kAtTensor = 60,
  kAtChunk = 64,
  kAtLineage = 68,
  kAtVersionCount = 72,
  kAtSender = 80,
  kAtLearningRate = 84,
  kAtIncarnation = 88,
  kAtSequence = 96,
  kAtAcknowledged = 104,
  kAtSamples = 112,
  kAtTotal = 120,
  kAtOffset = 128,
  kAtLength = 136,
  kAtReserved2 = 140,
  kAtChecksum = 144,
  kAtPlacementOffset = 152,
  kAtPlacementArena = 160,
  kAtPlacementTicket = 164,
  kAtAdopted = 168,
  kAtReserved3 = 172,
  kAtHeaderChecksum = 184,
};

constexpr uint16_t kReplyFlag = 1;

template <typename T>
void Put(EncodedHeader& out, size_t position, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) {
    out[position + i] = static_cast<std::byte>(value >> (8 * i));
  }
}

template <typename T>
T Get(std::span<const std::byte> bytes, size_t position) {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value =
        static_cast<T>(value | static_cast<T>(std::to_integer<T>(bytes[position + i]) << (8 * i)));
  }
  return value;
}

template <typename... Args>
absl::Status Bad(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("frame header: ", args...));
}

std::string Hex(uint64_t value) { return absl::StrCat("0x", absl::Hex(value)); }

// What tells that these bytes are a header of ours and arrived whole.
absl::Status CheckEnvelope(std::span<const std::byte> bytes) {
  if (bytes.size() < kFrameHeaderBytes) {
    return Bad(bytes.size(), " bytes, a header has ", kFrameHeaderBytes);
  }
  if (const auto magic = Get<uint32_t>(bytes, kAtMagic); magic != kFrameMagic) {
    return Bad("magic is ", Hex(magic), ", not ", Hex(kFrameMagic),
               "; is the peer a Paceline node?");
  }
  if (const auto version = Get<uint8_t>(bytes, kAtWireVersion); version != kWireVersion) {
    return Bad("wire version is ", version, ", this build speaks ", kWireVersion,
               "; run the same release on both ends");
  }
  if (const auto length = Get<uint16_t>(bytes, kAtHeaderLength); length != kFrameHeaderBytes) {
    return Bad("header length is ", length, ", not ", kFrameHeaderBytes);
  }
  const auto said = Get<uint64_t>(bytes, kAtHeaderChecksum);
  const uint64_t computed = Checksum(bytes.first(kAtHeaderChecksum));
  if (said != computed) {
    return Bad("header checksum is ", Hex(said), ", the bytes give ", Hex(computed));
  }
  return absl::OkStatus();
}

absl::Status CheckReserved(std::span<const std::byte> bytes) {
  constexpr struct {
    size_t begin, end;
  } kReserved[] = {
      {kAtReserved1, kAtJob}, {kAtReserved2, kAtChecksum}, {kAtReserved3, kAtHeaderChecksum}};
  for (const auto& range : kReserved) {
    for (size_t i = range.begin; i < range.end; ++i) {
      if (bytes[i] != std::byte{0}) {
        return Bad("reserved byte ", i, " is ", std::to_integer<int>(bytes[i]), ", not 0");
      }
    }
  }
  const auto flags = Get<uint16_t>(bytes, kAtFlags);
  if ((flags & ~kReplyFlag) != 0)
    return Bad("flags are ", Hex(flags), "; only bit 0 has a meaning");
  return absl::OkStatus();
}

absl::Status CheckExtent(const FrameHeader& header) {
  if (header.length > kMaxPieceBytes) {
    return Bad("length is ", header.length, ", a piece has at most ", kMaxPieceBytes, " bytes");
  }
  if (header.total > kMaxMessageBytes) {
    return Bad("total is ", header.total, ", a message has at most ", kMaxMessageBytes, " bytes");
  }
  if (header.offset > header.total || header.length > header.total - header.offset) {
    return Bad("offset ", header.offset, " + length ", header.length, " exceed total ",
               header.total);
  }
  if (header.length == 0 && header.total != 0) {
    return Bad("an empty piece of a message of ", header.total, " bytes");
  }
  const Placement& placement = header.placement;
  if (placement.arena == 0 && header.kind != FrameKind::kCredit &&
      (placement.offset != 0 || placement.ticket != 0)) {
    return Bad("place ", placement.offset, " of ticket ", placement.ticket, " in no arena");
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
      return "Hello";
    case FrameKind::kAuth:
      return "Auth";
    case FrameKind::kInit:
      return "Init";
    case FrameKind::kPush:
      return "Push";
    case FrameKind::kPull:
      return "Pull";
    case FrameKind::kPushPull:
      return "PushPull";
    case FrameKind::kReduce:
      return "Reduce";
    case FrameKind::kPushRows:
      return "PushRows";
    case FrameKind::kPullRows:
      return "PullRows";
    case FrameKind::kBoundary:
      return "Boundary";
    case FrameKind::kReadState:
      return "ReadState";
    case FrameKind::kWriteState:
      return "WriteState";
    case FrameKind::kMoveShard:
      return "MoveShard";
    case FrameKind::kVerdict:
      return "Verdict";
    case FrameKind::kRelease:
      return "Release";
    case FrameKind::kCut:
      return "Cut";
    case FrameKind::kPeerPiece:
      return "PeerPiece";
    case FrameKind::kRefuse:
      return "Refuse";
    case FrameKind::kHeartbeat:
      return "Heartbeat";
    case FrameKind::kArena:
      return "Arena";
    case FrameKind::kCredit:
      return "Credit";
  }
  return "?";
}

std::string_view Name(FrameStatus status) {
  switch (status) {
    case FrameStatus::kOk:
      return "ok";
    case FrameStatus::kNotYet:
      return "not_yet";
    case FrameStatus::kOldGeneration:
      return "old_generation";
    case FrameStatus::kFenced:
      return "fenced";
    case FrameStatus::kNotOwner:
      return "not_owner";
    case FrameStatus::kUnknownTensor:
      return "unknown_tensor";
    case FrameStatus::kBadRequest:
      return "bad_request";
    case FrameStatus::kNoOptimizer:
      return "no_optimizer";
    case FrameStatus::kNotWriter:
      return "not_writer";
    case FrameStatus::kNotFinite:
      return "not_finite";
    case FrameStatus::kDiscarded:
      return "discarded";
    case FrameStatus::kQuota:
      return "quota";
    case FrameStatus::kJobEnded:
      return "job_ended";
    case FrameStatus::kInternal:
      return "internal";
    case FrameStatus::kDenied:
      return "denied";
    case FrameStatus::kLate:
      return "late";
  }
  return "?";
}

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

void EncodeHeader(const FrameHeader& header, EncodedHeader& out) {
  out.fill(std::byte{0});
  Put<uint32_t>(out, kAtMagic, kFrameMagic);
  Put<uint8_t>(out, kAtWireVersion, kWireVersion);
  Put<uint8_t>(out, kAtKind, static_cast<uint8_t>(header.kind));
  Put<uint16_t>(out, kAtHeaderLength, kFrameHeaderBytes);
  Put<uint16_t>(out, kAtFlags, header.reply ? kReplyFlag : uint16_t{0});
  Put<uint8_t>(out, kAtStatus, static_cast<uint8_t>(header.status));
  Put<uint8_t>(out, kAtDType, static_cast<uint8_t>(header.dtype));
  Put<uint8_t>(out, kAtCodec, header.codec);
  Put<uint32_t>(out, kAtJob, header.job.value());
  Put<uint32_t>(out, kAtGroup, header.group.value());
  Put<uint64_t>(out, kAtJobGeneration, header.job_generation.value());
  Put<uint64_t>(out, kAtGroupGeneration, header.group_generation.value());
  Put<uint64_t>(out, kAtStep, header.step.value());
  Put<uint64_t>(out, kAtOriginStep, header.origin_step.value());
  Put<uint32_t>(out, kAtOrdinal, header.ordinal.value());
  Put<uint32_t>(out, kAtTensor, header.tensor.value());
  Put<uint32_t>(out, kAtChunk, header.chunk.value());
  Put<uint32_t>(out, kAtLineage, header.version.lineage);
  Put<uint64_t>(out, kAtVersionCount, header.version.count);
  Put<uint32_t>(out, kAtSender, header.sender.value());
  Put<uint32_t>(out, kAtLearningRate, std::bit_cast<uint32_t>(header.learning_rate));
  Put<uint64_t>(out, kAtIncarnation, header.incarnation.value());
  Put<uint64_t>(out, kAtSequence, header.sequence.value());
  Put<uint64_t>(out, kAtAcknowledged, header.acknowledged.value());
  Put<uint64_t>(out, kAtSamples, header.samples.value());
  Put<uint64_t>(out, kAtTotal, header.total);
  Put<uint64_t>(out, kAtOffset, header.offset);
  Put<uint32_t>(out, kAtLength, header.length);
  Put<uint64_t>(out, kAtChecksum, header.checksum);
  Put<uint64_t>(out, kAtPlacementOffset, header.placement.offset);
  Put<uint32_t>(out, kAtPlacementArena, header.placement.arena);
  Put<uint32_t>(out, kAtPlacementTicket, header.placement.ticket);
  Put<uint32_t>(out, kAtAdopted, header.lineage);
  Put<uint64_t>(out, kAtHeaderChecksum, Checksum(std::span(out).first(kAtHeaderChecksum)));
}

absl::StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte> bytes) {
  PACELINE_RETURN_IF_ERROR(CheckEnvelope(bytes));
  PACELINE_RETURN_IF_ERROR(CheckReserved(bytes));
  FrameHeader header;
  header.kind = static_cast<FrameKind>(Get<uint8_t>(bytes, kAtKind));
  if (Name(header.kind) == "?") return Bad("unknown kind ", Get<uint8_t>(bytes, kAtKind));
  header.status = static_cast<FrameStatus>(Get<uint8_t>(bytes, kAtStatus));
  if (Name(header.status) == "?") return Bad("unknown status ", Get<uint8_t>(bytes, kAtStatus));
  const std::optional<DType> dtype = DTypeFromWire(Get<uint8_t>(bytes, kAtDType));
  if (!dtype) return Bad("unknown dtype ", Get<uint8_t>(bytes, kAtDType));
  header.dtype = *dtype;
  header.reply = (Get<uint16_t>(bytes, kAtFlags) & kReplyFlag) != 0;
  header.codec = Get<uint8_t>(bytes, kAtCodec);
  header.job = JobId(Get<uint32_t>(bytes, kAtJob));
  header.group = GroupId(Get<uint32_t>(bytes, kAtGroup));
  header.job_generation = JobGeneration(Get<uint64_t>(bytes, kAtJobGeneration));
  header.group_generation = GroupGeneration(Get<uint64_t>(bytes, kAtGroupGeneration));
  header.step = Step(Get<uint64_t>(bytes, kAtStep));
  header.origin_step = Step(Get<uint64_t>(bytes, kAtOriginStep));
  header.ordinal = Ordinal(Get<uint32_t>(bytes, kAtOrdinal));
  header.tensor = TensorId(Get<uint32_t>(bytes, kAtTensor));
  header.chunk = ChunkIndex(Get<uint32_t>(bytes, kAtChunk));
  header.version = {.lineage = Get<uint32_t>(bytes, kAtLineage),
                    .count = Get<uint64_t>(bytes, kAtVersionCount)};
  header.sender = NodeId(Get<uint32_t>(bytes, kAtSender));
  header.learning_rate = std::bit_cast<float>(Get<uint32_t>(bytes, kAtLearningRate));
  header.incarnation = Incarnation(Get<uint64_t>(bytes, kAtIncarnation));
  header.sequence = Sequence(Get<uint64_t>(bytes, kAtSequence));
  header.acknowledged = Sequence(Get<uint64_t>(bytes, kAtAcknowledged));
  header.samples = Samples(Get<uint64_t>(bytes, kAtSamples));
  header.total = Get<uint64_t>(bytes, kAtTotal);
  header.offset = Get<uint64_t>(bytes, kAtOffset);
  header.length = Get<uint32_t>(bytes, kAtLength);
  header.checksum = Get<uint64_t>(bytes, kAtChecksum);
  header.placement = {.arena = Get<uint32_t>(bytes, kAtPlacementArena),
                      .ticket = Get<uint32_t>(bytes, kAtPlacementTicket),
                      .offset = Get<uint64_t>(bytes, kAtPlacementOffset)};
  header.lineage = Get<uint32_t>(bytes, kAtAdopted);
  PACELINE_RETURN_IF_ERROR(CheckExtent(header));
  return header;
}

}  // namespace paceline
