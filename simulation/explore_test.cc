#include "simulation/explore.h"

#include <gtest/gtest.h>

#include <sstream>

#include "simulation/run.h"

namespace paceline::simulation {
namespace {

// Seeds within which a bug put in on purpose has to be found.
constexpr uint64_t kEnough = 60;

ExploreResult Find(const Bugs& bugs, std::string* said) {
  ExploreOptions options;
  options.seeds = kEnough;
  options.bugs = bugs;
  std::ostringstream out;
  const ExploreResult result = Explore(options, out);
  *said = out.str();
  return result;
}

TEST(ExploreTest, WhatMustHoldHolds) {
  ExploreOptions options;
  options.seeds = kEnough;
  std::ostringstream out;
  const ExploreResult result = Explore(options, out);
  EXPECT_TRUE(result.failed.empty()) << out.str();
  // The runs did what they are for.
  EXPECT_EQ(result.runs, kEnough);
  EXPECT_GT(result.balanced, kEnough * 9 / 10);
  EXPECT_GT(result.faults, 2 * kEnough);
  EXPECT_GT(result.updates, 50 * kEnough);
  EXPECT_GT(result.rollbacks, 0u);
}

TEST(ExploreTest, ARunIsAFunctionOfItsSeed) {
  RunOptions options;
  options.keep_lines = 100'000;
  const RunResult once = simulation::Run(11, options);
  const RunResult again = simulation::Run(11, options);
  EXPECT_GT(once.lines.size(), 50u);
  EXPECT_EQ(once.lines, again.lines);
  EXPECT_EQ(once.events, again.events);
  EXPECT_NE(once.lines, simulation::Run(12, options).lines);
}

TEST(ExploreTest, FindsAnswersThatLeaveBeforeTheJournalHasThem) {
  std::string said;
  EXPECT_FALSE(Find({.release_before_durable = true}, &said).failed.empty()) << said;
  EXPECT_TRUE(said.find("invariant 'incarnation'") != std::string::npos ||
              said.find("invariant 'generation'") != std::string::npos ||
              said.find("invariant 'one lease'") != std::string::npos)
      << said;
}

TEST(ExploreTest, FindsARetryThatIsAppliedTwice) {
  std::string said;
  EXPECT_FALSE(Find({.retry_applied_twice = true}, &said).failed.empty()) << said;
  EXPECT_TRUE(said.find("invariant 'exactly once'") != std::string::npos ||
              said.find("invariant 'ledger'") != std::string::npos)
      << said;
}

TEST(ExploreTest, FindsARedoThatKeepsTheOldSum) {
  std::string said;
  EXPECT_FALSE(Find({.redo_keeps_accumulator = true}, &said).failed.empty()) << said;
  EXPECT_NE(said.find("invariant 'weights'"), std::string::npos) << said;
}

TEST(ExploreTest, AFailureSaysHowToReplayIt) {
  std::string said;
  const ExploreResult result = Find({.retry_applied_twice = true}, &said);
  ASSERT_FALSE(result.failed.empty());
  const std::string seed = std::to_string(result.failed.front());
  EXPECT_NE(said.find("FAILED: seed " + seed + " at +"), std::string::npos) << said;
  EXPECT_NE(said.find("explore --seed " + seed + " --trace\n"), std::string::npos) << said;
}

}  // namespace
}  // namespace paceline::simulation
