// A manifest as JSON, for people.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/shard.h"

namespace troupe::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

Json summary(const StoredTensor& t) {
  return {{"name", t.name()}, {"kind", to_string(t.kind)}, {"dtype", to_string(t.dtype)},
          {"shape", t.shape}, {"bytes", t.bytes()},        {"extents", t.extents.size()}};
}

Json detail(const Manifest& m, const StoredTensor& t) {
  Json json = summary(t);
  Json& extents = json["extents"] = Json::array();
  for (const auto& e : t.extents) {
    Json ranges = Json::array(), blocks = Json::array();
    for (const Range& r : e.extent.dims) ranges.push_back({r.lo, r.hi});
    for (const auto& sum : e.blocks) blocks.push_back(to_string(sum));
    extents.push_back({{"ranges", ranges},
                       {"file", m.files[static_cast<std::size_t>(e.file)].name},
                       {"offset", e.offset},
                       {"bytes", e.extent.elements() * size_of(t.dtype)},
                       {"blocks", blocks}});
  }
  return json;
}

Json whole(const Manifest& m) {
  Json files = Json::array(), tensors = Json::array(), exponents = Json::array();
  for (const auto& f : m.files)
    files.push_back(
        {{"name", f.name}, {"bytes", f.bytes}, {"data_offset", f.data_offset}, {"header", to_string(f.header)}});
  for (const auto& t : m.tensors) tensors.push_back(summary(t));
  for (const auto& e : m.exponents)
    exponents.push_back({{"parameter", e.parameter}, {"exponent", e.exponent}, {"peak", e.peak}});
  Json programs = Json::array();
  for (const auto& p : m.programs)
    programs.push_back({{"program", p.program}, {"updates", p.updates}, {"void_steps", p.void_steps}});
  return {{"job", hexadecimal(m.stamp.job)},
          {"generation", m.stamp.generation},
          {"step", m.stamp.step},
          {"updates", m.updates < 0 ? m.stamp.step : m.updates},
          {"void_steps", m.void_steps},
          {"programs", programs},
          {"seed", m.seed},
          {"bytes", m.bytes()},
          {"config", m.config},
          {"files", files},
          {"tensors", tensors},
          {"exponents", exponents}};
}

/// How many characters two names share at their begins and at their ends.
std::ptrdiff_t likeness(const std::string& a, const std::string& b) {
  return (std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin()) +
         (std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin());
}

Status no_such(const Manifest& m, const std::string& tensor) {
  std::vector<std::string> names;
  for (const auto& t : m.tensors) names.push_back(t.name());
  const auto nearest = names.begin() + std::min<std::ptrdiff_t>(3, std::ssize(names));
  std::partial_sort(names.begin(), nearest, names.end(),
                    [&](const auto& a, const auto& b) { return likeness(tensor, a) > likeness(tensor, b); });
  std::string text = "no tensor '" + tensor + "' in it";
  for (auto name = names.begin(); name != nearest; ++name)
    text += (name == names.begin() ? "; the nearest are " : ", ") + *name;
  return {Code::not_found, text};
}

}  // namespace

Expected<std::string> to_json(const Manifest& m, const std::string& tensor) {
  const auto found = std::find_if(m.tensors.begin(), m.tensors.end(),
                                  [&](const StoredTensor& t) { return t.name() == tensor; });
  if (!tensor.empty() && found == m.tensors.end()) return no_such(m, tensor);
  return (tensor.empty() ? whole(m) : detail(m, *found)).dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace troupe::checkpoint
