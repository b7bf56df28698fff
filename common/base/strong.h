// A number that cannot be mixed up with another kind of number.
// Thread rule: values; no shared state.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace paceline {

// Tag makes the type distinct; Rep is the number underneath. Only what has a meaning for ids,
// counts and positions is defined: comparison, + and - of an offset of the same type, ++.
template <typename Tag, typename Rep>
class Strong {
 public:
  using rep = Rep;

  constexpr Strong() = default;
  constexpr explicit Strong(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }
  constexpr auto operator<=>(const Strong&) const = default;

  constexpr Strong& operator++() {
    ++value_;
    return *this;
  }
  constexpr Strong operator++(int) { return Strong(value_++); }
  constexpr Strong& operator+=(Strong other) {
    value_ += other.value_;
    return *this;
  }
  friend constexpr Strong operator+(Strong a, Strong b) { return Strong(a.value_ + b.value_); }
  friend constexpr Strong operator-(Strong a, Strong b) { return Strong(a.value_ - b.value_); }
  friend std::ostream& operator<<(std::ostream& os, Strong s) { return os << +s.value_; }
  friend std::string ToString(Strong s) { return std::to_string(s.value_); }

  template <typename H>
  friend H AbslHashValue(H h, const Strong& s) {
    return H::combine(std::move(h), s.value_);
  }

 private:
  Rep value_ = 0;
};

}  // namespace paceline

template <typename Tag, typename Rep>
struct std::hash<paceline::Strong<Tag, Rep>> {
  size_t operator()(const paceline::Strong<Tag, Rep>& s) const noexcept {
    return std::hash<Rep>()(s.value());
  }
};
