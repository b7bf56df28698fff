#include "transport/send_queue.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace paceline {
namespace {

uint64_t BytesOnWire(uint64_t payload) {
  const uint64_t pieces = std::max<uint64_t>(1, (payload + kMaxPieceBytes - 1) / kMaxPieceBytes);
  return payload + pieces * kFrameHeaderBytes;
}

}  // namespace

absl::Status SendQueue::Push(const FrameHeader& header, std::span<const std::byte> payload,
                             int32_t priority, Channel::Completion& done) {
  if (payload.size() > kMaxMessageBytes) {
    // A code that no channel closes with: this message is wrong, not the channel.
    return absl::OutOfRangeError(absl::StrCat("message of ", payload.size(), " bytes; at most ",
                                              kMaxMessageBytes,
                                              " are allowed, cut the tensor into smaller chunks"));
  }
  const uint64_t bytes = BytesOnWire(payload.size());
  MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  const uint64_t queued = queued_bytes();
  // One message always goes, whatever its size. A reply that is not sent would never be asked for
  // again; who answers bounds what may be asked for.
  const bool bounded = queued > 0 && !header.reply;
  if (bounded && (bytes > max_bytes_ || queued > max_bytes_ - bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(queued, " bytes are queued and ", bytes,
                                                     " more exceed max_send_bytes ", max_bytes_,
                                                     "; wait for completions or raise it"));
  }
  queued_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const uint32_t slot = TakeSlot();
  Message& message = slots_[slot];
  message.header = header;
  message.header.total = payload.size();
  message.payload = payload;
  message.done = std::move(done);
  message.next_offset = 0;
  message.held = 0;
  message.written = false;
  message.used = true;
  heap_.push_back({.priority = priority, .order = next_order_++, .slot = slot});
  std::push_heap(heap_.begin(), heap_.end());
  return absl::OkStatus();
}

uint32_t SendQueue::TakeSlot() {
  if (free_slots_.empty()) {
    slots_.emplace_back();
    return static_cast<uint32_t>(slots_.size() - 1);
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void SendQueue::FreeSlot(uint32_t slot) {
  slots_[slot].used = false;
  free_slots_.push_back(slot);
}

std::span<const iovec> SendQueue::Gather() {
  if (part_begin_ == part_end_) {
    CutBatch();
    EncodeBatch();
  }
  return std::span(parts_).subspan(part_begin_, part_end_ - part_begin_);
}

void SendQueue::PushControl(const FrameHeader& header) {
  PACELINE_CHECK(control_.size() < kMaxControl);
  control_.push_back(header);
}

void SendQueue::CutBatch() {
  piece_begin_ = piece_end_ = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < control_.size(); ++i) {
    pieces_[piece_end_++] = {.unwritten = kFrameHeaderBytes};
  }
  MutexLock lock(&mutex_);
  while (!heap_.empty() && piece_end_ < kMaxBatchPieces) {
    const uint32_t slot = heap_.front().slot;
    const std::optional<Piece> piece = CutPiece(slot, bytes);
    if (!piece) break;
    bytes += piece->length;
    pieces_[piece_end_++] = *piece;
    slots_[slot].next_offset += piece->length;
    if (piece->last) {
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
    }
  }
}

// The next piece of the message in `slot`; empty when it does not fit into the batch any more or
// has to wait for a ticket.
std::optional<SendQueue::Piece> SendQueue::CutPiece(uint32_t slot, size_t bytes_so_far) {
  Message& message = slots_[slot];
  const uint64_t left = message.header.total - message.next_offset;
  Piece piece = {.message = &message,
                 .slot = slot,
                 .offset = message.next_offset,
                 .length = static_cast<uint32_t>(std::min<uint64_t>(left, kMaxPieceBytes))};
  if (bytes_so_far > 0 && bytes_so_far + piece.length > kMaxPieceBytes) return std::nullopt;
  piece.last = left == piece.length;
  piece.unwritten = kFrameHeaderBytes;
  if (arena_ != nullptr && arena_->open() && piece.length > ArenaLink::kMaxInlineBytes) {
    piece.ticket = arena_->TakeTicket();
    if (!piece.ticket) return std::nullopt;
    piece.in_place =
        arena_->InPlace(*piece.ticket, message.payload.subspan(piece.offset, piece.length));
    if (piece.in_place) {
      ++message.held;
      holders_[*piece.ticket] = slot;
    }
  } else {
    piece.unwritten += piece.length;
  }
  return piece;
}

// Outside the lock: checksums take a while, and only this thread touches what was cut.
void SendQueue::EncodeBatch() {
  part_begin_ = part_end_ = 0;
  for (size_t i = piece_begin_; i < piece_end_; ++i) {
    const Piece& piece = pieces_[i];
    parts_[part_end_++] = {.iov_base = headers_[i].data(), .iov_len = kFrameHeaderBytes};
    if (piece.message == nullptr) {
      FrameHeader header = control_[i];
      header.checksum = Checksum({});
      EncodeHeader(header, headers_[i]);
      continue;
    }
    const std::span<const std::byte> payload =
        piece.message->payload.subspan(piece.offset, piece.length);
    FrameHeader header = piece.message->header;
    header.offset = piece.offset;
    header.length = piece.length;
    if (piece.in_place) {
      header.placement = *piece.in_place;
      arena_->CountSentInPlace(payload.size());
    } else if (piece.ticket) {
      header.placement = arena_->Put(*piece.ticket, payload);
    } else {
      header.checksum = Checksum(payload);
    }
    EncodeHeader(header, headers_[i]);
    if (payload.empty() || piece.ticket) continue;
    parts_[part_end_++] = {.iov_base = const_cast<std::byte*>(payload.data()),
                           .iov_len = payload.size()};
  }
  control_.clear();
}

uint64_t SendQueue::Wrote(size_t bytes, std::vector<Channel::Completion>& finished) {
  for (size_t left = bytes; left > 0;) {
    PACELINE_CHECK(part_begin_ < part_end_);
    iovec& part = parts_[part_begin_];
    const size_t n = std::min(left, part.iov_len);
    part.iov_base = static_cast<std::byte*>(part.iov_base) + n;
    part.iov_len -= n;
    left -= n;
    if (part.iov_len == 0) ++part_begin_;
  }
  uint64_t frames = 0;
  for (; bytes > 0; ++piece_begin_) {
    Piece& piece = pieces_[piece_begin_];
    const size_t n = std::min(bytes, piece.unwritten);
    piece.unwritten -= n;
    bytes -= n;
    if (piece.message != nullptr) queued_bytes_.fetch_sub(n, std::memory_order_relaxed);
    if (piece.unwritten > 0) break;
    ++frames;
    if (piece.ticket) queued_bytes_.fetch_sub(piece.length, std::memory_order_relaxed);
    if (!piece.last) continue;
    MutexLock lock(&mutex_);
    piece.message->written = true;
    FinishIfDone(piece.slot, finished);
  }
  return frames;
}

void SendQueue::FinishIfDone(uint32_t slot, std::vector<Channel::Completion>& finished) {
  Message& message = slots_[slot];
  if (!message.written || message.held > 0) return;
  finished.push_back(std::move(message.done));
  FreeSlot(slot);
}

void SendQueue::Returned(uint64_t tickets, std::vector<Channel::Completion>& finished) {
  MutexLock lock(&mutex_);
  for (; tickets != 0; tickets &= tickets - 1) {
    const std::optional<uint32_t> slot =
        std::exchange(holders_[static_cast<size_t>(std::countr_zero(tickets))], std::nullopt);
    if (!slot) continue;
    --slots_[*slot].held;
    FinishIfDone(*slot, finished);
  }
}

void SendQueue::Close(const absl::Status& cause, std::vector<Channel::Completion>& unfinished,
                      std::vector<Channel::Completion>& held) {
  MutexLock lock(&mutex_);
  if (!closed_.ok()) return;
  closed_ = cause;
  for (Message& message : slots_) {
    if (message.used) (message.held > 0 ? held : unfinished).push_back(std::move(message.done));
  }
  heap_.clear();
  slots_.clear();
  free_slots_.clear();
  queued_bytes_.store(0, std::memory_order_relaxed);
  part_begin_ = part_end_ = piece_begin_ = piece_end_ = 0;
}

}  // namespace paceline
