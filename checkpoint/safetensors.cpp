// Headers of safetensors files of any writer, read as a stream of JSON events. Events that the format does not have are
// refused at once, so that the memory a hostile header costs is in proportion to its bytes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "checkpoint/shard.h"
#include "checkpoint/sizes.h"

namespace troupe::checkpoint {

namespace {

/// Bytes of an element; 0 for a word that is not the format's.
std::int64_t bytes_of(const std::string& dtype) {
  static const std::map<std::string, std::int64_t> known = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8}};
  const auto found = known.find(dtype);
  return found == known.end() ? 0 : found->second;
}

/// Takes {"__metadata__": {"KEY": "TEXT", ...}, "NAME": {"dtype": "F32", "shape": [..], "data_offsets": [a, b]}, ...}.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafeTensorsHeader header;
  std::string wrong;  ///< why it was refused

  bool start_object(std::size_t) override {
    if (at_ == At::begin) return go(At::tensors);
    if (at_ != At::tensors || !has_key_) return refuse("an object");
    if (name_ == "__metadata__")
      return had_metadata_ ? refuse("a second __metadata__") : (had_metadata_ = true, go(At::metadata));
    header.tensors.push_back({name_, {}, {}, 0, 0});
    offsets_.clear();
    seen_ = 0;
    return go(At::tensor);
  }
  bool end_object() override {
    if (at_ == At::tensors) return go(At::end);
    if (at_ == At::metadata) return go(At::tensors);
    if (seen_ != (saw_dtype | saw_shape | saw_offsets))
      return refuse("a tensor that lacks dtype, shape or data_offsets");
    if (offsets_.size() != 2) return refuse("data_offsets that are not two numbers");
    header.tensors.back().begin = offsets_[0];
    header.tensors.back().end = offsets_[1];
    return go(At::tensors);
  }
  bool key(std::string& text) override {
    has_key_ = true;
    if (at_ == At::tensors) name_ = text;
    if (at_ == At::metadata) header.metadata.emplace_back(text, "");
    if (at_ != At::tensor) return true;
    field_ = text == "dtype" ? saw_dtype : text == "shape" ? saw_shape : text == "data_offsets" ? saw_offsets : 0;
    if (field_ == 0 || (seen_ & field_)) return refuse("the field '" + text + "'" + (field_ ? " again" : ""));
    seen_ |= field_;
    return true;
  }
  bool string(std::string& text) override {
    if (at_ == At::metadata) return header.metadata.back().second = text, true;
    if (at_ != At::tensor || field_ != saw_dtype) return refuse("the text '" + text + "'");
    header.tensors.back().dtype = text;
    return true;
  }
  bool start_array(std::size_t) override {
    if (at_ != At::tensor || field_ == saw_dtype) return refuse("a list");
    return go(field_ == saw_shape ? At::shape : At::offsets);
  }
  bool end_array() override { return go(At::tensor); }
  bool number_unsigned(std::uint64_t n) override {
    if ((at_ != At::shape && at_ != At::offsets) || n > std::numeric_limits<std::int64_t>::max())
      return refuse(fmt::format("the number {}", n));
    (at_ == At::shape ? header.tensors.back().shape : offsets_).push_back(static_cast<std::int64_t>(n));
    return true;
  }
  bool number_integer(std::int64_t n) override { return refuse(fmt::format("the number {}", n)); }
  bool number_float(double, const std::string& text) override { return refuse("the number " + text); }
  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a truth value"); }
  bool binary(nlohmann::json::binary_t&) override { return refuse("bytes"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    wrong = fmt::format("no JSON at byte {} of its header", at);
    return false;
  }

 private:
  enum class At { begin, tensors, metadata, tensor, shape, offsets, end };
  enum : int { saw_dtype = 1, saw_shape = 2, saw_offsets = 4 };

  bool go(At at) {
    at_ = at;
    has_key_ = false;
    return true;
  }
  bool refuse(const std::string& what) {
    wrong = what + " where the format has none" + (name_.empty() ? "" : ", at key '" + name_ + "'");
    return false;
  }

  At at_ = At::begin;
  bool has_key_ = false, had_metadata_ = false;
  std::string name_;
  int seen_ = 0, field_ = 0;
  std::vector<std::int64_t> offsets_;
};

/// Names and metadata once each, tensors one after the other from the begin of the data section to its end.
Status check(SafeTensorsHeader& header, std::int64_t data_bytes) {
  std::vector<std::string> names;
  for (const auto& t : header.tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    return invalid("the key '" + *twice + "' twice");
  std::sort(header.metadata.begin(), header.metadata.end());
  for (std::size_t i = 1; i < header.metadata.size(); ++i)
    if (header.metadata[i].first == header.metadata[i - 1].first)
      return invalid("the metadata '" + header.metadata[i].first + "' twice");

  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const auto& a, const auto& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  std::int64_t end = 0;
  for (const auto& t : header.tensors) {
    const auto item = bytes_of(t.dtype);
    if (item == 0) return invalid("key '" + t.name + "': unknown dtype '" + t.dtype + "'");
    const auto bytes = checked_bytes(t.shape, item);
    if (t.begin != end)
      return invalid(fmt::format("key '{}': begins at byte {} of the data, {} are taken", t.name, t.begin, end));
    if (t.end < t.begin || !bytes || t.end - t.begin != *bytes)
      return invalid(
          fmt::format("key '{}': bytes {} to {} for {} {}", t.name, t.begin, t.end, t.dtype, to_string(t.shape)));
    end = t.end;
  }
  if (end != data_bytes) return invalid(fmt::format("its keys have {} bytes, its data section {}", end, data_bytes));
  return {};
}

Expected<SafeTensorsHeader> read_header(File& file) {
  TROUPE_ASSIGN(const std::int64_t size, file.size());
  std::uint64_t length = 0;
  if (size < 8) return invalid(fmt::format("no safetensors file: it has {} bytes", size));
  TROUPE_TRY(file.read_at(0, reinterpret_cast<std::byte*>(&length), 8));
  if (length > safetensors_header_bytes || static_cast<std::int64_t>(length) > size - 8)
    return invalid(fmt::format("no safetensors file: a header of {} bytes in a file of {}", length, size));
  std::string json(length, ' ');
  TROUPE_TRY(file.read_at(8, reinterpret_cast<std::byte*>(json.data()), static_cast<std::int64_t>(length)));
  if (!json.starts_with('{')) return invalid("no safetensors file: its header does not begin with {");
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(json, &events)) return invalid(events.wrong);
  const std::int64_t data_offset = 8 + static_cast<std::int64_t>(length);
  TROUPE_TRY(check(events.header, size - data_offset));
  for (auto& t : events.header.tensors) t.begin += data_offset, t.end += data_offset;
  events.header.data_offset = data_offset;
  return std::move(events.header);
}

}  // namespace

const char* safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::f64: return "F64";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::u8: return "U8";
    case DType::sum64: break;  // stored in no file: validate.cpp refuses it
  }
  return "?";
}

Expected<SafeTensorsHeader> read_safetensors_header(Storage& storage, const std::string& path) {
  TROUPE_ASSIGN(const auto file, storage.open(path, Access::buffered));
  auto header = read_header(*file);
  if (!header.ok()) return header.status().in(path);
  return header;
}

}  // namespace troupe::checkpoint
