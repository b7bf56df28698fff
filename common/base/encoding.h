// A compact binary form of values: unsigned numbers as LEB128, signed ones as zigzag LEB128,
// doubles as 8 little-endian bytes, containers as a count and their elements, a variant as its
// index and its value. One Fields() overload per struct (as in plan/report_fields.h) serves both
// directions.
//
// The reader trusts nothing: a count never exceeds the bytes that are left, and the first problem
// stops it. Thread rule: values; no shared state.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/strong.h"

namespace paceline {

// Fields(archive, value) overloads are written as
//   template <typename A> void Fields(A& a, Is<Thing> auto& v) { a(v.first, v.second); }
template <typename T, typename U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

class Writer {
 public:
  template <typename... T>
  void operator()(const T&... values) {
    (Put(values), ...);
  }

  std::string Take() { return std::move(out_); }

 private:
  void PutUnsigned(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
    out_.push_back(static_cast<char>(value));
  }

  template <typename T>
  requires std::unsigned_integral<T> || std::is_enum_v<T>
  void Put(const T& value) { PutUnsigned(static_cast<uint64_t>(value)); }
  template <std::signed_integral T>
  void Put(const T& value) {
    const int64_t wide = value;
    PutUnsigned((static_cast<uint64_t>(wide) << 1) ^ static_cast<uint64_t>(wide >> 63));
  }
  void Put(const double& value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i) out_.push_back(static_cast<char>(bits >> (8 * i)));
  }
  void Put(const std::string& value) {
    PutUnsigned(value.size());
    out_ += value;
  }
  template <typename Tag, typename Rep>
  void Put(const Strong<Tag, Rep>& value) {
    Put(value.value());
  }
  template <typename T>
  void Put(const std::optional<T>& value) {
    Put(value.has_value());
    if (value) Put(*value);
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    PutUnsigned(values.size());
    for (const T& value : values) Put(value);
  }
  template <typename T, size_t kSize>
  void Put(const std::array<T, kSize>& values) {
    for (const T& value : values) out_.push_back(static_cast<char>(value));
  }
  template <typename K, typename V>
  void Put(const std::map<K, V>& values) {
    PutUnsigned(values.size());
    for (const auto& [key, value] : values) operator()(key, value);
  }
  template <typename... T>
  void Put(const std::variant<T...>& value) {
    PutUnsigned(value.index());
    std::visit([this](const auto& alternative) { this->Put(alternative); }, value);
  }
  template <typename T>
  requires std::is_class_v<T>
  void Put(const T& value) { Fields(*this, value); }

  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  // False, and nothing more is read, once the bytes did not fit.
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && position_ == bytes_.size(); }
  size_t position() const { return position_; }

  template <typename... T>
  void operator()(T&... values) {
    (Get(values), ...);
  }

 private:
  size_t left() const { return bytes_.size() - position_; }
  void Fail() {
    ok_ = false;
    position_ = bytes_.size();
  }

  uint8_t GetByte() {
    if (left() == 0) {
      Fail();
      return 0;
    }
    return static_cast<uint8_t>(bytes_[position_++]);
  }
  uint64_t GetUnsigned() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = GetByte();
      if (shift == 63 && byte > 1) Fail();
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    Fail();
    return 0;
  }
  // A count of elements, each of at least one byte.
  size_t GetCount() {
    const uint64_t count = GetUnsigned();
    if (count <= left()) return count;
    Fail();
    return 0;
  }

  template <typename T>
  requires std::unsigned_integral<T> || std::is_enum_v<T>
  void Get(T& value) {
    const uint64_t wide = GetUnsigned();
    value = static_cast<T>(wide);
    if (static_cast<uint64_t>(value) != wide) Fail();
  }
  template <std::signed_integral T>
  void Get(T& value) {
    const uint64_t zigzag = GetUnsigned();
    const auto wide = static_cast<int64_t>((zigzag >> 1) ^ (0 - (zigzag & 1)));
    value = static_cast<T>(wide);
    if (value != wide) Fail();
  }
  void Get(double& value) {
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits |= static_cast<uint64_t>(GetByte()) << (8 * i);
    value = std::bit_cast<double>(bits);
  }
  void Get(std::string& value) {
    const size_t size = GetCount();
    value.assign(bytes_.substr(position_, size));
    position_ += size;
  }
  template <typename Tag, typename Rep>
  void Get(Strong<Tag, Rep>& value) {
    Rep rep{};
    Get(rep);
    value = Strong<Tag, Rep>(rep);
  }
  template <typename T>
  void Get(std::optional<T>& value) {
    bool present = false;
    Get(present);
    value.reset();
    if (present && ok_) Get(value.emplace());
  }
  template <typename T>
  void Get(std::vector<T>& values) {
    const size_t count = GetCount();
    values.clear();
    for (size_t i = 0; i < count && ok_; ++i) Get(values.emplace_back());
  }
  template <typename T, size_t kSize>
  void Get(std::array<T, kSize>& values) {
    for (T& value : values) value = GetByte();
  }
  template <typename K, typename V>
  void Get(std::map<K, V>& values) {
    const size_t count = GetCount();
    values.clear();
    for (size_t i = 0; i < count && ok_; ++i) {
      K key{};
      V value{};
      operator()(key, value);
      values.insert_or_assign(std::move(key), std::move(value));
    }
  }
  template <typename... T>
  void Get(std::variant<T...>& value) {
    const uint64_t index = GetUnsigned();
    if (index >= sizeof...(T)) return Fail();
    GetAlternative(value, index, std::index_sequence_for<T...>());
  }
  template <typename V, size_t... kIndex>
  void GetAlternative(V& value, uint64_t index, std::index_sequence<kIndex...>) {
    ((kIndex == index ? Get(value.template emplace<kIndex>()) : void()), ...);
  }
  template <typename T>
  requires std::is_class_v<T>
  void Get(T& value) { Fields(*this, value); }

  std::string_view bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace paceline
