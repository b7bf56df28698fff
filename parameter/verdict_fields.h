// The binary form (common/base/encoding.h) of verdicts: in Verdict frames, and in chunks that are
// handed over.
#pragma once

#include "common/base/encoding.h"
#include "parameter/verdict.h"

namespace paceline {

template <typename A>
void Fields(A& a, Is<NodeRef> auto& v) {
  a(v.node, v.incarnation);
}
template <typename A>
void Fields(A& a, Is<PushKey> auto& v) {
  a(v.group, v.step);
}
template <typename A>
void Fields(A& a, Is<Verdict> auto& v) {
  a(v.members, v.samples, v.weight, v.reason);
}

}  // namespace paceline
