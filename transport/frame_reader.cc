#include "transport/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace paceline {

IdentityCheck IdentityCheck::OfClient(const PeerIdentity& client) {
  IdentityCheck check;
  check.job_ = client.job;
  check.node_ = client.node;
  check.incarnation_ = client.incarnation;
  return check;
}

IdentityCheck IdentityCheck::OfServer(JobId job) {
  IdentityCheck check;
  check.job_ = job;
  return check;
}

absl::Status IdentityCheck::Check(const FrameHeader& header) {
  if (header.job != job_) {
    return absl::PermissionDeniedError(
        absl::StrCat("frame of job ", header.job.value(), " on a channel of job ", job_.value()));
  }
  if (!node_) node_ = header.sender;
  if (header.sender != *node_) {
    return absl::PermissionDeniedError(absl::StrCat("frame of node ", header.sender.value(),
                                                    " on a channel of node ", node_->value()));
  }
  if (incarnation_ && header.incarnation != *incarnation_) {
    return absl::PermissionDeniedError(
        absl::StrCat("frame of incarnation ", header.incarnation.value(),
                     " on a channel of incarnation ", incarnation_->value()));
  }
  return absl::OkStatus();
}

FrameReader::FrameReader(Channel* channel, FrameSink* sink, IdentityCheck identity,
                         std::shared_ptr<ReceiveCredit> credit, const std::atomic<bool>* stop,
                         std::shared_ptr<ArenaLink> arena)
    : channel_(channel),
      sink_(sink),
      identity_(std::move(identity)),
      credit_(std::move(credit)),
      stop_(stop),
      arena_(std::move(arena)) {}

FrameReader::~FrameReader() {
  if (state_ == State::kPayload) credit_->Return(header_.length, std::move(buffer_));
}

std::span<const iovec> FrameReader::Space() {
  if (state_ == State::kCredit) return {};
  size_t parts = 0;
  if (state_ == State::kPayload) {
    PACELINE_CHECK(staged() == 0);
    staged_begin_ = staged_end_ = 0;
    space_[parts++] = {.iov_base = destination_.data() + got_,
                       .iov_len = destination_.size() - got_};
  } else if (staged_begin_ > 0) {
    std::memmove(staging_.data(), staging_.data() + staged_begin_, staged());
    staged_end_ = staged();
    staged_begin_ = 0;
  }
  space_[parts++] = {.iov_base = staging_.data() + staged_end_,
                     .iov_len = kStagingBytes - staged_end_};
  return std::span(space_).first(parts);
}

absl::Status FrameReader::Received(size_t bytes) {
  if (state_ == State::kPayload) {
    const size_t direct = std::min(bytes, destination_.size() - got_);
    got_ += direct;
    bytes -= direct;
  }
  staged_end_ += bytes;
  return Process();
}

absl::Status FrameReader::Inject(std::span<const std::byte> bytes) {
  PACELINE_CHECK(staged() == 0 && bytes.size() <= kStagingBytes);
  std::ranges::copy(bytes, staging_.begin());
  staged_begin_ = 0;
  staged_end_ = bytes.size();
  return Process();
}

absl::Status FrameReader::Resume() {
  return state_ == State::kCredit ? Process() : absl::OkStatus();
}

absl::Status FrameReader::Process() {
  while (!stop_->load(std::memory_order_relaxed)) {
    if (state_ == State::kHeader) {
      if (staged() < kFrameHeaderBytes) break;
      PACELINE_RETURN_IF_ERROR(TakeHeader());
    }
    if (state_ == State::kCredit) {
      if (!credit_->Reserve(header_.length)) break;
      PACELINE_RETURN_IF_ERROR(BeginPayload());
    }
    if (state_ == State::kPayload) {
      const size_t n = std::min(staged(), destination_.size() - got_);
      std::memcpy(destination_.data() + got_, staging_.data() + staged_begin_, n);
      staged_begin_ += n;
      got_ += n;
      if (got_ < destination_.size()) break;
      PACELINE_RETURN_IF_ERROR(EndPayload());
    }
  }
  return absl::OkStatus();
}

absl::Status FrameReader::TakeHeader() {
  PACELINE_ASSIGN_OR_RETURN(
      header_, DecodeHeader(std::span(staging_).subspan(staged_begin_, kFrameHeaderBytes)));
  staged_begin_ += kFrameHeaderBytes;
  if (header_.kind == FrameKind::kHello || header_.kind == FrameKind::kAuth ||
      header_.kind == FrameKind::kRefuse) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(Name(header_.kind)), " after the handshake"));
  }
  if (header_.kind == FrameKind::kArena || header_.kind == FrameKind::kCredit) {
    return TakeControl();
  }
  PACELINE_RETURN_IF_ERROR(identity_.Check(header_));
  if (header_.placement.arena != 0 && (arena_ == nullptr || header_.length == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a payload of ", header_.length, " bytes in arena ", header_.placement.arena,
                     arena_ == nullptr ? " on a channel without shared memory" : ""));
  }
  if (header_.length > 0) {
    state_ = State::kCredit;
    return absl::OkStatus();
  }
  if (header_.checksum != Checksum({})) {
    return absl::DataLossError("checksum of an empty payload does not fit");
  }
  ++frames_;
  return sink_->OnFrame(*channel_, header_, Payload());
}

// Frames of the connection itself: no node speaks in them and no sink sees them.
absl::Status FrameReader::TakeControl() {
  if (arena_ == nullptr || header_.length != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(Name(header_.kind)), " of ", header_.length, " bytes",
        arena_ == nullptr ? " on a channel without shared memory" : ", it has no payload"));
  }
  return header_.kind == FrameKind::kArena ? arena_->OnArena(header_)
                                           : arena_->OnCredit(header_.placement.offset);
}

absl::Status FrameReader::BeginPayload() {
  absl::StatusOr<std::span<std::byte>> named = sink_->OnHeader(*channel_, header_);
  if (!named.ok()) {
    credit_->Return(header_.length, nullptr);
    return named.status();
  }
  PACELINE_CHECK(named->empty() || named->size() == header_.length);
  if (header_.placement.arena != 0) {
    state_ = State::kHeader;
    return TakePlaced(*named);
  }
  if (named->empty()) {
    buffer_ = credit_->Buffer(header_.length);
    destination_ = std::span(buffer_.get(), header_.length);
  } else {
    destination_ = *named;
  }
  got_ = 0;
  state_ = State::kPayload;
  return absl::OkStatus();
}

absl::Status FrameReader::EndPayload() {
  state_ = State::kHeader;
  Payload payload = credit_->Wrap(destination_, std::move(buffer_));
  if (const uint64_t sum = Checksum(destination_); sum != header_.checksum) {
    return absl::DataLossError(absl::StrCat(
        "checksum of ", std::string(Name(header_.kind)), " piece at offset ", header_.offset,
        " is 0x", absl::Hex(header_.checksum), ", its bytes give 0x", absl::Hex(sum)));
  }
  ++frames_;
  return sink_->OnFrame(*channel_, header_, std::move(payload));
}

// The payload is in memory that the peer may write: it reaches a sink that does not know how to
// take that only as a copy.
absl::Status FrameReader::TakePlaced(std::span<std::byte> named) {
  const absl::StatusOr<std::span<const std::byte>> placed = arena_->Take(header_);
  if (!placed.ok()) {
    credit_->Return(header_.length, nullptr);
    return placed.status();
  }
  const Placement at = std::exchange(header_.placement, Placement());
  Payload payload;
  if (named.empty() && sink_->AbsorbsInPlace()) {
    payload = arena_->Hold(at, credit_->Wrap(*placed, nullptr));
  } else {
    AlignedBytes buffer;
    if (named.empty()) {
      buffer = credit_->Buffer(header_.length);
      named = std::span(buffer.get(), header_.length);
    }
    std::memcpy(named.data(), placed->data(), placed->size());
    arena_->Release(at.ticket, at.arena != ArenaLink::kChannelArena);
    payload = credit_->Wrap(named, std::move(buffer));
  }
  ++frames_;
  return sink_->OnFrame(*channel_, header_, std::move(payload));
}

std::string FrameReader::Position() const {
  if (state_ != State::kHeader) {
    return absl::StrCat(got_, " bytes into a payload of ", header_.length);
  }
  if (staged() > 0) return absl::StrCat(staged(), " bytes into a header");
  return "";
}

}  // namespace paceline
