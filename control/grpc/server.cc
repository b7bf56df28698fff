#include "control/grpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <utility>

#include "common/runtime/mutex.h"
#include "control/grpc/codec.h"
#include "control/grpc/codec_util.h"
#include "control/grpc/grpc_util.h"
#include "paceline/v1/membership.grpc.pb.h"
#include "paceline/v1/operator.grpc.pb.h"

namespace paceline {
namespace {

constexpr size_t kMaxQueuedDirectives = 4096;
constexpr int kMaxConcurrentStreams = 1024;  // of one connection

// One Watch stream. The service calls Send and Close; gRPC calls the On methods. Exactly one write
// is under way while `writing_`; the stream ends (Finish, then OnDone) when a cause is set and all
// that came before it is written.
class WatchStream final : public grpc::ServerWriteReactor<v1::Directive> {
 public:
  class Sink final : public DirectiveSink {
   public:
    explicit Sink(WatchStream* stream) : stream_(stream) {}
    void Send(const Directive& directive) override EXCLUDES(mutex_) {
      MutexLock lock(&mutex_);
      if (stream_ != nullptr) stream_->Enqueue(directive);
    }
    void Close(const absl::Status& cause) override EXCLUDES(mutex_) {
      MutexLock lock(&mutex_);
      if (stream_ != nullptr) stream_->End(cause);
    }
    void Detach() EXCLUDES(mutex_) {
      MutexLock lock(&mutex_);
      stream_ = nullptr;
    }

   private:
    Mutex mutex_;
    WatchStream* stream_ GUARDED_BY(mutex_);
  };

  WatchStream(ControlService* service, NodeRef from)
      : service_(service), from_(from), sink_(std::make_shared<Sink>(this)) {}

  void Open() { service_->OpenWatch(from_, sink_); }
  void Refuse(const absl::Status& cause) { End(cause); }

  void OnWriteDone(bool ok) override EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok && !cause_) cause_ = absl::CancelledError("the node is gone");
    if (!ok) queue_.clear();
    Continue();
  }
  void OnCancel() override EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (!cause_) cause_ = absl::CancelledError("the node closed its stream");
    while (queue_.size() > (writing_ ? 1 : 0)) queue_.pop_back();
    Continue();
  }
  void OnDone() override {
    sink_->Detach();
    service_->CloseWatch(from_, sink_.get());
    delete this;
  }

 private:
  void Enqueue(const Directive& directive) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (cause_) return;
    if (queue_.size() >= kMaxQueuedDirectives) {
      cause_ = absl::ResourceExhaustedError(
          absl::StrCat("the watch stream lags by ", queue_.size(),
                       " directives; open it again for the full state"));
      while (queue_.size() > 1) queue_.pop_back();
    } else {
      ToProto(directive, &queue_.emplace_back());
    }
    Continue();
  }
  void End(const absl::Status& cause) EXCLUDES(mutex_) {
    MutexLock lock(&mutex_);
    if (!cause_) cause_ = cause;
    Continue();
  }
  void Continue() REQUIRES(mutex_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    } else if (cause_) {
      finished_ = true;
      Finish(ToGrpc(*cause_));
    }
  }

  ControlService* const service_;
  const NodeRef from_;
  const std::shared_ptr<Sink> sink_;
  Mutex mutex_;
  std::deque<v1::Directive> queue_ GUARDED_BY(mutex_);
  std::optional<absl::Status> cause_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
};

class MembershipService final : public v1::Membership::CallbackService {
 public:
  explicit MembershipService(ControlService* service) : service_(service) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const v1::JoinRequest* in,
                                 v1::JoinReply* out) override {
    auto* reactor = context->DefaultReactor();
    JoinRequest request;
    if (absl::Status status = FromProto(*in, &request); !status.ok()) {
      reactor->Finish(ToGrpc(status));
      return reactor;
    }
    service_->Join(std::move(request), [reactor, out](absl::StatusOr<JoinReply> reply) {
      if (reply.ok()) ToProto(*reply, out);
      reactor->Finish(ToGrpc(reply.status()));
    });
    return reactor;
  }

  grpc::ServerWriteReactor<v1::Directive>* Watch(grpc::CallbackServerContext*,
                                                 const v1::WatchRequest* in) override {
    NodeRef from;
    const absl::Status status = codec::In("from", FromProto(in->from(), &from));
    auto* stream = new WatchStream(service_, from);  // deletes itself in OnDone
    if (status.ok()) {
      stream->Open();
    } else {
      stream->Refuse(status);
    }
    return stream;
  }

  // A call whose body is decoded to T; answered with T's reply, or with nothing.
#define PACELINE_NODE_CALL(Name, T)                                                            \
  grpc::ServerUnaryReactor* Name(grpc::CallbackServerContext* context,                         \
                                 const v1::Name##Request* in, v1::Name##Reply* out) override { \
    T body;                                                                                    \
    const absl::Status status = FromProto(*in, &body);                                         \
    return Call(context, in->from(), status, std::move(body), out);                            \
  }
  PACELINE_NODE_CALL(Leave, LeaveRequest)
  PACELINE_NODE_CALL(DrawSamples, DrawSamplesRequest)
  PACELINE_NODE_CALL(ReturnSamples, ReturnSamplesRequest)
  PACELINE_NODE_CALL(RegisterTensors, RegisterTensorsRequest)
  PACELINE_NODE_CALL(InitDone, InitDoneRequest)
  PACELINE_NODE_CALL(SetOptimizer, SetOptimizerRequest)
  PACELINE_NODE_CALL(Barrier, BarrierRequest)
  PACELINE_NODE_CALL(Checkpoint, CheckpointRequest)
  PACELINE_NODE_CALL(Ack, AckRequest)
  PACELINE_NODE_CALL(LinkDown, LinkDownRequest)
  PACELINE_NODE_CALL(Adopted, AdoptedRequest)
  PACELINE_NODE_CALL(NotFinite, NotFiniteRequest)
#undef PACELINE_NODE_CALL

  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* in,
                                      v1::HeartbeatReply* out) override {
    return Call(context, in->from(), absl::OkStatus(), paceline::Heartbeat{}, out);
  }

  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const v1::ReportRequest* in, v1::ReportReply* out) override {
    if (in->has_worker()) {
      WorkerReport report;
      const absl::Status status = codec::In("worker", FromProto(in->worker(), &report));
      return Call(context, in->from(), status, std::move(report), out);
    }
    ServerReport report;
    const absl::Status status = in->has_server()
                                    ? codec::In("server", FromProto(in->server(), &report))
                                    : codec::Invalid("report", "missing", "worker or server");
    return Call(context, in->from(), status, std::move(report), out);
  }

 private:
  template <typename Proto>
  static absl::Status Fill(const NodeReply& reply, Proto* out) {
    return absl::OkStatus();
  }
  template <typename T, typename Proto>
  static absl::Status FillWith(const NodeReply& reply, Proto* out) {
    const T* body = std::get_if<T>(&reply);
    if (body == nullptr) return absl::InternalError("the scheduler answered with another kind");
    ToProto(*body, out);
    return absl::OkStatus();
  }
  static absl::Status Fill(const NodeReply& reply, v1::RegisterTensorsReply* out) {
    return FillWith<RegisterTensorsReply>(reply, out);
  }
  static absl::Status Fill(const NodeReply& reply, v1::DrawSamplesReply* out) {
    return FillWith<DrawSamplesReply>(reply, out);
  }
  static absl::Status Fill(const NodeReply& reply, v1::CheckpointReply* out) {
    return FillWith<CheckpointReply>(reply, out);
  }

  template <typename Proto>
  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context, const v1::NodeRef& sender,
                                 absl::Status status, NodeRequest body, Proto* out) {
    auto* reactor = context->DefaultReactor();
    NodeRef from;
    if (status.ok()) status = codec::In("from", FromProto(sender, &from));
    if (!status.ok()) {
      reactor->Finish(ToGrpc(status));
      return reactor;
    }
    service_->Call(from, std::move(body), [reactor, out](absl::StatusOr<NodeReply> reply) {
      reactor->Finish(ToGrpc(reply.ok() ? Fill(*reply, out) : reply.status()));
    });
    return reactor;
  }

  ControlService* const service_;
};

class OperatorService final : public v1::Operator::CallbackService {
 public:
  explicit OperatorService(ControlService* service) : service_(service) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* in,
                                      v1::ClusterView* out) override {
    return Operate<StatusQuery, ClusterView>(context, *in, out);
  }
  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* context,
                                       const v1::ListEventsRequest* in,
                                       v1::ListEventsReply* out) override {
    return Operate<EventsQuery, std::vector<DecisionRecord>>(context, *in, out);
  }
  grpc::ServerUnaryReactor* StopJob(grpc::CallbackServerContext* context,
                                    const v1::StopJobRequest* in, v1::StopJobReply* out) override {
    return Operate<StopJobRequest, Empty>(context, *in, out);
  }
  grpc::ServerUnaryReactor* ProcessEnded(grpc::CallbackServerContext* context,
                                         const v1::ProcessEndedRequest* in,
                                         v1::ProcessEndedReply* out) override {
    return Operate<ProcessEndedRequest, Empty>(context, *in, out);
  }
  grpc::ServerUnaryReactor* DrainServer(grpc::CallbackServerContext* context,
                                        const v1::DrainServerRequest* in,
                                        v1::DrainServerReply* out) override {
    return Operate<DrainServerRequest, Empty>(context, *in, out);
  }
  grpc::ServerUnaryReactor* RemoveWorker(grpc::CallbackServerContext* context,
                                         const v1::RemoveWorkerRequest* in,
                                         v1::RemoveWorkerReply* out) override {
    return Operate<RemoveWorkerRequest, Empty>(context, *in, out);
  }
  grpc::ServerUnaryReactor* MoveWorker(grpc::CallbackServerContext* context,
                                       const v1::MoveWorkerRequest* in,
                                       v1::MoveWorkerReply* out) override {
    return Operate<MoveWorkerRequest, Empty>(context, *in, out);
  }
  grpc::ServerUnaryReactor* CheckpointJob(grpc::CallbackServerContext* context,
                                          const v1::CheckpointJobRequest* in,
                                          v1::CheckpointReply* out) override {
    return Operate<CheckpointJobRequest, CheckpointReply>(context, *in, out);
  }
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context,
                                      const v1::ResumeJobRequest* in,
                                      v1::ResumeJobReply* out) override {
    return Operate<ResumeJobRequest, Empty>(context, *in, out);
  }

 private:
  template <typename T, typename Proto>
  static void Fill(const T& reply, Proto* out) {
    if constexpr (!std::is_same_v<T, Empty>) ToProto(reply, out);
  }

  template <typename Request, typename Reply, typename ProtoRequest, typename ProtoReply>
  grpc::ServerUnaryReactor* Operate(grpc::CallbackServerContext* context, const ProtoRequest& in,
                                    ProtoReply* out) {
    auto* reactor = context->DefaultReactor();
    Request request;
    if (absl::Status status = FromProto(in, &request); !status.ok()) {
      reactor->Finish(ToGrpc(status));
      return reactor;
    }
    service_->Operate(std::move(request), [reactor, out](absl::StatusOr<OperatorReply> reply) {
      absl::Status status = reply.status();
      if (reply.ok()) {
        if (const Reply* body = std::get_if<Reply>(&*reply)) {
          Fill(*body, out);
        } else {
          status = absl::InternalError("the scheduler answered with another kind");
        }
      }
      reactor->Finish(ToGrpc(status));
    });
    return reactor;
  }

  ControlService* const service_;
};

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Credentials(const GrpcSecurity& security) {
  if (!security.enabled()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  PACELINE_ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(security.ca, "CERTIFICATE"));
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  PACELINE_ASSIGN_OR_RETURN(pair.private_key, ReadPem(security.key, "PRIVATE KEY"));
  PACELINE_ASSIGN_OR_RETURN(pair.cert_chain, ReadPem(security.certificate, "CERTIFICATE"));
  options.pem_key_cert_pairs.push_back(std::move(pair));
  return grpc::SslServerCredentials(options);
}

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetMaxSendMessageSize(kMaxReplyBytes);
  // Two schedulers on one port would each see half of the nodes.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentStreams);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kKeepaliveMs / 2);
}

}  // namespace

struct GrpcControlServer::Impl {
  explicit Impl(ControlService* service) : membership(service), operators(service) {}

  MembershipService membership;
  OperatorService operators;
  std::unique_ptr<grpc::Server> server;
};

GrpcControlServer::GrpcControlServer(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

GrpcControlServer::~GrpcControlServer() { Stop(); }

absl::StatusOr<std::unique_ptr<GrpcControlServer>> GrpcControlServer::Start(
    const std::string& listen, const GrpcSecurity& security, ControlService* service) {
  AdoptGrpcLog();
  PACELINE_ASSIGN_OR_RETURN(auto credentials, Credentials(security));
  grpc::EnableDefaultHealthCheckService(true);
  static const bool reflection = [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)reflection;
  auto impl = std::make_unique<Impl>(service);
  grpc::ServerBuilder builder;
  SetLimits(builder);
  int port = 0;
  builder.AddListeningPort(listen, credentials, &port);
  builder.RegisterService(&impl->membership);
  builder.RegisterService(&impl->operators);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", listen,
        ": the address is in use or not of this machine; choose another with --listen",
        security.enabled() ? " (or tls.cert and tls.key do not belong together)" : ""));
  }
  std::string address = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
  return std::unique_ptr<GrpcControlServer>(
      new GrpcControlServer(std::move(impl), std::move(address)));
}

void GrpcControlServer::Stop() {
  if (impl_->server == nullptr) return;
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  impl_->server->Wait();
  impl_->server.reset();
}

}  // namespace paceline
