#include "checkpoint/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "devices/base/check.h"

namespace troupe::checkpoint {

namespace {

void add_tensor(std::string& json, const std::string& key, const char* dtype, const Shape& shape, std::int64_t begin,
                std::int64_t end) {
  json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", nlohmann::json(key).dump(), dtype,
                      fmt::join(shape, ","), begin, end);
}

std::string stamp_json(const Stamp& stamp) {
  return "\"__metadata__\":" + nlohmann::json{{"troupe.job", hexadecimal(stamp.job)},
                                              {"troupe.generation", fmt::to_string(stamp.generation)},
                                              {"troupe.step", fmt::to_string(stamp.step)}}
                                   .dump();
}

using Key = std::pair<std::string, TensorKind>;

/// Adds what one place wrote of a tensor.
Status join(std::map<Key, StoredTensor>& tensors, const StoredTensor& part, std::int32_t file,
            const std::string& from) {
  const auto [at, is_new] = tensors.try_emplace({part.parameter, part.kind},
                                                StoredTensor{part.parameter, part.kind, part.dtype, part.shape, {}});
  StoredTensor& whole = at->second;
  if (!is_new && (whole.dtype != part.dtype || whole.shape != part.shape))
    return invalid("tensor " + part.name() + ": " + to_string(part.dtype) + " " + to_string(part.shape) + " in " +
                   from + ", elsewhere " + to_string(whole.dtype) + " " + to_string(whole.shape));
  for (StoredExtent e : part.extents) {
    if (e.file != 0)
      return invalid(fmt::format("{} of {} is in file {} of one", key_of(part.name(), e.extent), from, e.file));
    e.file = file;
    whole.extents.push_back(std::move(e));
  }
  return {};
}

bool begins_before(const StoredExtent& a, const StoredExtent& b) {
  return std::lexicographical_compare(a.extent.dims.begin(), a.extent.dims.end(), b.extent.dims.begin(),
                                      b.extent.dims.end(), [](Range x, Range y) { return x.lo < y.lo; });
}

}  // namespace

std::string key_of(const std::string& name, const Extent& extent) {
  std::string ranges;
  for (const Range& r : extent.dims) ranges += fmt::format("{}{}:{}", ranges.empty() ? "" : ",", r.lo, r.hi);
  return name + "[" + ranges + "]";
}

std::int64_t lay_out(std::vector<ShardEntry>& entries) {
  std::int64_t end = 0;
  for (auto& e : entries) {
    REQUIRE(!e.extent.empty() && e.dtype != DType::sum64, e.parameter, e.extent);
    e.offset = end;
    end = aligned(end + e.bytes(), storage_alignment);
  }
  return end;
}

std::vector<std::byte> shard_header(const std::vector<ShardEntry>& entries, const Stamp& stamp) {
  std::string json = "{" + stamp_json(stamp);
  std::int64_t end = 0, pads = 0;
  const auto pad_to = [&](std::int64_t next) {
    if (next > end) add_tensor(json, fmt::format("__pad__.{}", pads++), "U8", {next - end}, end, next);
    end = next;
  };
  for (const auto& e : entries) {
    REQUIRE(e.offset >= end && e.offset % storage_alignment == 0, e.parameter, e.extent, e.offset, end);
    pad_to(e.offset);
    add_tensor(json, key_of(stored_name(e.parameter, e.kind), e.extent), safetensors_dtype(e.dtype), e.extent.shape(),
               end, end + e.bytes());
    end += e.bytes();
  }
  pad_to(aligned(end, storage_alignment));
  json += "}";
  const std::int64_t bytes = aligned(8 + std::ssize(json), storage_alignment);
  const auto length = static_cast<std::uint64_t>(bytes - 8);
  ASSERT(bytes - 8 <= safetensors_header_bytes, bytes, entries.size());
  std::vector<std::byte> header(static_cast<std::size_t>(bytes), static_cast<std::byte>(' '));
  std::memcpy(header.data(), &length, 8);
  std::memcpy(header.data() + 8, json.data(), json.size());
  return header;
}

Expected<Manifest> merge(Manifest head, const std::vector<ShardRecord>& records) {
  std::vector<const ShardRecord*> by_name;
  for (const auto& r : records) by_name.push_back(&r);
  std::sort(by_name.begin(), by_name.end(), [](const auto* a, const auto* b) { return a->file.name < b->file.name; });
  std::map<Key, StoredTensor> tensors;
  head.files.clear();
  for (const ShardRecord* record : by_name) {
    const auto file = static_cast<std::int32_t>(head.files.size());
    head.files.push_back(record->file);
    for (const auto& part : record->tensors) TROUPE_TRY(join(tensors, part, file, record->file.name));
  }
  head.tensors.clear();
  for (auto& [key, tensor] : tensors) {
    std::sort(tensor.extents.begin(), tensor.extents.end(), begins_before);
    head.tensors.push_back(std::move(tensor));
  }
  TROUPE_TRY(validate(head));
  return head;
}

}  // namespace troupe::checkpoint
