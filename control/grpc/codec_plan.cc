// plan/job_spec.h, plan/tensor_spec.h, plan/plan.h, plan/permutation.h
#include <cmath>

#include "control/grpc/codec.h"
#include "control/grpc/codec_util.h"

namespace paceline {
namespace {

using namespace codec;  // NOLINT: the helpers of this codec

constexpr size_t kMaxParameters = 64;
constexpr size_t kMaxCodecs = 256;
constexpr int kMaxDimensions = 32;

}  // namespace

void ToProto(const NodeRef& in, v1::NodeRef* out) {
  out->set_node(in.node.value());
  out->set_incarnation(in.incarnation.value());
}

absl::Status FromProto(const v1::NodeRef& in, NodeRef* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("node", in.node(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(CheckRange("incarnation", in.incarnation(), 1, UINT64_MAX));
  *out = {NodeId(in.node()), Incarnation(in.incarnation())};
  return absl::OkStatus();
}

void ToProto(const NamedSpec& in, v1::NamedSpec* out) {
  out->set_name(in.name);
  for (const auto& [name, value] : in.parameters) (*out->mutable_parameters())[name] = value;
}

absl::Status FromProto(const v1::NamedSpec& in, NamedSpec* out) {
  if (!in.name().empty()) PACELINE_RETURN_IF_ERROR(CheckName("name", in.name()));
  PACELINE_RETURN_IF_ERROR(
      CheckRange("parameters (count)", in.parameters().size(), 0, kMaxParameters));
  out->name = in.name();
  out->parameters.clear();
  for (const auto& [name, value] : in.parameters()) {
    PACELINE_RETURN_IF_ERROR(CheckName("parameters", name));
    if (!std::isfinite(value)) {
      return Invalid(absl::StrCat("parameters.", name), absl::StrCat(value), "a finite number");
    }
    out->parameters[name] = value;
  }
  return absl::OkStatus();
}

void ToProto(const GroupSpec& in, v1::GroupSpec* out) {
  // The struct counts its kinds from 0; on the wire 0 means that none was given.
  out->set_kind(static_cast<v1::GroupSpec::Kind>(static_cast<int>(in.kind) + 1));
  out->set_count(in.count);
  out->mutable_sizes()->Assign(in.sizes.begin(), in.sizes.end());
  out->set_label(in.label);
}

absl::Status FromProto(const v1::GroupSpec& in, GroupSpec* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("kind", in.kind(), 1, 5));
  PACELINE_RETURN_IF_ERROR(CheckRange("sizes (count)", in.sizes_size(), 0, kMaxItems));
  PACELINE_RETURN_IF_ERROR(CheckText("label", in.label(), kMaxLabelBytes));
  out->kind = static_cast<GroupSpec::Kind>(in.kind() - 1);
  out->count = in.count();
  out->sizes.assign(in.sizes().begin(), in.sizes().end());
  out->label = in.label();
  return absl::OkStatus();
}

void ToProto(const JobSpec& in, v1::JobSpec* out) {
  out->set_name(in.name);
  out->set_workers(in.workers);
  out->set_min_workers(in.min_workers);
  ToProto(in.groups, out->mutable_groups());
  ToProto(in.optimizer, out->mutable_optimizer());
  ToProto(in.policy, out->mutable_policy());
  for (const auto& [pattern, codec] : in.codecs) ToProto(codec, &(*out->mutable_codecs())[pattern]);
  out->set_normalization(static_cast<v1::Normalization>(in.normalization));
  out->set_aggregation(static_cast<v1::Aggregation>(in.aggregation));
  out->set_deterministic(in.deterministic);
  out->set_chunk_bytes(in.chunk_bytes);
  out->set_sample_count(in.sample_count);
  out->set_epochs(in.epochs);
  out->set_batch_size(in.batch_size);
  out->set_seed(in.seed);
  out->set_failure_timeout_ms(in.failure_timeout_ms);
  out->set_quorum(in.quorum);
  out->set_late(static_cast<v1::Late>(in.late));
  out->set_nan(static_cast<v1::NotFinite>(in.nan));
  out->set_max_step_lag(in.max_step_lag);
  out->set_gate(in.gate);
  out->set_max_staleness(in.max_staleness);
  out->set_local_steps(in.local_steps);
  out->set_checkpoint_every_steps(in.checkpoint_every_steps);
  out->set_checkpoint_every_s(in.checkpoint_every_s);
  out->set_checkpoint_dir(in.checkpoint_dir);
  out->set_checkpoint_keep(in.checkpoint_keep);
  out->set_on_server_loss(static_cast<v1::ServerLoss>(in.on_server_loss));
}

absl::Status FromProto(const v1::JobSpec& in, JobSpec* out) {
  PACELINE_RETURN_IF_ERROR(CheckName("name", in.name()));
  PACELINE_RETURN_IF_ERROR(In("groups", FromProto(in.groups(), &out->groups)));
  PACELINE_RETURN_IF_ERROR(In("optimizer", FromProto(in.optimizer(), &out->optimizer)));
  PACELINE_RETURN_IF_ERROR(In("policy", FromProto(in.policy(), &out->policy)));
  PACELINE_RETURN_IF_ERROR(CheckRange("codecs (count)", in.codecs().size(), 0, kMaxCodecs));
  out->codecs.clear();
  for (const auto& [pattern, codec] : in.codecs()) {
    PACELINE_RETURN_IF_ERROR(CheckText("codecs", pattern, kMaxName));
    PACELINE_RETURN_IF_ERROR(In("codecs", FromProto(codec, &out->codecs[pattern])));
  }
  PACELINE_RETURN_IF_ERROR(
      EnumFromProto("normalization", in.normalization(), 1, 2, &out->normalization));
  PACELINE_RETURN_IF_ERROR(EnumFromProto("aggregation", in.aggregation(), 1, 3, &out->aggregation));
  PACELINE_RETURN_IF_ERROR(EnumFromProto("late", in.late(), 1, 2, &out->late));
  PACELINE_RETURN_IF_ERROR(EnumFromProto("nan", in.nan(), 1, 2, &out->nan));
  out->name = in.name();
  out->workers = in.workers();
  out->min_workers = in.min_workers();
  out->deterministic = in.deterministic();
  out->chunk_bytes = in.chunk_bytes();
  out->sample_count = in.sample_count();
  out->epochs = in.epochs();
  out->batch_size = in.batch_size();
  out->seed = in.seed();
  out->failure_timeout_ms = in.failure_timeout_ms();
  out->quorum = in.quorum();
  out->max_step_lag = in.max_step_lag();
  out->gate = in.gate();
  out->max_staleness = in.max_staleness();
  out->local_steps = in.local_steps();
  out->checkpoint_every_steps = in.checkpoint_every_steps();
  out->checkpoint_every_s = in.checkpoint_every_s();
  out->checkpoint_dir = in.checkpoint_dir();
  out->checkpoint_keep = in.checkpoint_keep();
  PACELINE_RETURN_IF_ERROR(
      EnumFromProto("on_server_loss", in.on_server_loss(), 1, 2, &out->on_server_loss));
  return absl::OkStatus();
}

void ToProto(const TensorSpec& in, v1::TensorSpec* out) {
  out->set_name(in.name);
  out->mutable_shape()->Assign(in.shape.begin(), in.shape.end());
  out->set_dtype(static_cast<v1::DType>(in.dtype));
  out->set_whole(in.whole);
}

absl::Status FromProto(const v1::TensorSpec& in, TensorSpec* out) {
  PACELINE_RETURN_IF_ERROR(CheckText("name", in.name(), kMaxName));
  PACELINE_RETURN_IF_ERROR(CheckRange("shape (count)", in.shape_size(), 0, kMaxDimensions));
  PACELINE_RETURN_IF_ERROR(EnumFromProto("dtype", in.dtype(), 1, 8, &out->dtype));
  out->name = in.name();
  out->shape.assign(in.shape().begin(), in.shape().end());
  out->whole = in.whole();
  return Validate(*out);
}

void ToProto(const Member& in, v1::Member* out) {
  ToProto(NodeRef{in.node, in.incarnation}, out->mutable_self());
  out->set_name(in.name);
  out->set_rank(in.rank.value());
  if (in.index) out->set_index(in.index->value());
  out->set_host(in.host);
  out->set_data_address(in.data_address);
  out->set_key(KeyToProto(in.key));
  out->set_first_step(in.first_step.value());
}

absl::Status FromProto(const v1::Member& in, Member* out) {
  NodeRef self;
  PACELINE_RETURN_IF_ERROR(In("self", FromProto(in.self(), &self)));
  PACELINE_RETURN_IF_ERROR(CheckText("name", in.name(), kMaxName));
  PACELINE_RETURN_IF_ERROR(CheckText("host", in.host(), kMaxAddress));
  PACELINE_RETURN_IF_ERROR(CheckText("data_address", in.data_address(), kMaxAddress));
  PACELINE_RETURN_IF_ERROR(KeyFromProto("key", in.key(), &out->key));
  out->node = self.node;
  out->incarnation = self.incarnation;
  out->name = in.name();
  out->rank = JobRank(in.rank());
  out->index.reset();
  if (in.has_index()) out->index = WorkerIndex(in.index());
  out->host = in.host();
  out->data_address = in.data_address();
  out->first_step = Step(in.first_step());
  return absl::OkStatus();
}

void ToProto(const GroupPlan& in, v1::GroupPlan* out) {
  out->set_id(in.id.value());
  out->set_generation(in.generation.value());
  out->set_activation_step(in.activation_step.value());
  out->set_last_fence(in.last_fence.value());
  out->set_planned_members(in.planned_members);
  AllToProto(in.members, out->mutable_members());
  out->set_reason(FreeText(in.reason));
}

absl::Status FromProto(const v1::GroupPlan& in, GroupPlan* out) {
  PACELINE_RETURN_IF_ERROR(AllFromProto("members", in.members(), &out->members));
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  out->id = GroupId(in.id());
  out->generation = GroupGeneration(in.generation());
  out->activation_step = Step(in.activation_step());
  out->last_fence = GroupGeneration(in.last_fence());
  out->planned_members = in.planned_members();
  out->reason = in.reason();
  return absl::OkStatus();
}

void ToProto(const ServerInfo& in, v1::ServerInfo* out) {
  ToProto(NodeRef{in.node, in.incarnation}, out->mutable_self());
  out->set_name(in.name);
  out->set_host(in.host);
  out->set_data_address(in.data_address);
  out->set_key(KeyToProto(in.key));
}

absl::Status FromProto(const v1::ServerInfo& in, ServerInfo* out) {
  NodeRef self;
  PACELINE_RETURN_IF_ERROR(In("self", FromProto(in.self(), &self)));
  PACELINE_RETURN_IF_ERROR(CheckText("name", in.name(), kMaxName));
  PACELINE_RETURN_IF_ERROR(CheckText("host", in.host(), kMaxAddress));
  PACELINE_RETURN_IF_ERROR(CheckText("data_address", in.data_address(), kMaxAddress));
  *out = {self.node, in.name(), self.incarnation, in.host(), in.data_address(), {}};
  return KeyFromProto("key", in.key(), &out->key);
}

void ToProto(const ChunkKey& in, v1::ChunkRef* out) {
  out->set_tensor(in.tensor.value());
  out->set_chunk(in.chunk.value());
}

absl::Status FromProto(const v1::ChunkRef& in, ChunkKey* out) {
  *out = {TensorId(in.tensor()), ChunkIndex(in.chunk())};
  return absl::OkStatus();
}

void ToProto(const ChunkMove& in, v1::ChunkMove* out) {
  out->set_tensor(in.chunk.tensor.value());
  out->set_chunk(in.chunk.chunk.value());
  out->set_from(in.from.value());
  out->set_to(in.to.value());
}

absl::Status FromProto(const v1::ChunkMove& in, ChunkMove* out) {
  *out = {{TensorId(in.tensor()), ChunkIndex(in.chunk())}, NodeId(in.from()), NodeId(in.to())};
  return absl::OkStatus();
}

void ToProto(const TensorPlan& in, v1::TensorPlan* out) {
  out->set_id(in.id.value());
  ToProto(in.spec, out->mutable_spec());
  IdsToProto(in.owners, out->mutable_owners());
  out->set_sealed(in.sealed);
}

absl::Status FromProto(const v1::TensorPlan& in, TensorPlan* out) {
  PACELINE_RETURN_IF_ERROR(In("spec", FromProto(in.spec(), &out->spec)));
  PACELINE_RETURN_IF_ERROR(IdsFromProto("owners", in.owners(), &out->owners, kMaxOwners));
  out->id = TensorId(in.id());
  out->sealed = in.sealed();
  return absl::OkStatus();
}

void ToProto(const Plan& in, v1::Plan* out) {
  out->set_job(in.job.value());
  ToProto(in.spec, out->mutable_spec());
  out->set_state(static_cast<v1::JobState>(in.state));
  out->set_reason(FreeText(in.reason));
  out->set_term(in.term.value());
  out->set_generation(in.generation.value());
  AllToProto(in.servers, out->mutable_servers());
  AllToProto(in.tensors, out->mutable_tensors());
  AllToProto(in.groups, out->mutable_groups());
  out->set_next_group(in.next_group.value());
  out->set_lead_tensor(in.lead_tensor.value());
  out->set_init_writer(in.init_writer.value());
  out->set_move(in.move);
  AllToProto(in.moves, out->mutable_moves());
  out->set_withdrawn(in.withdrawn);
  out->set_waiting(FreeText(in.waiting));
  AllToProto(in.fenced, out->mutable_fenced());
  out->set_restore_from(in.restore_from);
  out->set_lineage(in.lineage);
}

absl::Status FromProto(const v1::Plan& in, Plan* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange("job", in.job(), 1, UINT32_MAX));
  PACELINE_RETURN_IF_ERROR(In("spec", FromProto(in.spec(), &out->spec)));
  PACELINE_RETURN_IF_ERROR(EnumFromProto("state", in.state(), 1, 4, &out->state));
  PACELINE_RETURN_IF_ERROR(CheckText("reason", in.reason(), kMaxText));
  PACELINE_RETURN_IF_ERROR(AllFromProto("servers", in.servers(), &out->servers));
  PACELINE_RETURN_IF_ERROR(AllFromProto("tensors", in.tensors(), &out->tensors));
  PACELINE_RETURN_IF_ERROR(AllFromProto("groups", in.groups(), &out->groups));
  PACELINE_RETURN_IF_ERROR(AllFromProto("moves", in.moves(), &out->moves));
  PACELINE_RETURN_IF_ERROR(AllFromProto("fenced", in.fenced(), &out->fenced));
  PACELINE_RETURN_IF_ERROR(CheckText("waiting", in.waiting(), kMaxText));
  out->job = JobId(in.job());
  out->reason = in.reason();
  out->term = Term(in.term());
  out->generation = JobGeneration(in.generation());
  out->next_group = GroupId(in.next_group());
  out->lead_tensor = TensorId(in.lead_tensor());
  out->init_writer = NodeId(in.init_writer());
  out->move = in.move();
  out->withdrawn = in.withdrawn();
  out->waiting = in.waiting();
  out->restore_from = in.restore_from();
  out->lineage = in.lineage();
  return absl::OkStatus();
}

void ToProto(const SampleRange& in, v1::SampleRange* out) {
  out->set_epoch(in.epoch.value());
  out->set_begin(in.begin);
  out->set_end(in.end);
}

absl::Status FromProto(const v1::SampleRange& in, SampleRange* out) {
  if (in.begin() > in.end()) {
    return Invalid("end", absl::StrCat(in.end()), absl::StrCat("begin (", in.begin(), ") or more"));
  }
  *out = {Epoch(in.epoch()), in.begin(), in.end()};
  return absl::OkStatus();
}

}  // namespace paceline
