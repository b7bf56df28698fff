#include "common/checkpoint/manifest.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "common/safetensors/atomic_file.h"

namespace paceline {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kReadBytes = 1u << 20;

std::string Hex(uint64_t value) { return absl::StrFormat("%016x", value); }

absl::StatusOr<uint64_t> ParseHex(const std::string& text) {
  uint64_t value = 0;
  if (text.size() == 16 && absl::SimpleHexAtoi(text, &value)) return value;
  return absl::DataLossError(absl::StrCat("\"", text.substr(0, 32), "\" is no checksum"));
}

std::string ManifestPath(const std::string& directory) {
  return absl::StrCat(directory, "/", Absl(kManifestFile));
}

json ToJson(const CheckpointManifest& m) {
  json out;
  out["run"] = m.run;
  out["number"] = m.number;
  out["job"] = JobTexts(m.spec);
  out["lineage"] = m.lineage;
  out["updates"] = m.updates;
  out["samples_applied"] = m.applied.value();
  out["steps"] = json::array();
  for (const auto& [group, step] : m.steps) {
    out["steps"].push_back({{"group", group.value()}, {"step", step.value()}});
  }
  json left = json::array();
  for (const SampleRange& range : m.samples.left) {
    left.push_back({range.epoch.value(), range.begin, range.end});
  }
  out["samples"] = {{"left", std::move(left)},
                    {"epoch", m.samples.epoch.value()},
                    {"position", m.samples.position}};
  out["tensors"] = json::array();
  for (const TensorSpec& tensor : m.tensors) {
    out["tensors"].push_back({{"name", tensor.name},
                              {"shape", tensor.shape},
                              {"dtype", std::string(Name(tensor.dtype))},
                              {"whole", tensor.whole}});
  }
  out["parts"] = json::array();
  for (const CheckpointPart& part : m.parts) {
    out["parts"].push_back(
        {{"file", part.file}, {"bytes", part.bytes.value()}, {"xxh3", Hex(part.checksum)}});
  }
  out["unix_time_ms"] = m.unix_time_ms;
  return out;
}

// Throws json::exception where a field is missing or of another type.
absl::Status FromJson(const json& in, CheckpointManifest* m) {
  m->run = in.at("run").get<std::string>();
  m->number = in.at("number").get<uint64_t>();
  PACELINE_ASSIGN_OR_RETURN(m->spec,
                            JobFromTexts(in.at("job").get<std::map<std::string, std::string>>()));
  m->lineage = in.at("lineage").get<uint32_t>();
  m->updates = in.at("updates").get<uint64_t>();
  m->applied = Samples(in.at("samples_applied").get<uint64_t>());
  for (const json& step : in.at("steps")) {
    m->steps[GroupId(step.at("group").get<uint32_t>())] = Step(step.at("step").get<uint64_t>());
  }
  const json& samples = in.at("samples");
  for (const json& range : samples.at("left")) {
    m->samples.left.push_back({Epoch(range.at(0).get<uint64_t>()), range.at(1).get<uint64_t>(),
                               range.at(2).get<uint64_t>()});
  }
  m->samples.epoch = Epoch(samples.at("epoch").get<uint64_t>());
  m->samples.position = samples.at("position").get<uint64_t>();
  for (const json& tensor : in.at("tensors")) {
    TensorSpec spec;
    spec.name = tensor.at("name").get<std::string>();
    spec.shape = tensor.at("shape").get<std::vector<uint64_t>>();
    const auto dtype = DTypeFromName(tensor.at("dtype").get<std::string>());
    if (!dtype) return absl::DataLossError(absl::StrCat("tensor ", spec.name, ": unknown dtype"));
    spec.dtype = *dtype;
    spec.whole = tensor.at("whole").get<bool>();
    PACELINE_RETURN_IF_ERROR(Validate(spec));
    m->tensors.push_back(std::move(spec));
  }
  for (const json& part : in.at("parts")) {
    CheckpointPart p;
    p.file = part.at("file").get<std::string>();
    if (p.file.empty() || p.file.find('/') != std::string::npos) {
      return absl::DataLossError(absl::StrCat("part \"", p.file, "\" is no file name"));
    }
    p.bytes = Bytes(part.at("bytes").get<uint64_t>());
    PACELINE_ASSIGN_OR_RETURN(p.checksum, ParseHex(part.at("xxh3").get<std::string>()));
    m->parts.push_back(std::move(p));
  }
  m->unix_time_ms = in.at("unix_time_ms").get<int64_t>();
  return absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> Parse(const std::string& text) {
  // The JSON library takes one for the end of the text.
  if (const size_t at = text.find('\0'); at != std::string::npos) {
    return absl::DataLossError(absl::StrCat("byte ", at, " is NUL: it was changed or damaged"));
  }
  try {
    const json whole = json::parse(text);
    const int format = whole.at("format").get<int>();
    if (format != kFormat) {
      return absl::DataLossError(
          absl::StrCat("it is of format ", format, "; this program reads format ", kFormat));
    }
    const json& body = whole.at("checkpoint");
    const std::string dump = body.dump();
    PACELINE_ASSIGN_OR_RETURN(const uint64_t said, ParseHex(whole.at("xxh3").get<std::string>()));
    if (XXH3_64bits(dump.data(), dump.size()) != said) {
      return absl::DataLossError("its checksum is wrong: it was changed or damaged");
    }
    CheckpointManifest manifest;
    PACELINE_RETURN_IF_ERROR(FromJson(body, &manifest));
    return manifest;
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat("it cannot be read: ", error.what()));
  }
}

absl::Status CheckPartsAreHere(const std::string& directory, const CheckpointManifest& manifest) {
  for (const CheckpointPart& part : manifest.parts) {
    const std::string path = absl::StrCat(directory, "/", part.file);
    std::error_code error;
    const uint64_t bytes = std::filesystem::file_size(path, error);
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": ", error.message(),
                       ", where another server wrote it; all servers must share the directory"));
    }
    if (bytes != part.bytes.value()) {
      return absl::DataLossError(
          absl::StrCat(path, ": ", bytes, " bytes, not the ", part.bytes.value(), " written"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ChunkName(std::string_view tensor, ChunkIndex chunk) {
  return absl::StrCat(Absl(tensor), "/", chunk.value());
}

std::string ToText(const ChunkCounts& counts) {
  return absl::StrCat("lineage=", counts.version.lineage, " version=", counts.version.count,
                      " updates=", counts.updates, " samples=", counts.samples.value());
}

absl::StatusOr<ChunkCounts> ParseChunkCounts(std::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(Absl(text), ' ');
  constexpr const char* kNames[] = {"lineage=", "version=", "updates=", "samples="};
  uint64_t values[4] = {};
  bool good = words.size() == 4;
  for (size_t i = 0; good && i < 4; ++i) {
    const absl::string_view name = kNames[i];
    good = words[i].substr(0, name.size()) == name &&
           absl::SimpleAtoi(words[i].substr(name.size()), &values[i]);
  }
  if (!good || values[0] > UINT32_MAX) {
    return absl::DataLossError(
        absl::StrCat("\"", Absl(text.substr(0, 128)), "\" does not say a chunk's version"));
  }
  return ChunkCounts{{static_cast<uint32_t>(values[0]), values[1]}, values[2], Samples(values[3])};
}

std::string PartFile(std::string_view server) {
  return absl::StrCat("part-", Absl(server), ".safetensors");
}

absl::StatusOr<CheckpointPart> DescribePart(const std::string& directory, const std::string& file,
                                            const std::stop_token& stop) {
  const std::string path = absl::StrCat(directory, "/", file);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  std::vector<std::byte> buffer(kReadBytes);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  uint64_t bytes = 0;
  while (true) {
    if (stop.stop_requested()) {
      close(fd);
      return absl::CancelledError(absl::StrCat(path, ": stopped while it was read"));
    }
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const int error = errno;
      close(fd);
      if (got < 0) return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot read"));
      return CheckpointPart{file, Bytes(bytes), XXH3_64bits_digest(&state)};
    }
    XXH3_64bits_update(&state, buffer.data(), static_cast<size_t>(got));
    bytes += static_cast<uint64_t>(got);
  }
}

absl::Status WriteManifest(const std::string& directory, const CheckpointManifest& manifest) {
  PACELINE_RETURN_IF_ERROR(CheckPartsAreHere(directory, manifest));
  std::string text;
  try {
    const json body = ToJson(manifest);
    const std::string dump = body.dump();
    text = json{{"format", kFormat},
                {"xxh3", Hex(XXH3_64bits(dump.data(), dump.size()))},
                {"checkpoint", body}}
               .dump(1) +
           "\n";
  } catch (const json::exception& error) {  // a name that is not UTF-8
    return absl::InvalidArgumentError(
        absl::StrCat(ManifestPath(directory), ": cannot be written as JSON: ", error.what()));
  }
  AtomicFile file(ManifestPath(directory));
  PACELINE_RETURN_IF_ERROR(file.Open());
  PACELINE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(text))));
  return file.Commit();
}

absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& directory) {
  const std::string path = ManifestPath(directory);
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    return absl::NotFoundError(
        absl::StrCat(path, ": there is none, so this directory holds no whole checkpoint"));
  }
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  if (bytes > kMaxManifestBytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", bytes, " bytes; at most ", kMaxManifestBytes, " are read"));
  }
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!in || static_cast<uint64_t>(in.gcount()) != bytes) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  }
  absl::StatusOr<CheckpointManifest> manifest = Parse(text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return manifest;
}

}  // namespace paceline
