// What a connection stands on: a stream of bytes to one peer, and the means to wait for it. tcp and
// loopback differ in these two classes and in how a connection comes about; the rest is shared.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/runtime/file_descriptor.h"

namespace paceline {

struct IoEvent {
  uint64_t token = 0;
  bool readable = false;
  bool writable = false;
  bool failed = false;
  bool peer = false;  // something happened to the peer's process
};

// Waits for what wires report. Reports are edges: one is given when something changed, and means
// that it is worth trying until the wire says that it would block.
// Thread rule: Wake from any thread, Wait from the owning I/O thread.
class Poller {
 public:
  virtual ~Poller() = default;
  // Fills `events`; returns when there are some, after Wake, or when `timeout` passed (negative:
  // never).
  virtual void Wait(Ticks timeout, std::vector<IoEvent>& events) = 0;
  virtual void Wake() = 0;
};

// Thread rule: created anywhere, then used by one I/O thread. None of the calls blocks. Destroying
// it closes the stream.
class Wire {
 public:
  virtual ~Wire() = default;

  // Starts reports to the poller under `token`, the first at once.
  virtual absl::Status Attach(uint64_t token) = 0;
  // Whether the stream is established; called once after the first report of a dialed wire.
  virtual absl::Status FinishConnect() = 0;
  // Bytes moved; 0 when it would block. Unavailable when the stream has ended or failed.
  virtual absl::StatusOr<size_t> Read(std::span<const iovec> parts) = 0;
  virtual absl::StatusOr<size_t> Write(std::span<const iovec> parts) = 0;
  // The peer sees the end of the stream once it has read what was written.
  virtual void ShutdownWrite() = 0;
  // Unavailable when bytes are outstanding and the peer's host has stopped to acknowledge.
  virtual absl::Status CheckLink() = 0;
  virtual const std::string& peer_address() const = 0;
  virtual std::string_view transport() const = 0;  // "tcp", "shm", "loopback"

  // Streams within a host only. The next Write takes the descriptor along; those that came with
  // what Read gave, in order.
  virtual void PassDescriptor(int descriptor) {}
  virtual std::vector<FileDescriptor> TakeDescriptors() { return {}; }
};

}  // namespace paceline
