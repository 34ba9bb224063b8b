// What the simulated disk leaves after a crash (SS-1..4), and how it can be made to fail.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "devices/sim/sim_storage.h"

using namespace troupe;

namespace {

constexpr std::int64_t sector = 512;

void put(File& file, std::int64_t offset, char letter, std::int64_t bytes) {
  const std::vector<std::byte> data(static_cast<std::size_t>(bytes), static_cast<std::byte>(letter));
  REQUIRE(file.write_at(offset, data.data(), bytes).ok());
}

std::unique_ptr<File> create(Storage& storage, const std::string& path) {
  auto file = storage.create(path, Access::direct);
  REQUIRE_MESSAGE(file.ok(), file.status().message());
  return *std::move(file);
}

/// The first letter of each sector; "-" if there is no such file.
std::string sectors(Storage& storage, const std::string& path) {
  const auto bytes = read_file(storage, path);
  if (!bytes.ok()) return "-";
  std::string letters;
  for (std::size_t i = 0; i < bytes->size(); i += sector) {
    const char letter = static_cast<char>((*bytes)[i]);
    letters += letter ? letter : '0';
  }
  return letters;
}

std::string names(Storage& storage) {
  std::string all;
  const auto entries = storage.list("/");
  for (const auto& e : *entries) all += e.name + " ";
  return all;
}

/// What `view` shows after crashes with many seeds, each after the same calls.
std::set<std::string> after_crashes(void (*calls)(SimStorage&), std::string (*view)(Storage&)) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::string first;
    for (int again = 0; again < 2; ++again) {
      SimStorage storage;
      calls(storage);
      storage.crash(seed);
      const std::string shows = view(storage);
      if (again == 0) first = shows;
      else CHECK(shows == first);  // SS-3 (same disk)
      storage.crash(seed + 1);
      CHECK(view(storage) == shows);  // what has survived one crash survives the next
    }
    seen.insert(first);
  }
  return seen;
}

}  // namespace

TEST_CASE("ST-1 (synced bytes), ST-2 (synced names): synced bytes under a synced name survive every crash") {
  const auto seen = after_crashes(
      [](SimStorage& s) {
        auto file = create(s, "f");
        put(*file, 0, 'a', 3 * sector);
        REQUIRE(file->sync().ok());
        REQUIRE(s.sync_dir("/").ok());
      },
      [](Storage& s) { return sectors(s, "f"); });
  CHECK(seen == std::set<std::string>{"aaa"});
}

TEST_CASE("ST-1, ST-2: syncing only the file or only its folder promises nothing of the other") {
  CHECK(after_crashes(
            [](SimStorage& s) {
              auto file = create(s, "f");
              put(*file, 0, 'a', sector);
              REQUIRE(file->sync().ok());
            },
            [](Storage& s) { return sectors(s, "f"); }) == std::set<std::string>{"-", "a"});
  CHECK(after_crashes(
            [](SimStorage& s) {
              auto file = create(s, "f");
              put(*file, 0, 'a', sector);
              REQUIRE(s.sync_dir("/").ok());
            },
            [](Storage& s) { return sectors(s, "f"); }) == std::set<std::string>{"", "0", "a"});
}

TEST_CASE("ST-3 (nothing else): unsynced sectors are kept or lost one by one, older writes may outlive newer ones") {
  const auto seen = after_crashes(
      [](SimStorage& s) {
        auto file = create(s, "f");
        put(*file, 0, 'a', 3 * sector);
        REQUIRE(file->sync().ok());
        REQUIRE(s.sync_dir("/").ok());
        put(*file, 0, 'b', 2 * sector);
        put(*file, sector, 'c', 2 * sector);
      },
      [](Storage& s) { return sectors(s, "f"); });
  std::set<std::string> all;
  for (const char* x : {"a", "b"})
    for (const char* y : {"a", "b", "c"})
      for (const char* z : {"a", "c"}) all.insert(std::string(x) + y + z);
  CHECK(seen == all);
}

TEST_CASE("ST-2: a rename happens whole or not at all, and leads to the old file or to the new one") {
  const auto seen = after_crashes(
      [](SimStorage& s) {
        put(*create(s, "old"), 0, 'a', sector);
        put(*create(s, "new"), 0, 'b', sector);
        for (const char* path : {"old", "new"}) REQUIRE((*s.open(path, Access::buffered))->sync().ok());
        REQUIRE(s.sync_dir("/").ok());
        REQUIRE(s.rename("new", "old").ok());
      },
      [](Storage& s) { return names(s) + sectors(s, "old"); });
  CHECK(seen == std::set<std::string>{"new old a", "old b"});
}

TEST_CASE("ST-3: unsynced names appear and vanish independently; a file that vanished may return with its bytes") {
  const auto seen = after_crashes(
      [](SimStorage& s) {
        auto file = create(s, "a");
        put(*file, 0, 'a', sector);
        REQUIRE(file->sync().ok());
        REQUIRE(s.sync_dir("/").ok());
        REQUIRE(s.remove("a").ok());
        create(s, "b");
      },
      [](Storage& s) { return names(s) + sectors(s, "a"); });
  CHECK(seen == std::set<std::string>{"-", "a a", "a b a", "b -"});
}

TEST_CASE("ST-2: a folder whose name was never synced takes with it what was synced inside") {
  const auto seen = after_crashes(
      [](SimStorage& s) {
        REQUIRE(s.make_dir("d").ok());
        REQUIRE(create(s, "d/f")->sync().ok());
        REQUIRE(s.sync_dir("d").ok());
      },
      [](Storage& s) { return names(s) + sectors(s, "d/f"); });
  CHECK(seen == std::set<std::string>{"-", "d "});
}

TEST_CASE("SS-4 (open files): files that were open before a crash answer unavailable after it") {
  SimStorage storage;
  auto file = create(storage, "f");
  storage.crash(1);
  std::byte b{};
  CHECK(file->write_at(0, &b, 1).code() == Code::unavailable);
  CHECK(file->read_at(0, &b, 1).code() == Code::unavailable);
  CHECK(file->sync().code() == Code::unavailable);
  CHECK(file->size().status().code() == Code::unavailable);
}

TEST_CASE("SS-4: no lock of a folder survives a crash, and one from before it frees nothing after it") {
  SimStorage storage;
  REQUIRE(storage.make_dir("disk").ok());
  REQUIRE(storage.sync_dir(".").ok());
  auto before = storage.lock_dir("disk");
  REQUIRE(before.ok());
  storage.crash(1);
  auto after = storage.lock_dir("disk");
  REQUIRE(after.ok());
  before->reset();
  CHECK(storage.lock_dir("disk").status().code() == Code::unavailable);
}

TEST_CASE("a machine stops before the operation it was told, and for good until the crash") {
  const auto work = [](SimStorage& s) {
    Status last = s.make_dir("d");
    for (int i = 0; i < 3 && last.ok(); ++i) {
      auto file = s.create("d/" + std::to_string(i), Access::buffered);
      last = file.status();
    }
    return last;
  };
  SimStorage whole;
  CHECK(work(whole).ok());
  REQUIRE(whole.operations() == 4);
  for (std::int64_t n = 0; n < 4; ++n) {
    SimStorage storage;
    storage.stop_at(n);
    CHECK(work(storage).code() == Code::unavailable);
    CHECK(storage.list("/").status().code() == Code::unavailable);
    CHECK(storage.operations() == n);
    storage.crash(n);
    CHECK(work(storage).ok());
  }
}

TEST_CASE("a full disk takes the part of a write that fits, and all again when there is room") {
  SimStorage storage;
  storage.set_capacity(3 * sector);
  put(*create(storage, "f"), 0, 'a', 2 * sector);
  auto file = create(storage, "g");
  const std::vector<std::byte> data(2 * sector, static_cast<std::byte>('b'));
  const Status full = file->write_at(0, data.data(), 2 * sector);
  CHECK(full.code() == Code::exhausted);
  CHECK(full.message().find("'g'") != std::string::npos);
  CHECK(sectors(storage, "g") == "b");
  CHECK(file->write_at(0, data.data(), sector).ok());  // over what is there
  CHECK(file->reserve(2 * sector).code() == Code::exhausted);
  REQUIRE(storage.remove("f").ok());
  CHECK(file->write_at(0, data.data(), 2 * sector).ok());
  CHECK(file->reserve(3 * sector).ok());
  CHECK(create(storage, "h")->reserve(1).code() == Code::exhausted);  // reserved is taken
}

TEST_CASE(
    "ST-3: of a file for which room was reserved a crash leaves its size or not, and any of what was written into it") {
  const auto calls = [](SimStorage& s) {
    auto file = create(s, "f");
    REQUIRE(file->sync().ok());
    REQUIRE(s.sync_dir("/").ok());
    REQUIRE(file->reserve(3 * sector).ok());
    put(*file, sector, 'a', sector);
  };
  CHECK(after_crashes(calls, [](Storage& s) { return sectors(s, "f"); }) ==
        std::set<std::string>{"", "00", "000", "0a", "0a0"});
}

TEST_CASE("a disk that has become read-only is read and changes no more") {
  SimStorage storage;
  auto file = create(storage, "f");
  put(*file, 0, 'a', sector);
  storage.set_read_only(true);
  std::byte b{};
  CHECK(file->write_at(0, &b, 1).code() == Code::denied);
  CHECK(file->reserve(1).code() == Code::denied);
  CHECK(storage.create("g", Access::buffered).status().code() == Code::denied);
  CHECK(storage.make_dir("d").code() == Code::denied);
  CHECK(storage.rename("f", "g").code() == Code::denied);
  CHECK(storage.remove("f").code() == Code::denied);
  CHECK(names(storage) + sectors(storage, "f") == "f a");
  storage.set_read_only(false);
  CHECK(storage.remove("f").ok());
}

TEST_CASE("damage is there at once and after a crash") {
  SimStorage storage;
  put(*create(storage, "f"), 0, 'a', 2 * sector);
  put(*create(storage, "g"), 0, 'b', sector);
  REQUIRE(storage.sync_dir("/").ok());
  storage.flip_bit("f", 8 * sector + 1);
  storage.truncate("f", sector + 1);
  CHECK(sectors(storage, "f") == "ac");
  storage.swap("f", "g");
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    storage.crash(seed);
    CHECK(sectors(storage, "f") + " " + sectors(storage, "g") == "b ac");
  }
}
