#include "apps/lm/unpack.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "apps/lm/data.h"
#include "tests/apps/contains.h"
#include "tests/apps/some_text.h"
#include "tests/apps/temp_dir.h"
#include "tests/syncs.h"

using namespace troupe;
using namespace troupe::lm;
using troupe::test::contains;
using troupe::test::some_text;

TEST_CASE("gzip files are unpacked once; plain files stay where they are; damaged ones are refused") {
  test::TempDir dir;
  const std::string text = some_text(100'000), cache = dir / "corpus";
  const auto plain = test::write_text(dir / "a.txt", text);
  CHECK(*plain_text_path(plain, cache) == plain);
  CHECK_FALSE(std::filesystem::exists(cache));

  REQUIRE(std::system(("gzip -k " + plain).c_str()) == 0);
  const auto unpacked = plain_text_path(plain + ".gz", cache);
  REQUIRE_MESSAGE(unpacked.ok(), unpacked.status().message());
  CHECK(test::read_text(*unpacked) == text);
  test::write_text(*unpacked, "kept");
  CHECK(test::read_text(*plain_text_path(plain + ".gz", cache)) == "kept");

  const std::string packed = test::read_text(plain + ".gz");
  const auto cut = test::write_text(dir / "cut.gz", packed.substr(0, packed.size() / 2));
  CHECK(contains(plain_text_path(cut, cache).status().message(), "damaged gzip file"));
  std::string flipped = packed;
  flipped[flipped.size() / 2] ^= 0x55;
  const auto bad = test::write_text(dir / "bad.gz", flipped);
  CHECK(contains(plain_text_path(bad, cache).status().message(), "damaged gzip file"));
  CHECK(std::distance(std::filesystem::directory_iterator(cache), {}) == 1);
  CHECK_FALSE(plain_text_path(plain + ".gz", plain + "/no").ok());
  const std::string longest = dir / (std::string(252, 'n') + ".gz");  // of a name that the file system takes
  std::filesystem::copy(plain + ".gz", longest);
  const auto of_longest = plain_text_path(longest, cache);
  REQUIRE_MESSAGE(of_longest.ok(), of_longest.status().message());
  CHECK(test::read_text(*of_longest) == text);
}

TEST_CASE(
    "an unpacked text is synced before it has the name under which later runs trust it; an error of that is told") {
  test::TempDir dir;
  const auto packed = test::write_text(dir / "t", some_text(1000)) + ".gz";
  REQUIRE(std::system(("gzip " + (dir / "t")).c_str()) == 0);
  test::Syncs syncs;
  syncs.errors = {EIO};
  bool of_output = false;
  CHECK(plain_text_path(packed, dir / "corpus", never_give_up, &of_output).status().code() == Code::io);
  CHECK(of_output);
  CHECK(std::filesystem::is_empty(dir / "corpus"));
  syncs.paths.clear();
  const auto plain = plain_text_path(packed, dir / "corpus");
  REQUIRE_MESSAGE(plain.ok(), plain.status().message());
  CHECK(syncs.paths == std::vector<std::string>{fmt::format("{}.{}.part", *plain, ::getpid())});
}

TEST_CASE(
    "an unpacked text is found again by what its file holds: never another file's of the same name, size and time") {
  test::TempDir dir;
  namespace fs = std::filesystem;
  const std::string cache = dir / "corpus";
  const auto pack = [&](const std::string& folder, const std::string& text) {
    fs::create_directories(dir / folder);
    const auto path = test::write_text(dir / (folder + "/t"), text);
    REQUIRE(std::system(("gzip -nf " + path).c_str()) == 0);
    const timespec times[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
    REQUIRE(::utimensat(AT_FDCWD, (path + ".gz").c_str(), times, 0) == 0);
    return path + ".gz";
  };
  const auto text_of = [&](const std::string& path) {
    const auto plain = plain_text_path(path, cache);
    REQUIRE_MESSAGE(plain.ok(), plain.status().message());
    return test::read_text(*plain);
  };
  const auto one = pack("one", "same"), two = pack("two", "size");
  REQUIRE(fs::file_size(one) == fs::file_size(two));
  CHECK(text_of(one) == "same");
  CHECK(text_of(two) == "size");
  CHECK(*plain_text_path(pack("three", "same"), cache) == *plain_text_path(one, cache));
  pack("one", "size");  // rewritten where it is
  CHECK(text_of(one) == "size");
  CHECK(std::distance(fs::directory_iterator(cache), {}) == 2);

  std::mt19937 random(1);
  std::string noise(3 << 19, '\0');  // does not shrink: packed, it has more than one block of checksums
  for (char& c : noise) c = static_cast<char>(random());
  CHECK(text_of(pack("one", noise)) == noise);
  noise.back() ^= 1;
  CHECK(text_of(pack("one", noise)) == noise);
}

TEST_CASE("a caller that gives up while a text is unpacked or checked gets its own error, and leaves no part of it") {
  test::TempDir dir;
  const std::string text = some_text(5'000'000), cache = dir / "corpus";
  const auto plain = test::write_text(dir / "a.txt", text);
  REQUIRE(std::system(("gzip -k " + plain).c_str()) == 0);
  std::uintmax_t unpacked = 0;
  const auto in_the_midst = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(cache))
      if (entry.path().extension() == ".part") unpacked = entry.file_size();
    return unpacked > 0 ? Status(Code::unavailable, "enough") : Status();
  };
  CHECK(plain_text_path(plain + ".gz", cache, in_the_midst).status().message() == "enough");
  CHECK(unpacked > 0);
  CHECK(unpacked < text.size());
  CHECK(std::filesystem::is_empty(cache));
  CHECK(test::read_text(*plain_text_path(plain + ".gz", cache)) == text);

  const GiveUp at_once = [] { return Status(Code::unavailable, "enough"); };
  CHECK(plain_text_path(plain + ".gz", dir / "other", at_once).status().message() == "enough");
  CHECK(std::filesystem::is_empty(dir / "other"));
  CHECK(Corpus::open({plain, 64, 0.1, 1, 255}, at_once).status().message() == "enough");
}

TEST_CASE("a packed text without a folder to unpack it into is read from a file that has no name") {
  test::TempDir dir;
  const std::string text = some_text(100'000);
  const auto plain = test::write_text(dir / "a.txt", text);
  REQUIRE(std::system(("gzip -k " + plain).c_str()) == 0);
  {
    const auto as_it_is = PlainText::open(plain), unpacked = PlainText::open(plain + ".gz");
    REQUIRE(as_it_is.ok());
    REQUIRE_MESSAGE(unpacked.ok(), unpacked.status().message());
    CHECK(as_it_is->path() == plain);
    CHECK(test::read_text(unpacked->path()) == text);
    const auto corpus = Corpus::open({unpacked->path(), 64, 0.1, 1});
    REQUIRE_MESSAGE(corpus.ok(), corpus.status().message());
    CHECK(corpus->in_place().ok());
    CHECK(std::filesystem::read_symlink(unpacked->path()).string().ends_with(" (deleted)"));
  }
  CHECK(dir.entries() == 2);

  const std::string packed = test::read_text(plain + ".gz");
  const auto cut = test::write_text(dir / "cut.gz", packed.substr(0, packed.size() / 2));
  CHECK(contains(PlainText::open(cut).status().message(), "damaged gzip file"));
  CHECK(PlainText::open(dir / "none").status().code() == Code::not_found);
  const GiveUp at_once = [] { return Status(Code::unavailable, "enough"); };
  CHECK(PlainText::open(plain + ".gz", at_once).status().message() == "enough");
  const GiveUp never_but_write = [&] {
    std::ofstream(plain + ".gz", std::ios::app) << "more";
    return Status();
  };
  const auto changed = PlainText::open(plain + ".gz", never_but_write).status().message();
  CHECK_MESSAGE(contains(changed, "a.txt.gz' has grown since"), changed);
}

TEST_CASE("a gzip file of several members is read to its last byte: damage behind the first member is found") {
  test::TempDir dir;
  const auto pack = [&](const std::string& name, const std::string& text) {
    const auto path = test::write_text(dir / name, text);
    REQUIRE(std::system(("gzip -n " + path).c_str()) == 0);
    return test::read_text(path + ".gz");
  };
  const std::string first = some_text(100'000), second = some_text(3000);
  const std::string one = pack("one", first), two = pack("two", second), none = pack("none", "");
  int files = 0;
  const auto unpacked = [&](const std::string& packed) {
    const auto path = test::write_text(dir / fmt::format("{}.gz", files++), packed);
    const auto kept = plain_text_path(path, dir / "corpus");
    const auto unnamed = PlainText::open(path);
    CHECK(kept.ok() == unnamed.ok());
    return kept.ok() && unnamed.ok() ? test::read_text(*kept) : kept.status().message();
  };
  CHECK(unpacked(one + two) == first + second);
  CHECK(unpacked(none + one + none) == first);
  CHECK(unpacked(one + two + std::string(1000, '\0')) == first + second);  // as on a tape
  std::string flipped = two;
  flipped[0] ^= 1;
  const std::string zeros(7, '\0');
  for (const auto& rest : {flipped, two.substr(0, 1), two.substr(0, 9), two.substr(0, two.size() - 1),
                           std::string("garbage"), zeros + two, zeros + "x"})
    CHECK_MESSAGE(contains(unpacked(one + rest), "is a damaged gzip file: "), unpacked(one + rest));
  const auto empty = unpacked(none + none);
  CHECK_MESSAGE(contains(empty, ".gz' is empty"), empty);
  CHECK(std::distance(std::filesystem::directory_iterator(dir / "corpus"), {}) == 3);
}

TEST_CASE("what a command left that was killed while it unpacked is removed when the next unpacks, and nothing else") {
  test::TempDir dir;
  const auto plain = test::write_text(dir / "a.txt", some_text(1000)), cache = dir / "corpus";
  REQUIRE(std::system(("gzip -k " + plain).c_str()) == 0);
  std::filesystem::create_directories(cache);
  const std::string of_ours = "a-b-0123456789abcdef0123456789abcdef.txt";
  const auto left = test::write_text(cache + "/" + of_ours + ".4711.part", "half");
  for (const std::string& users :
       std::initializer_list<std::string>{"chapter.part", "a-17.txt.4711.part", of_ours, of_ours + ".part",
                                          of_ours + ".x.part", "a-0123456789ABCDEF0123456789abcdef.txt.1.part"})
    test::write_text(cache + "/" + users, "whole");
  CHECK(*plain_text_path(plain, cache) == plain);
  CHECK(std::filesystem::exists(left));
  CHECK(plain_text_path(plain + ".gz", cache).ok());
  CHECK_FALSE(std::filesystem::exists(left));
  CHECK(std::distance(std::filesystem::directory_iterator(cache), {}) == 7);
}
