#include "cli/checkpoint_command.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/views.h"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/config/config.h"

namespace paceline {
namespace {

using Json = nlohmann::ordered_json;

uint64_t BytesOf(const CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const CheckpointPart& part : manifest.parts) bytes += part.bytes.value();
  return bytes;
}

Json ToJson(const FoundCheckpoint& found) {
  Json json = {{"path", found.path}, {"whole", found.manifest.ok()}};
  if (!found.manifest.ok()) {
    json["error"] = std::string(found.manifest.status().message());
    return json;
  }
  const CheckpointManifest& m = *found.manifest;
  json["job"] = m.spec.name;
  json["run"] = m.run;
  json["number"] = m.number;
  json["unix_time_ms"] = m.unix_time_ms;
  json["step"] = LastStep(m.steps).value();
  json["updates"] = m.updates;
  json["lineage"] = m.lineage;
  json["samples_applied"] = m.applied.value();
  json["bytes"] = BytesOf(m);
  return json;
}

Json DetailsJson(const FoundCheckpoint& found) {
  Json json = ToJson(found);
  const CheckpointManifest& m = *found.manifest;
  json["steps"] = Json::array();
  for (const auto& [group, step] : m.steps) {
    json["steps"].push_back({{"group", group.value()}, {"step", step.value()}});
  }
  Json left = Json::array();
  for (const SampleRange& range : m.samples.left) {
    left.push_back({range.epoch.value(), range.begin, range.end});
  }
  json["samples"] = {{"epoch", m.samples.epoch.value()},
                     {"position", m.samples.position},
                     {"left", std::move(left)}};
  json["job_keys"] = JobTexts(m.spec);
  json["tensors"] = Json::array();
  for (const TensorSpec& tensor : m.tensors) {
    json["tensors"].push_back({{"name", tensor.name}, {"type", ToString(tensor)}});
  }
  json["parts"] = Json::array();
  for (const CheckpointPart& part : m.parts) {
    json["parts"].push_back({{"file", part.file},
                             {"bytes", part.bytes.value()},
                             {"xxh3", absl::StrFormat("%016x", part.checksum)}});
  }
  return json;
}

std::string Dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<Cell> Row(const FoundCheckpoint& found, Cell state) {
  const std::string name = found.path.substr(found.path.rfind('/') + 1);
  if (!found.manifest.ok()) return {name, "-", "-", "-", "-", "-", std::move(state)};
  const CheckpointManifest& m = *found.manifest;
  return {name,
          m.spec.name,
          absl::StrCat(LastStep(m.steps).value()),
          absl::StrCat(m.updates),
          absl::StrFormat("%.1f MB", static_cast<double>(BytesOf(m)) / 1e6),
          TimeText(m.unix_time_ms),
          std::move(state)};
}

std::string Table(const std::vector<std::vector<Cell>>& rows, const Style& style) {
  return TextTable({"CHECKPOINT", "JOB", "STEP", "UPDATE", "SIZE", "TAKEN", "STATE"}, rows, style);
}

absl::Status NoneAt(const std::string& directory) {
  return absl::NotFoundError(absl::StrCat("no checkpoint at or below ", directory));
}

}  // namespace

CheckpointText ListCheckpointsText(const std::string& directory, bool json, const Style& style) {
  const auto found = ListCheckpoints(directory);
  if (!found.ok()) return {"", found.status()};
  if (json) {
    Json all = Json::array();
    for (const FoundCheckpoint& f : *found) all.push_back(ToJson(f));
    return {Dump({{"checkpoints", std::move(all)}}), absl::OkStatus()};
  }
  if (found->empty()) return {"", NoneAt(directory)};
  std::vector<std::vector<Cell>> rows;
  for (const FoundCheckpoint& f : *found) {
    rows.push_back(
        Row(f, f.manifest.ok() ? Cell{"whole", Tint::kNone} : Cell{"not whole", Tint::kRed}));
  }
  return {Table(rows, style), absl::OkStatus()};
}

CheckpointText VerifyCheckpointsText(const std::string& directory, bool json, const Style& style) {
  const auto found = ListCheckpoints(directory);
  if (!found.ok()) return {"", found.status()};
  if (found->empty()) return {"", NoneAt(directory)};
  std::vector<std::vector<Cell>> rows;
  Json all = Json::array();
  absl::Status first_fault;
  for (const FoundCheckpoint& f : *found) {
    const absl::Status status =
        f.manifest.ok() ? VerifyCheckpoint(f.path, *f.manifest) : f.manifest.status();
    // What was cut short, or is being removed, is no checkpoint: only one that says it is whole can
    // be at fault.
    const bool cut_short = !status.ok() && absl::IsNotFound(ReadManifest(f.path).status());
    if (!status.ok() && !cut_short && first_fault.ok()) first_fault = status;
    const char* const state = status.ok() ? "good" : (cut_short ? "cut short" : "DAMAGED");
    rows.push_back(Row(f, {state, status.ok() ? Tint::kGreen : Tint::kRed}));
    Json entry = ToJson(f);
    entry["state"] = status.ok() ? "good" : (cut_short ? "cut short" : "damaged");
    if (!status.ok()) entry["error"] = std::string(status.message());
    all.push_back(std::move(entry));
  }
  if (!first_fault.ok()) {
    first_fault = absl::DataLossError(absl::StrCat("damaged: ", first_fault.message()));
  }
  return {json ? Dump({{"checkpoints", std::move(all)}}) : Table(rows, style), first_fault};
}

CheckpointText ShowCheckpointText(const std::string& directory, bool json, const Style& style) {
  const auto found = ListCheckpoints(directory);
  if (!found.ok()) return {"", found.status()};
  const FoundCheckpoint* newest = nullptr;
  for (const FoundCheckpoint& f : *found) {
    if (f.manifest.ok()) newest = &f;
  }
  if (newest == nullptr) {
    return {"", found->empty() ? NoneAt(directory) : found->front().manifest.status()};
  }
  if (json) return {Dump(DetailsJson(*newest)), absl::OkStatus()};
  const CheckpointManifest& m = *newest->manifest;
  std::string text = Table({Row(*newest, {"whole", Tint::kNone})}, style);
  absl::StrAppend(&text, "\npath      ", newest->path, "\nlineage   ", m.lineage, ", ",
                  m.applied.value(), " samples applied\nsamples   epoch ", m.samples.epoch.value(),
                  " from ", m.samples.position, " of ", m.spec.sample_count, ", ",
                  m.samples.left.size(), " ranges left before\n");
  for (const auto& [group, step] : m.steps) {
    absl::StrAppend(&text, "group     ", group.value(), " at step ", step.value(), "\n");
  }
  for (const CheckpointPart& part : m.parts) {
    absl::StrAppendFormat(&text, "part      %s, %d bytes, xxh3 %016x\n", part.file,
                          part.bytes.value(), part.checksum);
  }
  for (const TensorSpec& tensor : m.tensors) {
    absl::StrAppend(&text, "tensor    ", tensor.name, " ", ToString(tensor), "\n");
  }
  for (const auto& [key, value] : JobTexts(m.spec)) {
    absl::StrAppend(&text, "job       ", key, ": ", value, "\n");
  }
  return {text, absl::OkStatus()};
}

}  // namespace paceline
