// Turns the bytes of an authenticated channel into calls of its sink: finds headers, checks that
// they are well formed and from the peer, puts payloads where the sink wants them, verifies
// checksums. Total: any bytes give calls or an error.
//
// Thread rule: the channel's I/O thread.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "transport/arena_link.h"
#include "transport/channel.h"
#include "transport/frame.h"
#include "transport/receive_credit.h"

namespace paceline {

// Whether frames are from whom the handshake proved. The accepting end knows its client whole. The
// connecting end knows that the server holds its key, and binds it to the node of its first frame.
class IdentityCheck {
 public:
  static IdentityCheck OfClient(const PeerIdentity& client);
  static IdentityCheck OfServer(JobId job);
  // PermissionDenied naming the field, the value and what it should be.
  absl::Status Check(const FrameHeader& header);

 private:
  JobId job_;
  std::optional<NodeId> node_;
  std::optional<Incarnation> incarnation_;
};

class FrameReader {
 public:
  // `stop`: set when the channel was told to close; no frame is handed over from then on. `arena`:
  // on shared memory; else null, and frames that speak of one are refused.
  FrameReader(Channel* channel, FrameSink* sink, IdentityCheck identity,
              std::shared_ptr<ReceiveCredit> credit, const std::atomic<bool>* stop,
              std::shared_ptr<ArenaLink> arena = nullptr);
  ~FrameReader();

  // Where the next bytes go; empty while it waits for credit.
  std::span<const iovec> Space();
  // `bytes` were put into what Space gave.
  absl::Status Received(size_t bytes);
  // Bytes that were read before the channel was open. At most kStagingBytes.
  absl::Status Inject(std::span<const std::byte> bytes);
  // Credit may have come back.
  absl::Status Resume();

  uint64_t frames() const { return frames_; }
  // "17 bytes into a header", for the message when the stream ends; empty between frames.
  std::string Position() const;

  static constexpr size_t kStagingBytes = 8192;

 private:
  enum class State { kHeader, kCredit, kPayload };

  absl::Status Process();
  absl::Status TakeHeader();
  absl::Status TakeControl();
  absl::Status BeginPayload();
  absl::Status EndPayload();
  absl::Status TakePlaced(std::span<std::byte> named);
  size_t staged() const { return staged_end_ - staged_begin_; }

  Channel* const channel_;
  FrameSink* const sink_;
  IdentityCheck identity_;
  const std::shared_ptr<ReceiveCredit> credit_;
  const std::atomic<bool>* const stop_;
  const std::shared_ptr<ArenaLink> arena_;

  State state_ = State::kHeader;
  FrameHeader header_;
  std::span<std::byte> destination_;
  AlignedBytes buffer_;
  size_t got_ = 0;
  uint64_t frames_ = 0;

  // Bytes read beyond the current payload: one read brings many small frames.
  std::array<std::byte, kStagingBytes> staging_;
  size_t staged_begin_ = 0;
  size_t staged_end_ = 0;
  std::array<iovec, 2> space_;
};

}  // namespace paceline
