// Files of named arrays in the safetensors format (github.com/huggingface/safetensors, "Format"):
// 8 bytes little-endian length of the header, the header in JSON (name -> dtype, shape,
// data_offsets; "__metadata__" -> texts), then the arrays without holes. Files written here load
// with every safetensors library, and files of theirs load here when their dtypes are ours.
// Thread rule: a reader's const methods may be called from any thread; writing has no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dtype.h"

namespace paceline {

// The header's bound, the same as in the reference implementation.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxSafetensorsDimensions = 32;

// An array to write; `data` are its elements, row-major, little-endian.
struct SafetensorsView {
  std::string name;  // unique in the file, UTF-8, not empty, not "__metadata__"
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;  // {} is a scalar
  std::span<const std::byte> data;
};

// Writes the file atomically: under a temporary name beside `path`, synced, renamed, the directory
// synced. On an error `path` is what it was and nothing is left behind. The same arguments give the
// same bytes: arrays are ordered by element size, largest first (so that each is aligned), then by
// name. InvalidArgument names the tensor; errors of the system name the path and what failed.
// Cancelled: `stop` was requested; it is looked at before each array.
absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string>& metadata,
                              std::span<const SafetensorsView> tensors,
                              const std::stop_token& stop = {});

// Where an array of a file is.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // from the start of the file
  uint64_t bytes = 0;

  uint64_t elements() const { return bytes / SizeOf(dtype); }
};

class SafetensorsReader {
 public:
  // Reads and checks the whole header: length, JSON, no name twice, every dtype and shape known and
  // bounded, every array where its shape says, no overlap, no hole, nothing after the last.
  // NotFound: no such file. DataLoss: the content is not a whole safetensors file. Unimplemented: a
  // dtype that is not ours. All name the file, and the tensor where there is one.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);

  SafetensorsReader(SafetensorsReader&& other) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&& other) noexcept;
  ~SafetensorsReader();

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }  // in file order
  const SafetensorsEntry* Find(std::string_view name) const;

  // Reads bytes [offset, offset + out.size()) of an array. OutOfRange when they are not within it.
  absl::Status Read(const SafetensorsEntry& entry, uint64_t offset, std::span<std::byte> out) const;
  // Reads a whole float array of this shape. NotFound, or InvalidArgument with both shapes.
  absl::StatusOr<std::vector<float>> ReadFloats(std::string_view name,
                                                const std::vector<uint64_t>& shape) const;

 private:
  SafetensorsReader() = default;

  std::string path_;
  int fd_ = -1;
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsEntry> tensors_;
};

}  // namespace paceline
