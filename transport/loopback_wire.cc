#include "transport/loopback_wire.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace paceline {

void LoopbackPoller::Wait(Ticks timeout, std::vector<IoEvent>& events) {
  MutexLock lock(&mutex_);
  while (events_.empty() && !woken_ && timeout != Ticks(0)) {
    if (timeout < Ticks(0)) {
      changed_.Wait(&mutex_);
    } else if (!changed_.WaitFor(&mutex_, timeout)) {
      break;
    }
  }
  woken_ = false;
  for (const auto& [token, event] : events_) events.push_back(event);
  events_.clear();
}

void LoopbackPoller::Wake() {
  MutexLock lock(&mutex_);
  woken_ = true;
  changed_.Signal();
}

void LoopbackPoller::Report(const IoEvent& event) {
  MutexLock lock(&mutex_);
  IoEvent& pending = events_[event.token];
  pending.token = event.token;
  pending.readable |= event.readable;
  pending.writable |= event.writable;
  pending.failed |= event.failed;
  changed_.Signal();
}

void LoopbackPipe::TellReader() {
  if (reader_.poller != nullptr) {
    reader_.poller->Report({.token = reader_.token, .readable = true});
  }
}

void LoopbackPipe::TellWriter() {
  if (writer_.poller != nullptr) {
    writer_.poller->Report({.token = writer_.token, .writable = true});
  }
}

void LoopbackPipe::AttachReader(End end) {
  MutexLock lock(&mutex_);
  reader_ = std::move(end);
  TellReader();
}

void LoopbackPipe::AttachWriter(End end) {
  MutexLock lock(&mutex_);
  writer_ = std::move(end);
  TellWriter();
}

absl::StatusOr<size_t> LoopbackPipe::Read(std::span<const iovec> parts) {
  MutexLock lock(&mutex_);
  size_t total = 0;
  for (const iovec& part : parts) {
    auto* to = static_cast<std::byte*>(part.iov_base);
    for (size_t left = part.iov_len; left > 0 && size_ > 0;) {
      const size_t n = std::min({left, size_, kCapacity - begin_});
      std::memcpy(to, ring_.data() + begin_, n);
      to += n;
      left -= n;
      total += n;
      begin_ = (begin_ + n) % kCapacity;
      size_ -= n;
    }
  }
  if (total == 0 && writer_closed_) return absl::UnavailableError("closed by the peer");
  if (total > 0 && std::exchange(writer_waits_, false)) TellWriter();
  return total;
}

absl::StatusOr<size_t> LoopbackPipe::Write(std::span<const iovec> parts) {
  MutexLock lock(&mutex_);
  if (reader_closed_) return absl::UnavailableError("the peer has closed the connection");
  if (ring_.empty()) ring_.resize(kCapacity);
  size_t total = 0;
  for (const iovec& part : parts) {
    const auto* from = static_cast<const std::byte*>(part.iov_base);
    for (size_t left = part.iov_len; left > 0 && size_ < kCapacity;) {
      const size_t end = (begin_ + size_) % kCapacity;
      const size_t n = std::min({left, kCapacity - size_, kCapacity - end});
      std::memcpy(ring_.data() + end, from, n);
      from += n;
      left -= n;
      total += n;
      size_ += n;
    }
  }
  if (total > 0) TellReader();
  if (total == 0) writer_waits_ = true;
  return total;
}

void LoopbackPipe::CloseReader() {
  MutexLock lock(&mutex_);
  reader_closed_ = true;
  reader_ = {};
  TellWriter();
}

void LoopbackPipe::CloseWriter() {
  MutexLock lock(&mutex_);
  writer_closed_ = true;
  writer_ = {};
  TellReader();
}

LoopbackWire::~LoopbackWire() {
  in_->CloseReader();
  out_->CloseWriter();
}

absl::Status LoopbackWire::Attach(uint64_t token) {
  in_->AttachReader({.poller = poller_, .token = token});
  out_->AttachWriter({.poller = poller_, .token = token});
  return absl::OkStatus();
}

absl::StatusOr<std::string> LoopbackNetwork::Listen(const std::string& address, OnDial on_dial) {
  MutexLock lock(&mutex_);
  if (address.empty()) return absl::InvalidArgumentError("loopback: the address is empty");
  std::string name = address;
  if (name.ends_with(":0")) {
    name.pop_back();
    name += std::to_string(next_port_++);
  }
  if (!listening_.emplace(name, std::move(on_dial)).second) {
    return absl::AlreadyExistsError(absl::StrCat("loopback ", name, ": already taken"));
  }
  return name;
}

void LoopbackNetwork::StopListening(const std::string& name) {
  MutexLock lock(&mutex_);
  listening_.erase(name);
}

absl::StatusOr<std::unique_ptr<Wire>> LoopbackNetwork::Dial(
    const std::string& name, std::shared_ptr<LoopbackPoller> poller) {
  OnDial on_dial;
  std::string from;
  {
    MutexLock lock(&mutex_);
    const auto found = listening_.find(name);
    if (found == listening_.end()) {
      return absl::UnavailableError(absl::StrCat("loopback ", name, ": nobody listens"));
    }
    on_dial = found->second;
    from = absl::StrCat("client:", next_client_++);
  }
  auto up = std::make_shared<LoopbackPipe>();
  auto down = std::make_shared<LoopbackPipe>();
  if (!on_dial(up, down, from)) {
    return absl::UnavailableError(absl::StrCat("loopback ", name, ": nobody listens"));
  }
  return std::make_unique<LoopbackWire>(std::move(poller), down, up, name);
}

}  // namespace paceline
