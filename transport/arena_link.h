// What a connection over shared memory has beside its stream: an arena that both ends have mapped,
// and tickets that say who may touch which part of it.
//
// Headers travel in the stream, through the system, so that no end can change one once it is read;
// only payloads are in the arena. A piece in the arena has a ticket of its sender: it belongs to
// the receiver until that gives the ticket back (a Credit frame). Of each direction there are
// kTickets, each with a slot of one piece in the sender's half: that bounds the bytes in flight.
//
//   channel arena (number 1), made by the end that dialed:
//   | slot 0 .. slot 63 of the dialing end | slot 0 .. slot 63 of the accepting end |
//   heap arenas (2 to 15), of the dialing end, read-only to the other: buffers that its user took
//   from Channel::Allocate and that are sent from where they are
//
// Thread rule: the connection's I/O thread, but Release: any thread, also after the connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/arena_heap.h"
#include "transport/channel.h"
#include "transport/frame.h"
#include "transport/shared_memory.h"
#include "transport/wire.h"

namespace paceline {

class ArenaLink : public std::enable_shared_from_this<ArenaLink> {
 public:
  static constexpr uint32_t kTickets = 64;
  static constexpr uint64_t kHalfBytes = uint64_t{kTickets} * kMaxPieceBytes;
  static constexpr uint64_t kArenaBytes = 2 * kHalfBytes;
  static constexpr uint32_t kChannelArena = 1;
  // Smaller payloads follow their header: a copy by the system costs less than a ticket.
  static constexpr uint32_t kMaxInlineBytes = 4096;

  static absl::StatusOr<std::shared_ptr<ArenaLink>> Dialing(std::shared_ptr<ArenaHeap> heap);
  // The peer may announce heap arenas of up to `max_heap_bytes` each.
  static std::shared_ptr<ArenaLink> Accepting(uint64_t max_heap_bytes);

  // `wake` is called, from any thread, when credit is due.
  void SetWake(std::function<void()> wake) { wake_ = std::move(wake); }

  // ---- Announcing the arena
  struct Announcement {
    int descriptor = -1;
    FrameHeader frame;
  };
  // The next arena that the peer has not been told of.
  std::optional<Announcement> NextAnnouncement();
  // A descriptor came with the stream; one is kept until its Arena frame is here.
  void OnDescriptor(FileDescriptor descriptor);
  absl::Status OnArena(const FrameHeader& header);

  // ---- Sending
  // Both ends know the arena.
  bool open() const { return arena_ != nullptr; }
  std::optional<uint32_t> TakeTicket();
  // Copies the piece to where the ticket stands.
  Placement Put(uint32_t ticket, std::span<const std::byte> payload);
  // Where the piece is, if the peer can read it there: it must not change until the ticket is back.
  std::optional<Placement> InPlace(uint32_t ticket, std::span<const std::byte> payload) const;
  void CountSentInPlace(uint64_t bytes) { bytes_out_.fetch_add(bytes, std::memory_order_relaxed); }
  // InvalidArgument when one of the tickets is not out.
  absl::Status OnCredit(uint64_t tickets);
  // Those that came back since the last call.
  uint64_t TakeReturned() { return std::exchange(returned_, 0); }

  // ---- Receiving
  // Where the payload is. InvalidArgument, naming the field, unless it lies within the sender's
  // half and its ticket is not out already.
  absl::StatusOr<std::span<const std::byte>> Take(const FrameHeader& header);
  // `waited_for`: the sender's user waits for the ticket, so it does not wait for others.
  void Release(uint32_t ticket, bool waited_for);
  // A payload that gives its ticket back.
  Payload Hold(const Placement& at, Payload payload);
  // Payloads keep the stream open: its end tells the peer that nobody reads its memory any more.
  void SetStream(const std::shared_ptr<Wire>& wire) { wire_ = wire; }

  // Whether enough tickets wait to be given back to be worth a frame of their own.
  bool CreditDue() const;
  // The frame that gives back all there are; empty when there are none.
  std::optional<FrameHeader> CreditFrame();

  // From the heap; null where there is none.
  std::shared_ptr<std::byte[]> Allocate(size_t bytes) const {
    return heap_ != nullptr ? heap_->Allocate(bytes) : nullptr;
  }

  uint64_t bytes_in() const { return bytes_in_.load(std::memory_order_relaxed); }
  uint64_t bytes_out() const { return bytes_out_.load(std::memory_order_relaxed); }

 private:
  class Held;
  ArenaLink(bool dialing, std::shared_ptr<ArenaHeap> heap, uint64_t max_heap_bytes)
      : dialing_(dialing), heap_(std::move(heap)), max_heap_bytes_(max_heap_bytes) {}
  std::span<std::byte> Half(bool of_dialing) const;

  const bool dialing_;
  const std::shared_ptr<ArenaHeap> heap_;  // of the dialing end
  const uint64_t max_heap_bytes_;
  uint32_t announced_ = 0;  // the highest number the peer was told of
  std::shared_ptr<SharedMemory> arena_;
  std::map<uint32_t, std::shared_ptr<SharedMemory>> peer_heap_;
  std::weak_ptr<Wire> wire_;
  std::optional<FileDescriptor> descriptor_;
  std::function<void()> wake_;
  uint64_t free_ = ~uint64_t{0};  // tickets of this end, a bit each
  uint64_t held_ = 0;             // tickets of the peer that it was not given back
  uint64_t returned_ = 0;
  std::atomic<uint64_t> released_ = 0;
  std::atomic<bool> waited_for_ = false;
  std::atomic<uint64_t> bytes_in_ = 0;
  std::atomic<uint64_t> bytes_out_ = 0;
};

}  // namespace paceline
