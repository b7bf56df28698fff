#include "cli/operator_commands.h"

#include <poll.h>

#include <optional>

#include "absl/strings/numbers.h"
#include "cli/conversation.h"
#include "common/base/status.h"

namespace paceline {
namespace {

// For chunks that move and a member that is found dead; it is agreed all the same after that.
constexpr Ticks kMoveTimeout = Seconds(60);

// A group's number, or a group of its own for "new".
absl::StatusOr<std::optional<GroupId>> GroupOf(const std::string& text) {
  if (text == "new") return std::optional<GroupId>();
  uint32_t number = 0;
  if (!absl::SimpleAtoi(text, &number)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--group \"", text, "\": use a group's number (pacelinectl groups shows them), or new"));
  }
  return std::optional<GroupId>(number);
}

// Shows once a second where the chunks are, until none is left or time is up.
int AwaitDrained(Conversation& conversation, const CommandContext& context,
                 const std::string& server, uint32_t wait_s) {
  for (uint64_t waited_ms = 0;; waited_ms += 100) {
    const absl::StatusOr<ClusterView> view = conversation.Cluster();
    if (!view.ok()) return Complain(context, view.status());
    for (const NodeView& node : view->nodes) {
      if (node.role != Role::kServer || node.name != server) continue;
      if (node.state == "dead" || node.state == "left") {
        return Complain(context, absl::AbortedError(absl::StrCat(
                                     "server ", server, node.state == "dead" ? " died" : " left",
                                     " while it was drained (pacelinectl events)")));
      }
      if (node.state != "drained") continue;
      *context.out << "server " << server << " owns nothing any more and may be ended\n"
                   << std::flush;
      return kExitDone;
    }
    if (waited_ms >= uint64_t{wait_s} * 1000) break;
    poll(nullptr, 0, 100);
  }
  if (wait_s == 0) {
    *context.out << "server " << server << " drains\n" << std::flush;
    return kExitDone;
  }
  return Complain(context, absl::AbortedError(
                               absl::StrCat("server ", server, " still owns chunks after ", wait_s,
                                            " s; it goes on draining (pacelinectl events)")));
}

}  // namespace

int RunStop(int argc, const char* const* argv, const CommandContext& context) {
  std::string reason;
  KeyTable keys;
  keys.Text("reason", "shown in events and to the workers", &reason);
  keys.Spelled("--reason", "");
  const std::string usage =
      "pacelinectl stop JOB: ends a job; its workers are told why\n\n"
      "  pacelinectl stop mnist --reason \"wrong data\"\n\n";
  const auto body = [&](Conversation& conversation) {
    if (conversation.job().empty()) {
      return Complain(context, absl::InvalidArgumentError("stop: name the job to stop"));
    }
    const auto reply = conversation.Ask(StopJobRequest{conversation.job(), false, reason});
    if (!reply.ok()) return Complain(context, reply.status());
    *context.out << "job " << conversation.job() << " stopped\n" << std::flush;
    return static_cast<int>(kExitDone);
  };
  return WithConversation(argc, argv, context, usage, 1, keys, body);
}

int RunRemove(int argc, const char* const* argv, const CommandContext& context) {
  std::string reason;
  KeyTable keys;
  keys.Text("reason", "shown in events and to the worker", &reason);
  keys.Spelled("--reason", "");
  const std::string usage =
      "pacelinectl remove JOB WORKER: lets a worker leave its job after its step; the\n"
      "others go on without it\n\n"
      "  pacelinectl remove mnist worker-3\n\n";
  const auto body = [&](Conversation& conversation) {
    const std::vector<std::string>& names = conversation.arguments();
    if (names.size() != 2) {
      return Complain(context, absl::InvalidArgumentError("remove: name a job and a worker"));
    }
    const auto reply = conversation.Ask(RemoveWorkerRequest{names[0], names[1], reason});
    if (!reply.ok()) return Complain(context, reply.status());
    *context.out << "worker " << names[1] << " of job " << names[0] << " is asked to leave\n"
                 << std::flush;
    return static_cast<int>(kExitDone);
  };
  return WithConversation(argc, argv, context, usage, 2, keys, body);
}

int RunMove(int argc, const char* const* argv, const CommandContext& context) {
  std::string group_text, reason;
  KeyTable keys;
  keys.Text("group", "number of the group to go to, or new for a group of its own", &group_text);
  keys.Spelled("--group", "");
  keys.Text("reason", "shown in events", &reason);
  keys.Spelled("--reason", "");
  const std::string usage =
      "pacelinectl move JOB WORKER --group G: lets a worker go over to another group\n"
      "while the job runs; nobody else stops\n\n"
      "  pacelinectl move mnist worker-3 --group 1\n"
      "  pacelinectl move mnist worker-3 --group new --reason \"its disk is slow\"\n\n";
  const auto body = [&](Conversation& conversation) {
    const std::vector<std::string>& names = conversation.arguments();
    if (names.size() != 2) {
      return Complain(context, absl::InvalidArgumentError("move: name a job and a worker"));
    }
    const absl::StatusOr<std::optional<GroupId>> group = GroupOf(group_text);
    if (!group.ok()) return Complain(context, Annotate(group.status(), "move"));
    const auto reply =
        conversation.Ask(MoveWorkerRequest{names[0], names[1], *group, reason}, kMoveTimeout);
    if (!reply.ok()) return Complain(context, reply.status());
    *context.out << "worker " << names[1] << " of job " << names[0] << " goes over to "
                 << (*group ? absl::StrCat("group ", (*group)->value()) : "a group of its own")
                 << "\n"
                 << std::flush;
    return static_cast<int>(kExitDone);
  };
  return WithConversation(argc, argv, context, usage, 2, keys, body);
}

int RunDrain(int argc, const char* const* argv, const CommandContext& context) {
  bool undo = false;
  uint32_t wait_s = 600;
  KeyTable keys;
  keys.Switch("undo", "it may own chunks again", &undo);
  keys.Spelled("--undo", "");
  keys.Number("wait", "seconds to wait until it owns nothing; 0: not at all", 0, 86'400, &wait_s);
  keys.Spelled("--wait", "");
  const std::string usage =
      "pacelinectl drain SERVER: moves all chunks to the other servers while jobs run;\n"
      "afterwards it may be ended\n\n"
      "  pacelinectl drain server-3\n  pacelinectl drain server-3 --undo\n\n";
  const auto body = [&](Conversation& conversation) {
    if (conversation.arguments().empty()) {
      return Complain(context, absl::InvalidArgumentError("drain: name the server"));
    }
    const std::string server = conversation.arguments().front();
    const auto reply = conversation.Ask(DrainServerRequest{server, undo});
    if (!reply.ok()) return Complain(context, reply.status());
    if (!undo) return AwaitDrained(conversation, context, server, wait_s);
    *context.out << "server " << server << " may own chunks again\n" << std::flush;
    return static_cast<int>(kExitDone);
  };
  return WithConversation(argc, argv, context, usage, 1, keys, body);
}

}  // namespace paceline
