// What a manifest must satisfy before a byte of data is read.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "checkpoint/shard.h"
#include "checkpoint/sizes.h"

namespace troupe::checkpoint {

namespace {

std::string number(std::int64_t n) { return fmt::to_string(n); }

/// UTF-8 without control characters.
bool is_text(const std::string& name) {
  if (name.empty() || std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return false;
  try {
    (void)nlohmann::json(name).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

Status check_files(const Manifest& m) {
  std::int64_t all = 0;
  for (std::size_t i = 0; i < m.files.size(); ++i) {
    const StoredFile& f = m.files[i];
    if (!is_text(f.name) || f.name.find('/') != std::string::npos || f.name == "." || f.name == "..")
      return invalid(fmt::format("file {} has no name that a file in this folder can have", i));
    if (i > 0 && f.name <= m.files[i - 1].name) return invalid("file " + f.name + ": names do not ascend");
    if (f.data_offset <= 0 || f.data_offset % storage_alignment != 0 || f.data_offset > f.bytes)
      return invalid("file " + f.name + ": a data section at byte " + number(f.data_offset) + " of " + number(f.bytes));
    if (__builtin_add_overflow(all, f.bytes, &all))
      return invalid("file " + f.name + ": " + number(f.bytes) + " bytes");
  }
  return {};
}

Status check_extent(const Manifest& m, const StoredTensor& t, const StoredExtent& e) {
  const auto wrong = [&](const std::string& what) { return invalid(key_of(t.name(), e.extent) + ": " + what); };
  if (e.extent.dims.size() != t.shape.size()) return wrong("the tensor has the shape " + to_string(t.shape));
  for (std::size_t d = 0; d < t.shape.size(); ++d)
    if (const Range r = e.extent.dims[d]; r.lo < 0 || r.lo >= r.hi || r.hi > t.shape[d])
      return wrong("empty, or not inside the shape " + to_string(t.shape));
  if (e.file < 0 || e.file >= std::ssize(m.files))
    return wrong("in file " + number(e.file) + " of " + number(std::ssize(m.files)));
  const StoredFile& f = m.files[static_cast<std::size_t>(e.file)];
  const std::int64_t bytes = e.extent.elements() * size_of(t.dtype);
  if (e.offset < f.data_offset || e.offset % storage_alignment != 0 || bytes > f.bytes || e.offset > f.bytes - bytes)
    return wrong(number(bytes) + " bytes at byte " + number(e.offset) + " of " + f.name + ", whose data is from " +
                 number(f.data_offset) + " to " + number(f.bytes));
  const std::int64_t blocks = (bytes - 1) / block_bytes + 1;
  if (std::ssize(e.blocks) != blocks)
    return wrong(number(std::ssize(e.blocks)) + " checksums for " + number(blocks) + " blocks");
  return {};
}

Status check_tensor(const Manifest& m, std::size_t i) {
  const StoredTensor& t = m.tensors[i];
  if (!is_text(t.parameter)) return invalid(fmt::format("tensor {} has a name that is no text", i));
  if (t.kind > TensorKind::second_moment) return invalid("tensor " + t.parameter + " is of an unknown kind");
  if (t.dtype == DType::sum64) return invalid("tensor " + t.name() + " is of dtype sum64, which no checkpoint stores");
  if (t.dtype > DType::u8) return invalid("tensor " + t.name() + " is of an unknown dtype");
  if (!checked_bytes(t.shape, size_of(t.dtype)))
    return invalid("tensor " + t.name() + " has the shape " + to_string(t.shape));
  for (const auto& e : t.extents) TROUPE_TRY(check_extent(m, t, e));
  return {};
}

/// Tensors in order, each once; both moments beside their parameter, of its shape, or none.
Status check_names(const Manifest& m) {
  std::vector<std::string> names;
  for (const auto& t : m.tensors) names.push_back(t.name());
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    return invalid("tensor " + *twice + " is there twice");
  for (std::size_t i = 0; i < m.tensors.size(); ++i) {
    const StoredTensor& t = m.tensors[i];
    if (i > 0 && std::tie(t.parameter, t.kind) <= std::tie(m.tensors[i - 1].parameter, m.tensors[i - 1].kind))
      return invalid("tensor " + t.name() + ": names do not ascend");
    if (t.kind == TensorKind::parameter) continue;
    const auto other = t.kind == TensorKind::first_moment ? TensorKind::second_moment : TensorKind::first_moment;
    const StoredTensor* parameter = m.find(t.parameter, TensorKind::parameter);
    if (!parameter) return invalid("tensor " + t.name() + ": its parameter is not there");
    if (!m.find(t.parameter, other))
      return invalid("tensor " + t.name() + ": the " + to_string(other) + " is not there");
    if (t.shape != parameter->shape || t.dtype != DType::f32)
      return invalid("tensor " + t.name() + ": " + to_string(t.dtype) + " " + to_string(t.shape) +
                     ", its parameter has the shape " + to_string(parameter->shape));
  }
  return {};
}

/// Exponents in the order of their parameters, each once; in range.
Status check_exponents(const Manifest& m) {
  for (std::size_t i = 0; i < m.exponents.size(); ++i) {
    const SumExponent& e = m.exponents[i];
    if (!m.find(e.parameter, TensorKind::parameter))
      return invalid(fmt::format("exponent {} is of no parameter that is there", i));
    if (i > 0 && e.parameter <= m.exponents[i - 1].parameter)
      return invalid("exponent of " + e.parameter + ": names do not ascend");
    if (e.exponent < -sum_exponent_max || e.exponent > sum_exponent_max)
      return invalid("exponent of " + e.parameter + ": " + number(e.exponent) + " is not from -900 to 900");
    if (!std::isfinite(e.peak) || e.peak < 0)
      return invalid(fmt::format("exponent of {}: no term has the magnitude {:f}", e.parameter, e.peak));
    if (e.peak > 0 && std::ilogb(e.peak) + e.exponent >= sum_term_bits)
      return invalid(fmt::format("exponent of {}: a term of {:f} would not have fitted", e.parameter, e.peak));
  }
  return {};
}

using Boxes = std::span<const Extent*>;

/// Groups of boxes such that a plane across dim `d` passes between two groups. Sorts `boxes` along `d`.
std::vector<Boxes> cut(Boxes boxes, std::size_t d) {
  std::sort(boxes.begin(), boxes.end(),
            [d](const Extent* a, const Extent* b) { return a->dims[d].lo < b->dims[d].lo; });
  std::vector<Boxes> groups;
  std::size_t begin = 0;
  std::int64_t reach = boxes[0]->dims[d].hi;
  for (std::size_t i = 1; i <= boxes.size(); ++i) {
    if (i == boxes.size() || boxes[i]->dims[d].lo >= reach) {
      groups.push_back(boxes.subspan(begin, i - begin));
      begin = i;
    }
    if (i < boxes.size()) reach = std::max(reach, boxes[i]->dims[d].hi);
  }
  return groups;
}

/// Two of the boxes that share an element, if there are any. A layout's boxes can be told apart by planes, dim after
/// dim; among boxes that interlock so that no plane passes, each is compared with those that begin before it ends.
std::optional<std::pair<const Extent*, const Extent*>> overlap(Boxes all) {
  std::vector<Boxes> todo = {all};
  while (!todo.empty()) {
    const Boxes boxes = todo.back();
    todo.pop_back();
    if (boxes.size() < 2) continue;
    const std::size_t rank = boxes[0]->dims.size();
    std::vector<Boxes> groups;
    for (std::size_t d = 0; d < rank && groups.size() < 2; ++d) groups = cut(boxes, d);
    if (groups.size() > 1) {
      todo.insert(todo.end(), groups.begin(), groups.end());
      continue;
    }
    for (std::size_t i = 0; i < boxes.size(); ++i)
      for (std::size_t k = i + 1;
           k < boxes.size() && (rank == 0 || boxes[k]->dims[rank - 1].lo < boxes[i]->dims[rank - 1].hi); ++k)
        if (!intersect(*boxes[i], *boxes[k]).empty()) return std::pair(boxes[i], boxes[k]);
  }
  return std::nullopt;
}

/// Each element in exactly one extent.
Status check_coverage(const StoredTensor& t) {
  std::vector<const Extent*> boxes;
  for (const auto& e : t.extents) boxes.push_back(&e.extent);
  if (const auto two = overlap(boxes))
    return invalid(key_of(t.name(), *two->first) + " overlaps " + key_of(t.name(), *two->second));
  std::int64_t there = 0;
  for (const auto* box : boxes) there += box->elements();
  if (there != elements(t.shape))
    return invalid("tensor " + t.name() + ": " + number(elements(t.shape) - there) + " of " +
                   number(elements(t.shape)) + " elements are in no extent");
  return {};
}

/// No two extents in the same bytes.
Status check_bytes(const Manifest& m) {
  struct ByteRange {
    std::int32_t file;
    std::int64_t begin, end;
    const StoredTensor* tensor;
    const Extent* extent;
  };
  std::vector<ByteRange> ranges;
  for (const auto& t : m.tensors)
    for (const auto& e : t.extents)
      ranges.push_back({e.file, e.offset, e.offset + e.extent.elements() * size_of(t.dtype), &t, &e.extent});
  std::sort(ranges.begin(), ranges.end(), [](const ByteRange& a, const ByteRange& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (const ByteRange& a = ranges[i - 1], &b = ranges[i]; a.file == b.file && b.begin < a.end)
      return invalid(key_of(a.tensor->name(), *a.extent) + " and " + key_of(b.tensor->name(), *b.extent) +
                     " lie in the same bytes of " + m.files[static_cast<std::size_t>(a.file)].name);
  return {};
}

/// A void step is no update.
Status check_updates(const Manifest& m, std::int64_t updates, std::int32_t void_steps, const std::string& of) {
  if (updates < 0 || updates > m.stamp.step)
    return invalid(of + number(updates) + " updates in " + number(m.stamp.step) + " steps");
  if (void_steps < 0 || void_steps > m.stamp.step - updates)
    return invalid(of + number(void_steps) + " void steps in a row, in " + number(m.stamp.step) + " steps with " +
                   number(updates) + " updates");
  return {};
}

Status check_programs(const Manifest& m) {
  for (std::size_t i = 0; i < m.programs.size(); ++i) {
    const ProgramUpdates& p = m.programs[i];
    if (p.program.empty() || (i > 0 && p.program <= m.programs[i - 1].program))
      return invalid("program '" + p.program + "' has no name, or is out of order");
    TROUPE_TRY(check_updates(m, p.updates, p.void_steps, "program '" + p.program + "': "));
  }
  return {};
}

}  // namespace

Status validate(const Manifest& m) {
  if (m.stamp.step < 0) return invalid("step " + number(m.stamp.step));
  TROUPE_TRY(check_updates(m, m.updates == -1 ? m.stamp.step : m.updates, m.void_steps, ""));
  TROUPE_TRY(check_programs(m));
  TROUPE_TRY(check_files(m));
  for (std::size_t i = 0; i < m.tensors.size(); ++i) TROUPE_TRY(check_tensor(m, i));
  TROUPE_TRY(check_names(m));
  TROUPE_TRY(check_exponents(m));
  for (const auto& t : m.tensors) TROUPE_TRY(check_coverage(t));
  return check_bytes(m);
}

}  // namespace troupe::checkpoint
