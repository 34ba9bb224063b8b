#include "tests/checkpoint/sample.h"

#include <algorithm>
#include <cstring>

namespace troupe::checkpoint::test {

namespace {

std::vector<std::byte> random_bytes(Draw& draw, std::int64_t n) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n));
  for (auto& b : bytes) b = static_cast<std::byte>(draw.word());
  return bytes;
}

Tensor random_tensor(Draw& draw, const std::string& parameter, TensorKind kind, DType dtype, const Shape& shape) {
  return {parameter, kind, dtype, shape, random_bytes(draw, elements(shape) * size_of(dtype))};
}

}  // namespace

Model random_model(Draw& draw, int parameters, std::int64_t elements_max) {
  Model model;
  for (int i = 0; i < parameters; ++i) {
    Shape shape;
    std::int64_t left = elements_max;
    for (auto rank = draw.below(4); rank > 0; --rank) {
      shape.push_back(
          draw.between(1, std::max<std::int64_t>(1, std::min<std::int64_t>(left, draw.below(3) ? 40 : left))));
      left /= shape.back();
    }
    const std::string name = "model.layers." + std::to_string(i) + (draw.below(2) ? ".weight" : ".\u00df\"\\");
    const auto dtype = static_cast<DType>(draw.below(7));
    model.push_back(random_tensor(draw, name, TensorKind::parameter, dtype, shape));
    if (draw.below(3) == 0) continue;
    model.push_back(random_tensor(draw, name, TensorKind::first_moment, DType::f32, shape));
    model.push_back(random_tensor(draw, name, TensorKind::second_moment, DType::f32, shape));
  }
  return model;
}

std::vector<Extent> random_cut(Draw& draw, const Shape& shape, int pieces_max) {
  std::vector<Extent> pieces = {Extent::whole(shape)};
  if (shape.empty()) return pieces;
  for (auto cuts = draw.below(pieces_max); cuts > 0; --cuts) {
    const auto which = static_cast<std::size_t>(draw.below(std::ssize(pieces)));
    const auto d = static_cast<std::size_t>(draw.below(std::ssize(shape)));
    const Range r = pieces[which].dims[d];
    if (r.size() < 2) continue;
    const std::int64_t at = draw.between(r.lo + 1, r.hi - 1);
    pieces.push_back(pieces[which]);
    pieces[which].dims[d].hi = at;
    pieces.back().dims[d].lo = at;
  }
  return pieces;
}

std::vector<std::byte> part_of(const Tensor& tensor, const Extent& extent) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(extent.elements() * size_of(tensor.dtype)));
  copy_extent(extent, tensor.bytes.data(), Extent::whole(tensor.shape), bytes.data(), extent, size_of(tensor.dtype));
  return bytes;
}

std::vector<std::vector<ShardEntry>> random_holdings(Draw& draw, const Model& model, int places) {
  std::vector<std::vector<ShardEntry>> holdings(static_cast<std::size_t>(places));
  for (const auto& t : model)
    for (auto& extent : random_cut(draw, t.shape, 6))
      holdings[static_cast<std::size_t>(draw.below(places))].push_back(
          {t.parameter, t.kind, t.dtype, t.shape, std::move(extent), 0});
  return holdings;
}

Expected<ShardRecord> write_shard(Storage& storage, const std::string& folder, std::int32_t rank, const Stamp& stamp,
                                  const Model& model, std::vector<ShardEntry> entries) {
  const std::int64_t data_bytes = lay_out(entries);
  const auto header = shard_header(entries, stamp);
  const std::int64_t data_offset = std::ssize(header);
  ShardRecord record{{shard_name(rank), data_offset + data_bytes, data_offset, checksum(header.data(), data_offset)},
                     {}};
  std::vector<std::byte> data(static_cast<std::size_t>(data_bytes));
  for (const auto& e : entries) {
    const auto& tensor = *std::find_if(model.begin(), model.end(),
                                       [&](const Tensor& t) { return t.parameter == e.parameter && t.kind == e.kind; });
    const auto part = part_of(tensor, e.extent);
    std::copy(part.begin(), part.end(), data.begin() + e.offset);
    record.tensors.push_back({e.parameter,
                              e.kind,
                              e.dtype,
                              e.shape,
                              {{e.extent, 0, data_offset + e.offset, block_checksums(part.data(), e.bytes())}}});
  }
  TROUPE_ASSIGN(const auto file, storage.create(folder + "/" + record.file.name, Access::direct));
  TROUPE_TRY(file->reserve(record.file.bytes));
  TROUPE_TRY(file->write_at(data_offset, data.data(), data_bytes));
  TROUPE_TRY(file->write_at(0, header.data(), data_offset));
  TROUPE_TRY(file->sync());
  return record;
}

Manifest head_of(const Stamp& stamp) {
  Manifest head;
  head.stamp = stamp;
  head.seed = 7;
  head.config = "[model]\nlayers = 2\n";
  return head;
}

Status save(Catalog& catalog, Storage& storage, const Stamp& stamp, const Model& model, Draw& draw, int places) {
  const std::string folder = catalog.path(folder_name(stamp.step, stamp.generation));
  TROUPE_TRY(storage.make_dir(folder));
  const auto holdings = random_holdings(draw, model, places ? places : static_cast<int>(draw.between(1, 4)));
  std::vector<ShardRecord> records;
  for (std::size_t rank = 0; rank < holdings.size(); ++rank) {
    TROUPE_ASSIGN(const auto record,
                  write_shard(storage, folder, static_cast<std::int32_t>(rank), stamp, model, holdings[rank]));
    TROUPE_TRY(storage.sync_dir(folder));
    TROUPE_ASSIGN(auto received, decode_shard_record(encode(record)));
    records.push_back(std::move(received));
  }
  TROUPE_ASSIGN(const auto manifest, merge(head_of(stamp), records));
  return catalog.commit(manifest);
}

Status load_and_compare(const Catalog& catalog, Storage& storage, const std::string& folder, const Model& model) {
  TROUPE_ASSIGN(auto manifest, catalog.manifest(folder));
  TROUPE_ASSIGN(const auto reader, CheckpointReader::open(storage, catalog.path(folder), std::move(manifest)));
  if (reader.manifest().tensors.size() != model.size()) return invalid("another number of tensors");
  for (const auto& t : model) {
    const StoredTensor* stored = reader.manifest().find(t.parameter, t.kind);
    if (!stored || stored->dtype != t.dtype || stored->shape != t.shape)
      return invalid(t.parameter + " is another one");
    std::vector<std::byte> bytes(t.bytes.size());
    TROUPE_TRY(reader.read_part(*stored, Extent::whole(t.shape), bytes.data()));
    if (bytes != t.bytes) return invalid(t.parameter + " has other bytes");
  }
  return {};
}

}  // namespace troupe::checkpoint::test
