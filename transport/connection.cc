#include "transport/connection.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"

namespace paceline {
namespace {

// What one connection may read or write before the others of its thread get their turn.
constexpr size_t kTurnBytes = 1u << 20;

Ticks After(uint32_t ms) { return Clock::Real().Now() + Milliseconds(ms); }

}  // namespace

bool DialResult::Deliver(Outcome outcome) {
  MutexLock lock(&mutex_);
  if (abandoned_ || outcome_) return false;
  outcome_ = std::move(outcome);
  changed_.SignalAll();
  return true;
}

std::optional<DialResult::Outcome> DialResult::WaitUntil(Ticks deadline) {
  MutexLock lock(&mutex_);
  while (!outcome_) {
    const Ticks left = deadline - Clock::Real().Now();
    if (left <= Ticks(0)) {
      abandoned_ = true;
      return std::nullopt;
    }
    changed_.WaitFor(&mutex_, left);
  }
  return outcome_;
}

Connection::Connection(Setup setup)
    : shared_(std::move(setup.shared)),
      io_(std::move(setup.io)),
      sink_(setup.sink),
      address_(setup.wire->peer_address()),
      transport_(setup.wire->transport()),
      arena_(std::move(setup.arena)),
      reason_(std::move(setup.reason)),
      send_queue_(shared_->options.max_send_bytes),
      wire_(std::move(setup.wire)) {
  shared_->connections.fetch_add(1);
}

Connection::~Connection() = default;

std::shared_ptr<Connection> Connection::Accepted(Setup setup, const KeyStore* keys,
                                                 uint64_t listener, const LocalOffer& offer) {
  std::shared_ptr<Connection> made(new Connection(std::move(setup)));
  made->listener_ = listener;
  made->phase_ = Phase::kHandshake;
  made->handshake_ = std::make_unique<ServerHandshake>(keys, RandomNonce(), offer);
  return made;
}

std::shared_ptr<Connection> Connection::Dialed(Setup setup, const PeerIdentity& self,
                                               const ChannelKey& key, std::optional<BootId> here,
                                               std::shared_ptr<DialResult> result) {
  std::shared_ptr<Connection> made(new Connection(std::move(setup)));
  made->handshake_ = std::make_unique<ClientHandshake>(self, key, RandomNonce(), here);
  made->dial_ = std::move(result);
  made->peer_ = {.job = self.job, .node = {}, .incarnation = {}, .role = PeerRole::kServer};
  return made;
}

void Connection::Start() {
  credit_ = std::make_shared<ReceiveCredit>(shared_->options.max_receive_bytes, shared_->pool,
                                            [weak = weak_from_this()] {
                                              if (auto self = weak.lock())
                                                self->io_->Schedule(self);
                                            });
  token_ = io_->Add(shared_from_this());
  io_->SetTimer(token_, After(shared_->options.handshake_timeout_ms));
  if (const absl::Status status = wire_->Attach(token_); !status.ok()) Finish(AtPeer(status));
}

void Connection::Send(const FrameHeader& header, std::span<const std::byte> payload,
                      int32_t priority, Completion done) {
  absl::Status status = send_queue_.Push(header, payload, priority, done);
  if (!status.ok()) {
    MutexLock lock(&mutex_);
    rejected_.emplace_back(std::move(done), AtPeer(status));
  }
  if (!io_->Schedule(shared_from_this())) RunRejected();
}

std::shared_ptr<std::byte[]> Connection::Allocate(size_t bytes) {
  if (arena_ != nullptr) {
    if (std::shared_ptr<std::byte[]> shared = arena_->Allocate(bytes)) return shared;
  }
  AlignedBytes memory = AllocateAligned(bytes);
  return std::shared_ptr<std::byte[]>(std::move(memory));
}

void Connection::Close(absl::Status cause) {
  if (cause.ok()) cause = absl::CancelledError("closed by this end");
  {
    MutexLock lock(&mutex_);
    if (!close_cause_.ok()) return;
    close_cause_ = std::move(cause);
  }
  stop_.store(true);
  io_->Schedule(shared_from_this());
}

ChannelStats Connection::stats() const {
  const uint64_t placed_in = arena_ != nullptr ? arena_->bytes_in() : 0;
  const uint64_t placed_out = arena_ != nullptr ? arena_->bytes_out() : 0;
  return {.bytes_in = bytes_in_.load(std::memory_order_relaxed) + placed_in,
          .bytes_out = bytes_out_.load(std::memory_order_relaxed) + placed_out,
          .frames_in = frames_in_.load(std::memory_order_relaxed),
          .frames_out = frames_out_.load(std::memory_order_relaxed),
          .bytes_queued = send_queue_.queued_bytes()};
}

void Connection::OnEvent(const IoEvent& event) {
  process_ended_ |= event.peer;
  readable_ |= event.readable || event.failed || event.peer;
  writable_ |= event.writable || event.failed;
  Run();
}

void Connection::OnTimer() {
  switch (phase_) {
    case Phase::kConnecting:
    case Phase::kHandshake:
      return Finish(AtPeer(absl::DeadlineExceededError(
          absl::StrCat("no handshake within ", shared_->options.handshake_timeout_ms, " ms"))));
    case Phase::kRefusing:
      return Finish(AtPeer(handshake_->status()));
    case Phase::kOpen:
      if (const absl::Status status = wire_->CheckLink(); !status.ok()) {
        return Finish(AtPeer(status));
      }
      return StartLinkTimer();
    case Phase::kDraining:
    case Phase::kClosed:
      return;
  }
}

void Connection::OnStop() {
  Finish(absl::CancelledError("the transport is closing"));
  if (phase_ == Phase::kDraining) EndDraining();
}

void Connection::Run() {
  RunRejected();
  if (phase_ < Phase::kDraining && stop_.load()) {
    absl::Status cause;
    {
      MutexLock lock(&mutex_);
      cause = close_cause_;
    }
    Finish(cause);
  }
  if (phase_ == Phase::kConnecting) RunConnecting();
  if (phase_ == Phase::kHandshake) RunHandshake();
  if (phase_ == Phase::kRefusing) RunRefusing();
  if (phase_ == Phase::kOpen) RunOpen();
  if (phase_ == Phase::kDraining) RunDraining();
}

void Connection::RunConnecting() {
  if (!readable_ && !writable_) return;
  const absl::Status status = wire_->FinishConnect();
  if (!status.ok()) return Finish(AtPeer(status));
  phase_ = Phase::kHandshake;
}

void Connection::RunHandshake() {
  std::vector<std::byte> beyond;
  while (phase_ == Phase::kHandshake) {
    if (!FlushHandshake()) return;
    if (handshake_->state() == Handshake::State::kDone) return Open(beyond);
    if (handshake_->state() == Handshake::State::kFailed) return HandshakeFailed();
    if (handshake_->state() == Handshake::State::kElsewhere) {
      return Finish(AtPeer(absl::CancelledError("there is a way within this host")));
    }
    if (!ReadHandshake(beyond)) return;
  }
}

// True when everything the handshake has to say is written.
bool Connection::FlushHandshake() {
  const std::vector<std::byte> more = handshake_->TakeOutput();
  handshake_out_.insert(handshake_out_.end(), more.begin(), more.end());
  while (handshake_written_ < handshake_out_.size()) {
    if (!writable_) return false;
    const iovec part = {.iov_base = handshake_out_.data() + handshake_written_,
                        .iov_len = handshake_out_.size() - handshake_written_};
    const absl::StatusOr<size_t> wrote = wire_->Write({&part, 1});
    if (!wrote.ok()) {
      // A refusal says more than the broken stream after it.
      Finish(AtPeer(handshake_->status().ok() ? wrote.status() : handshake_->status()));
      return false;
    }
    if (*wrote == 0) writable_ = false;
    handshake_written_ += *wrote;
  }
  return true;
}

// False when there is nothing to read now, or the connection has ended.
bool Connection::ReadHandshake(std::vector<std::byte>& beyond) {
  if (!readable_) return false;
  std::array<std::byte, FrameReader::kStagingBytes> bytes;
  const iovec part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
  const absl::StatusOr<size_t> got = wire_->Read({&part, 1});
  if (!got.ok()) {
    Finish(AtPeer(Annotate(got.status(), "during the handshake")));
    return false;
  }
  if (*got == 0) {
    readable_ = false;
    return false;
  }
  wire_->TakeDescriptors();  // not from those who have proven nothing
  const size_t taken = handshake_->Consume(std::span(bytes).first(*got));
  beyond.assign(bytes.begin() + static_cast<ptrdiff_t>(taken),
                bytes.begin() + static_cast<ptrdiff_t>(*got));
  if (dial_ == nullptr && handshake_->state() == Handshake::State::kFailed) CountRefusal();
  return true;
}

// A client that is only too early tries again by itself; that is no news.
void Connection::CountRefusal() {
  if (handshake_->not_yet()) return;
  shared_->refused.fetch_add(1);
  shared_->log.Warning(
      absl::StrCat("refused ", address_, ": ", std::string(Std(handshake_->status().message()))));
}

void Connection::HandshakeFailed() {
  if (dial_ != nullptr) return Finish(AtPeer(handshake_->status()));
  // The peer has to read the refusal: closing now could destroy it on the way.
  wire_->ShutdownWrite();
  phase_ = Phase::kRefusing;
}

void Connection::RunRefusing() {
  std::array<std::byte, FrameReader::kStagingBytes> ignored;
  const iovec part = {.iov_base = ignored.data(), .iov_len = ignored.size()};
  for (size_t total = 0; readable_;) {
    const absl::StatusOr<size_t> got = wire_->Read({&part, 1});
    if (!got.ok() || (total += *got) > kTurnBytes) return Finish(AtPeer(handshake_->status()));
    if (*got == 0) readable_ = false;
  }
}

void Connection::Open(std::span<const std::byte> beyond) {
  io_->ClearTimer(token_);
  const bool dialed = dial_ != nullptr;
  if (!dialed) {
    peer_ = static_cast<const ServerHandshake&>(*handshake_).peer();
  } else if (reason_.empty()) {
    const LocalOffer& offer = static_cast<const ClientHandshake&>(*handshake_).offer();
    reason_ = offer.socket.empty() ? "the server offers no shared memory" : "another host";
  }
  handshake_.reset();
  handshake_out_ = {};
  reader_.emplace(this, sink_,
                  dialed ? IdentityCheck::OfServer(peer_.job) : IdentityCheck::OfClient(peer_),
                  credit_, &stop_, arena_);
  if (dialed && !std::exchange(dial_, nullptr)->Deliver({})) {
    return Finish(absl::CancelledError("nobody waits for this connection any more"));
  }
  phase_ = Phase::kOpen;
  StartLinkTimer();
  if (arena_ != nullptr) OpenArena();
  if (!dialed) {
    shared_->accepted.fetch_add(1);
    sink_->OnAccepted(shared_from_this());
  }
  if (const absl::Status status = reader_->Inject(beyond); !status.ok()) ProtocolError(status);
}

void Connection::OpenArena() {
  arena_->SetWake([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->io_->Schedule(self);
  });
  arena_->SetStream(wire_);
  send_queue_.UseArena(arena_);
  AnnounceArenas();
}

// One at a time: a write takes one descriptor along.
void Connection::AnnounceArenas() {
  if (!send_queue_.AtBatchEnd() || send_queue_.control_waits()) return;
  if (const std::optional<ArenaLink::Announcement> next = arena_->NextAnnouncement()) {
    wire_->PassDescriptor(next->descriptor);
    send_queue_.PushControl(next->frame);
  }
}

void Connection::StartLinkTimer() {
  const uint32_t timeout = shared_->options.user_timeout_ms;
  if (timeout > 0) io_->SetTimer(token_, After(std::clamp(timeout / 4, 50u, 1000u)));
}

void Connection::RunOpen() {
  ReadFrames();
  if (phase_ == Phase::kOpen) WriteFrames();
}

void Connection::ReadFrames() {
  if (const absl::Status status = reader_->Resume(); !status.ok()) return ProtocolError(status);
  size_t total = 0;
  while (readable_ && !stop_.load(std::memory_order_relaxed)) {
    if (total >= kTurnBytes) {
      io_->Schedule(shared_from_this());
      break;
    }
    const std::span<const iovec> space = reader_->Space();
    if (space.empty()) break;
    const absl::StatusOr<size_t> got = wire_->Read(space);
    if (!got.ok()) {
      const std::string position = reader_->Position();
      return Finish(AtPeer(position.empty() ? got.status() : Annotate(got.status(), position)));
    }
    if (*got == 0) {
      readable_ = false;
      if (process_ended_) return Finish(AtPeer(wire_->CheckLink()));
    }
    if (arena_ != nullptr) TakeDescriptors();
    const uint64_t placed = arena_ != nullptr ? arena_->bytes_in() : 0;
    total += *got;
    bytes_in_.fetch_add(*got, std::memory_order_relaxed);
    const absl::Status status = reader_->Received(*got);
    frames_in_.store(reader_->frames(), std::memory_order_relaxed);
    if (!status.ok()) return ProtocolError(status);
    if (arena_ == nullptr) continue;
    total += arena_->bytes_in() - placed;
    if (const uint64_t back = arena_->TakeReturned(); back != 0) {
      send_queue_.Returned(back, completions_);
      Complete(completions_, absl::OkStatus());
    }
  }
}

void Connection::TakeDescriptors() {
  for (FileDescriptor& descriptor : wire_->TakeDescriptors()) {
    arena_->OnDescriptor(std::move(descriptor));
  }
}

// Tickets go back with what is written anyway, or when many wait.
void Connection::AddCredit() {
  if (!arena_->CreditDue() && send_queue_.queued_bytes() == 0) return;
  if (!send_queue_.AtBatchEnd()) return;
  if (const std::optional<FrameHeader> credit = arena_->CreditFrame()) {
    send_queue_.PushControl(*credit);
  }
}

void Connection::WriteFrames() {
  size_t total = 0;
  while (writable_ && !stop_.load(std::memory_order_relaxed)) {
    const uint64_t placed = arena_ != nullptr ? arena_->bytes_out() : 0;
    if (arena_ != nullptr) {
      if (send_queue_.queued_bytes() > 0) AnnounceArenas();
      AddCredit();
    }
    const std::span<const iovec> parts = send_queue_.Gather();
    if (parts.empty()) return;
    if (total >= kTurnBytes) {
      io_->Schedule(shared_from_this());
      return;
    }
    const absl::StatusOr<size_t> wrote = wire_->Write(parts);
    if (!wrote.ok()) return Finish(AtPeer(wrote.status()));
    if (*wrote == 0) {
      writable_ = false;
      return;
    }
    total += *wrote;
    if (arena_ != nullptr) total += arena_->bytes_out() - placed;
    bytes_out_.fetch_add(*wrote, std::memory_order_relaxed);
    frames_out_.fetch_add(send_queue_.Wrote(*wrote, completions_), std::memory_order_relaxed);
    Complete(completions_, absl::OkStatus());
  }
}

void Connection::Complete(std::vector<Completion>& completions, const absl::Status& status) {
  for (Completion& done : completions) {
    if (done) done(status);
  }
  completions.clear();
}

void Connection::RunRejected() {
  std::vector<std::pair<Completion, absl::Status>> rejected;
  {
    MutexLock lock(&mutex_);
    rejected.swap(rejected_);
  }
  for (auto& [done, status] : rejected) {
    if (done) done(status);
  }
}

void Connection::ProtocolError(const absl::Status& status) {
  shared_->protocol_errors.fetch_add(1);
  const absl::Status cause = AtPeer(status);
  shared_->log.Warning(absl::StrCat("closing the channel of node ", peer_.node.value(), ": ",
                                    std::string(Std(cause.message()))));
  Finish(cause);
}

void Connection::Finish(const absl::Status& cause) {
  if (phase_ >= Phase::kDraining) return;
  const bool was_open = phase_ == Phase::kOpen;
  const std::shared_ptr<Connection> self = shared_from_this();
  DialResult::Outcome outcome = {.status = cause};
  if (handshake_ != nullptr) outcome.not_yet = handshake_->not_yet();
  if (dial_ != nullptr && handshake_ != nullptr &&
      handshake_->state() == Handshake::State::kElsewhere) {
    outcome.offer = static_cast<const ClientHandshake&>(*handshake_).offer();
  }
  stop_.store(true);
  send_queue_.Close(cause, completions_, held_);
  shared_->connections.fetch_sub(1);
  if (held_.empty()) {
    phase_ = Phase::kClosed;
    io_->Remove(token_);
    wire_.reset();
  } else {
    phase_ = Phase::kDraining;
    drain_cause_ = cause;
    io_->ClearTimer(token_);
    wire_->ShutdownWrite();
    io_->Schedule(self);
  }
  Complete(completions_, cause);
  if (dial_ != nullptr) {
    std::exchange(dial_, nullptr)->Deliver(std::move(outcome));
  }
  if (was_open) sink_->OnClosed(*this, cause);
}

void Connection::RunDraining() {
  std::array<std::byte, FrameReader::kStagingBytes> ignored;
  const iovec part = {.iov_base = ignored.data(), .iov_len = ignored.size()};
  while (readable_) {
    const absl::StatusOr<size_t> got = wire_->Read({&part, 1});
    if (!got.ok()) return EndDraining();
    if (*got == 0) readable_ = false;
  }
  if (process_ended_) EndDraining();
}

void Connection::EndDraining() {
  const std::shared_ptr<Connection> self = shared_from_this();
  phase_ = Phase::kClosed;
  io_->Remove(token_);
  wire_.reset();
  Complete(held_, drain_cause_);
}

absl::Status Connection::AtPeer(const absl::Status& status) const {
  return Annotate(status, absl::StrCat(transport_, " ", address_));
}

}  // namespace paceline
