#include "transport/arena_link.h"

#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace paceline {
namespace {

// Tickets that are given back together when nothing else is to be said.
constexpr int kCreditBatch = 16;

template <typename... Args>
absl::Status BadArena(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("arena: ", args...));
}

}  // namespace

absl::StatusOr<std::shared_ptr<ArenaLink>> ArenaLink::Dialing(std::shared_ptr<ArenaHeap> heap) {
  PACELINE_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> arena, SharedMemory::Create(kArenaBytes));
  std::shared_ptr<ArenaLink> link(new ArenaLink(true, std::move(heap), 0));
  link->arena_ = std::move(arena);
  return link;
}

std::shared_ptr<ArenaLink> ArenaLink::Accepting(uint64_t max_heap_bytes) {
  return std::shared_ptr<ArenaLink>(new ArenaLink(false, nullptr, max_heap_bytes));
}

std::optional<ArenaLink::Announcement> ArenaLink::NextAnnouncement() {
  if (!dialing_ || announced_ >= kChannelArena + heap_->extents()) return std::nullopt;
  ++announced_;
  ArenaHeap::Announcement of = {.descriptor = arena_->descriptor(), .bytes = kArenaBytes};
  if (announced_ != kChannelArena) of = heap_->Announce(announced_);
  Announcement out = {.descriptor = of.descriptor, .frame = {}};
  out.frame.kind = FrameKind::kArena;
  out.frame.placement = {.arena = announced_, .ticket = 0, .offset = of.bytes};
  return out;
}

void ArenaLink::OnDescriptor(FileDescriptor descriptor) { descriptor_ = std::move(descriptor); }

absl::Status ArenaLink::OnArena(const FrameHeader& header) {
  const Placement& said = header.placement;
  const auto expected = static_cast<uint32_t>(
      arena_ == nullptr ? kChannelArena : ArenaHeap::kFirst + peer_heap_.size());
  const uint64_t most = expected == kChannelArena ? kArenaBytes : max_heap_bytes_;
  if (dialing_ || expected >= ArenaHeap::kFirst + ArenaHeap::kMaxExtents) {
    return BadArena("announced where none is expected");
  }
  if (said.arena != expected || said.ticket != 0 || said.offset > most) {
    return BadArena("number ", said.arena, " of ", said.offset, " bytes, not number ", expected,
                    " of ", expected == kChannelArena ? "" : "at most ", most);
  }
  if (!descriptor_) return BadArena("no descriptor came along");
  const bool writable = expected == kChannelArena;
  if (writable && said.offset != kArenaBytes) {
    return BadArena("number 1 of ", said.offset, " bytes, it has ", kArenaBytes);
  }
  PACELINE_ASSIGN_OR_RETURN(
      std::shared_ptr<SharedMemory> memory,
      SharedMemory::Open(*std::exchange(descriptor_, std::nullopt), said.offset, writable));
  if (writable) {
    arena_ = std::move(memory);
  } else {
    peer_heap_.emplace(expected, std::move(memory));
  }
  return absl::OkStatus();
}

std::span<std::byte> ArenaLink::Half(bool of_dialing) const {
  return arena_->bytes().subspan(of_dialing ? 0 : kHalfBytes, kHalfBytes);
}

std::optional<uint32_t> ArenaLink::TakeTicket() {
  if (free_ == 0) return std::nullopt;
  // The lowest: few slots that are used often stay in the processor's cache.
  const auto ticket = static_cast<uint32_t>(std::countr_zero(free_));
  free_ &= free_ - 1;
  return ticket;
}

Placement ArenaLink::Put(uint32_t ticket, std::span<const std::byte> payload) {
  PACELINE_CHECK(payload.size() <= kMaxPieceBytes);
  const uint64_t offset = uint64_t{ticket} * kMaxPieceBytes;
  std::memcpy(Half(dialing_).data() + offset, payload.data(), payload.size());
  bytes_out_.fetch_add(payload.size(), std::memory_order_relaxed);
  return {.arena = kChannelArena, .ticket = ticket, .offset = offset};
}

std::optional<Placement> ArenaLink::InPlace(uint32_t ticket,
                                            std::span<const std::byte> payload) const {
  if (heap_ == nullptr) return std::nullopt;
  const std::optional<ArenaHeap::Place> place = heap_->Find(payload);
  if (!place || place->number > announced_) return std::nullopt;
  return Placement{.arena = place->number, .ticket = ticket, .offset = place->offset};
}

absl::Status ArenaLink::OnCredit(uint64_t tickets) {
  if ((tickets & free_) != 0) {
    return BadArena("tickets 0x", absl::Hex(tickets & free_), " were given back and are not out");
  }
  free_ |= tickets;
  returned_ |= tickets;
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> ArenaLink::Take(const FrameHeader& header) {
  const Placement& at = header.placement;
  if (arena_ == nullptr) return BadArena("a payload in it before it was announced");
  std::span<const std::byte> arena;
  if (at.arena == kChannelArena) {
    arena = Half(!dialing_);
  } else if (const auto heap = peer_heap_.find(at.arena); heap != peer_heap_.end()) {
    arena = heap->second->bytes();
  } else {
    return BadArena("number ", at.arena, " was not announced");
  }
  if (at.ticket >= kTickets) return BadArena("ticket ", at.ticket, ", there are ", kTickets);
  const uint64_t bit = uint64_t{1} << at.ticket;
  if ((held_ & bit) != 0) return BadArena("ticket ", at.ticket, " is out already");
  if (at.offset > arena.size() || header.length > arena.size() - at.offset) {
    return BadArena("offset ", at.offset, " + length ", header.length, " exceed ", arena.size());
  }
  if (header.checksum != 0) return BadArena("a checksum, which memory of the peer does not have");
  held_ |= bit;
  bytes_in_.fetch_add(header.length, std::memory_order_relaxed);
  return arena.subspan(at.offset, header.length);
}

void ArenaLink::Release(uint32_t ticket, bool waited_for) {
  const uint64_t before = released_.fetch_or(uint64_t{1} << ticket);
  if (waited_for && !waited_for_.exchange(true)) return wake_();
  if (std::popcount(before) == kCreditBatch - 1) wake_();
}

class ArenaLink::Held final : public Payload::Owner {
 public:
  Held(std::shared_ptr<ArenaLink> link, const Placement& at, Payload payload)
      : wire_(link->wire_.lock()), link_(std::move(link)), at_(at), payload_(std::move(payload)) {}
  ~Held() override { link_->Release(at_.ticket, at_.arena != kChannelArena); }

 private:
  const std::shared_ptr<Wire> wire_;
  const std::shared_ptr<ArenaLink> link_;
  const Placement at_;
  const Payload payload_;
};

Payload ArenaLink::Hold(const Placement& at, Payload payload) {
  const std::span<const std::byte> bytes = payload.bytes();
  return Payload(bytes, std::make_unique<Held>(shared_from_this(), at, std::move(payload)));
}

bool ArenaLink::CreditDue() const {
  return waited_for_.load(std::memory_order_relaxed) ||
         std::popcount(released_.load(std::memory_order_relaxed)) >= kCreditBatch;
}

std::optional<FrameHeader> ArenaLink::CreditFrame() {
  waited_for_.store(false);  // before the exchange: what comes between wakes once more
  const uint64_t tickets = released_.exchange(0);
  if (tickets == 0) return std::nullopt;
  held_ &= ~tickets;
  FrameHeader header;
  header.kind = FrameKind::kCredit;
  header.placement.offset = tickets;
  return header;
}

}  // namespace paceline
