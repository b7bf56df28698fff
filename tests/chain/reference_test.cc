// A cluster's weights against references that share nothing with it: bit for bit.
#include <gtest/gtest.h>

#include <cstring>

#include "common/base/status.h"
#include "tests/chain/chain_cluster.h"
#include "trainer/standalone.h"

namespace paceline {
namespace {

constexpr uint32_t kFeatures = 64;
constexpr uint32_t kClasses = 10;
constexpr uint32_t kSamples = 300;
constexpr uint32_t kBatch = 16;  // 300 / (3 x 16): last batches of 12, 0 and 0; of 4: 16, 16, 12, 0
constexpr uint64_t kSeed = 7;

// Images that are no images, but that a model can learn a little of.
Dataset MakeDataset() {
  Dataset data;
  data.features = kFeatures;
  data.classes = kClasses;
  data.mean = 0.3f;
  data.deviation = 0.4f;
  uint64_t state = 99;
  for (uint32_t i = 0; i < kSamples; ++i) {
    data.labels.push_back(static_cast<uint8_t>(SplitMix64(state) % kClasses));
    for (uint32_t f = 0; f < kFeatures; ++f) {
      const uint64_t noise = SplitMix64(state) % 128;
      data.images.push_back(
          static_cast<uint8_t>(noise + (f % kClasses == data.labels.back() ? 127 : 0)));
    }
  }
  return data;
}

Model MakeModel() { return Model({kFeatures, 48, kClasses}); }

bool SameBits(const Parameters& a, const Parameters& b) {
  if (a.size() != b.size()) return false;
  for (size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size() ||
        std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

// Registers the model's tensors with `initial` as what this worker would start from.
absl::StatusOr<std::vector<TensorId>> PrepareModel(Session& session, const Model& model,
                                                   const Parameters& initial) {
  std::vector<TensorId> tensors;
  for (const TensorSpec& spec : model.tensors()) {
    PACELINE_ASSIGN_OR_RETURN(tensors.emplace_back(), session.RegisterTensor(spec));
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    PACELINE_RETURN_IF_ERROR(session.Init(tensors[t], initial[t]));
  }
  PACELINE_RETURN_IF_ERROR(session.WaitReady());
  return tensors;
}

absl::Status PullAll(Session& session, const std::vector<TensorId>& tensors,
                     Parameters& parameters) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    PACELINE_RETURN_IF_ERROR(session.Pull(tensors[t], parameters[t], {}).status());
  }
  return session.WaitAll();
}

absl::Status PushPullModel(Session& session, const std::vector<TensorId>& tensors,
                           const Parameters& gradient, Parameters& parameters, Samples samples,
                           float learning_rate) {
  OperationOptions options;
  options.samples = samples;
  options.learning_rate = learning_rate;
  for (size_t t = 0; t < tensors.size(); ++t) {
    PACELINE_RETURN_IF_ERROR(
        session.PushPull(tensors[t], gradient[t], parameters[t], options).status());
  }
  PACELINE_RETURN_IF_ERROR(session.WaitAll());
  return session.AtStepBoundary();
}

// ---- One group: the standalone reference --------------------------------------------------------

struct Case {
  uint32_t workers;
  uint32_t servers;
  uint64_t chunk_bytes;
  NamedSpec optimizer;
};

class OneGroup : public testing::TestWithParam<Case> {};

TEST_P(OneGroup, EqualsTheStandaloneReferenceAfter200Steps) {
  const Case& c = GetParam();
  const Dataset data = MakeDataset();
  StandaloneOptions reference;
  reference.workers = c.workers;
  reference.batch_size = kBatch;
  reference.epochs = 1000;
  reference.max_steps = 200;
  reference.seed = kSeed;
  reference.optimizer = c.optimizer;
  reference.learning_rate = {0.02f, 10};
  Model alone = MakeModel();
  const auto expected = TrainStandalone(alone, data, reference, nullptr);
  ASSERT_TRUE(expected.ok()) << expected.status();

  ChainCluster cluster(c.servers);
  JobSpec job = JobOf("reference", c.workers, "one", c.optimizer);
  job.deterministic = true;
  job.sample_count = kSamples;
  job.batch_size = kBatch;
  job.seed = kSeed;
  job.chunk_bytes = c.chunk_bytes;
  RunWorkers(c.workers, [&](uint32_t index) -> absl::Status {
    PACELINE_ASSIGN_OR_RETURN(auto session, cluster.Connect(job, index));
    Model model = MakeModel();
    // Those of the lowest rank count; the others bring something else.
    Parameters parameters = model.InitialValues(kSeed + session->rank().value());
    PACELINE_ASSIGN_OR_RETURN(auto tensors, PrepareModel(*session, model, parameters));
    PACELINE_RETURN_IF_ERROR(PullAll(*session, tensors, parameters));
    Parameters gradient;
    for (uint64_t step = 0; step < 200; ++step) {
      PACELINE_ASSIGN_OR_RETURN(const SampleBatch batch, session->DrawSamples(kBatch));
      model.Gradient(parameters, data, batch.indices, gradient);
      PACELINE_RETURN_IF_ERROR(
          PushPullModel(*session, tensors, gradient, parameters, Samples(batch.indices.size()),
                        reference.learning_rate.At(Step(step), batch.progress)));
    }
    EXPECT_TRUE(SameBits(parameters, *expected)) << "rank " << session->rank();
    return session->Leave("done");
  });
}

const NamedSpec kMomentum{"momentum", {{"learning_rate", 0.02}}};
const NamedSpec kAdam{"adam", {{"learning_rate", 0.02}}};

INSTANTIATE_TEST_SUITE_P(Reference, OneGroup,
                         testing::Values(Case{3, 1, 4096, kMomentum}, Case{3, 3, 4096, kAdam},
                                         Case{3, 3, 1 << 20, kMomentum}, Case{4, 1, 1 << 20, kAdam},
                                         Case{4, 3, 4096, kMomentum}, Case{4, 3, 4096, kAdam}),
                         [](const auto& info) {
                           return std::to_string(info.param.workers) + "Workers" +
                                  std::to_string(info.param.servers) + "Servers" +
                                  std::to_string(info.param.chunk_bytes / 1024) + "KiB_" +
                                  info.param.optimizer.name;
                         });

// ---- A group per worker: asynchronous SGD written out -------------------------------------------

struct AsynchronousSgd {
  explicit AsynchronousSgd(const Parameters& initial) : weights(initial), momentum(initial) {
    for (auto& tensor : momentum) tensor.assign(tensor.size(), 0.0f);
  }
  void Apply(const Parameters& gradient, float samples) {
    for (size_t t = 0; t < weights.size(); ++t) {
      for (size_t i = 0; i < weights[t].size(); ++i) {
        const float g = gradient[t][i] / samples;
        const float m = 0.5f * momentum[t][i];
        momentum[t][i] = m + g;
        const float step = 0.0625f * momentum[t][i];
        weights[t][i] = weights[t][i] - step;
      }
    }
  }
  Parameters weights, momentum;
};

TEST(PerWorker, EqualsAsynchronousSgdUnderAScriptedOrderOfPushes) {
  const Dataset data = MakeDataset();
  ChainCluster cluster(2);
  JobSpec job =
      JobOf("scripted", 3, "per-worker", {"sgd", {{"learning_rate", 0.0625}, {"momentum", 0.5}}});
  struct Worker {
    std::unique_ptr<Session> session;
    std::vector<TensorId> tensors;
    Model model = MakeModel();
    Parameters held, gradient;
    uint32_t pushes = 0;
  };
  std::vector<Worker> workers(3);
  const Parameters initial = MakeModel().InitialValues(kSeed);
  RunWorkers(3, [&](uint32_t index) -> absl::Status {
    Worker& w = workers[index];
    PACELINE_ASSIGN_OR_RETURN(w.session, cluster.Connect(job, index));
    w.held = initial;
    PACELINE_ASSIGN_OR_RETURN(w.tensors, PrepareModel(*w.session, w.model, initial));
    return PullAll(*w.session, w.tensors, w.held);
  });

  AsynchronousSgd reference(initial);
  std::vector<Parameters> held(3, initial);
  Model model = MakeModel();
  uint64_t script = 3;
  for (int push = 0; push < 90; ++push) {
    const uint32_t who = SplitMix64(script) % 3;
    Worker& w = workers[who];
    std::vector<uint32_t> batch;
    for (uint32_t i = 0; i < 5 + who; ++i) {
      batch.push_back((17 * who + 31 * w.pushes + 7 * i) % kSamples);
    }
    ++w.pushes;
    w.model.Gradient(w.held, data, batch, w.gradient);
    ASSERT_TRUE(
        PushPullModel(*w.session, w.tensors, w.gradient, w.held, Samples(batch.size()), 0).ok());

    Parameters gradient;
    model.Gradient(held[who], data, batch, gradient);
    reference.Apply(gradient, static_cast<float>(batch.size()));
    held[who] = reference.weights;
    ASSERT_TRUE(SameBits(w.held, held[who])) << "after push " << push << " of worker " << who;
  }
  for (Worker& w : workers) {
    EXPECT_GT(w.pushes, 20u);
    EXPECT_TRUE(w.session->Leave("done").ok());
  }
}

}  // namespace
}  // namespace paceline
