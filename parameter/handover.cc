#include "parameter/handover.h"

#include <bit>
#include <cstring>

#include "common/base/encoding.h"
#include "common/base/status.h"
#include "parameter/verdict_fields.h"
#include "plan/report_fields.h"

namespace paceline {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are copied as they lie");

constexpr uint32_t kLayout = 3;

// In place of an array: its index in the list of arrays that follows; 0 is none.
struct Encoded {
  struct Answer {
    OperationId id;
    OperationStatus status = OperationStatus::kOk;
    Version version;
    Samples samples;
    uint32_t values = 0;
  };
  struct MemberState {
    GroupId group;
    NodeId node;
    Incarnation incarnation;
    std::vector<OperationId> over;
    std::vector<Answer> answers;
  };
  struct Pulled {
    GroupId group;
    Version version;
    uint32_t weights = 0;
  };
  struct Named {
    std::string name;
    uint32_t values = 0;
  };

  uint32_t layout = kLayout;
  uint64_t elements = 0;
  uint32_t array_count = 0;
  Version version;
  uint64_t updates = 0;
  Samples samples;
  std::vector<Named> arrays;
  std::map<GroupId, Step> applied_steps;
  std::vector<Pulled> pulled;
  std::vector<MemberState> members;
  uint64_t recorded_updates = 0;
  std::vector<GroupStaleness> group_staleness;
  std::vector<WorkerStaleness> worker_staleness;
  std::vector<CoveredStep> covered;
  std::vector<GroupVerdicts> verdicts;
  std::vector<CoveredStep> counted;
  Handover::Written written;
  uint32_t restored_lineage = 0;
};

}  // namespace

template <typename A>
void Fields(A& a, Is<Version> auto& v) {
  a(v.lineage, v.count);
}
template <typename A>
void Fields(A& a, Is<OperationId> auto& v) {
  a(v.origin_step, v.ordinal, v.kind);
}
template <typename A>
void Fields(A& a, Is<Handover::Written> auto& v) {
  a(v.node, v.incarnation, v.operation);
}
template <typename A>
void Fields(A& a, Is<CoveredStep> auto& v) {
  a(v.group, v.node, v.incarnation, v.through);
}
template <typename A>
void Fields(A& a, Is<GroupVerdicts> auto& v) {
  a(v.group, v.decided_through, v.kept);
}

namespace {

template <typename A>
void Fields(A& a, Is<Encoded::Answer> auto& v) {
  a(v.id, v.status, v.version, v.samples, v.values);
}
template <typename A>
void Fields(A& a, Is<Encoded::MemberState> auto& v) {
  a(v.group, v.node, v.incarnation, v.over, v.answers);
}
template <typename A>
void Fields(A& a, Is<Encoded::Pulled> auto& v) {
  a(v.group, v.version, v.weights);
}
template <typename A>
void Fields(A& a, Is<Encoded::Named> auto& v) {
  a(v.name, v.values);
}
template <typename A>
void Fields(A& a, Is<Encoded> auto& v) {
  a(v.layout, v.elements, v.array_count, v.version, v.updates, v.samples, v.arrays, v.applied_steps,
    v.pulled, v.members, v.recorded_updates, v.group_staleness, v.worker_staleness, v.covered,
    v.verdicts, v.counted, v.written, v.restored_lineage);
}

class ArrayTable {
 public:
  uint32_t IndexOf(const SharedFloats& array) {
    if (!array) return 0;
    const float* const data = array.values().data();
    for (size_t i = 0; i < arrays_.size(); ++i) {
      if (arrays_[i].values().data() == data) return static_cast<uint32_t>(i + 1);
    }
    arrays_.push_back(array);
    return static_cast<uint32_t>(arrays_.size());
  }
  const std::vector<SharedFloats>& arrays() const { return arrays_; }

 private:
  std::vector<SharedFloats> arrays_;
};

Encoded::MemberState ToEncoded(const Handover::MemberState& member, ArrayTable& arrays) {
  Encoded::MemberState out{member.group, member.node, member.incarnation, member.over, {}};
  for (const Handover::Answer& answer : member.answers) {
    out.answers.push_back(
        {answer.id, answer.status, answer.version, answer.samples, arrays.IndexOf(answer.values)});
  }
  return out;
}

// The arrays at the end of a message; each index it is asked for was checked.
class ArrayReader {
 public:
  ArrayReader(std::span<const std::byte> bytes, uint64_t elements, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      SharedFloats array(elements);
      const size_t size = elements * sizeof(float);
      if (size > 0) std::memcpy(array.writable().data(), bytes.data() + i * size, size);
      arrays_.push_back(std::move(array));
    }
  }
  bool Take(uint32_t index, SharedFloats* out) const {
    if (index > arrays_.size()) return false;
    if (index > 0) *out = arrays_[index - 1];
    return true;
  }

 private:
  std::vector<SharedFloats> arrays_;
};

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a chunk handed over: ", Absl(what)));
}

absl::Status TakeArrays(const Encoded& in, const ArrayReader& arrays, Handover* out) {
  if (in.arrays.empty() || in.arrays.front().name != "weights") return Bad("no weights");
  for (const Encoded::Named& named : in.arrays) {
    if (named.values == 0 || !arrays.Take(named.values, &out->arrays.emplace_back().second)) {
      return Bad("an array is missing");
    }
    out->arrays.back().first = named.name;
  }
  for (const Encoded::Pulled& pulled : in.pulled) {
    out->pulled.push_back({pulled.group, pulled.version, {}});
    if (!arrays.Take(pulled.weights, &out->pulled.back().weights)) return Bad("pulled weights");
  }
  for (const Encoded::MemberState& member : in.members) {
    Handover::MemberState state{member.group, member.node, member.incarnation, member.over, {}};
    for (const Encoded::Answer& a : member.answers) {
      if (static_cast<size_t>(a.status) >= kOperationStatuses) return Bad("an unknown status");
      state.answers.push_back({a.id, a.status, a.version, a.samples, {}});
      if (!arrays.Take(a.values, &state.answers.back().values)) return Bad("a reply's values");
    }
    out->members.push_back(std::move(state));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::byte> Encode(const Handover& handover) {
  ArrayTable arrays;
  Encoded out;
  out.version = handover.version;
  out.updates = handover.updates;
  out.samples = handover.samples;
  for (const auto& [name, values] : handover.arrays) {
    out.arrays.push_back({name, arrays.IndexOf(values)});
    out.elements = values.size();
  }
  out.applied_steps = handover.applied_steps;
  for (const Handover::Pulled& pulled : handover.pulled) {
    out.pulled.push_back({pulled.group, pulled.version, arrays.IndexOf(pulled.weights)});
  }
  for (const Handover::MemberState& member : handover.members) {
    out.members.push_back(ToEncoded(member, arrays));
  }
  out.recorded_updates = handover.recorded_updates;
  out.group_staleness = handover.group_staleness;
  out.worker_staleness = handover.worker_staleness;
  out.covered = handover.covered;
  out.verdicts = handover.verdicts;
  out.counted = handover.counted;
  out.written = handover.written;
  out.restored_lineage = handover.restored_lineage;
  out.array_count = static_cast<uint32_t>(arrays.arrays().size());
  Writer writer;
  writer(out);
  const std::string head = writer.Take();
  const size_t array_bytes = out.elements * sizeof(float);
  std::vector<std::byte> bytes(8 + head.size() + out.array_count * array_bytes);
  const uint64_t head_size = head.size();
  std::memcpy(bytes.data(), &head_size, 8);
  std::memcpy(bytes.data() + 8, head.data(), head.size());
  size_t at = 8 + head.size();
  for (const SharedFloats& array : arrays.arrays()) {
    if (array_bytes > 0) std::memcpy(bytes.data() + at, array.values().data(), array_bytes);
    at += array_bytes;
  }
  return bytes;
}

absl::StatusOr<Handover> DecodeHandover(std::span<const std::byte> bytes, uint64_t elements) {
  uint64_t head_size = 0;
  if (bytes.size() < 8) return Bad("it is cut");
  std::memcpy(&head_size, bytes.data(), 8);
  if (head_size > bytes.size() - 8) return Bad("it is cut");
  Encoded in;
  Reader reader({reinterpret_cast<const char*>(bytes.data()) + 8, head_size});
  reader(in);
  if (!reader.AtEnd()) return Bad("its fields are damaged");
  if (in.layout != kLayout) return Bad(absl::StrCat("layout ", in.layout, ", must be ", kLayout));
  if (in.elements != elements) {
    return Bad(absl::StrCat("it has ", in.elements, " elements, must be ", elements));
  }
  const uint64_t rest = bytes.size() - 8 - head_size;
  // Every array is named by a field.
  if (in.array_count > head_size || rest != in.array_count * elements * sizeof(float)) {
    return Bad(absl::StrCat(in.array_count, " arrays in ", rest, " bytes"));
  }
  Handover out;
  out.version = in.version;
  out.updates = in.updates;
  out.samples = in.samples;
  out.applied_steps = in.applied_steps;
  const ArrayReader arrays(bytes.subspan(8 + head_size), elements, in.array_count);
  PACELINE_RETURN_IF_ERROR(TakeArrays(in, arrays, &out));
  out.recorded_updates = in.recorded_updates;
  out.group_staleness = std::move(in.group_staleness);
  out.worker_staleness = std::move(in.worker_staleness);
  out.covered = std::move(in.covered);
  out.verdicts = std::move(in.verdicts);
  out.counted = std::move(in.counted);
  out.written = in.written;
  out.restored_lineage = in.restored_lineage;
  return out;
}

}  // namespace paceline
