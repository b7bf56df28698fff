#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/safetensors/header.h"
#include "common/safetensors/safetensors.h"

namespace paceline {
namespace {

absl::Status SystemError(const std::string& path, const char* what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot ", what));
}

absl::Status ReadAt(int fd, const std::string& path, uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path, "read", errno);
    if (got == 0) return absl::DataLossError(absl::StrCat(path, ": ends at byte ", offset));
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

}  // namespace

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  SafetensorsReader reader;
  reader.path_ = path;
  reader.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (reader.fd_ < 0) return SystemError(path, "open", errno);
  struct stat info {};
  if (fstat(reader.fd_, &info) != 0) return SystemError(path, "stat", errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);

  uint64_t header_bytes = 0;
  if (file_bytes < sizeof(header_bytes)) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", file_bytes, " bytes are too few for a safetensors file"));
  }
  std::byte prefix[8];
  PACELINE_RETURN_IF_ERROR(ReadAt(reader.fd_, path, 0, prefix));
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | std::to_integer<uint64_t>(prefix[i]);
  const uint64_t room = file_bytes - sizeof(header_bytes);
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > room) {
    return absl::DataLossError(absl::StrCat(path, ": header of ", header_bytes, " bytes, but only ",
                                            std::min(room, kMaxSafetensorsHeaderBytes),
                                            " are there or allowed"));
  }
  std::string text(header_bytes, '\0');
  PACELINE_RETURN_IF_ERROR(
      ReadAt(reader.fd_, path, sizeof(header_bytes), std::as_writable_bytes(std::span(text))));
  auto header = safetensors::ParseHeader(text, room - header_bytes);
  if (!header.ok()) return Annotate(header.status(), path);
  reader.metadata_ = std::move(header->metadata);
  reader.tensors_ = std::move(header->tensors);
  for (SafetensorsEntry& entry : reader.tensors_)
    entry.offset += sizeof(header_bytes) + header_bytes;
  return reader;
}

SafetensorsReader::SafetensorsReader(SafetensorsReader&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      metadata_(std::move(other.metadata_)),
      tensors_(std::move(other.tensors_)) {}

SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(metadata_, other.metadata_);
  std::swap(tensors_, other.tensors_);
  return *this;
}

SafetensorsReader::~SafetensorsReader() {
  if (fd_ >= 0) close(fd_);
}

const SafetensorsEntry* SafetensorsReader::Find(std::string_view name) const {
  for (const SafetensorsEntry& entry : tensors_) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

absl::Status SafetensorsReader::Read(const SafetensorsEntry& entry, uint64_t offset,
                                     std::span<std::byte> out) const {
  if (offset > entry.bytes || out.size() > entry.bytes - offset) {
    return absl::OutOfRangeError(absl::StrCat(path_, ": tensor '", entry.name, "' has ",
                                              entry.bytes, " bytes; asked for ", out.size(), " at ",
                                              offset));
  }
  return ReadAt(fd_, path_, entry.offset + offset, out);
}

absl::StatusOr<std::vector<float>> SafetensorsReader::ReadFloats(
    std::string_view name, const std::vector<uint64_t>& shape) const {
  const SafetensorsEntry* entry = Find(name);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat(path_, ": no tensor '", Absl(name), "'"));
  }
  if (entry->dtype != DType::kF32 || entry->shape != shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": tensor '", Absl(name), "' is ", Absl(Name(entry->dtype)),
                     ShapeText(entry->shape), ", expected f32", ShapeText(shape)));
  }
  std::vector<float> values(entry->elements());
  PACELINE_RETURN_IF_ERROR(Read(*entry, 0, std::as_writable_bytes(std::span(values))));
  return values;
}

}  // namespace paceline
