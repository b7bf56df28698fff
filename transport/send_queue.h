// Messages of one channel that wait to be written, cut into pieces, most urgent first.
//
// Pieces are gathered into batches of at most one full piece (256 KB) or kMaxBatchPieces small
// ones, each batch one vectored write. What is in a batch is committed; a more urgent message goes
// before everything else. So an urgent message waits for at most one batch.
//
// Over shared memory the payloads of all but small pieces go into the arena and only their headers
// are written; without a ticket the queue waits for one.
//
// Thread rule: Push and queued_bytes from any thread, the rest from the channel's I/O thread.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/runtime/mutex.h"
#include "transport/arena_link.h"
#include "transport/channel.h"
#include "transport/frame.h"

namespace paceline {

class SendQueue {
 public:
  static constexpr size_t kMaxBatchPieces = 64;
  static constexpr size_t kMaxControl = 2;

  explicit SendQueue(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // From now on, in the I/O thread.
  void UseArena(std::shared_ptr<ArenaLink> arena) { arena_ = std::move(arena); }
  // A frame of the connection itself; before everything else. At most kMaxControl wait.
  void PushControl(const FrameHeader& header);

  // Takes `done` only when OK. InvalidArgument: payload larger than a message may be.
  // ResourceExhausted: the bound would be exceeded. After Close: its cause.
  absl::Status Push(const FrameHeader& header, std::span<const std::byte> payload, int32_t priority,
                    Channel::Completion& done) EXCLUDES(mutex_);

  // What Gather gave is written whole; control frames come before what is gathered next.
  bool AtBatchEnd() const { return part_begin_ == part_end_ && control_.size() < kMaxControl; }

  bool control_waits() const { return !control_.empty(); }

  // What is to be written next; empty when nothing waits. The same bytes until Wrote.
  std::span<const iovec> Gather() EXCLUDES(mutex_);
  // The first `bytes` of what Gather gave are written. Adds the completions of messages that are
  // now written whole, and returns how many frames are.
  uint64_t Wrote(size_t bytes, std::vector<Channel::Completion>& finished) EXCLUDES(mutex_);

  // The peer is done with what these tickets were for; adds the completions of messages that waited
  // for it.
  void Returned(uint64_t tickets, std::vector<Channel::Completion>& finished) EXCLUDES(mutex_);

  // Refuses every later Push with `cause`; adds the completions of all messages not yet written,
  // and to `held` those of messages that the peer may still read where they are.
  void Close(const absl::Status& cause, std::vector<Channel::Completion>& unfinished,
             std::vector<Channel::Completion>& held) EXCLUDES(mutex_);

  // Headers and payloads accepted and not yet written.
  uint64_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Message {
    FrameHeader header;
    std::span<const std::byte> payload;
    Channel::Completion done;
    uint64_t next_offset = 0;  // of the next piece to be cut
    uint32_t held = 0;         // tickets of pieces that the peer reads where they are
    bool written = false;
    bool used = false;
  };
  struct Waiting {
    int32_t priority;
    uint64_t order;
    uint32_t slot;
    bool operator<(const Waiting& other) const {
      return priority != other.priority ? priority < other.priority : order > other.order;
    }
  };
  struct Piece {
    Message* message = nullptr;
    uint32_t slot = 0;
    uint64_t offset = 0;
    uint32_t length = 0;
    bool last = false;
    // Its payload goes into the arena, or is in it already.
    std::optional<uint32_t> ticket = std::nullopt;
    std::optional<Placement> in_place = std::nullopt;
    size_t unwritten = 0;
  };

  void CutBatch() EXCLUDES(mutex_);
  std::optional<Piece> CutPiece(uint32_t slot, size_t bytes_so_far) REQUIRES(mutex_);
  void EncodeBatch();
  uint32_t TakeSlot() REQUIRES(mutex_);
  void FreeSlot(uint32_t slot) REQUIRES(mutex_);
  void FinishIfDone(uint32_t slot, std::vector<Channel::Completion>& finished) REQUIRES(mutex_);

  const uint64_t max_bytes_;
  std::atomic<uint64_t> queued_bytes_ = 0;

  Mutex mutex_;
  std::vector<Waiting> heap_ GUARDED_BY(mutex_);
  std::deque<Message> slots_ GUARDED_BY(mutex_);  // addresses stay; contents belong to who cut them
  std::vector<uint32_t> free_slots_ GUARDED_BY(mutex_);
  uint64_t next_order_ GUARDED_BY(mutex_) = 0;
  absl::Status closed_ GUARDED_BY(mutex_);

  // I/O thread only.
  std::shared_ptr<ArenaLink> arena_;
  std::vector<FrameHeader> control_;
  std::array<std::optional<uint32_t>, ArenaLink::kTickets> holders_;  // slot of who waits for it
  // The batch.
  std::array<Piece, kMaxBatchPieces> pieces_;
  size_t piece_begin_ = 0;
  size_t piece_end_ = 0;
  std::array<EncodedHeader, kMaxBatchPieces> headers_;
  std::array<iovec, 2 * kMaxBatchPieces> parts_;
  size_t part_begin_ = 0;
  size_t part_end_ = 0;
};

}  // namespace paceline
