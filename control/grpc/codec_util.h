// What the codec's files share: checks that name the field, and loops over repeated fields.
// Thread rule: pure functions. For control/grpc/codec_*.cc only.
#pragma once

#include <google/protobuf/map.h>
#include <google/protobuf/repeated_ptr_field.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "control/grpc/codec.h"

namespace paceline::codec {

inline constexpr size_t kMaxText = 4096;        // reasons, causes, errors
inline constexpr size_t kMaxName = 512;         // names that a spec checks more closely
inline constexpr size_t kMaxAddress = 300;      // "host:port", host of at most 255 bytes
inline constexpr size_t kMaxLabels = 64;        // of a node
inline constexpr size_t kMaxLabelBytes = 256;   // of a label's name, and of its value
inline constexpr size_t kMaxItems = 65536;      // tensors, members, groups, ranges in one message
inline constexpr size_t kMaxLines = 1024;       // links, metrics of one report
inline constexpr size_t kMaxOwners = 1u << 20;  // chunks of one tensor

// "field: value; use allowed".
absl::Status Invalid(std::string_view field, std::string_view value, std::string_view allowed);
// At most 64 bytes of `text`, escaped, in quotes.
std::string Quoted(std::string_view text);

absl::Status CheckRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high);
absl::Status CheckText(std::string_view field, std::string_view value, size_t max_bytes);
// [a-zA-Z0-9._-]{1,128}
absl::Status CheckName(std::string_view field, std::string_view value);
// "host:port" or "[v6]:port", port 1..65535.
absl::Status CheckAddress(std::string_view field, std::string_view value);

// At most kMaxText bytes of valid UTF-8.
std::string FreeText(std::string_view text);

// Empty, or the 32 bytes of a key.
absl::Status KeyFromProto(std::string_view field, const std::string& in, SecretKey* out);
// All zero travels as nothing.
std::string KeyToProto(const SecretKey& key);

// "error in `name`": the path of the field grows on the way out.
absl::Status In(std::string_view name, const absl::Status& status);

template <typename Enum>
absl::Status EnumFromProto(std::string_view field, int number, int low, int high, Enum* out) {
  PACELINE_RETURN_IF_ERROR(CheckRange(field, static_cast<uint64_t>(number), low, high));
  *out = static_cast<Enum>(number);
  return absl::OkStatus();
}

template <typename T, typename Proto>
void AllToProto(const std::vector<T>& in, google::protobuf::RepeatedPtrField<Proto>* out) {
  out->Reserve(static_cast<int>(in.size()));
  for (const T& item : in) ToProto(item, out->Add());
}

template <typename T, typename Proto>
absl::Status AllFromProto(std::string_view field,
                          const google::protobuf::RepeatedPtrField<Proto>& in, std::vector<T>* out,
                          size_t max_items = kMaxItems) {
  PACELINE_RETURN_IF_ERROR(
      CheckRange(absl::StrCat(Absl(field), " (count)"), in.size(), 0, max_items));
  out->clear();
  out->reserve(in.size());
  for (int i = 0; i < in.size(); ++i) {
    T item;
    PACELINE_RETURN_IF_ERROR(In(absl::StrCat(Absl(field), "[", i, "]"), FromProto(in[i], &item)));
    out->push_back(std::move(item));
  }
  return absl::OkStatus();
}

// Lists of strong numbers (tensor ids, node ids).
template <typename T>
void IdsToProto(const std::vector<T>& in, google::protobuf::RepeatedField<typename T::rep>* out) {
  out->Reserve(static_cast<int>(in.size()));
  for (T id : in) out->Add(id.value());
}

template <typename T>
absl::Status IdsFromProto(std::string_view field,
                          const google::protobuf::RepeatedField<typename T::rep>& in,
                          std::vector<T>* out, size_t max_items = kMaxItems) {
  PACELINE_RETURN_IF_ERROR(
      CheckRange(absl::StrCat(Absl(field), " (count)"), in.size(), 0, max_items));
  out->clear();
  out->reserve(in.size());
  for (auto id : in) out->push_back(T(id));
  return absl::OkStatus();
}

absl::Status LinesFromProto(std::string_view field,
                            const google::protobuf::RepeatedPtrField<std::string>& in,
                            std::vector<std::string>* out, size_t max_lines);

void StepsToProto(const std::map<GroupId, Step>& in,
                  google::protobuf::RepeatedPtrField<v1::GroupStep>* out);
absl::Status StepsFromProto(std::string_view field,
                            const google::protobuf::RepeatedPtrField<v1::GroupStep>& in,
                            std::map<GroupId, Step>* out);

}  // namespace paceline::codec
