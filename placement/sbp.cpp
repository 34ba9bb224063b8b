#include "placement/sbp.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>

#include "devices/base/check.h"

namespace troupe {

std::string to_string(const Sbp& sbp) {
  switch (sbp.kind) {
    case Sbp::Kind::broadcast: return "B";
    case Sbp::Kind::partial: return "P";
    case Sbp::Kind::split: break;
  }
  return "S(" + std::to_string(sbp.dim) + (sbp.unit > 1 ? "," + std::to_string(sbp.unit) : "") + ")";
}

std::string to_string(const NdSbp& sbp) {
  std::string out;
  for (const auto& s : sbp) out += (out.empty() ? "" : ", ") + to_string(s);
  return out;
}

Expected<Sbp> parse_sbp(const std::string& text) {
  if (text == "B") return Sbp::B();
  if (text == "P") return Sbp::P();
  if (text.size() >= 4 && text.rfind("S(", 0) == 0 && text.back() == ')') {
    char* end = nullptr;
    errno = 0;
    const long long dim = std::strtoll(text.c_str() + 2, &end, 10);
    const bool dim_there = end != text.c_str() + 2 && dim >= 0 && dim <= std::numeric_limits<std::int32_t>::max();
    long long unit = 1;
    if (*end == ',') unit = std::strtoll(end + 1, &end, 10);
    if (*end == ')' && end[1] == 0 && dim_there && unit >= 1 && errno == 0)
      return Sbp::S(static_cast<std::int32_t>(dim), unit);
  }
  return invalid("'" + text + "' is not an SBP: write S(dim), S(dim,unit), B or P");
}

namespace {

/// Units of a range, the last one whole or not. A unit may be as large as its type allows.
std::int64_t units_of(Range whole, std::int64_t unit) {
  return whole.size() / unit + (whole.size() % unit != 0 ? 1 : 0);
}

}  // namespace

Range split_range(Range whole, std::int64_t parts, std::int64_t index, std::int64_t unit) {
  ASSERT(parts >= 1 && index >= 0 && index < parts && unit >= 1, parts, index, unit);
  const std::int64_t units = units_of(whole, unit);
  const std::int64_t each = units / parts, longer = units % parts;
  const std::int64_t first = index * each + std::min(index, longer);
  const std::int64_t count = each + (index < longer ? 1 : 0);
  return {whole.lo + std::min(first * unit, whole.size()), whole.lo + std::min((first + count) * unit, whole.size())};
}

Range parts_overlapping(Range whole, std::int64_t parts, Range wanted, std::int64_t unit) {
  ASSERT(parts >= 1 && unit >= 1, parts, unit);
  const Range both = intersect(whole, wanted);
  if (both.size() == 0) return {0, 0};
  const std::int64_t units = units_of(whole, unit);
  const std::int64_t each = units / parts, longer = units % parts;
  const auto part_of = [&](std::int64_t element) {
    const std::int64_t at = (element - whole.lo) / unit, in_longer = longer * (each + 1);
    return at < in_longer ? at / (each + 1) : longer + (at - in_longer) / each;
  };
  return {part_of(both.lo), part_of(both.hi - 1) + 1};
}

}  // namespace troupe
