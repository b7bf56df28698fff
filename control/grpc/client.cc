#include "control/grpc/client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "common/runtime/mutex.h"
#include "control/grpc/codec.h"
#include "control/grpc/codec_util.h"
#include "control/grpc/grpc_util.h"
#include "paceline/v1/membership.grpc.pb.h"
#include "paceline/v1/operator.grpc.pb.h"

namespace paceline {
namespace {

constexpr int kFirstReconnectMs = 100;
constexpr int kLastReconnectMs = 1000;

// What gRPC wraps in "failed to connect to all addresses; last error: UNKNOWN: ".
std::string CauseOf(const std::string& message) {
  std::string cause = message;
  for (const char* const wrapping : {"last error: ", "UNKNOWN: "}) {
    const size_t at = cause.rfind(wrapping);
    if (at != std::string::npos) cause.erase(0, at + std::string_view(wrapping).size());
  }
  return cause;
}

absl::Status FromGrpc(const grpc::Status& status, const std::string& peer) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (code == absl::StatusCode::kUnavailable) {
    return absl::UnavailableError(
        absl::StrCat("scheduler at ", peer, " is not available: ", CauseOf(status.error_message()),
                     "; check that paceline-scheduler runs there"));
  }
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(
        absl::StrCat("scheduler at ", peer, " did not answer in time"));
  }
  return {code, status.error_message()};
}

// An open Watch stream. The client's: the reactor deletes itself first, then says that it is done,
// so that no thread of gRPC's touches the call once the client may go, and the library with the
// last.
struct WatchState {
  grpc::ClientContext context;
  v1::WatchRequest request;
  std::function<void(Directive)> on_directive;
  std::function<void(absl::Status)> on_closed;
  std::string peer;
  Mutex mutex;
  CondVar changed;
  bool done GUARDED_BY(mutex) = false;
};

class WatchReader final : public grpc::ClientReadReactor<v1::Directive> {
 public:
  WatchReader(v1::Membership::Stub* stub, WatchState* state) : state_(state) {
    stub->async()->Watch(&state_->context, &state_->request, this);
    StartRead(&incoming_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    Directive directive;
    broken_ = codec::In("directive", FromProto(incoming_, &directive));
    if (!broken_.ok()) {
      state_->context.TryCancel();
      return;
    }
    state_->on_directive(std::move(directive));
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status cause = broken_.ok() ? FromGrpc(status, state_->peer) : broken_;
    if (cause.ok()) cause = absl::UnavailableError("the scheduler ended the stream");
    WatchState* const state = state_;
    state->on_closed(std::move(cause));
    delete this;
    MutexLock lock(&state->mutex);
    state->done = true;
    state->changed.SignalAll();
  }

 private:
  WatchState* const state_;
  v1::Directive incoming_;
  absl::Status broken_;
};

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const GrpcSecurity& security) {
  if (!security.enabled()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  PACELINE_ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(security.ca, "CERTIFICATE"));
  PACELINE_ASSIGN_OR_RETURN(options.pem_private_key, ReadPem(security.key, "PRIVATE KEY"));
  PACELINE_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadPem(security.certificate, "CERTIFICATE"));
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> Dial(const std::string& scheduler,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
  arguments.SetMaxSendMessageSize(kMaxRequestBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A node comes back within about a second of the scheduler's return.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kLastReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLastReconnectMs);
  // The scheduler is dialled directly: a proxy of the environment is for the outside.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Each client its own connection: what one does must not hold up another of the process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(scheduler, credentials, arguments);
}

class GrpcControlClient final : public ControlClient {
 public:
  GrpcControlClient(std::string peer, std::shared_ptr<grpc::ChannelCredentials> credentials)
      : peer_(std::move(peer)), credentials_(std::move(credentials)) {
    const std::shared_ptr<grpc::Channel> channel = Dial(peer_, credentials_);
    membership_ = v1::Membership::NewStub(channel);
    operators_ = v1::Operator::NewStub(channel);
  }
  ~GrpcControlClient() override { StopWatch(); }

  absl::StatusOr<JoinReply> Join(const JoinRequest& request, Ticks timeout) override {
    v1::JoinRequest in;
    ToProto(request, &in);
    return Unary<JoinReply, v1::JoinReply>(
        timeout, [&](auto* c, auto* out) { return membership_->Join(c, in, out); });
  }

  absl::StatusOr<NodeReply> Call(NodeRef self, const NodeRequest& request, Ticks timeout) override {
    return std::visit([&](const auto& body) { return Send(self, body, timeout); }, request);
  }

  absl::StatusOr<OperatorReply> Operate(const OperatorRequest& request, Ticks timeout) override {
    return std::visit([&](const auto& body) { return Ask(body, timeout); }, request);
  }

  void Watch(NodeRef self, std::function<void(Directive)> on_directive,
             std::function<void(absl::Status)> on_closed) override {
    StopWatch();
    watch_ = std::make_unique<WatchState>();
    ToProto(self, watch_->request.mutable_from());
    watch_->on_directive = std::move(on_directive);
    watch_->on_closed = std::move(on_closed);
    watch_->peer = peer_;
    new WatchReader(membership_.get(), watch_.get());  // deletes itself in OnDone
  }

  void StopWatch() override {
    if (watch_ == nullptr) return;
    watch_->context.TryCancel();
    {
      MutexLock lock(&watch_->mutex);
      while (!watch_->done) watch_->changed.Wait(&watch_->mutex);
    }
    watch_.reset();
  }

  std::unique_ptr<ControlClient> Another() const override {
    return std::make_unique<GrpcControlClient>(peer_, credentials_);
  }
  std::string Peer() const override { return peer_; }

 private:
  template <typename Reply, typename Proto, typename Method>
  absl::StatusOr<Reply> Unary(Ticks timeout, const Method& method) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::nanoseconds(timeout.value()));
    Proto out;
    PACELINE_RETURN_IF_ERROR(FromGrpc(method(&context, &out), peer_));
    Reply reply;
    if constexpr (!std::is_same_v<Reply, Empty>) {
      if (absl::Status status = codec::In("reply", FromProto(out, &reply)); !status.ok()) {
        return absl::InternalError(
            absl::StrCat("scheduler at ", peer_, " sent what it should not: ", status.message()));
      }
    }
    return reply;
  }

  // Send(self, body): the call of Membership that carries this body.
#define PACELINE_SEND(Name, T, Result)                                               \
  absl::StatusOr<NodeReply> Send(NodeRef self, const T& body, Ticks timeout) {       \
    v1::Name##Request in;                                                            \
    ToProto(self, in.mutable_from());                                                \
    ToProto(body, &in);                                                              \
    return Unary<Result, v1::Name##Reply>(                                           \
        timeout, [&](auto* c, auto* out) { return membership_->Name(c, in, out); }); \
  }
  PACELINE_SEND(Leave, LeaveRequest, Empty)
  PACELINE_SEND(DrawSamples, DrawSamplesRequest, DrawSamplesReply)
  PACELINE_SEND(ReturnSamples, ReturnSamplesRequest, Empty)
  PACELINE_SEND(RegisterTensors, RegisterTensorsRequest, RegisterTensorsReply)
  PACELINE_SEND(InitDone, InitDoneRequest, Empty)
  PACELINE_SEND(SetOptimizer, SetOptimizerRequest, Empty)
  PACELINE_SEND(Barrier, BarrierRequest, Empty)
  PACELINE_SEND(Checkpoint, CheckpointRequest, CheckpointReply)
  PACELINE_SEND(Ack, AckRequest, Empty)
  PACELINE_SEND(LinkDown, LinkDownRequest, Empty)
  PACELINE_SEND(Adopted, AdoptedRequest, Empty)
  PACELINE_SEND(NotFinite, NotFiniteRequest, Empty)
#undef PACELINE_SEND

  absl::StatusOr<NodeReply> Send(NodeRef self, const Heartbeat&, Ticks timeout) {
    v1::HeartbeatRequest in;
    ToProto(self, in.mutable_from());
    return Unary<Empty, v1::HeartbeatReply>(
        timeout, [&](auto* c, auto* out) { return membership_->Heartbeat(c, in, out); });
  }
  absl::StatusOr<NodeReply> Send(NodeRef self, const WorkerReport& report, Ticks timeout) {
    v1::ReportRequest in;
    ToProto(report, in.mutable_worker());
    return SendReport(self, &in, timeout);
  }
  absl::StatusOr<NodeReply> Send(NodeRef self, const ServerReport& report, Ticks timeout) {
    v1::ReportRequest in;
    ToProto(report, in.mutable_server());
    return SendReport(self, &in, timeout);
  }
  absl::StatusOr<NodeReply> SendReport(NodeRef self, v1::ReportRequest* in, Ticks timeout) {
    ToProto(self, in->mutable_from());
    return Unary<Empty, v1::ReportReply>(
        timeout, [&](auto* c, auto* out) { return membership_->Report(c, *in, out); });
  }

  absl::StatusOr<OperatorReply> Ask(const StatusQuery& query, Ticks timeout) {
    v1::GetStatusRequest in;
    ToProto(query, &in);
    return Unary<ClusterView, v1::ClusterView>(
        timeout, [&](auto* c, auto* out) { return operators_->GetStatus(c, in, out); });
  }
  absl::StatusOr<OperatorReply> Ask(const EventsQuery& query, Ticks timeout) {
    v1::ListEventsRequest in;
    ToProto(query, &in);
    return Unary<std::vector<DecisionRecord>, v1::ListEventsReply>(
        timeout, [&](auto* c, auto* out) { return operators_->ListEvents(c, in, out); });
  }
  absl::StatusOr<OperatorReply> Ask(const StopJobRequest& request, Ticks timeout) {
    v1::StopJobRequest in;
    ToProto(request, &in);
    return Unary<Empty, v1::StopJobReply>(
        timeout, [&](auto* c, auto* out) { return operators_->StopJob(c, in, out); });
  }
  absl::StatusOr<OperatorReply> Ask(const ProcessEndedRequest& request, Ticks timeout) {
    v1::ProcessEndedRequest in;
    ToProto(request, &in);
    return Unary<Empty, v1::ProcessEndedReply>(
        timeout, [&](auto* c, auto* out) { return operators_->ProcessEnded(c, in, out); });
  }
  absl::StatusOr<OperatorReply> Ask(const DrainServerRequest& request, Ticks timeout) {
    v1::DrainServerRequest in;
    ToProto(request, &in);
    return Unary<Empty, v1::DrainServerReply>(
        timeout, [&](auto* c, auto* out) { return operators_->DrainServer(c, in, out); });
  }
  absl::StatusOr<OperatorReply> Ask(const RemoveWorkerRequest& request, Ticks timeout) {
    v1::RemoveWorkerRequest in;
    ToProto(request, &in);
    return Unary<Empty, v1::RemoveWorkerReply>(
        timeout, [&](auto* c, auto* out) { return operators_->RemoveWorker(c, in, out); });
  }
  absl::StatusOr<OperatorReply> Ask(const MoveWorkerRequest& request, Ticks timeout) {
    v1::MoveWorkerRequest in;
    ToProto(request, &in);
    return Unary<Empty, v1::MoveWorkerReply>(
        timeout, [&](auto* c, auto* out) { return operators_->MoveWorker(c, in, out); });
  }

  absl::StatusOr<OperatorReply> Ask(const CheckpointJobRequest& request, Ticks timeout) {
    v1::CheckpointJobRequest in;
    ToProto(request, &in);
    return Unary<CheckpointReply, v1::CheckpointReply>(
        timeout, [&](auto* c, auto* out) { return operators_->CheckpointJob(c, in, out); });
  }
  absl::StatusOr<OperatorReply> Ask(const ResumeJobRequest& request, Ticks timeout) {
    v1::ResumeJobRequest in;
    ToProto(request, &in);
    return Unary<Empty, v1::ResumeJobReply>(
        timeout, [&](auto* c, auto* out) { return operators_->ResumeJob(c, in, out); });
  }

  const std::string peer_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::unique_ptr<v1::Membership::Stub> membership_;
  std::unique_ptr<v1::Operator::Stub> operators_;
  std::unique_ptr<WatchState> watch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlClient>> MakeGrpcControlClient(const std::string& scheduler,
                                                                     const GrpcSecurity& security) {
  AdoptGrpcLog();
  PACELINE_ASSIGN_OR_RETURN(auto credentials, Credentials(security));
  return std::unique_ptr<ControlClient>(new GrpcControlClient(scheduler, std::move(credentials)));
}

}  // namespace paceline
