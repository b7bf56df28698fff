// What the subcommands that speak with the scheduler have in common.
// Thread rule: main thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command.h"
#include "common/config/key_table.h"

namespace paceline {

// Says what went wrong; returns the exit code for it.
int Complain(const CommandContext& context, const absl::Status& status);

// One subcommand that speaks with the scheduler: its flags are parsed, the client is there.
class Conversation {
 public:
  Conversation(const CommandContext& context, ClientConfig config);

  absl::Status Connect();
  // Waits at least `least` for what takes its time.
  absl::StatusOr<OperatorReply> Ask(const OperatorRequest& request, Ticks least = Ticks());
  // Of one job, or of all.
  absl::StatusOr<ClusterView> Cluster(const std::string& of_job = "");
  // Of the job that was named; NotFound when there is none of that name.
  absl::StatusOr<ClusterView> View();

  const std::vector<std::string>& arguments() const { return config_.arguments; }
  std::string job() const { return config_.arguments.empty() ? "" : config_.arguments.front(); }

 private:
  const CommandContext& context_;
  const ClientConfig config_;
  std::unique_ptr<ControlClient> client_;
};

// Parses the flags of a subcommand, then runs `body`. --help and errors end here.
int WithConversation(int argc, const char* const* argv, const CommandContext& context,
                     const std::string& usage, size_t max_arguments, KeyTable& keys,
                     const std::function<int(Conversation&)>& body);

}  // namespace paceline
