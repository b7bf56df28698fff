// The frame: what travels between workers and owners. A fixed little-endian header, then `length`
// bytes of payload. docs/wire_format.md gives every byte.
//
// One operation on one chunk is a message. A message is cut into pieces of at most kMaxPieceBytes;
// each piece is a frame with the same header but offset, length and checksums. A message without
// payload is one frame of length 0.
//
// Thread rule: values; no shared state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/base/types.h"

namespace paceline {

inline constexpr uint32_t kFrameMagic = 0x314c4350;  // "PCL1" in memory
inline constexpr uint8_t kWireVersion = 1;
inline constexpr uint32_t kMaxPieceBytes = 256u << 10;
inline constexpr uint64_t kMaxMessageBytes = 2304ull << 20;  // the state of the largest chunk

// The numbers are on the wire; never renumber.
enum class FrameKind : uint8_t {
  kHello = 1,
  kAuth = 2,
  kInit = 3,
  kPush = 4,
  kPull = 5,
  kPushPull = 6,
  kReduce = 7,
  kPushRows = 8,
  kPullRows = 9,
  kBoundary = 10,
  kReadState = 11,
  kWriteState = 12,
  kMoveShard = 13,
  kVerdict = 14,
  kRelease = 15,
  kCut = 16,
  kPeerPiece = 17,
  kRefuse = 18,
  kHeartbeat = 19,
  kArena = 20,   // shared memory: a descriptor comes along
  kCredit = 21,  // shared memory: tickets given back
};
std::string_view Name(FrameKind kind);

// Answers of an owner. On the wire; never renumber.
enum class FrameStatus : uint8_t {
  kOk = 0,
  kNotYet = 1,         // the receiver does not know this generation or sender yet; try again
  kOldGeneration = 2,  // job_generation/group_generation carry what is in force
  kFenced = 3,         // this incarnation was declared dead
  kNotOwner = 4,       // the chunk lives elsewhere; job_generation carries the plan to wait for
  kUnknownTensor = 5,
  kBadRequest = 6,   // sizes, dtype or fields do not fit the tensor
  kNoOptimizer = 7,  // a push came before the optimizer was set
  kNotWriter = 8,    // Init from someone else than the writer of initial values
  kNotFinite = 9,    // NaN or infinity in the gradient; left out
  kDiscarded = 10,   // late or too stale; counted
  kQuota = 11,
  kJobEnded = 12,
  kInternal = 13,
  kDenied = 14,  // handshake: the key is wrong or the identity was never known
  kLate = 15,    // the push went on without it; to be sent again for the step of the reply
};
std::string_view Name(FrameStatus status);

// Where the payload of a piece is when it does not follow its header: in memory that both ends have
// mapped (transport/arena_link.h).
struct Placement {
  uint32_t arena = 0;   // which; 0: the payload follows in the stream
  uint32_t ticket = 0;  // given back by the receiver when it is done with the bytes
  uint64_t offset = 0;  // in the arena. Arena: its size. Credit: a bit for each ticket

  bool operator==(const Placement&) const = default;
};

struct FrameHeader {
  FrameKind kind = FrameKind::kHeartbeat;
  bool reply = false;  // flags bit 0: answers the operation `sequence` of the receiver
  FrameStatus status = FrameStatus::kOk;
  JobId job;
  JobGeneration job_generation;
  GroupId group;
  GroupGeneration group_generation;
  Step step;         // the round it joins
  Step origin_step;  // the step the gradient was computed in; Boundary: last step it covers
  Ordinal ordinal;   // of operations on this tensor within the step
  TensorId tensor;
  ChunkIndex chunk;
  Version version;  // push: base it was computed on; reply: version after the operation
  NodeId sender;
  Incarnation incarnation;
  Sequence sequence;      // of the sender's operations to this receiver, from 1; replies echo it
  Sequence acknowledged;  // the sender has the replies to all its operations up to this one
  Samples samples;        // in the gradient; reply to Reduce: in the sum
  uint32_t lineage = 0;   // request of a worker: that it has adopted, whatever its base is of
  float learning_rate = 0;
  DType dtype = DType::kF32;
  uint8_t codec = 0;      // 0 = none
  uint64_t total = 0;     // bytes of the whole message
  uint64_t offset = 0;    // of this piece in it
  uint32_t length = 0;    // of this piece
  uint64_t checksum = 0;  // XXH3-64 of the payload of this piece; filled by the channel
  Placement
      placement;  // on shared memory only; filled by the channel, which then leaves checksum 0

  bool operator==(const FrameHeader&) const = default;
};

inline constexpr size_t kFrameHeaderBytes = 192;
using EncodedHeader = std::array<std::byte, kFrameHeaderBytes>;

// Fills every byte, reserved ones with 0, and the header's own checksum.
void EncodeHeader(const FrameHeader& header, EncodedHeader& out);

// InvalidArgument naming the field and value: magic, version, header length, header checksum,
// kind, status, dtype, reserved bytes, length > kMaxPieceBytes, total > kMaxMessageBytes,
// offset + length > total (no overflow), an empty piece of a message that has bytes, a placement
// without an arena.
// Total: any bytes of any length give a header or an error.
absl::StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte> bytes);

// XXH3-64, the checksum of payload pieces and headers.
uint64_t Checksum(std::span<const std::byte> bytes);

}  // namespace paceline
