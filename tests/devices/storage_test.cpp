// The contract of storage.h, over files and over the simulated disk.
#include <doctest/doctest.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "devices/base/philox.h"
#include "devices/files/file_storage.h"
#include "devices/host_memory.h"
#include "devices/sim/sim_storage.h"
#include "tests/apps/temp_dir.h"
#include "tests/syncs.h"

using namespace troupe;
using troupe::test::Syncs;
using troupe::test::TempDir;

/// What flock fails with, in this program; 0: it does what the system's does.
static int flock_error = 0;
extern "C" int flock(int fd, int operation) noexcept {
  if (flock_error == 0) return static_cast<int>(::syscall(SYS_flock, fd, operation));
  errno = flock_error;
  return -1;
}

namespace {

/// Runs a case over every Storage; `dir` is an empty folder of it.
void on_each(const std::function<void(Storage&, const std::string& dir)>& body) {
  SUBCASE("files") {
    TempDir dir;
    FileStorage storage;
    body(storage, dir.path());
  }
  SUBCASE("simulated") {
    SimStorage storage;
    REQUIRE(storage.make_dir("disk").ok());
    body(storage, "disk");
  }
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

void write(Storage& storage, const std::string& path, const std::string& text) {
  auto file = storage.create(path, Access::buffered);
  REQUIRE_MESSAGE(file.ok(), file.status().message());
  REQUIRE((*file)->write_at(0, bytes_of(text).data(), std::ssize(text)).ok());
  REQUIRE((*file)->sync().ok());
}

/// What is in a file; "(CODE)" if it cannot be read.
std::string text_in(Storage& storage, const std::string& path) {
  const auto bytes = read_file(storage, path);
  if (!bytes.ok()) return std::string("(") + to_string(bytes.status().code()) + ")";
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

std::string names_in(Storage& storage, const std::string& path) {
  const auto entries = storage.list(path);
  if (!entries.ok()) return std::string("(") + to_string(entries.status().code()) + ")";
  std::string names;
  for (const auto& e : *entries)
    names += (names.empty() ? "" : " ") + e.name + (e.folder ? "/" : ":" + std::to_string(e.bytes));
  return names;
}

/// The code, if the message names `path`.
Code refused(const Status& status, const std::string& path) {
  CHECK_MESSAGE(status.message().find("'" + path + "'") != std::string::npos, status.message());
  return status.code();
}

}  // namespace

TEST_CASE("what was written is read, in any pieces, by any that opens the file") {
  on_each([](Storage& storage, const std::string& dir) {
    auto made = storage.create(dir + "/f", Access::buffered);
    REQUIRE(made.ok());
    CHECK((*made)->write_at(4, bytes_of("world").data(), 5).ok());
    CHECK((*made)->write_at(0, bytes_of("hel-").data(), 4).ok());
    CHECK((*made)->write_at(3, bytes_of("lo").data(), 1).ok());
    CHECK(*(*made)->size() == 9);
    auto opened = storage.open(dir + "/f", Access::buffered);
    REQUIRE(opened.ok());
    std::string text(5, ' ');
    for (File* file : {made->get(), opened->get()}) {
      CHECK(file->read_at(2, reinterpret_cast<std::byte*>(text.data()), 5).ok());
      CHECK(text == "llwor");
    }
    CHECK((*opened)->read_at(9, nullptr, 0).ok());
  });
}

TEST_CASE(
    "a file has the size that was reserved for it at once, with zeros where nothing was written, and may still grow") {
  on_each([](Storage& storage, const std::string& dir) {
    for (const auto access : {Access::buffered, Access::direct}) {
      const std::string path = dir + (access == Access::direct ? "/d" : "/b");
      auto made = storage.create(path, access);
      REQUIRE(made.ok());
      CHECK((*made)->reserve(5).ok());
      CHECK((*made)->reserve(3).ok());  // never smaller
      CHECK(*(*made)->size() == 5);
      CHECK((*made)->write_at(1, bytes_of("abc").data(), 3).ok());
      CHECK(text_in(storage, path) == std::string("\0abc\0", 5));
      CHECK((*made)->write_at(4, bytes_of("de").data(), 2).ok());
      CHECK(text_in(storage, path) == std::string("\0abcde", 6));
    }
    auto reader = storage.open(dir + "/b", Access::buffered);
    REQUIRE(reader.ok());
    CHECK(refused((*reader)->reserve(9), dir + "/b") == Code::io);
    CHECK(*(*reader)->size() == 6);
  });
}

TEST_CASE("a read past the end says how many bytes there are and how many were wanted") {
  on_each([](Storage& storage, const std::string& dir) {
    write(storage, dir + "/f", "hello");
    std::byte into[4096];
    for (const auto access : {Access::buffered, Access::direct}) {
      auto file = storage.open(dir + "/f", access);
      REQUIRE(file.ok());
      const Status s = (*file)->read_at(2, into, 4);
      CHECK(refused(s, dir + "/f") == Code::io);
      CHECK(s.message().find("5 bytes are there, 6 are wanted") != std::string::npos);
      CHECK((*file)->read_at(0, into, 4096).code() == Code::io);
    }
  });
}

TEST_CASE("errors have the code of what happened and name the path") {
  on_each([](Storage& storage, const std::string& dir) {
    const std::string none = dir + "/none", file = dir + "/file", folder = dir + "/folder";
    write(storage, file, "text");
    REQUIRE(storage.make_dir(folder).ok());
    write(storage, folder + "/inside", "text");
    CHECK(refused(storage.open(none, Access::buffered).status(), none) == Code::not_found);
    CHECK(refused(storage.open(folder, Access::direct).status(), folder) == Code::io);
    CHECK(refused(storage.create(file, Access::buffered).status(), file) == Code::io);
    CHECK(refused(storage.create(none + "/x", Access::direct).status(), none + "/x") == Code::not_found);
    CHECK(refused(storage.list(none).status(), none) == Code::not_found);
    CHECK(refused(storage.list(file).status(), file) == Code::io);
    CHECK(refused(storage.rename(none, file), none) == Code::not_found);
    CHECK(refused(storage.rename(file, folder), file) == Code::io);
    CHECK(refused(storage.remove(none), none) == Code::not_found);
    CHECK(refused(storage.remove(folder), folder) == Code::io);
    CHECK(refused(storage.sync_dir(none), none) == Code::not_found);
    CHECK(refused(storage.make_dir(file + "/below"), file + "/below") == Code::io);
    auto reader = storage.open(file, Access::buffered);
    REQUIRE(reader.ok());
    CHECK(refused((*reader)->write_at(0, nullptr, 1), file) == Code::io);
    CHECK(text_in(storage, file) == "text");
  });
}

TEST_CASE("folders: made with their parents, listed by name, removed when empty") {
  on_each([](Storage& storage, const std::string& dir) {
    CHECK(storage.make_dir(dir + "/a/b").ok());
    CHECK(storage.make_dir(dir + "/a/b").ok());
    write(storage, dir + "/a/z", "12345");
    write(storage, dir + "/a/a", "");
    CHECK(names_in(storage, dir + "/a") == "a:0 b/ z:5");
    CHECK(storage.sync_dir(dir + "/a").ok());
    CHECK(storage.remove(dir + "/a/b").ok());
    CHECK(storage.remove(dir + "/a/a").ok());
    CHECK(names_in(storage, dir + "/a") == "z:5");
    CHECK(storage.rename(dir + "/a", dir + "/c").ok());
    CHECK(names_in(storage, dir) == "c/");
    CHECK(text_in(storage, dir + "/c/z") == "12345");
  });
}

TEST_CASE("a folder's lock has one holder at a time, whatever is done in the folder, and is free when that one goes") {
  on_each([](Storage& storage, const std::string& dir) {
    REQUIRE(storage.make_dir(dir + "/a").ok());
    REQUIRE(storage.make_dir(dir + "/b").ok());
    auto lock = storage.lock_dir(dir + "/a");
    REQUIRE_MESSAGE(lock.ok(), lock.status().message());
    CHECK(refused(storage.lock_dir(dir + "/a").status(), dir + "/a") == Code::unavailable);
    CHECK(storage.lock_dir(dir + "/b").ok());
    write(storage, dir + "/a/file", "1");
    CHECK(names_in(storage, dir + "/a") == "file:1");  // the lock is no file
    lock->reset();
    CHECK(storage.lock_dir(dir + "/a").ok());
    CHECK(refused(storage.lock_dir(dir + "/none").status(), dir + "/none") == Code::not_found);
    CHECK(refused(storage.lock_dir(dir + "/a/file").status(), dir + "/a/file") == Code::io);
  });
}

TEST_CASE(
    "an error of the disk in locking a folder is told; a filesystem without locks of folders gives one that excludes "
    "no process") {
  TempDir dir;
  FileStorage storage;
  for (const int error : {EIO, ESTALE, ENOMEM}) {
    CAPTURE(error);
    flock_error = error;
    const auto lock = storage.lock_dir(dir.path());
    flock_error = 0;
    CHECK(refused(lock.status(), dir.path()) == Code::io);
    CHECK_MESSAGE(lock.status().message().find(std::strerror(error)) != std::string::npos, lock.status().message());
  }
  for (const int error : {ENOLCK, EBADF, EOPNOTSUPP}) {
    CAPTURE(error);
    flock_error = error;
    const auto lock = storage.lock_dir(dir.path());
    flock_error = 0;
    REQUIRE(lock.ok());
    CHECK_FALSE((*lock)->excludes());
  }
  const auto lock = storage.lock_dir(dir.path());
  REQUIRE(lock.ok());
  CHECK((*lock)->excludes());
}

TEST_CASE(
    "ST-1 (synced bytes), ST-2 (synced names): sync() has the system sync the file, sync_dir() the folder; an error of "
    "that is told") {
  const TempDir dir;
  FileStorage storage;
  const std::string folder = std::filesystem::canonical(dir.path()).string();
  Syncs syncs;
  for (const auto access : {Access::buffered, Access::direct}) {
    const std::string path = folder + (access == Access::direct ? "/direct" : "/buffered");
    CAPTURE(path);
    const auto file = storage.create(path, access);
    REQUIRE_MESSAGE(file.ok(), file.status().message());
    REQUIRE((*file)->write_at(0, bytes_of("text").data(), 4).ok());
    syncs.paths.clear();
    CHECK((*file)->sync().ok());
    CHECK(syncs.paths == std::vector<std::string>{path});
    for (const auto& [error, code] :
         {std::pair<int, Code>{EIO, Code::io}, {ENOSPC, Code::exhausted}, {EDQUOT, Code::exhausted}}) {
      syncs.errors = {error};
      CHECK(refused((*file)->sync(), path) == code);
    }
    syncs.paths.clear();
    syncs.errors = {EINTR};  // a signal: once more
    CHECK((*file)->sync().ok());
    CHECK(syncs.paths == std::vector<std::string>{path, path});
  }
  syncs.paths.clear();
  CHECK(storage.sync_dir(folder).ok());
  CHECK(syncs.paths == std::vector<std::string>{folder});
  syncs.errors = {EIO};
  CHECK(refused(storage.sync_dir(folder), folder) == Code::io);
  for (const int error : {EINVAL, EOPNOTSUPP}) {  // a filesystem that syncs no folders
    CAPTURE(error);
    syncs.errors = {error};
    CHECK(storage.sync_dir(folder).ok());
  }
  syncs.errors = {EROFS};
  CHECK(refused(storage.sync_dir(folder), folder) == Code::denied);
  syncs.paths.clear();
  CHECK(write_file(storage, folder + "/whole", bytes_of("text")).ok());
  CHECK(syncs.paths == std::vector<std::string>{folder + "/whole.tmp", folder});
  syncs.errors = {EIO};
  CHECK(write_file(storage, folder + "/lost", bytes_of("text")).code() == Code::io);
  CHECK(names_in(storage, folder) == "buffered:4 direct:4 whole:4");
  syncs.paths.clear();
  CHECK(write_file(storage, folder + "/whole", bytes_of("other"), Durability::synced, ".7.part").ok());
  CHECK(syncs.paths == std::vector<std::string>{folder + "/whole.7.part", folder});
  syncs.paths.clear();
  CHECK(write_file(storage, folder + "/whole", bytes_of("another"), Durability::not_synced).ok());
  CHECK(syncs.paths.empty());
  CHECK(names_in(storage, folder) == "buffered:4 direct:4 whole:7");
  CHECK(text_in(storage, folder + "/whole") == "another");
}

TEST_CASE(
    "ST-2: make_durable_dir syncs the name of each folder that it makes before it makes the next, that of the deepest "
    "that is there, and no other") {
  const TempDir dir;
  FileStorage storage;
  const std::string top = std::filesystem::canonical(dir.path()).string(), above = folder_of(top);
  Syncs syncs;
  using Paths = std::vector<std::string>;
  CHECK(make_durable_dir(storage, top + "/a/b/c").ok());
  CHECK(syncs.paths == Paths{above, top, top + "/a", top + "/a/b"});
  for (const char* path : {"/a/b/c", "/a/b//c/"}) {
    CAPTURE(path);
    syncs.paths.clear();
    CHECK(make_durable_dir(storage, top + path).ok());
    CHECK(syncs.paths == Paths{top + "/a/b"});
  }
  syncs.paths.clear();
  CHECK(make_durable_dir(storage, top + "/a/d/").ok());
  CHECK(syncs.paths == Paths{top, top + "/a"});
  syncs.errors = {EIO};
  CHECK(refused(make_durable_dir(storage, top + "/e"), above) == Code::io);
  CHECK_FALSE(std::filesystem::exists(top + "/e"));
  constexpr int needs_none = EINVAL;  // a filesystem whose folders need no sync
  syncs.errors = {needs_none, EIO};
  CHECK(refused(make_durable_dir(storage, top + "/e/f"), top) == Code::io);
  CHECK_FALSE(std::filesystem::exists(top + "/e/f"));
  syncs.paths.clear();  // it has made the first of two, which it could not sync: the next call does
  CHECK(make_durable_dir(storage, top + "/e/f").ok());
  CHECK(syncs.paths == Paths{top, top + "/e"});
  write(storage, top + "/file", "text");
  CHECK(refused(make_durable_dir(storage, top + "/file/below"), top + "/file/below") == Code::io);
  std::filesystem::permissions(top + "/e", std::filesystem::perms::owner_exec);
  CHECK(make_durable_dir(storage, top + "/e/f").ok());  // a user but root may not read the folder, nor sync it
  std::filesystem::permissions(top + "/e", std::filesystem::perms::owner_all);
}

TEST_CASE(
    "make_durable_dir makes folders below one whose own folder cannot be synced: read-only, or not to be read; what it "
    "makes itself must be synced") {
  const TempDir dir;
  FileStorage storage;
  const std::string top = std::filesystem::canonical(dir.path()).string(), above = folder_of(top);
  using Paths = std::vector<std::string>;
  {
    Syncs syncs;
    syncs.errors = {EROFS};  // as of a filesystem that is mounted read-only, with `top` mounted in it
    CHECK(make_durable_dir(storage, top + "/a").ok());
    CHECK(syncs.paths == Paths{above, top, top});
    syncs.errors = {EROFS, EROFS};  // `top` is on it, too
    CHECK(make_durable_dir(storage, top + "/b").ok());
    syncs.errors = {EROFS, EIO};
    CHECK(refused(make_durable_dir(storage, top + "/c"), top) == Code::io);
    constexpr int needs_none = EINVAL;
    syncs.errors = {needs_none, EROFS, EROFS};
    CHECK(refused(make_durable_dir(storage, top + "/d"), top + "/d") == Code::denied);
    syncs.errors = {needs_none, EIO};
    CHECK(refused(make_durable_dir(storage, top + "/e"), top) == Code::io);
  }
  // A folder that users may write into, and may not list.
  std::filesystem::permissions(top, static_cast<std::filesystem::perms>(0755));
  std::filesystem::create_directories(top + "/drop");
  write(storage, top + "/drop/text", "text");
  std::filesystem::permissions(top + "/drop", static_cast<std::filesystem::perms>(0333));
  std::filesystem::create_directories(top + "/closed/inside");
  std::filesystem::permissions(top + "/closed", std::filesystem::perms::none);
  Syncs syncs;
  ::setfsuid(65534);  // root reads everything; of another user the call has no effect
  const Status made = make_durable_dir(storage, top + "/drop/a/b"), again = make_durable_dir(storage, top + "/drop/a"),
               file = make_durable_dir(storage, top + "/drop/text"),
               closed = make_durable_dir(storage, top + "/closed/inside/c");
  const bool is_root = storage.list(top + "/drop").ok();
  ::setfsuid(::geteuid());
  CHECK_MESSAGE(made.ok(), made.message());
  CHECK_MESSAGE(again.ok(), again.message());
  CHECK(std::filesystem::is_directory(top + "/drop/a/b"));
  CHECK(refused(file, top + "/drop/text") == Code::io);
  if (!is_root) {
    CHECK(syncs.paths == Paths{top, top + "/drop/a", top + "/drop/a", top + "/drop/a"});
    CHECK(refused(closed, top + "/closed/inside/c") == Code::denied);
  }
  std::filesystem::permissions(top + "/drop", std::filesystem::perms::owner_all);
  std::filesystem::permissions(top + "/closed", std::filesystem::perms::owner_all);
}

TEST_CASE("ST-2: what a call of make_durable_dir that has failed, or was killed, has made is durable after the next") {
  int failures = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    bool failed = true;
    for (std::int64_t operation = 0; failed; ++operation) {
      CAPTURE(operation);
      SimStorage storage;
      storage.fail(operation);
      failed = !make_durable_dir(storage, "a/b/c").ok();
      failures += failed ? 1 : 0;
      storage.fail(-1);
      REQUIRE(make_durable_dir(storage, "a/b/c").ok());
      storage.crash(seed);
      CHECK(storage.list("a/b/c").ok());
    }
  }
  CHECK(failures >= 20 * 6);  // of each folder that is made or synced
}

TEST_CASE("ST-2: a folder that make_durable_dir has made is there after a crash, with its parents") {
  int lost = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    SimStorage storage;
    REQUIRE(make_durable_dir(storage, "/a/b/c").ok());
    REQUIRE(make_durable_dir(storage, "x/y").ok());
    storage.crash(seed);
    CHECK(names_in(storage, "/a/b") == "c/");
    CHECK(names_in(storage, "x") == "y/");
    // One that make_dir has made may be lost: a crash of this disk with this seed shows it.
    SimStorage other;
    REQUIRE(other.make_dir("/a/b/c").ok());
    other.crash(seed);
    lost += other.list("/a/b/c").ok() ? 0 : 1;
  }
  CHECK(lost > 0);
}

TEST_CASE("a rename replaces its target; who had opened that still reads it") {
  on_each([](Storage& storage, const std::string& dir) {
    write(storage, dir + "/old", "old");
    write(storage, dir + "/new", "new");
    auto before = storage.open(dir + "/old", Access::buffered);
    REQUIRE(before.ok());
    CHECK(storage.rename(dir + "/new", dir + "/old").ok());
    CHECK(names_in(storage, dir) == "old:3");
    CHECK(text_in(storage, dir + "/old") == "new");
    std::string text(3, ' ');
    CHECK((*before)->read_at(0, reinterpret_cast<std::byte*>(text.data()), 3).ok());
    CHECK(text == "old");
  });
}

TEST_CASE("write_file replaces a file as a whole and leaves nothing beside it, whatever was left there") {
  on_each([](Storage& storage, const std::string& dir) {
    write(storage, dir + "/f.tmp", "what a crash has left");
    for (const std::string text : {"first", "", "third, and longer"}) {
      CHECK(write_file(storage, dir + "/f", bytes_of(text)).ok());
      CHECK(text_in(storage, dir + "/f") == text);
      CHECK(names_in(storage, dir) == "f:" + std::to_string(text.size()));
    }
    CHECK(write_file(storage, dir + "/none/f", bytes_of("x")).code() == Code::not_found);
  });
}

TEST_CASE("folder_of: everything before the last slash") {
  CHECK(folder_of("a/b/c") == "a/b");
  CHECK(folder_of("/a") == "/");
  CHECK(folder_of("a") == ".");
}

TEST_CASE("a direct file takes transfers of any offset, length and address, like a buffered one") {
  on_each([](Storage& storage, const std::string& dir) {
    constexpr std::int64_t size = 300'000;
    auto memory = allocate_host(2 * size);
    REQUIRE(memory.ok());
    std::byte* const data = (*memory)->data();
    std::vector<std::byte> expected(size);
    auto made = storage.create(dir + "/f", Access::direct);
    REQUIRE(made.ok());
    REQUIRE((*made)->write_at(0, expected.data(), size).ok());
    std::uint64_t draw = 0;
    const auto random = [&](std::int64_t below) {
      return static_cast<std::int64_t>(philox(7, draw++, 0)[0] % static_cast<std::uint32_t>(below));
    };
    const auto place = [&](std::int64_t below) {
      return random(2) ? random(below) : random(below) / storage_alignment * storage_alignment;
    };
    for (int round = 0; round < 200; ++round) {
      const std::int64_t offset = place(size), bytes = std::min(size - offset, place(100'000)), address = place(size);
      if (round % 2 == 0) {
        for (std::int64_t i = 0; i < bytes; ++i)
          data[address + i] = expected[static_cast<std::size_t>(offset + i)] = static_cast<std::byte>(random(256));
        REQUIRE((*made)->write_at(offset, data + address, bytes).ok());
      } else {
        REQUIRE((*made)->read_at(offset, data + address, bytes).ok());
        REQUIRE(std::equal(data + address, data + address + bytes, expected.begin() + offset));
      }
    }
    REQUIRE((*made)->sync().ok());
    for (const auto access : {Access::buffered, Access::direct}) {
      auto file = storage.open(dir + "/f", access);
      REQUIRE(file.ok());
      CHECK(*(*file)->size() == size);
      REQUIRE((*file)->read_at(0, data, size).ok());
      CHECK(std::equal(data, data + size, expected.begin()));
    }
  });
}
