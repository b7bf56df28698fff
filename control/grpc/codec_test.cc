#include "control/grpc/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "control/grpc/codec_util.h"
#include "control/grpc/samples_for_test.h"

namespace paceline {
namespace {

// Through the bytes, as on the wire.
template <typename Proto, typename T>
void ExpectRoundTrip(const T& in) {
  Proto sent;
  ToProto(in, &sent);
  Proto received;
  ASSERT_TRUE(received.ParseFromString(sent.SerializeAsString()));
  T out{};
  const absl::Status status = FromProto(received, &out);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(in == out) << sent.DebugString();
}

TEST(CodecTest, PlansComeBackAsTheyWere) {
  ExpectRoundTrip<v1::JobSpec>(samples::Job());
  JobSpec deterministic = samples::Job();
  deterministic.deterministic = true;
  deterministic.quorum = 0;  // not both
  ExpectRoundTrip<v1::JobSpec>(deterministic);
  ExpectRoundTrip<v1::TensorSpec>(samples::Tensor());
  ExpectRoundTrip<v1::Plan>(samples::WholePlan());
  Plan least;
  least.job = JobId(1);
  least.spec.name = "j";
  ExpectRoundTrip<v1::Plan>(least);
  for (auto kind : {GroupSpec::Kind::kOne, GroupSpec::Kind::kPerWorker, GroupSpec::Kind::kCount,
                    GroupSpec::Kind::kSizes, GroupSpec::Kind::kLabel}) {
    ExpectRoundTrip<v1::GroupSpec>(GroupSpec{kind, 2, {1, 1}, "l"});
  }
  for (auto dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI8, DType::kI32,
                     DType::kI64, DType::kU8}) {
    ExpectRoundTrip<v1::TensorSpec>(TensorSpec{"t", {}, dtype, false});
  }
}

TEST(CodecTest, MembersWithoutIndexOrKeyStayWithout) {
  Member member = samples::Worker();
  ExpectRoundTrip<v1::Member>(member);
  member.index.reset();
  member.key = {};
  ExpectRoundTrip<v1::Member>(member);
}

TEST(CodecTest, ReportsComeBackAsTheyWere) {
  ExpectRoundTrip<v1::WorkerReport>(samples::Report());
  ExpectRoundTrip<v1::ServerReport>(samples::Server());
}

TEST(CodecTest, AMetricMayBeInfinite) {
  ExpectRoundTrip<v1::Metric>(Metric{"loss", std::numeric_limits<double>::infinity(), Step(1)});
  v1::Metric sent;
  ToProto(Metric{"loss", std::nan(""), Step(1)}, &sent);
  Metric out;
  ASSERT_TRUE(FromProto(sent, &out).ok());
  EXPECT_TRUE(std::isnan(out.value));
}

TEST(CodecTest, JoinsAndRepliesComeBackAsTheyWere) {
  ExpectRoundTrip<v1::JoinRequest>(samples::WorkerJoin());
  ExpectRoundTrip<v1::JoinRequest>(samples::ServerJoin());
  ExpectRoundTrip<v1::JoinReply>(JoinReply{
      {NodeId(1), Incarnation(2)}, JobId(3), JobRank(4), Term(5), samples::Key(9), 250, 6000});
  ExpectRoundTrip<v1::RegisterTensorsReply>(
      RegisterTensorsReply{{TensorId(1), TensorId(0)}, JobGeneration(4)});
  ExpectRoundTrip<v1::DrawSamplesReply>(DrawSamplesReply{{{Epoch(3), 4, 5}}, true});
  ExpectRoundTrip<v1::CheckpointReply>(CheckpointReply{"/c/1", {{GroupId(0), Step(3)}}});
}

template <size_t I = 0>
void RequestsRoundTrip(const std::vector<NodeRequest>& all) {
  if constexpr (I < std::variant_size_v<NodeRequest>) {
    ASSERT_EQ(all[I].index(), I);
    using T = std::variant_alternative_t<I, NodeRequest>;
    const T& body = std::get<I>(all[I]);
    if constexpr (std::is_same_v<T, RegisterTensorsRequest>) {
      ExpectRoundTrip<v1::RegisterTensorsRequest>(body);
    } else if constexpr (std::is_same_v<T, InitDoneRequest>) {
      ExpectRoundTrip<v1::InitDoneRequest>(body);
    } else if constexpr (std::is_same_v<T, SetOptimizerRequest>) {
      ExpectRoundTrip<v1::SetOptimizerRequest>(body);
    } else if constexpr (std::is_same_v<T, DrawSamplesRequest>) {
      ExpectRoundTrip<v1::DrawSamplesRequest>(body);
    } else if constexpr (std::is_same_v<T, ReturnSamplesRequest>) {
      ExpectRoundTrip<v1::ReturnSamplesRequest>(body);
    } else if constexpr (std::is_same_v<T, BarrierRequest>) {
      ExpectRoundTrip<v1::BarrierRequest>(body);
    } else if constexpr (std::is_same_v<T, CheckpointRequest>) {
      ExpectRoundTrip<v1::CheckpointRequest>(body);
    } else if constexpr (std::is_same_v<T, AckRequest>) {
      ExpectRoundTrip<v1::AckRequest>(body);
    } else if constexpr (std::is_same_v<T, LinkDownRequest>) {
      ExpectRoundTrip<v1::LinkDownRequest>(body);
    } else if constexpr (std::is_same_v<T, WorkerReport>) {
      ExpectRoundTrip<v1::WorkerReport>(body);
    } else if constexpr (std::is_same_v<T, ServerReport>) {
      ExpectRoundTrip<v1::ServerReport>(body);
    } else if constexpr (std::is_same_v<T, LeaveRequest>) {
      ExpectRoundTrip<v1::LeaveRequest>(body);
    } else if constexpr (std::is_same_v<T, AdoptedRequest>) {
      ExpectRoundTrip<v1::AdoptedRequest>(body);
    } else if constexpr (std::is_same_v<T, NotFiniteRequest>) {
      ExpectRoundTrip<v1::NotFiniteRequest>(body);
    } else {
      static_assert(std::is_same_v<T, Heartbeat>);  // has no body
    }
    RequestsRoundTrip<I + 1>(all);
  }
}

TEST(CodecTest, EveryRequestOfANodeComesBackAsItWas) {
  const std::vector<NodeRequest> all = samples::NodeRequests();
  ASSERT_EQ(all.size(), std::variant_size_v<NodeRequest>);
  RequestsRoundTrip(all);
}

TEST(CodecTest, EveryDirectiveComesBackAsItWas) {
  const std::vector<Directive> all = samples::Directives();
  ASSERT_EQ(all.size(), std::variant_size_v<decltype(Directive::body)>);
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].body.index(), i);
    ExpectRoundTrip<v1::Directive>(all[i]);
  }
}

TEST(CodecTest, OperatorMessagesComeBackAsTheyWere) {
  ExpectRoundTrip<v1::ClusterView>(samples::Cluster());
  ExpectRoundTrip<v1::ListEventsReply>(samples::Decisions());
  ExpectRoundTrip<v1::GetStatusRequest>(StatusQuery{"j"});
  ExpectRoundTrip<v1::ListEventsRequest>(EventsQuery{5, 6, "j"});
  ExpectRoundTrip<v1::StopJobRequest>(StopJobRequest{"j", true, "why"});
  ExpectRoundTrip<v1::ProcessEndedRequest>(ProcessEndedRequest{"j", "w-1", 77, "signal 9"});
  ExpectRoundTrip<v1::ProcessEndedRequest>(ProcessEndedRequest{"", "server-0", 78, "code 1"});
  ExpectRoundTrip<v1::DrainServerRequest>(DrainServerRequest{"server-0", true});
  ExpectRoundTrip<v1::RemoveWorkerRequest>(RemoveWorkerRequest{"j", "w-1", "why"});
  ExpectRoundTrip<v1::MoveWorkerRequest>(MoveWorkerRequest{"j", "w-1", GroupId(0), "why"});
  ExpectRoundTrip<v1::MoveWorkerRequest>(MoveWorkerRequest{"j", "w-1", std::nullopt, ""});
  ExpectRoundTrip<v1::CheckpointJobRequest>(CheckpointJobRequest{"j", "/c"});
  ExpectRoundTrip<v1::ResumeJobRequest>(ResumeJobRequest{"j", "/c/1", samples::Manifest()});
}

// ---- What is refused, and with which words ------------------------------------------------------

template <typename T, typename Proto>
std::string Refusal(const Proto& in) {
  T out{};
  const absl::Status status = FromProto(in, &out);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

v1::JoinRequest GoodJoin() {
  v1::JoinRequest join;
  ToProto(samples::WorkerJoin(), &join);
  return join;
}

TEST(CodecTest, ABadJoinNamesFieldAndValue) {
  v1::JoinRequest join = GoodJoin();
  join.set_role(v1::ROLE_OPERATOR);
  EXPECT_EQ(Refusal<JoinRequest>(join), "role: 3; use 1..2");
  join = GoodJoin();
  join.set_name("a b\n");
  EXPECT_EQ(Refusal<JoinRequest>(join), "name: \"a b\\n\"; use [a-zA-Z0-9._-]{1,128}");
  join = GoodJoin();
  join.set_data_address("host:70000");
  EXPECT_EQ(Refusal<JoinRequest>(join),
            "data_address: \"host:70000\"; use host:port or [v6]:port with a port of 1..65535");
  join = GoodJoin();
  join.mutable_job()->set_chunk_bytes(3);
  EXPECT_EQ(Refusal<JoinRequest>(join).substr(0, 18), "job.chunk_bytes: 3");
  join = GoodJoin();
  join.mutable_job()->set_normalization(static_cast<v1::Normalization>(9));
  EXPECT_EQ(Refusal<JoinRequest>(join), "job.normalization: 9; use 1..2");
  join = GoodJoin();
  (*join.mutable_job()->mutable_optimizer()->mutable_parameters())["lr"] = std::nan("");
  EXPECT_EQ(Refusal<JoinRequest>(join), "job.optimizer.parameters.lr: nan; use a finite number");
  join = GoodJoin();
  join.clear_job();
  EXPECT_EQ(Refusal<JoinRequest>(join), "job: missing; use it for workers, and for workers only");
  join = GoodJoin();
  join.set_role(v1::ROLE_SERVER);
  EXPECT_EQ(Refusal<JoinRequest>(join),
            "job: given by a server; use it for workers, and for workers only");
  join = GoodJoin();
  for (int i = 0; i < 65; ++i) (*join.mutable_labels())[absl::StrCat("l", i)] = "v";
  EXPECT_EQ(Refusal<JoinRequest>(join), "labels (count): 67; use 0..64");
}

TEST(CodecTest, ABadPartOfAListIsNamedByItsPlace) {
  v1::RegisterTensorsRequest request;
  for (int i = 0; i < 3; ++i) ToProto(samples::Tensor(), request.add_tensors());
  request.mutable_tensors(2)->set_dtype(v1::DTYPE_UNSPECIFIED);
  EXPECT_EQ(Refusal<RegisterTensorsRequest>(request), "tensors[2].dtype: 0; use 1..8");

  v1::ReturnSamplesRequest returned;
  returned.add_ranges()->set_begin(5);
  EXPECT_EQ(Refusal<ReturnSamplesRequest>(returned), "ranges[0].end: 0; use begin (5) or more");
}

TEST(CodecTest, OtherRequestsAreCheckedToo) {
  v1::AckRequest ack;
  EXPECT_EQ(Refusal<AckRequest>(ack), "id: 0; use 1..18446744073709551615");
  ack.set_id(1);
  ack.add_applied()->set_group(4);
  ack.add_applied()->set_group(4);
  EXPECT_EQ(Refusal<AckRequest>(ack), "applied[1].group: 4; use each group once");
  v1::NodeRef ref;
  ref.set_node(1);
  EXPECT_EQ(Refusal<NodeRef>(ref), "incarnation: 0; use 1..18446744073709551615");
  v1::WorkerReport report;
  report.set_wait_permille(1001);
  EXPECT_EQ(Refusal<WorkerReport>(report), "wait_permille: 1001; use 0..1000");
  v1::StalenessCounts counts;
  for (int i = 0; i < 130; ++i) counts.add_buckets(1);
  EXPECT_EQ(Refusal<StalenessCounts>(counts), "buckets (count): 130; use 0..129");
  EXPECT_EQ(Refusal<SetOptimizerRequest>(v1::SetOptimizerRequest()),
            "optimizer.name: \"\"; use [a-zA-Z0-9._-]{1,128}");
  EXPECT_EQ(Refusal<EventsQuery>(v1::ListEventsRequest()), "limit: 0; use 1..100000");
  Directive directive;
  EXPECT_FALSE(FromProto(v1::Directive(), &directive).ok());
}

TEST(CodecTest, AKeyOfTheWrongLengthIsRefusedAndNotShown) {
  v1::JoinReply reply;
  ToProto(JoinReply{{NodeId(1), Incarnation(2)}, {}, {}, {}, samples::Key(9), 250, 6000}, &reply);
  reply.set_key("secret");
  EXPECT_EQ(Refusal<JoinReply>(reply), "key: 6 bytes; use 32 bytes");
}

TEST(CodecTest, FreeTextIsCutAndMadeUtf8) {
  EXPECT_EQ(codec::FreeText("caf\xC3\xA9 ok"), "caf\xC3\xA9 ok");
  EXPECT_EQ(codec::FreeText("a\xFFz\xC3"), "a?z?");
  EXPECT_EQ(codec::FreeText("\xC0\x80"), "??");       // overlong
  EXPECT_EQ(codec::FreeText("\xED\xA0\x80"), "???");  // a surrogate
  EXPECT_EQ(codec::FreeText(std::string(5000, 'x')).size(), 4096u);
  // A character that would pass the bound is left out whole.
  const std::string text = std::string(4095, 'x') + "\xC3\xA9";
  EXPECT_EQ(codec::FreeText(text), std::string(4095, 'x'));
  ExpectRoundTrip<v1::LinkDownRequest>(LinkDownRequest{NodeId(1), 1, "c"});
  v1::LinkDownRequest sent;
  ToProto(LinkDownRequest{NodeId(1), 1, "\xFF"}, &sent);
  EXPECT_EQ(sent.cause(), "?");
}

}  // namespace
}  // namespace paceline
