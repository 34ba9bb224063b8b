// A place's shard of a checkpoint, written part by part.
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "actors/writer.h"
#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_reader.h"
#include "devices/parallel.h"
#include "devices/sim/sim_storage.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

/// Three parts: two tensors, none, one.
struct Place {
  SimStorage storage;
  ShardSpec spec;
  std::vector<Report> reports;
  std::vector<std::vector<std::byte>> data;

  Place() {
    spec.storage = &storage;
    spec.dir = "/ckpt";
    spec.stamp = {0xfeed, 3, 0};
    for (const char* name : {"a", "b", "c"}) {
      const Extent whole{{{0, 5}, {0, 700}}};
      spec.entries.push_back({name, checkpoint::TensorKind::parameter, DType::f32, {5, 700}, whole, 0});
    }
    const std::int64_t bytes = checkpoint::lay_out(spec.entries);
    const std::int64_t third = spec.entries[2].offset;
    spec.parts = {{0, 2, 0, third}, {2, 2, third, 0}, {2, 3, third, bytes - third}};
    for (const auto& part : spec.parts) data.emplace_back(static_cast<std::size_t>(part.bytes));
    for (std::size_t p = 0; p < data.size(); ++p)  // zero between the entries, as an arena is
      for (std::size_t e = spec.parts[p].first; e < spec.parts[p].end; ++e) {
        const auto& entry = spec.entries[e];
        const auto begin = static_cast<std::size_t>(entry.offset - spec.parts[p].offset);
        for (std::size_t i = begin; i < begin + static_cast<std::size_t>(entry.bytes()); ++i)
          data[p][i] = static_cast<std::byte>(i * (p + 3) % 251);
      }
  }

  std::unique_ptr<ShardWriter> shards() {
    return std::make_unique<ShardWriter>(spec, [this](std::uint16_t program, Report r) {
      CHECK(program == 7);
      reports.push_back(std::move(r));
    });
  }

  void write(ShardWriter& shards, std::int64_t step, std::size_t part) {
    ActContext c;
    c.program = 7;
    c.step = step;
    SerialParallel serial;
    const Status s = shards.write(c, part, data[part].data(), serial);
    CHECK_MESSAGE(s.ok(), s.message());
  }

  /// What was reported is what lies there, and a manifest made of it is whole.
  void check_saved(const Report& report, std::int64_t step) {
    CHECK(report.kind == Report::Kind::shard);
    CHECK(report.name == "");
    CHECK(report.step == step);
    auto record = checkpoint::decode_shard_record(report.bytes);
    REQUIRE(record.ok());
    checkpoint::Manifest head;
    head.stamp = spec.stamp;
    head.stamp.step = step;
    auto manifest = checkpoint::merge(head, {*record});
    REQUIRE(manifest.ok());
    checkpoint::Catalog catalog(storage, spec.dir);
    auto reader = checkpoint::CheckpointReader::open(storage, catalog.path(checkpoint::folder_name(step, 3)),
                                                     *manifest);
    REQUIRE(reader.ok());
    SerialParallel serial;
    CHECK(reader->verify(serial).empty());
    std::vector<std::byte> read(static_cast<std::size_t>(spec.entries[2].bytes()));
    REQUIRE(
        reader->read_part(*manifest->find("c", checkpoint::TensorKind::parameter), spec.entries[2].extent, read.data())
            .ok());
    CHECK(std::equal(read.begin(), read.end(), data[2].begin()));
  }
};

}  // namespace

TEST_CASE("a shard is whole when its parts have come, in any order, and the last of them reports it once") {
  std::vector<std::size_t> order{0, 1, 2};
  do {
    Place place;
    const auto shards = place.shards();
    for (const auto part : order) {
      CHECK(place.reports.empty());
      place.write(*shards, 4, part);
    }
    REQUIRE(place.reports.size() == 1);
    place.check_saved(place.reports[0], 4);
    place.storage.crash(1);  // it was synced
    place.check_saved(place.reports[0], 4);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("parts of two versions may come in between each other") {
  Place place;
  const auto shards = place.shards();
  for (const auto& [step, part] :
       std::vector<std::pair<std::int64_t, std::size_t>>{{1, 0}, {2, 0}, {1, 2}, {2, 1}, {1, 1}, {2, 2}})
    place.write(*shards, step, part);
  REQUIRE(place.reports.size() == 2);
  place.check_saved(place.reports[0], 1);
  place.check_saved(place.reports[1], 2);
}

TEST_CASE("a part that cannot be written makes one report that says why, and the next version is written") {
  Place place;
  const auto shards = place.shards();
  place.write(*shards, 1, 1);
  place.storage.set_read_only(true);
  place.write(*shards, 1, 0);
  place.storage.set_read_only(false);
  const auto before = place.storage.operations();
  place.write(*shards, 1, 2);
  CHECK(place.storage.operations() == before);  // nothing is written after a failure
  REQUIRE(place.reports.size() == 1);
  CHECK(place.reports[0].name.find("Read-only") != std::string::npos);
  CHECK(place.reports[0].bytes.empty());
  for (std::size_t part = 0; part < 3; ++part) place.write(*shards, 2, part);
  REQUIRE(place.reports.size() == 2);
  place.check_saved(place.reports[1], 2);
}

TEST_CASE(
    "whatever the disk fails to do once, the shard is whole, or its report says why and the next version is written") {
  for (const bool synced_on_the_way : {false, true}) {
    CAPTURE(synced_on_the_way);
    // All bytes: one more sync, with the last part's write.
    const auto set_up = [&](Place& place) {
      const ShardPart& last = place.spec.parts.back();
      if (synced_on_the_way) place.spec.sync_bytes = last.offset + last.bytes;
    };
    std::int64_t operations = 0;
    {
      Place place;
      set_up(place);
      const auto shards = place.shards();
      for (std::size_t part = 0; part < 3; ++part) place.write(*shards, 1, part);
      operations = place.storage.operations();
    }
    REQUIRE(operations >= 6);
    int whole = 0;
    for (std::int64_t failing = 0; failing < operations; ++failing) {
      CAPTURE(failing);
      Place place;
      set_up(place);
      place.storage.fail(failing);
      const auto shards = place.shards();
      for (std::size_t part = 0; part < 3; ++part) place.write(*shards, 1, part);
      REQUIRE(place.reports.size() == 1);
      if (place.reports[0].name.empty()) place.check_saved(place.reports[0], 1), ++whole;
      else CHECK(place.reports[0].name.find("Input/output error") != std::string::npos);
      for (std::size_t part = 0; part < 3; ++part) place.write(*shards, 2, part);
      REQUIRE(place.reports.size() == 2);
      place.check_saved(place.reports[1], 2);
    }
    CHECK(whole == operations - (synced_on_the_way ? 3 : 2));  // all but the syncs: of the file, of its folder
  }
}

TEST_CASE("the bytes of a shard are synced while it is written, as often as sync_bytes of them have been written") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    Place place;
    place.spec.sync_bytes = 1 << 14;
    const auto shards = place.shards();
    const std::string folder = "/ckpt/" + checkpoint::folder_name(4, 3),
                      path = folder + "/" + checkpoint::shard_name(0);
    place.write(*shards, 4, 0);
    for (const std::string& parent : {std::string("/"), std::string("/ckpt"), folder})
      REQUIRE(place.storage.sync_dir(parent).ok());
    place.storage.crash(seed);  // long before the shard is whole
    const auto read = read_file(place.storage, path);
    REQUIRE_MESSAGE(read.ok(), read.status().message());
    const ShardPart& last = place.spec.parts.back();
    const std::int64_t header_bytes = std::ssize(*read) - last.offset - last.bytes;
    REQUIRE(header_bytes > 0);
    CHECK(std::equal(place.data[0].begin(), place.data[0].end(), read->begin() + header_bytes));
  }
}

TEST_CASE(
    "a shard for which there is no room fails before its first byte, once, and the next version is written when there "
    "is") {
  Place place;
  const auto shards = place.shards();
  place.storage.set_capacity(place.data[0].size());
  for (std::size_t part = 0; part < 3; ++part) place.write(*shards, 1, part);
  REQUIRE(place.reports.size() == 1);
  CHECK(place.reports[0].name.find("cannot reserve '/ckpt/") != std::string::npos);
  CHECK(place.storage.operations() == 3);  // the folder, the file, the room: not tried again
  place.storage.set_capacity(1 << 20);
  for (std::size_t part = 0; part < 3; ++part) place.write(*shards, 2, part);
  REQUIRE(place.reports.size() == 2);
  place.check_saved(place.reports[1], 2);
}

TEST_CASE("writers of two versions may write at the same time") {
  Place place;
  std::mutex mutex;
  ShardWriter shards(place.spec, [&](std::uint16_t, Report r) {
    std::lock_guard lock(mutex);
    place.reports.push_back(std::move(r));
  });
  std::vector<std::thread> threads;
  for (std::size_t part = 0; part < 3; ++part)
    threads.emplace_back([&, part] {
      for (std::int64_t step = 1; step <= 20; ++step) place.write(shards, step, part);
    });
  for (auto& t : threads) t.join();
  REQUIRE(place.reports.size() == 20);
  for (const auto& report : place.reports) place.check_saved(report, report.step);
}

TEST_CASE("a shard that takes long says how far it is: stall, bytes of parameters and of moments that are written") {
  ManualClock clock;
  Place place;
  place.spec.entries[1].kind = checkpoint::TensorKind::first_moment;
  place.spec.clock = &clock;
  place.spec.stall_ns = [](std::int64_t step) { return step * 1'000'000; };
  const auto shards = place.shards();
  place.write(*shards, 4, 1);  // creates it
  CHECK(place.reports.empty());
  clock.advance_to(2'000'000'000);
  place.write(*shards, 4, 0);
  REQUIRE(place.reports.size() == 1);
  CHECK(place.reports[0].kind == Report::Kind::saving);
  CHECK(place.reports[0].step == 4);
  CHECK(place.reports[0].values == std::vector<double>{4e-3, 14000, 14000});
  place.write(*shards, 4, 2);
  REQUIRE(place.reports.size() == 3);
  CHECK(place.reports[1].kind == Report::Kind::saving);  // all of it is written: others may still write theirs
  CHECK(place.reports[1].values == std::vector<double>{4e-3, 28000, 14000});
  CHECK(place.reports[2].kind == Report::Kind::shard);
  CHECK(place.reports[2].values == std::vector<double>{4e-3});
}

TEST_CASE("a file that is in the way is not of this shard, and stays") {
  Place place;
  const std::string path = "/ckpt/" + checkpoint::folder_name(1, 3) + "/" + checkpoint::shard_name(0);
  REQUIRE(place.storage.make_dir("/ckpt/" + checkpoint::folder_name(1, 3)).ok());
  REQUIRE(write_file(place.storage, path, std::vector<std::byte>(9)).ok());
  const auto shards = place.shards();
  for (std::size_t part = 0; part < 3; ++part) place.write(*shards, 1, part);
  REQUIRE(place.reports.size() == 1);
  CHECK(place.reports[0].name.find("shard-00000") != std::string::npos);
  CHECK(read_file(place.storage, path)->size() == 9);
}
