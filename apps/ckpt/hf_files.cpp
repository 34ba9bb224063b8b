#include "apps/ckpt/hf_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/half_floats.h"
#include "kernels/digest.h"

namespace troupe::ckpt {

using checkpoint::SafeTensor;
using nlohmann::json;

namespace {

constexpr const char* single = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

bool can_widen(const std::string& dtype) { return dtype == "F32" || dtype == "BF16" || dtype == "F16"; }

/// Tables that early versions of transformers saved beside the parameters; they follow from the configuration.
bool is_derived(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

void widen(const std::string& dtype, const std::vector<std::byte>& from, std::byte* into) {
  const bool bf16 = dtype == "BF16";
  for (std::size_t i = 0; i < from.size() / 2; ++i) {
    std::uint16_t x = 0;
    std::memcpy(&x, from.data() + 2 * i, 2);
    const std::uint32_t bits = bf16 ? checkpoint::f32_bits_of_bf16(x) : checkpoint::f32_bits_of_f16(x);
    std::memcpy(into + 4 * i, &bits, 4);
  }
}

/// "FIRST, and N more".
std::string list(const std::vector<std::string>& all) {
  return all.front() + (all.size() == 1 ? "" : fmt::format(", and {} more", all.size() - 1));
}

}  // namespace

Expected<HfFiles> HfFiles::open(Storage& storage, const std::string& folder, const std::vector<Parameter>& model) {
  HfFiles out(storage);
  TROUPE_ASSIGN(const auto entries, storage.list(folder));
  const auto has = [&](const char* name) {
    return std::any_of(entries.begin(), entries.end(), [&](const auto& e) { return e.name == name; });
  };
  if (has(single)) TROUPE_TRY(out.add(folder, single));
  else if (has(index_name)) TROUPE_TRY(out.add_index(folder));
  else
    return Status(Code::not_found, fmt::format("'{}' has neither {} nor {}: save the model with save_pretrained",
                                               folder, single, index_name));
  TROUPE_TRY(out.match(model).in("'" + folder + "'"));
  return out;
}

/// Puts the tensors into the model's order.
Status HfFiles::match(const std::vector<Parameter>& model) {
  std::map<std::string, HfTensor> by_name;
  for (const auto& t : tensors_)
    if (!is_derived(t.tensor.name) && !by_name.try_emplace(t.tensor.name, t).second)
      return invalid(fmt::format("'{}' is in two files", t.tensor.name));
  tensors_.clear();
  std::vector<std::string> missing, others;
  for (const auto& p : model) {
    const auto node = by_name.extract(p.name);
    if (node.empty()) {
      missing.push_back(fmt::format("'{}' of shape {}", p.name, to_string(p.shape)));
      continue;
    }
    const SafeTensor& t = node.mapped().tensor;
    if (t.shape != p.shape)
      return invalid(fmt::format("'{}' has shape {}, and {} in the model of config.json", t.name, to_string(t.shape),
                                 to_string(p.shape)));
    if (!can_widen(t.dtype))
      return invalid(fmt::format("'{}' is {}: only F32, BF16 and F16 can be read", t.name, t.dtype));
    tensors_.push_back(node.mapped());
  }
  for (const auto& [name, left] : by_name) others.push_back("'" + name + "'");
  if (!missing.empty()) return invalid(fmt::format("lacks {}, which the model of config.json has", list(missing)));
  if (!others.empty())
    return invalid(fmt::format("has {}, which the model of config.json does not have", list(others)));
  return {};
}

Status HfFiles::add(const std::string& folder, const std::string& file) {
  const std::string path = folder + "/" + file;
  TROUPE_ASSIGN(const auto header, checkpoint::read_safetensors_header(*storage_, path));
  for (const auto& t : header.tensors) tensors_.push_back({path, t});
  return {};
}

/// {"weight_map": {TENSOR: FILE, ...}, ...}
Status HfFiles::add_index(const std::string& folder) {
  const std::string path = folder + "/" + index_name;
  const auto wrong = [&](const std::string& what) { return invalid("'" + path + "' " + what); };
  TROUPE_ASSIGN(const auto bytes, read_file(*storage_, path));
  const auto* first = reinterpret_cast<const char*>(bytes.data());
  const json index = json::parse(first, first + bytes.size(), nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    return wrong("is no JSON object with a weight_map");
  std::set<std::string> files, listed, there;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos)
      return wrong("says no file of this folder for '" + name + "'");
    listed.insert(name + "' in " + file.get<std::string>());
    files.insert(file.get<std::string>());
  }
  for (const auto& file : files) TROUPE_TRY(add(folder, file));
  for (const auto& t : tensors_) there.insert(t.tensor.name + "' in " + t.path.substr(folder.size() + 1));
  for (const auto& entry : listed)
    if (!there.count(entry)) return wrong("lists '" + entry + ", where it is not");
  for (const auto& entry : there)
    if (!listed.count(entry)) return wrong("does not list '" + entry);
  return {};
}

Status HfFiles::read(std::size_t parameter, Range rows, std::byte* into) {
  const auto& [path, t] = tensors_[parameter];
  if (opened_ != path) {
    TROUPE_ASSIGN(file_, storage_->open(path, Access::buffered));
    opened_ = path;
  }
  const std::int64_t row_bytes = (t.end - t.begin) / t.shape[0], bytes = rows.size() * row_bytes,
                     at = t.begin + rows.lo * row_bytes;
  if (t.dtype == "F32") TROUPE_TRY(file_->read_at(at, into, bytes));
  else {
    narrow_.resize(static_cast<std::size_t>(bytes));
    TROUPE_TRY(file_->read_at(at, narrow_.data(), bytes));
    widen(t.dtype, narrow_, into);
  }
  if (!kernels::all_finite(reinterpret_cast<const float*>(into), rows.size() * elements(t.shape) / t.shape[0]))
    not_finite_.insert(t.name);
  return {};
}

std::string HfFiles::warning() const {
  if (not_finite_.empty()) return {};
  return fmt::format("'{}'{} NaN or infinite values: a loss that reads them is not finite", *not_finite_.begin(),
                     not_finite_.size() == 1 ? " has" : fmt::format(", and {} more, have", not_finite_.size() - 1));
}

std::string HfFiles::widened() const {
  std::set<std::string> dtypes;
  for (const auto& t : tensors_)
    if (t.tensor.dtype != "F32") dtypes.insert(t.tensor.dtype);
  std::string out;
  for (const auto& d : dtypes) out += (out.empty() ? "" : ", ") + d;
  return out;
}

}  // namespace troupe::ckpt
