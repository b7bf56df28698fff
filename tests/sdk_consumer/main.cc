#include <cstdio>

#include "common/base/status.h"
#include "fashion.h"
#include "worker_client/connect/connect.h"

absl::Status Train() {
  PACELINE_ASSIGN_OR_RETURN(const fashion::Images images, fashion::Load("train", 60'000));
  PACELINE_ASSIGN_OR_RETURN(const fashion::Images unseen, fashion::Load("t10k", 10'000));
  PACELINE_ASSIGN_OR_RETURN(
      paceline::WorkerConfig config,
      paceline::WorkerConfigFromEnvironment(paceline::Environment::FromProcess()));
  config.job.sample_count = images.size();
  if (config.job.epochs == 0) config.job.epochs = 1;
  if (config.job.batch_size == 0) config.job.batch_size = 64;
  if (config.job.optimizer.name.empty()) config.job.optimizer = {"sgd", {{"learning_rate", 0.1}}};
  PACELINE_ASSIGN_OR_RETURN(const auto session, paceline::ConnectToJob(config));

  fashion::Softmax model;
  for (fashion::Tensor& tensor : model.tensors) {
    PACELINE_ASSIGN_OR_RETURN(
        tensor.id, session->RegisterTensor({.name = tensor.name, .shape = tensor.shape}));
    PACELINE_RETURN_IF_ERROR(session->Init(tensor.id, tensor.values));
  }
  for (fashion::Tensor& tensor : model.tensors) {
    PACELINE_RETURN_IF_ERROR(session->Pull(tensor.id, tensor.values, {}).status());
  }
  PACELINE_RETURN_IF_ERROR(session->WaitAll());
  while (true) {
    PACELINE_ASSIGN_OR_RETURN(const paceline::SampleBatch batch,
                              session->DrawSamples(config.job.batch_size));
    if (batch.finished) break;
    const double loss = model.Gradient(images, batch.indices);  // both: sums over the batch
    const paceline::OperationOptions options{.samples = paceline::Samples(batch.indices.size())};
    for (fashion::Tensor& tensor : model.tensors) {
      PACELINE_RETURN_IF_ERROR(
          session->PushPull(tensor.id, tensor.gradient, tensor.values, options).status());
    }
    PACELINE_RETURN_IF_ERROR(session->WaitAll());
    PACELINE_RETURN_IF_ERROR(session->AtStepBoundary());
    if (batch.indices.empty()) continue;  // in a deterministic job: this step had none for us
    session->ReportProgress({{"loss", loss / static_cast<double>(batch.indices.size())}});
  }
  session->ReportProgress({{"test_accuracy", model.Accuracy(unseen)}});
  return session->Leave("finished");
}

int main() {
  const absl::Status status = Train();
  if (!status.ok()) std::fprintf(stderr, "train: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
