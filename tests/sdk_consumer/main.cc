// A whole training program on the SDK: a line through points. Under `pacelinectl run` it is a
// worker of that job; alone it shows the error of a scheduler that is not there.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/config/config.h"
#include "control/grpc/client.h"
#include "worker_client/session.h"

namespace {

using paceline::Samples;

constexpr uint32_t kSamples = 1000;
constexpr uint32_t kBatch = 20;

// The sum of the gradients of (w0 + w1 x - y)^2 / 2 over a batch; sample i has x = i / kSamples.
std::vector<float> Gradient(const std::vector<float>& w, const std::vector<uint32_t>& indices) {
  std::vector<float> sum(2, 0.0f);
  for (const uint32_t i : indices) {
    const float x = static_cast<float>(i) / kSamples;
    const float error = w[0] + w[1] * x - (1.0f + 2.0f * x);
    sum[0] += error;
    sum[1] += error * x;
  }
  return sum;
}

absl::Status Train(paceline::Session& session) {
  PACELINE_RETURN_IF_ERROR(session.SetOptimizer({"sgd", {{"learning_rate", 1.0}}}));
  PACELINE_ASSIGN_OR_RETURN(const paceline::TensorId line,
                            session.RegisterTensor({.name = "line", .shape = {2}}));
  std::vector<float> weights(2, 0.0f);
  PACELINE_RETURN_IF_ERROR(session.Init(line, weights));
  PACELINE_ASSIGN_OR_RETURN(paceline::Operation pull, session.Pull(line, weights, {}));
  PACELINE_RETURN_IF_ERROR(session.Wait(pull).status());
  while (true) {
    PACELINE_ASSIGN_OR_RETURN(const paceline::SampleBatch batch, session.DrawSamples(kBatch));
    if (batch.finished) break;
    const std::vector<float> gradient = Gradient(weights, batch.indices);
    paceline::OperationOptions options;
    options.samples = Samples(batch.indices.size());
    PACELINE_ASSIGN_OR_RETURN(const paceline::Operation exchange,
                              session.PushPull(line, gradient, weights, options));
    PACELINE_RETURN_IF_ERROR(session.Wait(exchange).status());
    PACELINE_RETURN_IF_ERROR(session.AtStepBoundary());
  }
  std::printf("y = %.3f + %.3f x\n", weights[0], weights[1]);
  return session.Leave("finished");
}

absl::Status Run() {
  const paceline::Environment environment = paceline::Environment::FromProcess();
  PACELINE_ASSIGN_OR_RETURN(const paceline::WorkerConfig config,
                            paceline::WorkerConfigFromEnvironment(environment));
  PACELINE_ASSIGN_OR_RETURN(auto control, paceline::MakeGrpcControlClient(config.scheduler, {}));
  paceline::SessionOptions options;
  options.job = config.job;
  options.job.sample_count = kSamples;
  options.job.epochs = 20;
  options.job.batch_size = kBatch;
  options.worker_name = config.name;
  options.index = config.index;
  options.host = config.host;
  options.start_deadline = paceline::Milliseconds(config.join_timeout_ms);
  PACELINE_ASSIGN_OR_RETURN(
      const std::unique_ptr<paceline::Session> session,
      paceline::Session::Connect(options, std::move(control),
                                 paceline::NewTcpTransport(paceline::TransportOptions{})));
  return Train(*session);
}

}  // namespace

int main() {
  const absl::Status status = Run();
  std::printf("%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
