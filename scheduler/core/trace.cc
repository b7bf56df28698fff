#include "scheduler/core/trace.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "scheduler/core/fields.h"
#include "scheduler/core/journal_entry.h"

namespace paceline {

template <typename A>
void Fields(A& a, Is<JournalEntry> auto& v) {
  a(v.index, v.bytes);
}

}  // namespace paceline

namespace paceline::scheduler {
namespace {

constexpr std::string_view kMagic = "PLTRACE3";
constexpr uint64_t kMaxRecordBytes = 256u << 20;

std::string WithLength(const std::string& bytes) {
  std::string out;
  uint64_t length = bytes.size();
  for (; length >= 0x80; length >>= 7) out.push_back(static_cast<char>(length | 0x80));
  out.push_back(static_cast<char>(length));
  return out + bytes;
}

std::string WithoutKeys(const JournalEntry& entry) {
  absl::StatusOr<Entry> decoded = DecodeEntry(entry.bytes);
  if (!decoded.ok()) return "";
  if (auto* joined = std::get_if<NodeJoined>(&*decoded)) joined->node.key = {};
  if (auto* compacted = std::get_if<StateCompacted>(&*decoded)) {
    for (auto& [id, node] : compacted->state.nodes) node.key = {};
  }
  return EncodeEntry(*decoded);
}

}  // namespace

template <typename A>
void Fields(A& a, Is<TraceHeader> auto& v) {
  a(v.cluster, v.heartbeat_interval_ms, v.failure_timeout_ms, v.recovered);
}
template <typename A>
void Fields(A& a, Is<TraceRecord> auto& v) {
  a(v.now, v.event);
}

std::string EncodeTraceHeader(TraceHeader header) {
  for (JournalEntry& entry : header.recovered) entry.bytes = WithoutKeys(entry);
  Writer writer;
  writer(header);
  return std::string(kMagic) + WithLength(writer.Take());
}

std::string EncodeTraceRecord(Ticks now, SchedulerEvent event) {
  if (auto* join = std::get_if<JoinEvent>(&event)) join->key = {};
  Writer writer;
  writer(TraceRecord{now, std::move(event)});
  return WithLength(writer.Take());
}

absl::StatusOr<std::string_view> TraceReader::NextBytes() {
  const size_t start = position_;
  uint64_t length = 0;
  for (int shift = 0;; shift += 7) {
    if (position_ == bytes_.size() || shift > 28) {
      return absl::DataLossError(absl::StrCat("trace: record at byte ", start, " is cut"));
    }
    const auto byte = static_cast<uint8_t>(bytes_[position_++]);
    length |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if ((byte & 0x80) == 0) break;
  }
  if (length > kMaxRecordBytes || length > bytes_.size() - position_) {
    return absl::DataLossError(absl::StrCat("trace: record at byte ", start, " claims ", length,
                                            " bytes, ", bytes_.size() - position_, " are left"));
  }
  position_ += length;
  return bytes_.substr(position_ - length, length);
}

absl::StatusOr<TraceReader> TraceReader::Open(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("not a trace: it does not begin with PLTRACE3");
  }
  TraceReader reader(bytes);
  reader.position_ = kMagic.size();
  PACELINE_ASSIGN_OR_RETURN(std::string_view header, reader.NextBytes());
  Reader fields(header);
  fields(reader.header_);
  if (!fields.AtEnd()) return absl::DataLossError("trace: the header is damaged");
  return reader;
}

absl::StatusOr<std::optional<TraceRecord>> TraceReader::Next() {
  if (position_ == bytes_.size()) return std::nullopt;
  const size_t start = position_;
  PACELINE_ASSIGN_OR_RETURN(std::string_view bytes, NextBytes());
  Reader fields(bytes);
  TraceRecord record;
  fields(record);
  if (!fields.AtEnd()) {
    return absl::DataLossError(absl::StrCat("trace: record at byte ", start, " is damaged"));
  }
  return record;
}

}  // namespace paceline::scheduler
