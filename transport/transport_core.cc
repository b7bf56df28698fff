#include "transport/transport_core.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"

namespace paceline {
namespace {

constexpr Ticks kFirstRetry = Milliseconds(5);
constexpr Ticks kLastRetry = Milliseconds(250);

int64_t InMilliseconds(Ticks ticks) { return ticks.value() / 1'000'000; }

// Sleeps without being in anyone's way: only the caller of Connect waits.
void WaitFor(Ticks time) {
  Mutex mutex;
  CondVar never;
  const Ticks until = Clock::Real().Now() + time;
  MutexLock lock(&mutex);
  for (Ticks left = time; left > Ticks(0); left = until - Clock::Real().Now()) {
    never.WaitFor(&mutex, left);
  }
}

}  // namespace

TransportCore::TransportCore(const TransportOptions& options, std::string name,
                             const MakePoller& make_poller)
    : name_(std::move(name)), shared_(std::make_shared<TransportShared>(options)) {
  for (uint32_t i = 0; i < std::max(1u, options.io_threads); ++i) {
    threads_.push_back(std::make_shared<IoThread>(make_poller()));
  }
}

const std::shared_ptr<IoThread>& TransportCore::NextThread() {
  return threads_[next_thread_.fetch_add(1) % threads_.size()];
}

void TransportCore::Accept(const Acceptance& acceptance, const std::string& who,
                           const MakeWire& make_wire) {
  const std::shared_ptr<IoThread>& io = NextThread();
  absl::StatusOr<std::unique_ptr<Wire>> wire = make_wire(*io);
  if (!wire.ok()) {
    shared_->log.Warning(absl::StrCat("cannot accept ", who, ": ", wire.status().message()));
    return;
  }
  if (shared_->connections.load() >= shared_->options.max_connections) {
    shared_->over_limit.fetch_add(1);
    shared_->log.Warning(absl::StrCat("dropped ", who, ": max_connections ",
                                      shared_->options.max_connections, " are open"));
    return;
  }
  auto connection = Connection::Accepted(
      {.shared = shared_,
       .io = io,
       .wire = *std::move(wire),
       .sink = acceptance.sink,
       .arena = acceptance.local ? ArenaLink::Accepting(shared_->options.max_arena_bytes) : nullptr,
       .reason = acceptance.local ? "same host" : ""},
      acceptance.keys, acceptance.listener, acceptance.offer);
  io->Post([connection] { connection->Start(); });
}

void TransportCore::CloseAccepted(uint64_t listener) {
  const absl::Status cause = absl::CancelledError("the listener is closing");
  for (const auto& io : threads_) {
    io->PostAndWait([&io, listener, &cause] {
      for (const auto& handler : io->Handlers()) {
        auto* connection = dynamic_cast<Connection*>(handler.get());
        if (connection != nullptr && connection->listener() == listener) {
          connection->EndNow(cause);
        }
      }
    });
  }
}

TransportCore::Attempt TransportCore::TryOnce(const Call& call, const MakeWire& way,
                                              Attach attach) {
  if (shared_->connections.load() >= shared_->options.max_connections) {
    return {.channel = absl::ResourceExhaustedError(
                absl::StrCat(name_, " ", call.address, ": max_connections ",
                             shared_->options.max_connections, " are open"))};
  }
  const std::shared_ptr<IoThread>& io = NextThread();
  absl::StatusOr<std::unique_ptr<Wire>> wire = way(*io);
  if (!wire.ok()) return {.channel = wire.status()};
  auto result = std::make_shared<DialResult>();
  auto connection = Connection::Dialed({.shared = shared_,
                                        .io = io,
                                        .wire = *std::move(wire),
                                        .sink = call.sink,
                                        .arena = std::move(attach.arena),
                                        .reason = std::move(attach.reason)},
                                       call.self, call.key, attach.here, result);
  if (!io->Post([connection] { connection->Start(); })) {
    return {.channel = absl::CancelledError("the transport is closing")};
  }
  std::optional<DialResult::Outcome> outcome = result->WaitUntil(call.deadline);
  if (!outcome) {
    connection->Close(absl::DeadlineExceededError("nobody waits for this connection any more"));
    return {.channel = absl::DeadlineExceededError("no answer")};
  }
  if (!outcome->status.ok()) {
    return {.channel = outcome->status,
            .not_yet = outcome->not_yet,
            .offer = std::move(outcome->offer)};
  }
  return {.channel = std::shared_ptr<Channel>(connection)};
}

// Within this host where the server offers it and it works; else over the stream, which works
// wherever the address does.
TransportCore::Attempt TransportCore::TryStream(const Call& call, const MakeWire& way,
                                                const Ways& ways) {
  Attempt attempt = TryOnce(call, way, {.here = ways.here});
  if (!attempt.offer) return attempt;
  Attempt local = TryLocal(call, *attempt.offer, ways);
  if (local.channel.ok() || local.not_yet || absl::IsPermissionDenied(local.channel.status()) ||
      Clock::Real().Now() >= call.deadline) {
    return local;
  }
  return TryOnce(call, way, {.reason = std::string(Std(local.channel.status().message()))});
}

TransportCore::Attempt TransportCore::TryLocal(const Call& call, const LocalOffer& offer,
                                               const Ways& ways) {
  absl::StatusOr<std::shared_ptr<ArenaLink>> arena = ArenaLink::Dialing(shared_->heap);
  if (!arena.ok()) return {.channel = arena.status()};
  const MakeWire way = [&](IoThread& io) { return ways.local(io, offer); };
  return TryOnce(call, way, {.arena = *std::move(arena), .reason = "same host"});
}

TransportCore::Attempt TransportCore::TryEach(const Call& call, const Ways& ways) {
  Attempt last = {.channel = absl::DeadlineExceededError("no time was given")};
  for (const MakeWire& way : ways.streams) {
    if (Clock::Real().Now() >= call.deadline) break;
    last = TryStream(call, way, ways);
    if (last.channel.ok() || last.not_yet || !absl::IsUnavailable(last.channel.status())) break;
  }
  return last;
}

absl::StatusOr<std::shared_ptr<Channel>> TransportCore::Dial(const std::string& address,
                                                             const Ways& ways,
                                                             const PeerIdentity& self,
                                                             const ChannelKey& key, FrameSink* sink,
                                                             Ticks deadline) {
  CheckNotInIoThread();
  const Call call = {
      .address = address, .self = self, .key = key, .sink = sink, .deadline = deadline};
  const Ticks start = Clock::Real().Now();
  const auto waited = [start] {
    return absl::StrCat(InMilliseconds(Clock::Real().Now() - start), " ms");
  };
  absl::Status not_yet;  // what the peer said, while it does not know us
  for (Ticks wait = kFirstRetry;; wait = std::min(wait + wait, kLastRetry)) {
    Attempt attempt = TryEach(call, ways);
    if (attempt.channel.ok()) return std::move(attempt.channel);
    const absl::Status& status = attempt.channel.status();
    if (attempt.not_yet) not_yet = status;
    if (absl::IsDeadlineExceeded(status) && not_yet.ok()) {
      return absl::DeadlineExceededError(absl::StrCat(name_, " ", address, ": no channel within ",
                                                      waited(), ": ", status.message()));
    }
    if (!attempt.not_yet && !absl::IsDeadlineExceeded(status)) return status;
    const Ticks left = deadline - Clock::Real().Now();
    if (left < kFirstRetry) return Annotate(not_yet, absl::StrCat("gave up after ", waited()));
    // The last wait leaves time for an answer.
    WaitFor(std::min(wait, Ticks(left.value() / 2)));
  }
}

void TransportCore::CheckNotInIoThread() const {
  for (const auto& io : threads_) PACELINE_CHECK(!io->InThread());
}

void TransportCore::Stop() {
  CheckNotInIoThread();
  for (const auto& io : threads_) io->Stop();
}

TransportStats TransportCore::stats() const {
  return {.connections = shared_->connections.load(),
          .accepted = shared_->accepted.load(),
          .refused = shared_->refused.load(),
          .over_limit = shared_->over_limit.load(),
          .protocol_errors = shared_->protocol_errors.load()};
}

}  // namespace paceline
