// What an operator is shown.
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "scheduler/core/core_test_util.h"

namespace paceline::scheduler {
namespace {

TEST_F(CoreTest, WhatANodeSaysReachesNoTerminalAsAControlSequence) {
  Start(1, Spec(2));
  Register(W(0));
  c.Ask(W(1), LeaveRequest{"done\x1b[2J\nfence: all", 0, {}});
  EventsQuery query;
  query.limit = 1000;
  const OperatorReply reply = c.Operate(query);
  bool said = false;
  for (const DecisionRecord& event : std::get<std::vector<DecisionRecord>>(reply)) {
    said = said || event.text.find("done?[2J?fence: all") != std::string::npos;
    for (const char letter : event.text) EXPECT_GE(letter, ' ') << event.text;
  }
  EXPECT_TRUE(said);
}

TEST_F(CoreTest, OfTheEventsTheNewestAreShownAndAfterANumberTheFirst) {
  Start(1, Spec(2));
  EventsQuery query;
  const auto ask = [&] { return std::get<std::vector<DecisionRecord>>(c.Operate(query)); };
  const std::vector<DecisionRecord> all = ask();
  ASSERT_GT(all.size(), 3u);
  query.limit = 2;
  EXPECT_EQ(ask().back().sequence, all.back().sequence);
  EXPECT_EQ(ask().front().sequence, all.back().sequence - 1);
  query.after = 1;
  EXPECT_EQ(ask().front().sequence, 2u);
  EXPECT_EQ(ask().size(), 2u);
}

}  // namespace
}  // namespace paceline::scheduler
