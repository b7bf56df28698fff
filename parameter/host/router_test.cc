// The router behind real channels.
#include "parameter/host/router.h"

#include "parameter/host/router_test_util.h"

namespace paceline {
namespace {

TEST_F(RouterTest, InitPullPushPullBoundaryOverEveryChunk) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  Worker& b = Add(1);
  const Sequence early = b.Send(b.Header(FrameKind::kPull));  // waits for the seal
  InitAndSeal(a, 10);
  const Answer pulled = b.Await(early);
  EXPECT_EQ(pulled.header.status, FrameStatus::kOk);
  EXPECT_THAT(pulled.values, SizeIs(ChunkElements(0)));
  EXPECT_THAT(pulled.values, Each(Eq(10.0f)));

  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<std::pair<Sequence, Sequence>> sent;
    for (uint32_t c = 0; c < Chunks(); ++c) {  // b goes through the chunks the other way round
      FrameHeader ha = a.Header(FrameKind::kPushPull, step, c);
      FrameHeader hb = b.Header(FrameKind::kPushPull, step, Chunks() - 1 - c);
      ha.version.count = hb.version.count = step;
      ha.acknowledged = Sequence(ha.sequence.value() - c - 1);
      const uint64_t n = ChunkElements(Chunks() - 1 - c);
      sent.emplace_back(a.Send(ha, std::vector<float>(ChunkElements(c), 1)),
                        b.Send(hb, std::vector<float>(n, 3)));
    }
    const float expected = 10 - 2.0f * static_cast<float>(step + 1);  // (1 + 3) / 2 samples
    for (const auto& [sa, sb] : sent) {
      const Answer answer = a.Await(sa);
      EXPECT_EQ(answer.header.status, FrameStatus::kOk);
      EXPECT_EQ(answer.header.version.count, step + 1);
      EXPECT_EQ(answer.header.samples, Samples(2));
      EXPECT_THAT(answer.values, Each(Eq(expected)));
      EXPECT_THAT(b.Await(sb).values, Each(Eq(expected)));
    }
    EXPECT_EQ(a.Call(a.Header(FrameKind::kBoundary, step)).header.status, FrameStatus::kOk);
    EXPECT_EQ(b.Call(b.Header(FrameKind::kBoundary, step)).header.status, FrameStatus::kOk);
  }

  const ServerReport report = router_->Report();
  EXPECT_EQ(report.connections, 2u);
  ASSERT_THAT(report.jobs, SizeIs(1));
  EXPECT_TRUE(report.jobs[0].lead);
  EXPECT_EQ(report.jobs[0].updates, 5u);
  EXPECT_EQ(report.jobs[0].refused_frames, 0u);
  EXPECT_EQ(report.bytes_in.value(), kElements * 4 * (1 + 2 * 5));
  EXPECT_EQ(report.bytes_out.value(), kElements * 4 * (2 * 5) + ChunkElements(0) * 4);
  ASSERT_THAT(report.jobs[0].workers, SizeIs(2));
  EXPECT_EQ(report.jobs[0].workers[0].applied, Samples(5));
  EXPECT_EQ(report.jobs[0].groups[0].tau.count, 5u);
  EXPECT_EQ(report.jobs[0].groups[0].tau.sum, 0u);
}

TEST_F(RouterTest, AMemberThatSkipsATensorIsCoveredByItsBoundary) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  Worker& b = Add(1);
  InitAndSeal(a, 0);
  const Sequence push =
      a.Send(a.Header(FrameKind::kPushPull), std::vector<float>(ChunkElements(0), 4));
  EXPECT_EQ(b.Call(b.Header(FrameKind::kBoundary)).header.status, FrameStatus::kOk);
  EXPECT_THAT(a.Await(push).values, Each(Eq(-4.0f)));
}

TEST_F(RouterTest, ARetryAfterALostLinkIsAppliedOnce) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  Worker& b = Add(1);
  InitAndSeal(a, 0);
  const FrameHeader push = a.Header(FrameKind::kPushPull);
  const std::vector<float> gradient(ChunkElements(0), 2);
  a.Send(push, gradient);
  // Wait until the first attempt is in: a second message on the same channel and chunk is answered.
  a.Call(a.Header(FrameKind::kPull));
  a.Disconnect();
  a.AwaitClosed().IgnoreError();
  ASSERT_TRUE(a.Connect().ok());
  const Sequence again = a.Send(push, gradient);
  b.Call(b.Header(FrameKind::kPushPull), gradient);
  const Answer answer = a.Await(again);
  EXPECT_EQ(answer.header.version.count, 1u);
  EXPECT_THAT(answer.values, Each(Eq(-2.0f)));
  // The reply is lost as well: it is kept.
  const Answer kept = a.Call(push, gradient);
  EXPECT_EQ(kept.header.version.count, 1u);
  EXPECT_THAT(kept.values, Each(Eq(-2.0f)));
}

TEST_F(RouterTest, RefusalsAreTyped) {
  Start(PlanOf({{0}, {1}}));
  Worker& a = Add(0);
  Worker& b = Add(1, 1);
  EXPECT_EQ(b.Call(b.Header(FrameKind::kInit), std::vector<float>(ChunkElements(0))).header.status,
            FrameStatus::kNotWriter);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kInit), std::vector<float>(7)).header.status,
            FrameStatus::kBadRequest);
  InitAndSeal(a, 0);
  FrameHeader header = a.Header(FrameKind::kPushPull);
  header.tensor = TensorId(9);
  EXPECT_EQ(a.Call(header, {1}).header.status, FrameStatus::kUnknownTensor);
  header = a.Header(FrameKind::kPushPull, 0, 99);
  EXPECT_EQ(a.Call(header, {1}).header.status, FrameStatus::kBadRequest);
  header = a.Header(FrameKind::kPushPull);
  header.group_generation = GroupGeneration(0);
  const Answer old = a.Call(header, std::vector<float>(ChunkElements(0)));
  EXPECT_EQ(old.header.status, FrameStatus::kOldGeneration);
  EXPECT_EQ(old.header.group_generation, GroupGeneration(1));
  EXPECT_EQ(router_->Report().jobs[0].refused_frames, 5u);
  // What no owner takes ends the channel, with the reason.
  a.Send(a.Header(FrameKind::kPeerPiece));
  EXPECT_FALSE(a.AwaitClosed().ok());
  EXPECT_EQ(b.Call(b.Header(FrameKind::kPull)).header.status, FrameStatus::kOk);
}

TEST_F(RouterTest, AFenceReleasesTheSurvivorsAndRefusesTheDead) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  Worker& b = Add(1);
  InitAndSeal(a, 0);
  const std::vector<float> gradient(ChunkElements(0), 2);
  const Sequence waiting = a.Send(a.Header(FrameKind::kPushPull), gradient);
  FenceDirective fence{1, kJob, {NodeId(101), Incarnation(1)}, {plan_.groups[0]}, "w1 died"};
  fence.groups[0].generation = GroupGeneration(2);
  fence.groups[0].members.pop_back();
  a.Call(a.Header(FrameKind::kPull));  // the push is in
  router_->Fence(fence, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  const Answer told = a.Await(waiting);
  EXPECT_EQ(told.header.status, FrameStatus::kOldGeneration);
  EXPECT_EQ(told.header.group_generation, GroupGeneration(2));
  a.generation = GroupGeneration(2);
  EXPECT_THAT(a.Call(a.Header(FrameKind::kPushPull), gradient).values, Each(Eq(-2.0f)));
  EXPECT_EQ(b.Call(b.Header(FrameKind::kPushPull), gradient).header.status, FrameStatus::kFenced);
  EXPECT_EQ(b.Call(b.Header(FrameKind::kBoundary)).header.status, FrameStatus::kFenced);
  b.Disconnect();
  EXPECT_EQ(b.Connect().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(RouterTest, FramesOfAGenerationThatIsNotKnownYetWaitForIt) {
  Start(PlanOf({{0}}));
  Worker& a = Add(0);
  InitAndSeal(a, 0);
  PrepareDirective prepare{.change = 1, .job = kJob, .groups = plan_.groups, .reason = ""};
  prepare.groups[0].generation = GroupGeneration(2);
  prepare.groups[0].members.push_back(MemberOf(1));
  router_->Prepare(prepare, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  Worker& b = Add(1);  // its key came with the preparation
  b.generation = GroupGeneration(2);
  const std::vector<float> gradient(ChunkElements(0), 2);
  const Sequence parked = b.Send(b.Header(FrameKind::kPushPull, 7), gradient);
  const Sequence boundary = b.Send(b.Header(FrameKind::kBoundary, 6));
  CommitDirective commit{.change = 1, .job = kJob, .groups = prepare.groups, .reason = ""};
  commit.groups[0].activation_step = Step(7);
  router_->Commit(commit, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  EXPECT_EQ(b.Await(boundary).header.status, FrameStatus::kOk);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kPushPull, 6), gradient).header.status, FrameStatus::kOk);
  a.generation = GroupGeneration(2);
  FrameHeader push = a.Header(FrameKind::kPushPull, 7);
  push.version.count = 1;
  EXPECT_EQ(a.Call(push, gradient).header.status, FrameStatus::kOk);
  EXPECT_THAT(b.Await(parked).values, Each(Eq(-4.0f)));
}

TEST_F(RouterTest, ParkedBytesAreBounded) {
  RouterOptions options;
  options.max_parked_bytes = 600'000;  // two threads: one message of a chunk each
  Start(PlanOf({{0}}), options);
  Worker& a = Add(0);
  const std::vector<float> chunk(ChunkElements(0));
  a.Send(a.Header(FrameKind::kPushPull), chunk);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kPushPull, 1), chunk).header.status, FrameStatus::kNotYet);
}

TEST_F(RouterTest, ACutHoldsLaterStepsAndHandsOverExactlyTheseSteps) {
  Start(PlanOf({{0}, {1}}, {"momentum", {{"learning_rate", 1}}}));
  Worker& a = Add(0);
  Worker& b = Add(1, 1);
  InitAndSeal(a, 0);
  const auto push = [this](Worker& w, uint64_t step, uint64_t base) {
    std::vector<Sequence> sent;
    for (uint32_t c = 0; c < Chunks(); ++c) {
      FrameHeader header = w.Header(FrameKind::kPushPull, step, c);
      header.version.count = base;
      sent.push_back(w.Send(header, std::vector<float>(ChunkElements(c), 1)));
    }
    return sent;
  };
  for (const Sequence s : push(a, 0, 0)) a.Await(s);

  Waiter collected;
  std::map<GroupId, Step> steps;
  const Router::Done done = collected.Next();
  router_->CutCollect(kJob, [&steps, done](std::map<GroupId, Step> found) {
    steps = std::move(found);
    done(absl::OkStatus());
  });
  ASSERT_TRUE(collected.Wait().ok());
  EXPECT_EQ(steps, (std::map<GroupId, Step>{{GroupId(0), Step(0)}}));

  // Group 1 was in no step yet; its first is held, as is the second of group 0.
  const std::vector<Sequence> held_b = push(b, 0, 0);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kBoundary, 0)).header.status, FrameStatus::kOk);
  const std::vector<Sequence> held_a = push(a, 1, 1);
  std::vector<ChunkSnapshot> chunks;
  const Router::Done copied = collected.Next();
  router_->CutAt(kJob, steps, [&chunks, copied](absl::StatusOr<std::vector<ChunkSnapshot>> cut) {
    if (cut.ok()) chunks = *std::move(cut);
    copied(cut.status());
  });
  ASSERT_TRUE(collected.Wait().ok());
  ASSERT_THAT(chunks, SizeIs(Chunks()));
  for (uint32_t c = 0; c < Chunks(); ++c) {
    EXPECT_EQ(chunks[c].key.chunk, ChunkIndex(c));
    EXPECT_EQ(chunks[c].state.version.count, 1u);
    EXPECT_EQ(chunks[c].state.updates, 1u);
    const auto& arrays = chunks[c].state.arrays;
    ASSERT_EQ(arrays.size(), 2u);
    EXPECT_EQ(arrays[0].first, "weights");
    EXPECT_THAT(arrays[0].second.values(), Each(Eq(-1.0f)));
    EXPECT_EQ(arrays[1].first, "momentum");
    EXPECT_THAT(arrays[1].second.values(), Each(Eq(1.0f)));
  }
  for (const Sequence s : held_a) EXPECT_EQ(a.Await(s).header.status, FrameStatus::kOk);
  for (const Sequence s : held_b) EXPECT_EQ(b.Await(s).header.status, FrameStatus::kOk);
}

TEST_F(RouterTest, StatesAreReadAndWrittenByChunk) {
  Start(PlanOf({{0}}, {"momentum", {{"learning_rate", 1}}}));
  Worker& a = Add(0);
  InitAndSeal(a, 5);
  a.Call(a.Header(FrameKind::kPushPull), std::vector<float>(ChunkElements(0), 1));
  const Answer read = a.Call(a.Header(FrameKind::kReadState));
  auto state = DecodeState(read.bytes, ChunkElements(0));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->version.count, 1u);
  EXPECT_THAT(state->arrays[0].second, Each(Eq(4.0f)));
  EXPECT_EQ(state->arrays[1].first, "momentum");
  for (float& w : state->arrays[0].second) w = 9;
  const Answer wrote = a.Await(a.SendBytes(a.Header(FrameKind::kWriteState), EncodeState(*state)));
  EXPECT_EQ(wrote.header.status, FrameStatus::kOk);
  EXPECT_EQ(wrote.header.version, (Version{1, 1}));
  EXPECT_THAT(a.Call(a.Header(FrameKind::kPull)).values, Each(Eq(9.0f)));
}

TEST_F(RouterTest, TheEndOfAJobAnswersWhoeverWaits) {
  Start(PlanOf({{0, 1}}));
  Worker& a = Add(0);
  InitAndSeal(a, 0);
  const Sequence waiting =
      a.Send(a.Header(FrameKind::kPushPull), std::vector<float>(ChunkElements(0), 1));
  a.Call(a.Header(FrameKind::kPull));
  router_->EndJob({kJob, false, "done"}, waiter_.Next());
  ASSERT_TRUE(waiter_.Wait().ok());
  EXPECT_EQ(a.Await(waiting).header.status, FrameStatus::kJobEnded);
  EXPECT_EQ(a.Call(a.Header(FrameKind::kPull)).header.status, FrameStatus::kJobEnded);
  EXPECT_THAT(router_->Report().jobs, SizeIs(0));
}

TEST_F(RouterTest, AJobBeyondItsQuotaIsRefusedByNumber) {
  RouterOptions options;
  options.self = kServer;
  options.job_memory_quota = 1000;
  router_ = NewRouter(options);
  router_->ApplyPlan(PlanOf({{0}}), waiter_.Next());
  const absl::Status status = waiter_.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("1000 bytes"));
}

TEST_F(RouterTest, AnUnknownOptimizerFailsThePlan) {
  RouterOptions options;
  options.self = kServer;
  router_ = NewRouter(options);
  router_->ApplyPlan(PlanOf({{0}}, {"lamb", {}}), waiter_.Next());
  EXPECT_EQ(waiter_.Wait().code(), absl::StatusCode::kInvalidArgument);
}

// Four workers in two groups for many steps, each from its own thread: what is applied is what was
// sent, whatever the interleaving.
TEST_F(RouterTest, GroupsThatRunFreelyLoseNothing) {
  Start(PlanOf({{0, 1}, {2, 3}}));
  InitAndSeal(Add(0), 0);
  std::vector<Worker*> workers = {workers_[0].get(), &Add(1), &Add(2, 1), &Add(3, 1)};
  constexpr uint64_t kSteps = 50;
  std::vector<std::thread> threads;
  for (Worker* const worker : workers) {
    threads.emplace_back([this, worker] {
      std::vector<uint64_t> base(Chunks(), 0);
      uint64_t acknowledged = 0;
      for (uint64_t step = 0; step < kSteps; ++step) {
        std::vector<Sequence> sent;
        for (uint32_t c = 0; c < Chunks(); ++c) {
          FrameHeader header = worker->Header(FrameKind::kPushPull, step, c);
          header.version.count = base[c];
          header.acknowledged = Sequence(acknowledged);
          sent.push_back(worker->Send(header, std::vector<float>(ChunkElements(c), 1)));
        }
        for (uint32_t c = 0; c < Chunks(); ++c) {
          const Answer answer = worker->Await(sent[c]);
          ASSERT_EQ(answer.header.status, FrameStatus::kOk);
          // Every update subtracts one: weights and version must be of one moment.
          ASSERT_EQ(answer.values.front(), -static_cast<float>(answer.header.version.count));
          ASSERT_EQ(answer.values.back(), answer.values.front());
          base[c] = answer.header.version.count;
        }
        acknowledged = sent.back().value();
        ASSERT_EQ(worker->Call(worker->Header(FrameKind::kBoundary, step)).header.status,
                  FrameStatus::kOk);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const JobAtServer job = router_->Report().jobs.at(0);
  EXPECT_EQ(job.updates, 2 * kSteps);
  ASSERT_THAT(job.groups, SizeIs(2));
  for (const GroupStaleness& group : job.groups) {
    EXPECT_EQ(group.tau.count, kSteps);
    EXPECT_EQ(
        static_cast<int64_t>(group.tau.sum),
        static_cast<int64_t>(group.last - group.first_base - group.tau.count) - group.base_gaps);
  }
  for (const WorkerStaleness& worker : job.workers) EXPECT_EQ(worker.applied, Samples(kSteps));
}

}  // namespace
}  // namespace paceline
