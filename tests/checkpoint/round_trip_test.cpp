// What was written is read: over random tensors, cuts, places, parts.
#include <algorithm>

#include "devices/parallel.h"
#include "devices/sim/sim_storage.h"
#include "tests/checkpoint/sample.h"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::test;

TEST_CASE("a checkpoint of random tensors, cut at random, written by 1 to 4 places, has every byte") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const Model model = random_model(draw, static_cast<int>(draw.below(6)), 20'000);
    SimStorage storage;
    Catalog catalog(storage, "run");
    Stamp stamp = must(catalog.claim(0, 77));
    stamp.step = draw.below(1000);
    must(save(catalog, storage, stamp, model, draw));
    const std::string folder = folder_name(stamp.step, stamp.generation);
    must(load_and_compare(catalog, storage, folder, model));
    const Manifest manifest = must(catalog.manifest(folder));
    CHECK(must(decode_manifest(encode(manifest))) == manifest);
    CHECK(manifest.stamp == stamp);
    CHECK(manifest.config == head_of(stamp).config);
    SerialParallel serial;
    CHECK(must(CheckpointReader::open(storage, catalog.path(folder), manifest)).verify(serial).empty());
  }
}

namespace {

/// A checkpoint of random tensors, written by three places.
struct Saved {
  Draw draw;
  SimStorage storage;
  Catalog catalog{storage, "run"};
  Model model;
  const std::string folder = catalog.path("step-00000000.g1");
  Manifest manifest;

  Saved(std::uint64_t seed, int tensors) : draw(seed) {
    const Stamp stamp = must(catalog.claim(0, 77));
    model = random_model(draw, tensors, 20'000);
    must(save(catalog, storage, stamp, model, draw, 3));
    manifest = must(catalog.manifest("step-00000000.g1"));
  }
};

}  // namespace

TEST_CASE("any part of a tensor is read from whatever extents it lies in") {
  Saved saved(5, 6);
  Draw& draw = saved.draw;
  const CheckpointReader reader = must(CheckpointReader::open(saved.storage, saved.folder, saved.manifest));
  for (const auto& t : saved.model) {
    const StoredTensor* stored = reader.manifest().find(t.parameter, t.kind);
    REQUIRE(stored);
    for (int round = 0; round < 20; ++round)
      for (const auto& part : random_cut(draw, t.shape, 8)) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(part.elements() * size_of(t.dtype)));
        must(reader.read_part(*stored, part, bytes.data()));
        CHECK(bytes == part_of(t, part));
      }
  }
}

TEST_CASE("who reads some files needs only those, several extents at once: what lies together is placed together") {
  Saved saved(9, 8);
  SimStorage& storage = saved.storage;
  const Model& model = saved.model;
  REQUIRE(saved.manifest.files.size() == 3);
  must(storage.remove(saved.folder + "/" + saved.manifest.files[2].name));
  CHECK(CheckpointReader::open(storage, saved.folder, saved.manifest).status().code() == Code::damaged);
  const std::set<std::int32_t> others{0, 1};
  const CheckpointReader reader = must(CheckpointReader::open(storage, saved.folder, saved.manifest, &others));
  std::vector<ExtentRead> wanted;
  for (const auto& t : reader.manifest().tensors)
    for (const auto& e : t.extents)
      if (e.file < 2) wanted.push_back({&t, &e, 0});
  REQUIRE(wanted.size() > 4);
  std::vector<std::byte> bytes(static_cast<std::size_t>(lay_out_reads(wanted)));
  SerialParallel serial;
  must(reader.read(wanted, bytes.data(), serial));
  std::fill(bytes.begin(), bytes.end(), std::byte{});
  storage.fail(storage.operations());  // of several blocks: each is asked for by itself then
  must(reader.read(wanted, bytes.data(), serial));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const ExtentRead& w = wanted[i];
    CHECK(w.at % storage_alignment == 0);
    if (i > 0 && w.extent->file == wanted[i - 1].extent->file)
      CHECK(w.at - wanted[i - 1].at <= w.extent->offset - wanted[i - 1].extent->offset);
    const auto t = std::find_if(model.begin(), model.end(), [&](const Tensor& m) {
      return m.parameter == w.tensor->parameter && m.kind == w.tensor->kind;
    });
    const auto expected = part_of(*t, w.extent->extent);
    CHECK(std::equal(expected.begin(), expected.end(), bytes.begin() + w.at));
  }
}

TEST_CASE("blocks of 1 MiB begin with each extent; the last one is what is left") {
  Draw draw(6);
  const std::int64_t rows = 3 * block_bytes / 4 / 100 + 7;  // of 100 floats: three blocks and a bit
  Tensor t{"w", TensorKind::parameter, DType::f32, {rows, 100}, {}};
  t.bytes.resize(static_cast<std::size_t>(rows * 400));
  for (std::size_t i = 0; i < t.bytes.size(); i += 97) t.bytes[i] = static_cast<std::byte>(draw.word());
  SimStorage storage;
  Catalog catalog(storage, "run");
  const Stamp stamp = must(catalog.claim(0, 77));
  must(storage.make_dir("run/step-00000000.g1"));
  const ShardRecord record =
      must(write_shard(storage, "run/step-00000000.g1", 0, stamp, {t},
                       {{"w", TensorKind::parameter, DType::f32, t.shape, Extent::whole(t.shape), 0}}));
  REQUIRE(record.tensors[0].extents[0].blocks.size() == 4);
  CHECK(record.tensors[0].extents[0].blocks[3] ==
        checksum(t.bytes.data() + 3 * block_bytes, std::ssize(t.bytes) - 3 * block_bytes));
  must(catalog.commit(must(merge(head_of(stamp), {record}))));
  must(load_and_compare(catalog, storage, "step-00000000.g1", {t}));
}

TEST_CASE("a manifest does not depend on the order in which places report, nor on how many they are") {
  Draw draw(8);
  const Model model = random_model(draw, 5, 5'000);
  SimStorage storage;
  must(storage.make_dir("d"));
  const Stamp stamp{1, 1, 0};
  std::vector<ShardRecord> records;
  const auto holdings = random_holdings(draw, model, 4);
  for (std::int32_t rank = 0; rank < 4; ++rank)
    records.push_back(must(write_shard(storage, "d", rank, stamp, model, holdings[static_cast<std::size_t>(rank)])));
  const Manifest manifest = must(merge(head_of(stamp), records));
  std::reverse(records.begin(), records.end());
  CHECK(must(merge(head_of(stamp), records)) == manifest);
  std::int64_t bytes = 0;
  for (const auto& t : model) bytes += std::ssize(t.bytes);
  CHECK(manifest.bytes() == bytes);
}
