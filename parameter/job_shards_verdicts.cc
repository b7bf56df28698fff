// How one thread of an owner comes to the verdicts on pushes: makes them, asks for them, answers.
#include <algorithm>
#include <utility>

#include "parameter/job_shards.h"

namespace paceline {

// Who decides now: this thread, once the lead chunk is here, or an owner that can be asked. After a
// return to a checkpoint nothing holds of what was decided, wherever it is known: every open round
// is void, and the steps up to now may be done again with other members.
void JobShards::FollowLead(Replies* replies) {
  const Plan& plan = plan_->plan;
  VerdictLead lead{plan.generation, plan.lineage, {}};
  const std::optional<NodeId> owner = LeadOwner(plan);
  for (const ServerInfo& server : plan.servers) {
    if (server.node == owner) lead.owner = server;
  }
  const bool here = shards_.contains(LeadChunk());
  const bool returned = lead.lineage != lead_.lineage;
  const bool changed = !lead.IsSame(lead_) || here != verdicts_.lead();
  verdicts_.Configure(plan.spec, here);
  lead_ = std::move(lead);
  if (!changed || !verdicts_.in_use()) return;
  if (!here || returned) {
    for (const Operation& asked : verdicts_.TakeWaiting()) {
      Answer(asked, OperationStatus::kNotOwner, replies);
    }
  }
  if (returned) verdicts_.Forget();
  verdicts_.OnLeadChanged();
}

void JobShards::OnVerdictAsked(const Operation& operation, const Piece& piece, Replies* replies) {
  if (operation.job_generation > plan_->plan.generation) {
    return Refuse(operation, piece, OperationStatus::kNotYet, replies);
  }
  const bool of_the_past = operation.base.lineage != plan_->plan.lineage;
  if (!verdicts_.in_use() || !verdicts_.lead() || of_the_past) {
    const bool comes = arriving_.contains(LeadChunk()) && !of_the_past;
    return Refuse(operation, piece, comes ? OperationStatus::kNotYet : OperationStatus::kNotOwner,
                  replies);
  }
  const absl::StatusOr<VerdictQuestion> question = DecodeQuestion(piece.bytes);
  if (operation.total_bytes != piece.bytes.size() || !question.ok()) {
    return Refuse(operation, piece, OperationStatus::kBadRequest, replies);
  }
  if (!verdicts_.Ask(*question, operation)) {
    Refuse(operation, piece, OperationStatus::kNotYet, replies);
  }
}

void JobShards::OnVerdict(uint32_t lineage, std::span<const std::byte> answer, Ticks now,
                          Replies* replies) {
  if (lineage != lead_.lineage) return;
  const absl::StatusOr<VerdictAnswer> decoded = DecodeAnswer(answer);
  if (!decoded.ok()) return;
  verdicts_.Learn(*decoded);
  PursueVerdicts(now, replies);
}

void JobShards::PursueVerdicts(Ticks now, Replies* replies) {
  if (!verdicts_.in_use()) return;
  bool news = false;
  for (std::set<GroupId> groups = verdicts_.TakeNews(); !groups.empty();
       groups = verdicts_.TakeNews()) {
    news = true;
    for (const GroupId group : groups) {
      for (auto& [key, shard] : shards_) {
        if (shard.open_rounds() > 0) shard.OnCovered(group, now, replies);
      }
    }
  }
  for (Verdicts::Answer& answer : verdicts_.TakeAnswers()) {
    Reply reply;
    reply.to = answer.to;
    reply.state = std::make_shared<const std::vector<std::byte>>(Encode(answer.answer));
    replies->push_back(std::move(reply));
  }
  for (const VerdictQuestion& question : verdicts_.TakeQuestions()) {
    if (lead_.owner.node == NodeId() || !question_) continue;
    question_({plan_->plan.job, lead_, LeadChunk(), question.push,
               std::make_shared<const std::vector<std::byte>>(Encode(question))});
  }
  if (news) AdvanceCut(now, replies);
}

// Whether a group's last step of the cut is over may depend on whom its verdict left out, which an
// owner without a part in that push has not heard.
void JobShards::AskForCut() {
  if (!verdicts_.in_use()) return;
  for (const auto& [group, step] : cut_->steps) {
    const GroupTable::Generation* const generation = groups_.InForce(group, step);
    if (generation == nullptr || generation->plan->members.empty()) continue;
    if (verdicts_.Find({group, step}) != nullptr) continue;
    std::vector<NodeRef> done;
    for (const Member& member : generation->plan->members) {
      if (groups_.IsCovered(group, member, step)) done.push_back(RefOf(member));
    }
    std::sort(done.begin(), done.end());
    verdicts_.Offer({group, step}, done, Samples(0));
  }
}

}  // namespace paceline
