#include "cli/conversation.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace paceline {
namespace {

constexpr std::string_view kExitCodes =
    "Exit codes: 0 done; 1 refused by the scheduler; 2 a wrong flag; 3 the scheduler\n"
    "could not be reached; 4 there is no such job.\n";

}  // namespace

int Complain(const CommandContext& context, const absl::Status& status) {
  *context.err << "pacelinectl: " << status.message() << "\n" << std::flush;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kNotFound:
      return kExitNoSuchJob;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    default:
      return kExitFailed;
  }
}

Conversation::Conversation(const CommandContext& context, ClientConfig config)
    : context_(context), config_(std::move(config)) {}

absl::Status Conversation::Connect() {
  PACELINE_ASSIGN_OR_RETURN(client_, context_.connect(config_.scheduler, config_.tls));
  return absl::OkStatus();
}

absl::StatusOr<OperatorReply> Conversation::Ask(const OperatorRequest& request, Ticks least) {
  auto reply = client_->Operate(request, std::max(least, Milliseconds(config_.timeout_ms)));
  const bool no_answer =
      absl::IsUnavailable(reply.status()) || absl::IsDeadlineExceeded(reply.status());
  if (reply.ok() || !no_answer) return reply;
  return Annotate(reply.status(), absl::StrCat("no scheduler answers at ", config_.scheduler,
                                               " (--scheduler or PACELINE_SCHEDULER)"));
}

absl::StatusOr<ClusterView> Conversation::Cluster(const std::string& of_job) {
  PACELINE_ASSIGN_OR_RETURN(OperatorReply reply, Ask(StatusQuery{of_job}));
  auto* view = std::get_if<ClusterView>(&reply);
  if (view == nullptr) return absl::InternalError("the scheduler answered something else");
  return std::move(*view);
}

absl::StatusOr<ClusterView> Conversation::View() {
  PACELINE_ASSIGN_OR_RETURN(ClusterView view, Cluster(job()));
  if (job().empty()) return view;
  std::erase_if(view.jobs, [&](const JobView& j) { return j.spec.name != job(); });
  if (view.jobs.empty()) return absl::NotFoundError(absl::StrCat("no job \"", job(), "\""));
  return view;
}

int WithConversation(int argc, const char* const* argv, const CommandContext& context,
                     const std::string& usage, size_t max_arguments, KeyTable& keys,
                     const std::function<int(Conversation&)>& body) {
  auto parsed = LoadClientConfig(argc, argv, context.environment, usage + std::string(kExitCodes),
                                 max_arguments, &keys);
  if (!parsed.ok()) {
    Complain(context, parsed.status());
    return kExitUsage;
  }
  if (parsed->exit_code) {
    *context.out << parsed->text << std::flush;
    return *parsed->exit_code;
  }
  Conversation conversation(context, std::move(parsed->config));
  if (const absl::Status status = conversation.Connect(); !status.ok()) {
    return Complain(context, status);
  }
  return body(conversation);
}

}  // namespace paceline
