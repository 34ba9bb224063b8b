#include "kernels/op.h"

#include <fmt/format.h>

#include <algorithm>

#include "devices/base/check.h"

namespace troupe::kernels {

void View::not_of_type(std::size_t size) const {
  const std::string elements = to_string(dtype);
  ASSERT(!"an argument has elements of another type than its kernel reads or writes", elements, size);
  __builtin_unreachable();
}

std::byte* microbatch_of(const View& all, std::int64_t microbatch) {
  const Range here = all.extent.dims.at(0);
  ASSERT(microbatch >= here.lo && microbatch < here.hi, microbatch, here.lo, here.hi);
  return all.data + (microbatch - here.lo) * (all.bytes() / here.size());
}

std::int64_t Attrs::integer(const std::string& key, std::int64_t otherwise) const {
  const auto it = map_.find(key);
  if (it == map_.end()) return otherwise;
  if (const auto* v = std::get_if<std::int64_t>(&it->second)) return *v;
  if (const auto* v = std::get_if<double>(&it->second)) return static_cast<std::int64_t>(*v);
  return otherwise;
}

double Attrs::real(const std::string& key, double otherwise) const {
  const auto it = map_.find(key);
  if (it == map_.end()) return otherwise;
  if (const auto* v = std::get_if<double>(&it->second)) return *v;
  if (const auto* v = std::get_if<std::int64_t>(&it->second)) return static_cast<double>(*v);
  return otherwise;
}

const std::string& Attrs::text(const std::string& key) const {
  static const std::string none;
  const auto it = map_.find(key);
  if (it == map_.end()) return none;
  const auto* v = std::get_if<std::string>(&it->second);
  return v ? *v : none;
}

Status OpSet::add(OpDef op) {
  if (op.name.empty()) return invalid("an op without a name");
  if (op.name.starts_with("update."))
    return invalid("op '" + op.name + "': choose another name ('update.' begins those of Troupe's own)");
  if (!op.infer) return invalid("op '" + op.name + "' has no shape rule (infer)");
  if (!op.cpu) return invalid("op '" + op.name + "' has no CPU body");
  if (op.outputs < 32 && op.accumulates >> op.outputs != 0)
    return invalid(fmt::format(
        "op '{}' accumulates an output that it does not have: bit i of OpDef::accumulates is output i, and it has {}",
        op.name, op.outputs));
  if (op.state_bytes && op.gradient)
    return invalid("op '" + op.name + "' keeps state from call to call and has a gradient: it can have one of them");
  if (ops_.count(op.name)) return invalid("op '" + op.name + "' is registered twice: choose another name");
  auto name = op.name;
  ops_.emplace(std::move(name), std::move(op));
  return {};
}

Status check_attributes(const OpDef& op, const Attrs& attrs) {
  using Kind = Attribute::Kind;
  const auto name_of = [](Kind kind) {
    constexpr const char* names[] = {"an integer", "a number", "a text", "a list of integers"};
    return names[static_cast<std::size_t>(kind)];
  };
  constexpr Kind kinds[] = {Kind::integer, Kind::real, Kind::text, Kind::list};  // in the order of Attr
  std::vector<Attribute> has = op.attributes;
  if (op.random) has.push_back(text_attribute("rng"));
  for (const auto& [name, value] : attrs.all()) {
    const auto it = std::find_if(has.begin(), has.end(), [&name = name](const Attribute& a) { return a.name == name; });
    if (it == has.end()) {
      std::string known;
      for (const Attribute& a : has) known += (known.empty() ? "" : ", ") + a.name;
      return invalid(fmt::format("attribute '{}' is unknown to op '{}': it has {} (OpDef::attributes)", name, op.name,
                                 known.empty() ? "none" : known));
    }
    const Kind kind = kinds[value.index()];
    if (kind != it->kind && !(kind == Kind::integer && it->kind == Kind::real))
      return invalid(
          fmt::format("attribute '{}' of op '{}' is {}: expected {}", name, op.name, name_of(kind), name_of(it->kind)));
  }
  return {};
}

Status check_signatures(const OpDef& op, std::span<const TensorType> in, std::span<const TensorType> out,
                        const Attrs& attrs) {
  if (!op.signatures) return {};
  const auto rows = op.signatures(in, attrs);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto row = fmt::format("row {} of its SBP table", r);
    if (rows[r].in.size() != in.size() || rows[r].out.size() != out.size())
      return invalid(fmt::format("{} has layouts for {} inputs and {} outputs: expected {} and {}", row,
                                 rows[r].in.size(), rows[r].out.size(), in.size(), out.size()));
    const auto fits = [&](const char* kind, const NdSbp& layouts, std::span<const TensorType> types) -> Status {
      for (std::size_t i = 0; i < layouts.size(); ++i)
        if (const auto& s = layouts[i];
            s.is_split() && (s.dim < 0 || s.dim >= std::ssize(types[i].shape) || s.unit < 1))
          return invalid(fmt::format(
              "{} says {} in units of {} of {} {}, which is {}: expected a dim that it has and a unit of at least 1",
              row, to_string(s), s.unit, kind, i, to_string(types[i].shape)));
      return {};
    };
    TROUPE_TRY(fits("input", rows[r].in, in));
    TROUPE_TRY(fits("output", rows[r].out, out));
  }
  return {};
}

const OpDef* OpSet::find(const std::string& name) const {
  const auto it = ops_.find(name);
  return it == ops_.end() ? nullptr : &it->second;
}

std::vector<std::string> OpSet::names() const {
  std::vector<std::string> out;
  for (const auto& [name, op] : ops_) out.push_back(name);
  return out;
}

}  // namespace troupe::kernels
