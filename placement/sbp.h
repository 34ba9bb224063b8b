// Sbp: how a tensor lies along one mesh axis. S(d): split along dim d; B: broadcast; P: partial sum.
//
// OneFlow's vocabulary (Yuan et al., 2021), with units (a split never cuts a head or an expert) and
// uneven splits (the first n mod k parts are one unit longer).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "devices/base/status.h"
#include "placement/extent.h"

namespace troupe {

struct Sbp {
  enum class Kind : std::uint8_t { split, broadcast, partial };
  Kind kind = Kind::broadcast;
  std::int32_t dim = 0;   ///< split only
  std::int64_t unit = 1;  ///< split only: parts are whole multiples of this many elements

  static Sbp S(std::int32_t dim, std::int64_t unit = 1) { return {Kind::split, dim, unit}; }
  static Sbp B() { return {}; }
  static Sbp P() { return {Kind::partial, 0, 1}; }

  bool is_split() const { return kind == Kind::split; }
  bool is_broadcast() const { return kind == Kind::broadcast; }
  bool is_partial() const { return kind == Kind::partial; }
  bool operator==(const Sbp&) const = default;
};

/// One Sbp per mesh axis, in axis order.
using NdSbp = std::vector<Sbp>;

/// "S(0)", "S(1,64)" (unit 64), "B", "P".
std::string to_string(const Sbp& sbp);
/// "S(0), B".
std::string to_string(const NdSbp& sbp);
/// Reads what to_string writes. Error: `invalid`.
Expected<Sbp> parse_sbp(const std::string& text);

/// Part `index` of `parts` of the range `whole`, cut at multiples of `unit`; the last unit may be shorter. With u
/// units, each part has u / parts of them, the first (u mod parts) parts one more; parts may be empty. REQUIRES 0 <=
/// index < parts, unit >= 1.
Range split_range(Range whole, std::int64_t parts, std::int64_t index, std::int64_t unit = 1);
/// The parts, [lo, hi), that overlap `wanted`; empty where none does. By arithmetic, however many parts there are.
/// REQUIRES as split_range.
Range parts_overlapping(Range whole, std::int64_t parts, Range wanted, std::int64_t unit = 1);

}  // namespace troupe
