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
absl::Status Bad(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("arena: ", args...));
}

}  // namespace

absl::StatusOr<std::shared_ptr<ArenaLink>> ArenaLink::Dialing() {
  PACELINE_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> arena, SharedMemory::Create(kArenaBytes));
  std::shared_ptr<ArenaLink> link(new ArenaLink(true));
  link->arena_ = std::move(arena);
  return link;
}

std::shared_ptr<ArenaLink> ArenaLink::Accepting() {
  return std::shared_ptr<ArenaLink>(new ArenaLink(false));
}

FrameHeader ArenaLink::AnnounceFrame() const {
  FrameHeader header;
  header.kind = FrameKind::kArena;
  header.placement = {.arena = kChannelArena, .ticket = 0, .offset = kArenaBytes};
  return header;
}

void ArenaLink::OnDescriptor(FileDescriptor descriptor) { descriptor_ = std::move(descriptor); }

absl::Status ArenaLink::OnArena(const FrameHeader& header) {
  if (dialing_ || arena_ != nullptr) return Bad("announced where none is expected");
  if (!descriptor_) return Bad("no descriptor came along");
  const Placement& said = header.placement;
  if (said.arena != kChannelArena || said.ticket != 0 || said.offset != kArenaBytes) {
    return Bad("number ", said.arena, " of ", said.offset, " bytes, not number ", kChannelArena,
               " of ", kArenaBytes);
  }
  PACELINE_ASSIGN_OR_RETURN(
      arena_, SharedMemory::Open(*std::exchange(descriptor_, std::nullopt), kArenaBytes, true));
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

absl::Status ArenaLink::OnCredit(uint64_t tickets) {
  if ((tickets & free_) != 0) {
    return Bad("tickets 0x", absl::Hex(tickets & free_), " were given back and are not out");
  }
  free_ |= tickets;
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> ArenaLink::Take(const FrameHeader& header) {
  const Placement& at = header.placement;
  if (arena_ == nullptr) return Bad("a payload in it before it was announced");
  if (at.arena != kChannelArena) return Bad("number ", at.arena, " was not announced");
  if (at.ticket >= kTickets) return Bad("ticket ", at.ticket, ", there are ", kTickets);
  const uint64_t bit = uint64_t{1} << at.ticket;
  if ((held_ & bit) != 0) return Bad("ticket ", at.ticket, " is out already");
  if (at.offset > kHalfBytes || header.length > kHalfBytes - at.offset) {
    return Bad("offset ", at.offset, " + length ", header.length, " exceed ", kHalfBytes);
  }
  if (header.checksum != 0) return Bad("a checksum, which memory of the peer does not have");
  held_ |= bit;
  bytes_in_.fetch_add(header.length, std::memory_order_relaxed);
  return Half(!dialing_).subspan(at.offset, header.length);
}

void ArenaLink::Release(uint32_t ticket) {
  const uint64_t before = released_.fetch_or(uint64_t{1} << ticket);
  if (std::popcount(before) == kCreditBatch - 1) wake_();
}

class ArenaLink::Held final : public Payload::Owner {
 public:
  Held(std::shared_ptr<ArenaLink> link, uint32_t ticket, Payload payload)
      : link_(std::move(link)), ticket_(ticket), payload_(std::move(payload)) {}
  ~Held() override { link_->Release(ticket_); }

 private:
  const std::shared_ptr<ArenaLink> link_;
  const uint32_t ticket_;
  const Payload payload_;
};

Payload ArenaLink::Hold(uint32_t ticket, Payload payload) {
  const std::span<const std::byte> bytes = payload.bytes();
  return Payload(bytes, std::make_unique<Held>(shared_from_this(), ticket, std::move(payload)));
}

bool ArenaLink::CreditDue() const {
  return std::popcount(released_.load(std::memory_order_relaxed)) >= kCreditBatch;
}

std::optional<FrameHeader> ArenaLink::CreditFrame() {
  const uint64_t tickets = released_.exchange(0);
  if (tickets == 0) return std::nullopt;
  held_ &= ~tickets;
  FrameHeader header;
  header.kind = FrameKind::kCredit;
  header.placement.offset = tickets;
  return header;
}

}  // namespace paceline
