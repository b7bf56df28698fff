// pacelinectl. Wires the commands to the process and to the gRPC client.
#include <unistd.h>

#include <iostream>

#include "cli/command.h"
#include "cli/process.h"
#include "control/grpc/client.h"

int main(int argc, char** argv) {
  paceline::CommandContext context;
  context.environment = paceline::Environment::FromProcess();
  context.binary_directory = paceline::OwnDirectory();
  context.out = &std::cout;
  context.err = &std::cerr;
  context.terminal = isatty(STDOUT_FILENO) == 1;
  context.connect = [](const std::string& address, const paceline::TlsConfig& tls)
      -> absl::StatusOr<std::unique_ptr<paceline::ControlClient>> {
    return paceline::MakeGrpcControlClient(address, {tls.cert, tls.key, tls.ca});
  };
  return paceline::RunCommand(argc, argv, context);
}
