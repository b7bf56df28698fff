// What one shard thread knows of the verdicts on pushes, and, in the thread that holds the lead
// chunk, the making of them.
//
//   a chunk has the contributions of a quorum --Offer--> decided here (lead), or to be asked for
//   another owner asks --Ask--> answered when it is decided
//   the lead answers --Learn--> known here
//
// The lead decides about a push at the first chunk that a quorum has contributed to, wherever that
// is: in it are those of whom it has heard by then. A decision binds. It is kept until each of its
// members that lives is past the step; a push that was never decided when a later one is is over.
// Elsewhere what is known may be forgotten at any time and asked for again.
//
// Who is in a push will contribute to all of its chunks (or cover the step, or die). Who is not
// learns of it by the answer to its contribution, and goes on in the first step that it may be in:
// no owner names one that is beyond a step it is in.
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/base/types.h"
#include "parameter/group_table.h"
#include "parameter/operation.h"
#include "parameter/verdict.h"
#include "plan/job_spec.h"

namespace paceline {

enum class Fate : uint8_t {
  kUndecided,  // or not known here
  kIn,
  kOut,
};

// What the lead has decided about one group, as it goes to the next lead.
struct GroupVerdicts {
  GroupId group;
  Step decided_through;  // the highest step decided
  std::map<Step, Verdict> kept;
};

class Verdicts {
 public:
  // `groups` outlives it.
  explicit Verdicts(const GroupTable* groups) : groups_(groups) {}

  // `lead`: the lead chunk is here.
  void Configure(const JobSpec& spec, bool lead);
  bool in_use() const { return quorum_ != 0; }
  bool drops_late() const { return late_ == Late::kDrop; }
  bool lead() const { return lead_; }
  // How many members close a round.
  uint32_t Needed(const GroupPlan& group) const;

  // Null when it is not known (any more); invalid after any other call.
  const Verdict* Find(PushKey push) const;
  bool IsOver(PushKey push) const;
  Fate FateOf(PushKey push, NodeRef member) const;
  // The first step after `push` that `member`, who is out of it, may be in.
  Step NextFor(PushKey push, NodeRef member) const;

  // A chunk of the push has contributions of all that `done` names: decides, when they are a
  // quorum, or asks: at first, and again when more are done and they are one.
  void Offer(PushKey push, const std::vector<NodeRef>& done, Samples samples);
  // The group changed: what was offered may be a quorum now, and rounds are done again.
  void OnGroupsChanged();
  // Another owner is the lead now: what is not answered is asked again.
  void OnLeadChanged();

  // ---- The lead's side. `to`: where the answer goes. False when too many wait: not yet.
  bool Ask(const VerdictQuestion& question, const Operation& to);
  struct Answer {
    Operation to;
    VerdictAnswer answer;
  };
  std::vector<Answer> TakeAnswers() { return std::exchange(answers_, {}); }
  // The lead chunk goes away, or back to a checkpoint: who waits is to ask the next lead.
  std::vector<Operation> TakeWaiting();

  // ---- The other owners' side.
  std::vector<VerdictQuestion> TakeQuestions() { return std::exchange(questions_, {}); }
  void Learn(const VerdictAnswer& answer);

  // Groups of which a verdict became known; their rounds may be ready.
  std::set<GroupId> TakeNews() { return std::exchange(news_, {}); }
  // A member of `group` passed further steps.
  void Prune(GroupId group);

  // Back to a checkpoint: nothing was decided, offered or learned.
  void Forget();

  // ---- Between leads.
  std::vector<GroupVerdicts> HandOver() const;
  void TakeOver(const std::vector<GroupVerdicts>& verdicts);

 private:
  static constexpr size_t kMaxWaiting = 4096;  // questions
  static constexpr size_t kMaxKept = 1024;     // verdicts of a group; by far more than members lag

  struct Group {
    Step decided_through;
    std::map<Step, Verdict> kept;
    // Elsewhere: what the lead said, and what all of its members are past.
    std::set<Step> over;
    std::map<NodeRef, Step> open;
  };
  struct Waiting {
    VerdictQuestion question;
    Operation to;
  };
  struct Offered {
    std::set<NodeRef> done;
    Samples samples;  // of the newest offer
    std::vector<Waiting> waiting;
    bool asked = false;
  };

  const Group* FindGroup(GroupId group) const;
  void Consider(PushKey push);
  void Decide(PushKey push, std::vector<NodeRef> members, size_t planned);
  void Settle(PushKey push);
  VerdictAnswer AnswerTo(const VerdictQuestion& question) const;
  bool IsPast(PushKey push, NodeRef member) const;
  static void Remember(std::set<Step>& over, Step step);

  const GroupTable* const groups_;
  uint32_t quorum_ = 0;
  Late late_ = Late::kCarry;
  bool lead_ = false;
  std::map<GroupId, Group> decided_;
  std::map<PushKey, Offered> offered_;
  size_t waiting_ = 0;
  std::vector<Answer> answers_;
  std::vector<VerdictQuestion> questions_;
  std::set<GroupId> news_;
};

}  // namespace paceline
