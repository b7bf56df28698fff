#include "common/safetensors/header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "common/base/status.h"

namespace paceline::safetensors {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<DType, std::string_view>, 8> kNames = {{
    {DType::kF32, "F32"},
    {DType::kF64, "F64"},
    {DType::kF16, "F16"},
    {DType::kBF16, "BF16"},
    {DType::kI8, "I8"},
    {DType::kI32, "I32"},
    {DType::kI64, "I64"},
    {DType::kU8, "U8"},
}};

// Takes the header apart as it is parsed, so that a hostile one costs no more memory than its own
// size: what does not belong stops the parser at once.
class HeaderParser : public json::json_sax_t {
 public:
  absl::Status status() const { return status_; }
  Header& header() { return header_; }

  bool key(std::string& name) override {
    if (depth_ == 1) return StartEntry(name);
    if (in_metadata_) {
      field_ = name;
      if (header_.metadata.contains(name)) return Fail("metadata '", name, "' is there twice");
      return true;
    }
    if (name != "dtype" && name != "shape" && name != "data_offsets") {
      return FailTensor("unknown field '", name, "'");
    }
    if (!fields_.insert(name).second) return FailTensor("field '", name, "' is there twice");
    field_ = name;
    return true;
  }

  bool string(std::string& text) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata.emplace(field_, text);
      return true;
    }
    if (depth_ != 2 || field_ != "dtype") return Unexpected("a text");
    for (const auto& [dtype, name] : kNames) {
      if (name == text) {
        header_.tensors.back().dtype = dtype;
        return true;
      }
    }
    status_ = absl::UnimplementedError(
        absl::StrCat("tensor '", header_.tensors.back().name, "': dtype '", text.substr(0, 32),
                     "' is not supported (F64, F32, F16, BF16, I64, I32, I8, U8 are)"));
    return false;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3) return Unexpected("a number");
    numbers_.push_back(value);
    if (numbers_.size() > kMaxSafetensorsDimensions) {
      return FailTensor("more than ", kMaxSafetensorsDimensions, " numbers in '", field_, "'");
    }
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ == 2 || depth_ == 3) return Unexpected("an object");
    ++depth_;
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 0) return true;
    if (!std::exchange(in_metadata_, false) && fields_.size() != 3) {
      return FailTensor("dtype, shape and data_offsets must all be there");
    }
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") return Unexpected("an array");
    ++depth_;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    --depth_;
    SafetensorsEntry& entry = header_.tensors.back();
    if (field_ == "shape") {
      entry.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2) return FailTensor("data_offsets must be two numbers");
    if (numbers_[1] < numbers_[0]) return FailTensor("data_offsets end before they begin");
    entry.offset = numbers_[0];
    entry.bytes = numbers_[1] - numbers_[0];
    return true;
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return Fail("the header is not JSON at byte ", position);
  }

 private:
  bool StartEntry(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    fields_.clear();
    field_.clear();
    if (!names_.insert(name).second) return Fail("'", name, "' is there twice");
    if (in_metadata_) return true;
    if (name.empty()) return Fail("a tensor has an empty name");
    header_.tensors.emplace_back().name = name;
    return true;
  }

  template <typename... Parts>
  bool Fail(const Parts&... parts) {
    status_ = absl::DataLossError(absl::StrCat(parts...));
    return false;
  }
  template <typename... Parts>
  bool FailTensor(const Parts&... parts) {
    return Fail("tensor '", header_.tensors.back().name, "': ", parts...);
  }
  bool Unexpected(const char* what) {
    if (depth_ >= 2 && in_metadata_) return Fail("metadata '", field_, "' is ", what);
    if (depth_ >= 2) return FailTensor("'", field_, "' holds ", what);
    if (depth_ == 1 && !header_.tensors.empty() && !in_metadata_) return FailTensor("is ", what);
    return Fail("the header holds ", what, " where an object is expected");
  }

  Header header_;
  absl::Status status_;
  int depth_ = 0;  // 1: among names, 2: within a tensor or the metadata, 3: within an array
  bool in_metadata_ = false;
  std::set<std::string> names_;
  std::set<std::string> fields_;  // of the tensor
  std::string field_;
  std::vector<uint64_t> numbers_;
};

// Arrays must cover the data exactly, in any order of the header.
absl::Status CheckLayout(std::vector<SafetensorsEntry>& tensors, uint64_t data_bytes) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : tensors) {
    const auto bytes = ArrayBytes(entry.dtype, entry.shape);
    if (!bytes.ok()) {
      return absl::DataLossError(
          absl::StrCat("tensor '", entry.name, "': ", bytes.status().message()));
    }
    if (*bytes != entry.bytes) {
      return absl::DataLossError(absl::StrCat("tensor '", entry.name, "': data_offsets span ",
                                              entry.bytes, " bytes, the shape needs ", *bytes));
    }
    if (entry.offset != end) {
      return absl::DataLossError(absl::StrCat(
          "tensor '", entry.name, "': starts at ", entry.offset,
          entry.offset < end ? ", within another that ends at " : ", after a hole from ", end));
    }
    end += entry.bytes;
    if (end > data_bytes) {
      return absl::DataLossError(absl::StrCat("tensor '", entry.name, "': ends at ", end,
                                              ", but only ", data_bytes, " bytes of data follow"));
    }
  }
  if (end != data_bytes) {
    return absl::DataLossError(
        absl::StrCat("the tensors end at ", end, ", but ", data_bytes, " bytes of data follow"));
  }
  return absl::OkStatus();
}

std::string_view FileName(DType dtype) {
  for (const auto& [candidate, name] : kNames) {
    if (candidate == dtype) return name;
  }
  return "";
}

}  // namespace

absl::StatusOr<uint64_t> ArrayBytes(DType dtype, const std::vector<uint64_t>& shape) {
  if (shape.size() > kMaxSafetensorsDimensions) {
    return absl::InvalidArgumentError(absl::StrCat(shape.size(), " dimensions, at most ",
                                                   kMaxSafetensorsDimensions, " are allowed"));
  }
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  constexpr uint64_t kMaxBytes = uint64_t{1} << 48;
  uint64_t bytes = SizeOf(dtype);
  for (uint64_t dimension : shape) {
    if (dimension > kMaxBytes / bytes) {
      return absl::InvalidArgumentError("the shape needs more than 2^48 bytes");
    }
    bytes *= dimension;
  }
  return bytes;
}

absl::StatusOr<Header> ParseHeader(std::string_view text, uint64_t data_bytes) {
  if (text.empty() || text.front() != '{') {
    return absl::DataLossError("the header does not begin with '{'");
  }
  HeaderParser parser;
  if (!json::sax_parse(text.begin(), text.end(), &parser)) {
    return parser.status().ok() ? absl::DataLossError("the header is not JSON") : parser.status();
  }
  PACELINE_RETURN_IF_ERROR(CheckLayout(parser.header().tensors, data_bytes));
  return std::move(parser.header());
}

absl::StatusOr<std::string> MakeHeader(const std::map<std::string, std::string>& metadata,
                                       std::span<const SafetensorsView* const> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const SafetensorsView* tensor : tensors) {
    const uint64_t end = offset + tensor->data.size();
    header[tensor->name] = {{"dtype", FileName(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  // dump() with `ignore` would drop bytes that are not UTF-8, so such a text shows as a difference.
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::ignore);
  const json back = json::parse(text, nullptr, false);
  for (const SafetensorsView* tensor : tensors) {
    if (!back.contains(tensor->name)) {
      return absl::InvalidArgumentError("a tensor's name is not UTF-8");
    }
  }
  for (const auto& [key, value] : metadata) {
    const auto& texts = back["__metadata__"];
    if (!texts.contains(key) || texts[key] != value) {
      return absl::InvalidArgumentError("metadata is not UTF-8");
    }
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace paceline::safetensors
